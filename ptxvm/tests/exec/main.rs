//! The executor, from PTX text: divergence, barriers, blocks that wait for each other, asynchronous copies, calls, numbers, ends.
#![forbid(unsafe_code)]

mod blocks;
mod calls;
mod copies;
mod divergence;
mod ends;
mod gatherings;
mod host;
mod machine;
mod numbers;
mod warps;
