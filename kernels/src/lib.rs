//! Kernels for training, each beside its f64 reference and its fast CPU path.
//!
//! Every op is a folder: the safe call with its checks and contract (`mod.rs`), the obvious formula in f64
//! (`reference.rs`) and the fast native path (`cpu.rs`). Views are contiguous and row-major unless a stride is given.
//! Storage is f32, bf16 or f16; accumulation is f32. Results do not depend on the number of threads.
//!
//! Activations' gradients have the activations' type. Weights' gradients are f32 and are added to what is there, so
//! that micro-batches accumulate.
#![forbid(unsafe_code)]

pub mod attention;
pub mod cast;
pub mod cross_entropy;
pub mod embedding;
pub mod layernorm;
pub mod matmul;
pub mod moe;
pub mod norm;
pub mod optimizer;
pub mod philox;
pub mod residual;
pub mod rmsnorm;
pub mod rope;
pub mod softmax;
pub mod transpose;

mod check;
mod elementary;
mod error;
mod gemm;
mod launch;
mod reduce;
mod rows;
mod scratch;
mod simd;
mod tile;

pub use error::{Dims, KernelError};
pub use launch::{Program, programs};

/// What to do with a gradient that is already there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Write {
    /// Overwrite it.
    #[default]
    Set,
    /// Add to it.
    Add,
}
