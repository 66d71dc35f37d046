//! Finding and opening a device by name.

use std::fmt;
use std::sync::Arc;

use crate::aligned::Aligned;
use crate::{Buffer, CpuPool, DeviceError, Element, Stream};

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The host's processors, in native Rust.
    Cpu,
}

/// A device: where buffers live and kernels run. Cheap to clone; equal when it is the same opened device.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    kind: DeviceKind,
    pool: CpuPool,
}

impl Device {
    /// The CPU with as many threads as the process may use.
    ///
    /// # Errors
    /// [`DeviceError::Threads`] where the threads cannot be started.
    pub fn cpu() -> Result<Self, DeviceError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self::cpu_with_threads(threads.min(crate::cpu::MAX_THREADS))
    }

    /// The CPU with `threads` threads to a kernel.
    ///
    /// # Errors
    /// [`DeviceError::BadThreads`] for 0 or an absurd count, [`DeviceError::Threads`] where they cannot be started.
    pub fn cpu_with_threads(threads: usize) -> Result<Self, DeviceError> {
        let pool = CpuPool::new(threads)?;
        Ok(Self(Arc::new(Inner { kind: DeviceKind::Cpu, pool })))
    }

    /// Opens a device by its name: `cpu`, or `cpu:N` for N threads.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDevice`] says what was looked for where the name is unknown or the device is not there.
    pub fn open(name: &str) -> Result<Self, DeviceError> {
        let (kind, argument) = name.split_once(':').map_or((name, None), |(kind, argument)| (kind, Some(argument)));
        let missing = |looked_for: String| DeviceError::NoSuchDevice {
            asked: name.to_owned(),
            looked_for,
            available: "cpu, cpu:N (N threads)".to_owned(),
        };
        match (kind, argument) {
            ("cpu", None) => Self::cpu(),
            ("cpu", Some(count)) => {
                let threads = count.parse().map_err(|_| missing(format!("`{count}` is not a thread count")))?;
                Self::cpu_with_threads(threads)
            }
            ("software" | "cuda", _) => Err(missing(format!(
                "looked for a `{kind}` backend in this build of warpweft-device {}, which has none",
                env!("CARGO_PKG_VERSION")
            ))),
            _ => Err(missing(format!("`{kind}` is no kind of device; the kinds are cpu, software and cuda"))),
        }
    }

    /// What it is.
    pub fn kind(&self) -> DeviceKind {
        self.0.kind
    }

    /// The threads of a CPU device.
    pub fn cpu_pool(&self) -> Result<&CpuPool, DeviceError> {
        match self.0.kind {
            DeviceKind::Cpu => Ok(&self.0.pool),
        }
    }

    /// A new stream: what is given to it runs in the order given.
    pub fn stream(&self) -> Stream {
        Stream::new(self.clone())
    }

    /// A buffer of `len` zeros.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn zeros<T: Element>(&self, len: usize) -> Result<Buffer<T>, DeviceError> {
        let memory = Aligned::zeroed(len).ok_or_else(|| DeviceError::OutOfMemory {
            count: len,
            dtype: const { T::DTYPE },
            device: self.to_string(),
        })?;
        Ok(Buffer::from_host(self.clone(), memory))
    }

    /// A buffer with a copy of `values`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn upload<T: Element>(&self, values: &[T]) -> Result<Buffer<T>, DeviceError> {
        let mut buffer = self.zeros(values.len())?;
        buffer.as_view_mut().copy_from_host(&self.stream(), values)?;
        Ok(buffer)
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind {
            DeviceKind::Cpu => f.write_str("cpu"),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind {
            DeviceKind::Cpu => write!(f, "Device(cpu, {} threads)", self.0.pool.threads()),
        }
    }
}
