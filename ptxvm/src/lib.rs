//! A software CUDA device: it parses, checks and runs PTX on the CPU, and watches every access.
//!
//! It is for testing code that is meant for NVIDIA GPUs on machines that have none; it is no product for running CUDA
//! programs elsewhere, and it never touches SASS.
//!
//! The way of a kernel: text → [`text`] (lexer, parser) → [`lower`] (types checked against [`table`], registers
//! numbered, labels to targets) → [`program`] → [`exec`] (32 lanes at a time) → [`observe`] (checks, counters).
#![forbid(unsafe_code)]

pub mod exec;
// Until the first rows of the table use it.
#[allow(dead_code, unused_imports, unused_macros)]
mod lanes;
pub mod lower;
pub mod memory;
pub mod numerics;
pub mod observe;
pub mod program;
pub mod registers;
pub mod report;
pub mod system;
pub mod table;
pub mod text;
pub mod types;
