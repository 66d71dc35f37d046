//! Systems of devices: their memory, what they are, and what the host does with them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use bytemuck::Pod;

use super::stream::Queue;
use super::{Buffer, LaunchOptions, Module, Stream, SystemError};
use crate::exec::{HostFunction, HostFunctions};
use crate::memory::{AddressSpace, DEFAULT_DEVICE_BYTES, DeviceId};
use crate::types::Target;

/// What a device is, and how its launches run unless they say otherwise.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// The GPU it stands for.
    pub target: Target,
    /// Bytes of its memory; only what is touched takes memory of the host.
    pub memory_bytes: u64,
    /// Multiprocessors: how many blocks are resident together.
    pub multiprocessors: u32,
    /// For launches that do not set their own.
    pub launch: LaunchOptions,
}

impl From<Target> for DeviceOptions {
    /// The best-known GPU of a target: A100, L40, H100.
    fn from(target: Target) -> Self {
        let multiprocessors = match target.sm {
            ..=80 => 108,
            81..=89 => 142,
            _ => 132,
        };
        let launch = LaunchOptions::of(target);
        DeviceOptions { target, memory_bytes: DEFAULT_DEVICE_BYTES, multiprocessors, launch }
    }
}

/// Several devices in one address space. A clone is the same system.
#[derive(Clone)]
pub struct System(Arc<Shared>);

/// What all handles of a system share.
struct Shared {
    memory: Arc<AddressSpace>,
    devices: Vec<DeviceState>,
    host: RwLock<Arc<HostFunctions>>,
    grids: AtomicU64,
    buffers: AtomicU64,
}

