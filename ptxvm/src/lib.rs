//! A software CUDA device: it parses, checks and runs PTX on the CPU, and watches every access.
//!
//! It is for testing code that is meant for NVIDIA GPUs on machines that have none; it is no product for running CUDA
//! programs elsewhere, and it never touches SASS.
//!
//! ```
//! use warpweft_ptxvm::{observe::check::Checks, system::Device, types::Target};
//!
//! let device = Device::new(Target::SM_80)?;
//! let module = device.load(
//!     ".version 8.0
//!      .target sm_80
//!      .address_size 64
//!      .entry twice(.param .u64 x) {
//!          .reg .b32 %r<3>;
//!          .reg .b64 %rd<4>;
//!          ld.param.u64 %rd1, [x];
//!          mov.u32 %r1, %tid.x;
//!          mul.wide.u32 %rd2, %r1, 4;
//!          add.s64 %rd3, %rd1, %rd2;
//!          ld.global.u32 %r2, [%rd3];
//!          add.s32 %r2, %r2, %r2;
//!          st.global.u32 [%rd3], %r2;
//!          ret;
//!      }",
//! )?;
//! let x = device.upload(&[1u32, 2, 3])?;
//! let run = module.kernel("twice")?.launch([1, 1, 1], [3, 1, 1]).arg(&x).check(Checks::ALL).run()?;
//! assert_eq!(run.errors(), 0, "{run}");
//! assert_eq!(device.download::<u32>(&x)?, [2, 4, 6]);
//!
//! // One thread too many, and the report says which thread, where, and what is near.
//! let run = module.kernel("twice")?.launch([1, 1, 1], [4, 1, 1]).arg(&x).check(Checks::ALL).run()?;
//! assert!(run.to_string().contains("0 bytes past the end of"), "{run}");
//! # Ok::<(), warpweft_ptxvm::system::SystemError>(())
//! ```
//!
//! The way of a kernel: text → [`text`] (lexer, parser) → [`lower`] (types checked against [`table`], registers
//! numbered, labels to targets) → [`program`] → [`exec`] (32 lanes at a time) → [`observe`] (checks, counters). The
//! host's side of it is [`system`]: devices, modules, launches, streams and events over one address space ([`memory`]).
#![forbid(unsafe_code)]

pub mod exec;
pub mod lower;
pub mod memory;
pub mod observe;
pub mod report;
pub mod system;
pub mod text;

pub use warpweft_ptxvm_isa::{numerics, program, registers, table, types};
