//! The checks on whole kernels: for each, programs that are wrong and must be reported with the right lane and line, and
//! programs that only look wrong and must not be, under every schedule, mode of divergence and mode of asynchrony.
#![forbid(unsafe_code)]

mod async_right;
mod async_wrong;
mod case;
mod deadlock;
mod initcheck;
mod memcheck;
mod nancheck;
mod race_between_blocks;
mod race_right;
mod race_wrong;
mod sync;
mod ways;