struct DeviceState {
    options: DeviceOptions,
    stopped: Mutex<Option<SystemError>>,
    streams: Mutex<Vec<Weak<Queue>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl System {
    /// Devices that reach each other's memory once [`Device::enable_peer`] says so.
    ///
    /// # Errors
    /// [`SystemError::Memory`] for no device, too many, or too large ones.
    pub fn new<O: Into<DeviceOptions>>(devices: impl IntoIterator<Item = O>) -> Result<System, SystemError> {
        let options: Vec<DeviceOptions> = devices.into_iter().map(Into::into).collect();
        let totals: Vec<u64> = options.iter().map(|options| options.memory_bytes).collect();
        let memory = Arc::new(AddressSpace::new(&totals)?);
        let state = |options| DeviceState { options, stopped: Mutex::default(), streams: Mutex::default() };
        Ok(System(Arc::new(Shared {
            memory,
            devices: options.into_iter().map(state).collect(),
            host: RwLock::default(),
            grids: AtomicU64::new(0),
            buffers: AtomicU64::new(0),
        })))
    }

    /// How many devices there are.
    pub fn devices(&self) -> u32 {
        self.0.devices.len() as u32
    }

    /// A device, counted from 0.
    ///
    /// # Errors
    /// [`MemoryError::NoSuchDevice`](crate::memory::MemoryError::NoSuchDevice).
    pub fn device(&self, index: u32) -> Result<Device, SystemError> {
        let id = DeviceId(index);
        self.0.memory.usage(id)?;
        Ok(Device { system: self.clone(), id })
    }

    /// The memory of all devices, by address.
    pub fn memory(&self) -> &Arc<AddressSpace> {
        &self.0.memory
    }

    /// Provides what modules declare as `.extern .func name`. Kernels that run already keep what they began with.
    pub fn provide(&self, name: &str, function: impl HostFunction + 'static) {
        let mut host = self.0.host.write().unwrap_or_else(PoisonError::into_inner);
        Arc::make_mut(&mut host).insert(name, function);
    }

    pub(super) fn host_functions(&self) -> Arc<HostFunctions> {
        Arc::clone(&self.0.host.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The number of the next grid, which `%gridid` gives.
    pub(super) fn next_grid(&self) -> u64 {
        self.0.grids.fetch_add(1, Relaxed)
    }
}

impl PartialEq for System {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for System {}

/// One device. A clone is the same device.
#[derive(Clone, PartialEq, Eq)]
pub struct Device {
    system: System,
    id: DeviceId,
}

impl Device {
    /// A device in a system of its own.
    ///
    /// # Errors
    /// [`SystemError::Memory`] where its memory is too large.
    pub fn new(options: impl Into<DeviceOptions>) -> Result<Device, SystemError> {
        System::new([options.into()])?.device(0)
    }

    /// The system it is part of.
    pub fn system(&self) -> &System {
        &self.system
    }

    /// Its number in the system.
    pub fn id(&self) -> DeviceId {
        self.id
    }

    fn state(&self) -> &DeviceState {
        &self.system.0.devices[self.id.0 as usize]
    }

    /// What it is.
    pub fn options(&self) -> &DeviceOptions {
        &self.state().options
    }

    /// The memory of all devices of its system, by address.
    pub fn memory(&self) -> &Arc<AddressSpace> {
        self.system.memory()
    }

    /// Reserves memory in which nothing has a value.
    ///
    /// # Errors
    /// [`SystemError::Memory`] when it is full, [`SystemError::Stopped`].
    pub fn allocate(&self, bytes: u64) -> Result<Buffer, SystemError> {
        let number = self.system.0.buffers.fetch_add(1, Relaxed);
        self.allocate_as(&format!("buffer {number}"), bytes)
    }

    /// The same, with a name for reports.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub fn allocate_as(&self, name: &str, bytes: u64) -> Result<Buffer, SystemError> {
        self.check()?;
        let address = self.memory().allocate(self.id, bytes, 1, name)?;
        Ok(Buffer::new(self.clone(), address, bytes))
    }

    /// Memory with a copy of `values`.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub fn upload<T: Pod>(&self, values: &[T]) -> Result<Buffer, SystemError> {
        let buffer = self.allocate(size_of_val(values) as u64)?;
        self.write(&buffer, values)?;
        Ok(buffer)
    }

    /// Copies `values` to the beginning of a buffer.
    ///
    /// # Errors
    /// [`SystemError::Memory`] where they do not fit, [`SystemError::Stopped`].
    pub fn write<T: Pod>(&self, buffer: &Buffer, values: &[T]) -> Result<(), SystemError> {
        self.check()?;
        Ok(self.memory().write(buffer.address(), bytemuck::cast_slice(values))?)
    }

    /// A copy of all of a buffer.
    ///
    /// # Errors
    /// [`SystemError::Ragged`] where its bytes are no whole number of values, [`SystemError::Stopped`].
    pub fn download<T: Pod>(&self, buffer: &Buffer) -> Result<Vec<T>, SystemError> {
        self.check()?;
        let (bytes, size) = (buffer.bytes(), size_of::<T>());
        if size == 0 || !bytes.is_multiple_of(size as u64) {
            return Err(SystemError::Ragged { bytes, size });
        }
        let mut values = vec![T::zeroed(); bytes as usize / size];
        self.memory().read(buffer.address(), bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    /// Sets every value of a buffer; pages that nobody has touched still cost nothing.
    ///
    /// # Errors
    /// [`SystemError::Memory`] where the values are not of 1, 2, 4 or 8 bytes or do not fill it evenly.
    pub fn fill<T: Pod>(&self, buffer: &Buffer, value: T) -> Result<(), SystemError> {
        self.check()?;
        Ok(self.memory().fill(buffer.address(), buffer.bytes(), bytemuck::bytes_of(&value))?)
    }

    /// Compiles a module for this device and gives its variables memory.
    ///
    /// # Errors
    /// [`SystemError::Compile`] with line and column, [`SystemError::Target`], [`SystemError::ExternalVariable`],
    /// [`SystemError::Memory`].
    pub fn load(&self, text: &str) -> Result<Module, SystemError> {
        self.check()?;
        Module::load(self, crate::lower::compile(text)?)
    }

    /// A new stream.
    pub fn stream(&self) -> Stream {
        Stream::new(self.clone())
    }

    /// Waits for all streams of this device. Their runs and errors stay with them.
    pub fn synchronize(&self) {
        let queues: Vec<_> = lock(&self.state().streams).iter().filter_map(Weak::upgrade).collect();
        queues.iter().for_each(|queue| queue.wait());
    }

    /// Lets kernels of this device reach the memory of another.
    ///
    /// # Errors
    /// [`SystemError::OtherSystem`].
    pub fn enable_peer(&self, to: &Device) -> Result<(), SystemError> {
        if self.system != to.system {
            return Err(SystemError::OtherSystem { what: "the peer" });
        }
        Ok(self.memory().enable_peer(self.id, to.id)?)
    }

    /// Fails where a kernel has failed here: as with CUDA, a device is unusable after a fault, a trap or a failed assert.
    ///
    /// # Errors
    /// [`SystemError::Stopped`].
    pub fn check(&self) -> Result<(), SystemError> {
        lock(&self.state().stopped).clone().map_or(Ok(()), Err)
    }

    /// Makes the device usable again, memory as the failed kernel left it. CUDA has no such call.
    pub fn clear_error(&self) {
        *lock(&self.state().stopped) = None;
    }

    pub(super) fn stop(&self, kernel: &str, reason: String) {
        let error = SystemError::Stopped { device: self.id, kernel: kernel.to_owned(), reason };
        lock(&self.state().stopped).get_or_insert(error);
    }

    pub(super) fn register(&self, queue: &Arc<Queue>) {
        let mut streams = lock(&self.state().streams);
        streams.retain(|queue| queue.strong_count() > 0);
        streams.push(Arc::downgrade(queue));
    }
}

impl fmt::Display for Device {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ({})", self.id, self.options().target)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Device({self})")
    }
}

impl fmt::Debug for System {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "System({} devices)", self.devices())
    }
}
