//! Finding and opening a device by name.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::aligned::Aligned;
use crate::driver::{Code, Driver};
use crate::fault::{self, Faults};
use crate::{Arg, Buffer, CpuPool, DeviceError, Element, Stream};

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The host's processors, in native Rust.
    Cpu,
    /// A GPU in software: it runs PTX on the CPU and checks every access. Feature `software`.
    Software,
    /// A GPU of NVIDIA, through its driver. Feature `cuda`.
    Cuda,
}

/// What a GPU has, by which a kernel's variant is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Compute capability as one number: 80 is 8.0.
    pub compute: u32,
    /// The most bytes of shared memory that a block may have when it asks for them.
    pub shared_bytes: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// The card, and its driver.
    pub card: String,
}

/// A device: where buffers live and kernels run. Cheap to clone; equal when it is the same opened device.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    backend: Backend,
    /// Devices whose memory kernels of this one reach.
    peers: Mutex<Vec<Device>>,
    /// PTX that lives as long as the program, by where it lies, as it was loaded first.
    programs: Mutex<HashMap<usize, Arc<dyn Code>>>,
    faults: OnceLock<Faults>,
    properties: OnceLock<Properties>,
}

enum Backend {
    Cpu(CpuPool),
    #[cfg_attr(not(any(feature = "software", feature = "cuda")), allow(dead_code, reason = "no backend is built"))]
    Driver(Box<dyn Driver>),
}

