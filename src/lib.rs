//! Warpweft: computation, communication and memory for training large models.
//!
//! This crate is the public face of the toolkit; each part is also a package of its own that an embedder can take alone.
#![forbid(unsafe_code)]

pub use warpweft_comm as comm;
pub use warpweft_device as device;
pub use warpweft_kernels as kernels;
pub use warpweft_schedule as schedule;
pub use warpweft_trainer as trainer;
