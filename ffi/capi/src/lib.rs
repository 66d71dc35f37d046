//! The C ABI of Warpweft: what `include/warpweft.h` declares, and nothing else.
//!
//! The header is the contract; read it first. Every function here does three things: it turns the caller's pointers
//! into references and slices (`pointer`, the only place that reads them), it calls the Rust API, and it turns what
//! comes back into a status and a sentence (`fault`). No panic crosses the boundary.

pub mod attention;
pub mod collective;
pub mod communicator;
pub mod device;
mod element;
mod fault;
pub mod matmul;
pub mod norms;
pub mod pointer;
pub mod version;
