//! A software CUDA device: it parses, checks and runs PTX on the CPU, and watches every access.
//!
//! It is for testing code that is meant for NVIDIA GPUs on machines that have none; it is no product for running CUDA
//! programs elsewhere, and it never touches SASS.
//!
//! The way of a kernel: text → [`text`] (lexer, parser) → [`lower`] (types checked against [`table`], registers
//! numbered, labels to targets) → [`program`] → [`exec`] (32 lanes at a time) → [`observe`] (checks, counters).
#![forbid(unsafe_code)]

pub mod exec;
pub mod lower;
pub mod memory;
pub mod observe;
pub mod report;
pub mod system;
pub mod text;

pub use warpweft_ptxvm_isa::{numerics, program, registers, table, types};
