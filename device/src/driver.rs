//! What a device with memory of its own provides. The public types hold these traits, so that each backend is a folder and
//! nothing outside it knows which there are.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::module::Arg;
use crate::{DeviceError, DeviceKind, Properties};

/// Memory of a device: its address, and the owner that frees it with its last handle.
#[derive(Clone)]
pub(crate) struct Memory {
    pub(crate) address: u64,
    #[cfg_attr(
        not(feature = "software"),
        allow(dead_code, reason = "the CUDA driver waits for kernels before it frees")
    )]
    pub(crate) owner: Option<Arc<dyn Any + Send + Sync>>,
}

/// All addresses of any device: what regions are parts of whose memory is not ours to keep.
pub(crate) static FOREIGN: Memory = Memory { address: 0, owner: None };

/// A device.
pub(crate) trait Driver: fmt::Display + Send + Sync {
    fn kind(&self) -> DeviceKind;
    fn properties(&self) -> Result<Properties, DeviceError>;
    /// Memory in which nothing has a value; `None` where there is not enough.
    fn allocate(&self, bytes: u64) -> Result<Option<Memory>, DeviceError>;
    fn queue(&self) -> Result<Arc<dyn Queue>, DeviceError>;
    /// Waits for the work of all queues.
    fn synchronize(&self) -> Result<(), DeviceError>;
    fn load(&self, ptx: &str) -> Result<Arc<dyn Code>, DeviceError>;
    /// Lets kernels of this device reach the memory of another; false where that cannot be.
    fn enable_peer(&self, to: &dyn Driver) -> Result<bool, DeviceError>;
    /// Whether queues of this device can copy from and wait for that one.
    fn beside(&self, other: &dyn Driver) -> bool;
    fn as_any(&self) -> &dyn Any;
}

/// A stream of a device. Whatever it is given keeps the memory alive until it is done.
pub(crate) trait Queue: Send + Sync {
    fn write(&self, to: &Memory, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>;
    /// Waits for all work before, and copies out.
    fn read(&self, from: &Memory, offset: u64, out: &mut [u8]) -> Result<(), DeviceError>;
    /// Repeats a value of 1, 2, 4 or 8 bytes.
    fn fill(&self, to: &Memory, offset: u64, bytes: u64, value: &[u8]) -> Result<(), DeviceError>;
    fn copy(&self, to: &Memory, to_offset: u64, from: &Memory, from_offset: u64, bytes: u64)
    -> Result<(), DeviceError>;
    fn record(&self) -> Result<Arc<dyn Mark>, DeviceError>;
    fn wait(&self, mark: &dyn Mark) -> Result<(), DeviceError>;
    fn synchronize(&self) -> Result<(), DeviceError>;
    /// What kernels printed since the last time, as of the last synchronisation.
    fn take_output(&self) -> Vec<u8>;
    fn as_any(&self) -> &dyn Any;
}

/// A recorded event.
pub(crate) trait Mark: Send + Sync {
    fn is_reached(&self) -> bool;
    fn since(&self, earlier: &dyn Mark) -> Option<Duration>;
    fn as_any(&self) -> &dyn Any;
}

/// A loaded module.
pub(crate) trait Code: Send + Sync {
    /// A kernel by name, or the error that names those there are.
    fn kernel(&self, name: &str) -> Result<Arc<dyn Entry>, DeviceError>;
    /// Address and bytes of a variable.
    fn global(&self, name: &str) -> Result<(u64, u64), DeviceError>;
}

/// A kernel of a loaded module, which it keeps.
pub(crate) trait Entry: Send + Sync {
    fn launch(
        &self,
        queue: &dyn Queue,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        args: &[Arg],
    ) -> Result<(), DeviceError>;
}
