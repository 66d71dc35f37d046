//! `Device`, `Stream`, `Event` and `Buffer<T>`: one API over every device.
//!
//! The CPU is always there. A software CUDA device and a real one take the same calls: memory belongs to one device
//! and is reached from the host by copies (or, on the CPU, directly through [`View::host`]), and whatever runs on a
//! device is ordered by a [`Stream`].
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
#![forbid(unsafe_code)]

mod aligned;
mod buffer;
mod cpu;
mod dtype;
mod error;
mod open;
mod stream;

pub use buffer::{Buffer, View, ViewMut};
pub use cpu::CpuPool;
pub use dtype::{DType, Element, Float, bf16, f16};
pub use error::DeviceError;
pub use open::{Device, DeviceKind};
pub use stream::{Event, Stream};
