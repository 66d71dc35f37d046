//! The C ABI of Warpweft: what `include/warpweft.h` declares, and nothing else.
//!
//! The header is the contract; read it first. Every function here does three things: it turns the caller's pointers
//! into references, and arrays into regions of the stream's device (`pointer` and `arguments`, the only places that follow
//! them), it calls the Rust API, and it turns what comes back into a status and a sentence (`fault`). No panic crosses
//! the boundary.

mod arguments;
pub mod attention;
pub mod attention_onto;
pub mod buffer;
pub mod collective;
pub mod communicator;
pub mod cross_entropy;
pub mod device;
pub mod dlpack;
mod element;
pub mod elementwise;
pub mod embedding;
pub mod experts;
mod fault;
pub mod grouped;
pub mod matmul;
pub mod moe;
pub mod norms;
pub mod optimizer;
pub mod pointer;
pub mod softmax;
pub mod version;
