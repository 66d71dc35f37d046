//! `Device`, `Stream`, `Event` and `Buffer<T>`: one API over every device.
//!
//! The CPU is always there. A software CUDA device (feature `software`) and a real one (feature `cuda`) take the same
//! calls: memory belongs to one device and is reached from the host by copies (or, on the CPU, directly through
//! [`View::host`]), and whatever runs on a device is ordered by a [`Stream`]. Those two run PTX: [`Module`], [`Kernel`].
//!
//! ```
//! use warpweft_device::Device;
//! let device = Device::open("cpu")?;
//! let stream = device.stream();
//! let mut x = device.upload(&[1.0f32, 2.0, 3.0])?;
//! x.view_mut(1..2)?.fill(&stream, 7.0)?;
//! assert_eq!(x.download(&stream)?, [1.0, 7.0, 3.0]);
//! # Ok::<(), warpweft_device::DeviceError>(())
//! ```
#![deny(unsafe_code)]

mod aligned;
mod buffer;
mod cpu;
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "the boundary with the CUDA driver")]
mod cuda;
#[cfg_attr(not(any(feature = "software", feature = "cuda")), allow(dead_code, reason = "no backend is built"))]
mod driver;
mod dtype;
mod error;
#[cfg_attr(not(any(feature = "software", feature = "cuda")), allow(dead_code, reason = "no backend is built"))]
mod fault;
#[cfg_attr(not(any(feature = "software", feature = "cuda")), allow(dead_code, reason = "no backend is built"))]
mod module;
mod open;
#[cfg(feature = "software")]
mod software;
mod stream;
mod view;

pub use buffer::Buffer;
pub use cpu::CpuPool;
pub use dtype::{DType, Element, Float, bf16, f16};
pub use error::DeviceError;
pub use module::{Arg, Kernel, Module};
pub use open::{Device, DeviceKind, Properties};
#[cfg(feature = "software")]
pub use software::SoftwareOptions;
pub use stream::{Event, Stream, Workspace};
pub use view::{View, ViewMut};
#[cfg(feature = "software")]
pub use warpweft_ptxvm as ptxvm;
