//! The instructions of PTX: the table of forms, what each does to the registers of a warp, the arithmetic behind it, and
//! the lowered program that is made of them.
//!
//! Apart from ptxvm itself because thousands of lane functions take long to compile
//! and seldom change. It knows nothing of memory, of warps that wait, nor of checks.
#![forbid(unsafe_code)]

mod lanes;
pub mod numerics;
pub mod program;
pub mod registers;
pub mod table;
pub mod types;

pub use lanes::vectorised;