impl From<Backend> for Device {
    fn from(backend: Backend) -> Self {
        Self(Arc::new(Inner {
            backend,
            peers: Mutex::default(),
            programs: Mutex::default(),
            faults: OnceLock::new(),
            properties: OnceLock::new(),
        }))
    }
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
        Ok(Backend::Cpu(CpuPool::new(threads)?).into())
    }

    #[cfg(any(feature = "software", feature = "cuda"))]
    pub(crate) fn from_driver(driver: impl Driver + 'static) -> Self {
        Backend::Driver(Box::new(driver)).into()
    }

    /// Opens a device by its name: `cpu`, `cpu:N` for N threads; with the feature `software` also `software` (a device
    /// of its own), `software:N` (device N of those that the process shares, which can be peers), and
    /// `software?sm=90&check=all&seed=1`, with the options of `warpweft ptx run`. With the feature `cuda` also `cuda` and
    /// `cuda:N`, a GPU of NVIDIA.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDevice`] says what was looked for where the name is unknown or the device is not there.
    pub fn open(name: &str) -> Result<Self, DeviceError> {
        let end = name.find([':', '?']).unwrap_or(name.len());
        let (kind, argument) = name.split_at(end);
        match (kind, argument) {
            ("cpu", "") => Self::cpu(),
            ("cpu", count) if count.starts_with(':') => match count[1..].parse() {
                Ok(threads) => Self::cpu_with_threads(threads),
                Err(_) => Err(missing(name, format!("`{}` is not a thread count", &count[1..]))),
            },
            #[cfg(feature = "cuda")]
            ("cuda", argument) => crate::cuda::open(argument).map_err(|looked_for| missing(name, looked_for)),
            #[cfg(feature = "software")]
            ("software", argument) => crate::software::open(argument).map_err(|looked_for| missing(name, looked_for)),
            #[cfg(not(feature = "software"))]
            ("software", _) => Err(absent(name, kind)),
            #[cfg(not(feature = "cuda"))]
            ("cuda", _) => Err(absent(name, kind)),
            _ => Err(missing(name, format!("`{kind}` is no kind of device; the kinds are cpu, software and cuda"))),
        }
    }

    /// What it is.
    pub fn kind(&self) -> DeviceKind {
        match &self.0.backend {
            Backend::Cpu(_) => DeviceKind::Cpu,
            Backend::Driver(driver) => driver.kind(),
        }
    }

    /// The threads of a CPU device.
    ///
    /// # Errors
    /// [`DeviceError::NotHostMemory`] on any other.
    pub fn cpu_pool(&self) -> Result<&CpuPool, DeviceError> {
        match &self.0.backend {
            Backend::Cpu(pool) => Ok(pool),
            Backend::Driver(_) => Err(DeviceError::NotHostMemory { device: self.to_string() }),
        }
    }

    /// The backend of a device with memory of its own.
    pub(crate) fn driver(&self, what: &'static str) -> Result<&dyn Driver, DeviceError> {
        match &self.0.backend {
            Backend::Cpu(_) => Err(DeviceError::NoKernels { what, device: self.to_string() }),
            Backend::Driver(driver) => Ok(driver.as_ref()),
        }
    }

    /// What the GPU has.
    ///
    /// # Errors
    /// [`DeviceError::NoKernels`] on the CPU; a device that does not answer.
    pub fn properties(&self) -> Result<&Properties, DeviceError> {
        if let Some(known) = self.0.properties.get() {
            return Ok(known);
        }
        let properties = self.driver("a GPU's properties")?.properties()?;
        Ok(self.0.properties.get_or_init(|| properties))
    }

    /// PTX that is part of the program, loaded once.
    pub(crate) fn program(&self, ptx: &'static str) -> Result<Arc<dyn Code>, DeviceError> {
        let mut programs = self.0.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let place = ptx.as_ptr().addr();
        if let Some(code) = programs.get(&place) {
            return Ok(code.clone());
        }
        let code = self.driver("a PTX module")?.load(ptx)?;
        programs.insert(place, code.clone());
        Ok(code)
    }

    /// Loads `ptx` on this device in the place of PTX that is part of the program, so that ops use it from now on: to try an
    /// edited kernel without building anew.
    ///
    /// # Errors
    /// As [`Module::load`](crate::Module::load).
    pub fn replace_program(&self, program: &'static str, ptx: &str) -> Result<(), DeviceError> {
        let code = self.driver("a PTX module")?.load(ptx)?;
        self.0.programs.lock().unwrap_or_else(PoisonError::into_inner).insert(program.as_ptr().addr(), code);
        Ok(())
    }

    /// What a kernel that may find wrong data takes, as its last two arguments (a pointer and a u64): the device's status
    /// word, and the number by which the kernel names `what` there. The word is four u64: number, row, value, limit; the
    /// kernel that exchanges the number for 0 writes the rest. The next [`Stream::synchronize`], or copy to the host, is
    /// then [`DeviceError::BadData`].
    ///
    /// # Errors
    /// [`DeviceError::NoKernels`] on the CPU; no memory.
    pub fn fault(&self, what: &'static str) -> Result<[Arg; 2], DeviceError> {
        let driver = self.driver("a status word")?;
        if self.0.faults.get().is_none() {
            let bytes = fault::WORDS * size_of::<u64>();
            let Some(memory) = driver.allocate(bytes as u64)? else {
                return Err(DeviceError::OutOfMemory {
                    count: bytes,
                    dtype: crate::DType::U8,
                    device: self.to_string(),
                });
            };
            // Where two threads come at once, the first one's is taken.
            let _ = self.0.faults.set(Faults::new(memory, driver.queue()?.as_ref())?);
        }
        let faults =
            self.0.faults.get().ok_or_else(|| DeviceError::NoKernels { what: "faults", device: self.to_string() })?;
        Ok(faults.arguments(self, what))
    }

    /// The status word, where a kernel has asked for it.
    pub(crate) fn faults(&self) -> Option<&Faults> {
        self.0.faults.get()
    }

    /// Whether streams of this device can copy from and wait for the other.
    pub(crate) fn beside(&self, other: &Device) -> bool {
        match (&self.0.backend, &other.0.backend) {
            (Backend::Driver(driver), Backend::Driver(other)) => driver.beside(other.as_ref()),
            _ => self == other,
        }
    }

    /// Lets kernels of this device read and write the memory of another of the same kind.
    ///
    /// # Errors
    /// [`DeviceError::NoPeer`] where the two cannot reach each other.
    pub fn enable_peer(&self, to: &Device) -> Result<(), DeviceError> {
        let reached = match (&self.0.backend, &to.0.backend) {
            (Backend::Driver(driver), Backend::Driver(other)) => driver.enable_peer(other.as_ref())?,
            _ => false,
        };
        if !reached {
            return Err(DeviceError::NoPeer { device: self.to_string(), to: to.to_string() });
        }
        if !self.reaches(to) {
            self.0.peers.lock().unwrap_or_else(PoisonError::into_inner).push(to.clone());
        }
        Ok(())
    }

    /// Whether kernels of this device reach the memory of another.
    pub(crate) fn reaches(&self, other: &Device) -> bool {
        self == other || self.0.peers.lock().unwrap_or_else(PoisonError::into_inner).contains(other)
    }

    /// Blocks until the work of all streams is done. What went wrong in it is an error of its stream.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        match &self.0.backend {
            Backend::Cpu(_) => Ok(()),
            Backend::Driver(driver) => driver.synchronize(),
        }
    }

    /// A new stream: what is given to it runs in the order given.
    pub fn stream(&self) -> Stream {
        let queue = match &self.0.backend {
            Backend::Cpu(_) => None,
            Backend::Driver(driver) => Some(driver.queue()),
        };
        Stream::new(self.clone(), queue)
    }

    /// A buffer of `len` zeros.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn zeros<T: Element>(&self, len: usize) -> Result<Buffer<T>, DeviceError> {
        let mut buffer = self.uninitialized(len)?;
        if self.kind() != DeviceKind::Cpu {
            let stream = self.stream();
            buffer.as_view_mut().fill(&stream, T::zeroed())?;
            stream.synchronize()?;
        }
        Ok(buffer)
    }

    /// A buffer of `len` elements that nobody has given a value: zeros on the CPU, anything on a GPU. A software device
    /// with initcheck reports a kernel that depends on one.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn uninitialized<T: Element>(&self, len: usize) -> Result<Buffer<T>, DeviceError> {
        let buffer = match &self.0.backend {
            Backend::Cpu(_) => Aligned::zeroed(len).map(|memory| Buffer::from_host(self.clone(), memory)),
            Backend::Driver(driver) => {
                let memory = match len.checked_mul(size_of::<T>()) {
                    Some(bytes) => driver.allocate(bytes as u64)?,
                    None => None,
                };
                memory.map(|memory| Buffer::from_device(self.clone(), memory, len))
            }
        };
        buffer.ok_or_else(|| DeviceError::OutOfMemory { count: len, dtype: T::DTYPE, device: self.to_string() })
    }

    /// A buffer with a copy of `values`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn upload<T: Element>(&self, values: &[T]) -> Result<Buffer<T>, DeviceError> {
        let mut buffer = self.uninitialized(values.len())?;
        let stream = self.stream();
        buffer.as_view_mut().copy_from_host(&stream, values)?;
        stream.synchronize()?;
        Ok(buffer)
    }
}

/// The error of a kind that this build does not have.
#[cfg(not(all(feature = "software", feature = "cuda")))]
fn absent(asked: &str, kind: &str) -> DeviceError {
    let version = env!("CARGO_PKG_VERSION");
    let looked_for =
        format!("looked for a `{kind}` backend in this build of warpweft-device {version}, which has none");
    missing(asked, looked_for)
}

fn missing(asked: &str, looked_for: String) -> DeviceError {
    let mut available = "cpu, cpu:N (N threads)".to_owned();
    if cfg!(feature = "software") {
        available += ", software, software:N (device N), software?sm=90&check=all (options)";
    }
    if cfg!(feature = "cuda") {
        available += ", cuda, cuda:N (GPU N, where the driver has one)";
    }
    DeviceError::NoSuchDevice { asked: asked.to_owned(), looked_for, available }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.backend {
            Backend::Cpu(_) => f.write_str("cpu"),
            Backend::Driver(driver) => driver.fmt(f),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.backend {
            Backend::Cpu(pool) => write!(f, "Device(cpu, {} threads)", pool.threads()),
            Backend::Driver(driver) => write!(f, "Device({driver})"),
        }
    }
}
