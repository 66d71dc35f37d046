//! The software GPU as a device: ptxvm behind the driver traits.

mod code;
mod name;
mod queue;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use warpweft_ptxvm::exec;
use warpweft_ptxvm::memory::MemoryError;
use warpweft_ptxvm::system::{self, DeviceOptions, LaunchOptions, SystemError};

pub(crate) use self::name::open;
pub(crate) use self::queue::SoftwareQueue;
use crate::driver::{Code, Driver, Memory, Queue};
use crate::{Device, DeviceError, DeviceKind, Properties};

/// What a software device is, and how its kernels run and are watched.
pub type SoftwareOptions = DeviceOptions;

impl Device {
    /// A software GPU of its own.
    ///
    /// ```
    /// # use warpweft_device::{Device, DeviceError, ptxvm};
    /// use ptxvm::{observe::check::Checks, types::Target};
    /// let mut options = warpweft_device::SoftwareOptions::from(Target::SM_80);
    /// options.launch.checks = Checks::ALL;
    /// let device = Device::software(options)?;
    /// # Ok::<(), DeviceError>(())
    /// ```
    ///
    /// # Errors
    /// [`DeviceError::Backend`] for an impossible memory size.
    pub fn software(options: impl Into<SoftwareOptions>) -> Result<Self, DeviceError> {
        let options = options.into();
        let launch = options.launch;
        let device = system::Device::new(options).map_err(|error| failed("software", &error))?;
        Ok(SoftwareDevice { device, launch, name: "software".to_owned() }.into_device())
    }

    /// Software GPUs that can be peers of each other.
    ///
    /// # Errors
    /// [`DeviceError::Backend`] for none, too many, or impossible memory sizes.
    pub fn software_system(options: impl IntoIterator<Item = SoftwareOptions>) -> Result<Vec<Self>, DeviceError> {
        let refused = |error: SystemError| failed("software", &error);
        let system = system::System::new(options).map_err(refused)?;
        let member = |index| {
            let device = system.device(index).map_err(refused)?;
            let launch = device.options().launch;
            Ok(SoftwareDevice { device, launch, name: format!("software:{index}") }.into_device())
        };
        (0..system.devices()).map(member).collect()
    }

    /// The software GPU behind this device: for host functions that kernels call, and for its memory by address.
    pub fn as_software(&self) -> Option<&system::Device> {
        let driver = self.driver("a software device").ok()?;
        driver.as_any().downcast_ref::<SoftwareDevice>().map(|software| &software.device)
    }
}

/// An error of ptxvm that has no name of its own here.
fn failed(device: &str, error: &SystemError) -> DeviceError {
    let device = device.to_owned();
    match error {
        SystemError::Stopped { .. } => DeviceError::Kernel { device, report: error.to_string() },
        _ => DeviceError::Backend { device, reason: error.to_string() },
    }
}

/// One opened software GPU.
struct SoftwareDevice {
    device: system::Device,
    launch: LaunchOptions,
    name: String,
}

impl SoftwareDevice {
    fn into_device(self) -> Device {
        Device::from_driver(self)
    }
}

impl fmt::Display for SoftwareDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Driver for SoftwareDevice {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Software
    }

    fn properties(&self) -> Result<Properties, DeviceError> {
        let target = self.device.options().target;
        Ok(Properties {
            compute: u32::from(target.sm),
            shared_bytes: exec::most_shared(target),
            multiprocessors: self.device.options().multiprocessors,
            card: format!("a software device of {target}"),
        })
    }

    fn allocate(&self, bytes: u64) -> Result<Option<Memory>, DeviceError> {
        match self.device.allocate(bytes) {
            Ok(buffer) => Ok(Some(Memory { address: buffer.address(), owner: Some(Arc::new(buffer)) })),
            Err(SystemError::Memory(MemoryError::OutOfMemory { .. })) => Ok(None),
            Err(error) => Err(failed(&self.name, &error)),
        }
    }

    fn queue(&self) -> Result<Arc<dyn Queue>, DeviceError> {
        Ok(Arc::new(SoftwareQueue::new(self.device.stream(), &self.name)))
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.device.synchronize();
        Ok(())
    }

    fn load(&self, ptx: &str) -> Result<Arc<dyn Code>, DeviceError> {
        let module = self.device.load(ptx).map_err(|error| match &error {
            SystemError::Stopped { .. } => failed(&self.name, &error),
            _ => DeviceError::Module { device: self.name.clone(), log: error.to_string() },
        })?;
        Ok(Arc::new(code::SoftwareCode { module, launch: self.launch, name: self.name.clone() }))
    }

    fn enable_peer(&self, to: &dyn Driver) -> Result<bool, DeviceError> {
        match to.as_any().downcast_ref::<SoftwareDevice>() {
            Some(to) if self.beside(to) => {
                self.device.enable_peer(&to.device).map_err(|error| failed(&self.name, &error))?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn beside(&self, other: &dyn Driver) -> bool {
        let other = other.as_any().downcast_ref::<SoftwareDevice>();
        other.is_some_and(|other| other.device.system() == self.device.system())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
