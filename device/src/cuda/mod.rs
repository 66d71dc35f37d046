//! A GPU of NVIDIA as a device: the CUDA driver behind the driver traits. The library is opened at run time; where there
//! is none, opening a device is an error like any other.

mod call;
mod code;
mod queue;
mod signature;

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};

use self::call::{Failure, call};
use self::queue::CudaQueue;
use crate::driver::{Code, Driver, Memory, Queue};
use crate::{Device, DeviceError, DeviceKind, Properties, Stream};

/// The oldest driver that has every call made here: CUDA 12.0, driver 525.
const OLDEST: i32 = 12000;

/// Opens what follows `cuda` in a name, nothing or `:N`. The error is what was looked for.
pub(crate) fn open(argument: &str) -> Result<Device, String> {
    let ordinal = match argument.strip_prefix(':') {
        None if argument.is_empty() => 0,
        Some(number) => number.parse::<i32>().map_err(|_| format!("`{number}` is not a device number"))?,
        None => return Err(format!("`cuda{argument}` is no name; use `cuda` or `cuda:N`")),
    };
    let context = Context::open(ordinal)?;
    Ok(Device::from_driver(CudaDevice { context: Arc::new(context) }))
}

impl Device {
    /// A stream that another runtime made (`cudaStream_t`, `CUstream`; null is the default stream) as one of this GPU, so that
    /// kernels take their place in that runtime's order. It is not destroyed with the last of its clones.
    ///
    /// # Safety
    /// The handle is null, one of the driver's special ones, or a live stream that outlives the returned one and its clones.
    ///
    /// # Errors
    /// [`DeviceError::ForeignStream`] on a device that is no GPU of NVIDIA, or for a stream of another one.
    pub unsafe fn stream_of_cuda(&self, handle: *mut c_void) -> Result<Stream, DeviceError> {
        let gpu = self.driver("a CUDA stream").ok().and_then(|driver| driver.as_any().downcast_ref::<CudaDevice>());
        let Some(gpu) = gpu else {
            let reason = "only a GPU opened as `cuda` or `cuda:N` has CUDA streams".to_owned();
            return Err(DeviceError::ForeignStream { device: self.to_string(), reason });
        };
        let queue = CudaQueue::of_foreign(gpu.context.clone(), handle.cast())?;
        Ok(Stream::new(self.clone(), Some(Ok(Arc::new(queue)))))
    }
}

/// The primary context of a device, which all its objects hold.
pub(super) struct Context {
    pub(super) handle: sys::CUcontext,
    device: sys::CUdevice,
    pub(super) name: String,
    /// What the card calls itself.
    card: String,
}

// SAFETY: a context's handle is a name that the driver looks up; its calls may come from any thread.
unsafe impl Send for Context {}
// SAFETY: as above; the driver orders calls that come at the same time.
unsafe impl Sync for Context {}

impl Context {
    fn open(ordinal: i32) -> Result<Self, String> {
        if !call::driver_is_there() {
            return Err("looked for NVIDIA's driver, libcuda.so.1, on the library path: there is none".to_owned());
        }
        let said = |what: &str, failure: Failure| format!("{what}: {failure}");
        call!(cuInit(0)).map_err(|failure| said("the CUDA driver does not start", failure))?;
        let mut version = 0;
        call!(cuDriverGetVersion(&mut version)).map_err(|failure| said("the driver has no version", failure))?;
        if version < OLDEST {
            return Err(format!(
                "the driver supports CUDA {}.{}, at least {}.{} is needed",
                version / 1000,
                version % 1000 / 10,
                OLDEST / 1000,
                OLDEST % 1000 / 10
            ));
        }
        let mut count = 0;
        call!(cuDeviceGetCount(&mut count)).map_err(|failure| said("the driver does not count devices", failure))?;
        if !(0..count).contains(&ordinal) {
            return Err(format!("device {ordinal} asked for, the driver has {count}, counted from 0"));
        }
        let (mut device, mut handle) = (0, std::ptr::null_mut());
        call!(cuDeviceGet(&mut device, ordinal)).map_err(|failure| said("the device cannot be had", failure))?;
        call!(cuDevicePrimaryCtxRetain(&mut handle, device)).map_err(|failure| said("it has no context", failure))?;
        let mut card = [0; 256];
        let named = call!(cuDeviceGetName(card.as_mut_ptr(), 256, device));
        let bytes = card.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect::<Vec<_>>();
        let card = named.map_or_else(|_| "a card without name".to_owned(), |()| String::from_utf8_lossy(&bytes).into());
        Ok(Self { handle, device, name: format!("cuda:{ordinal}"), card })
    }

    /// Makes this the context of the calling thread, which most calls go by.
    pub(super) fn enter(&self) -> Result<(), DeviceError> {
        call!(cuCtxSetCurrent(self.handle)).map_err(|failure| self.failed(failure))
    }

    /// The error of a call that should have worked, or of a kernel that ran before it.
    pub(super) fn failed(&self, failure: Failure) -> DeviceError {
        let device = self.name.clone();
        if failure.is_of_a_kernel() {
            return DeviceError::Kernel { device, report: format!("a kernel failed on {}: {failure}", self.card) };
        }
        DeviceError::Backend { device, reason: failure.to_string() }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // The last user of a context that the driver cannot release has nothing left to do about it.
        let _ = call!(cuDevicePrimaryCtxRelease_v2(self.device));
    }
}

struct CudaDevice {
    context: Arc<Context>,
}

/// Frees device memory with its last handle. The driver waits for kernels that use it.
struct Owned {
    context: Arc<Context>,
    address: u64,
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            let _ = call!(cuMemFree_v2(self.address));
        }
    }
}

impl fmt::Display for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context.name)
    }
}

impl Driver for CudaDevice {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cuda
    }

    fn properties(&self) -> Result<Properties, DeviceError> {
        use sys::CUdevice_attribute as Attribute;
        let ask = |attribute: Attribute| {
            let mut value = 0;
            call!(cuDeviceGetAttribute(&mut value, attribute, self.context.device))
                .map_err(|failure| self.context.failed(failure))?;
            Ok::<_, DeviceError>(u32::try_from(value).unwrap_or(0))
        };
        let mut driver = 0;
        call!(cuDriverGetVersion(&mut driver)).map_err(|failure| self.context.failed(failure))?;
        let major = ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(Properties {
            compute: 10 * major + minor,
            shared_bytes: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            multiprocessors: ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            card: format!(
                "{} (compute capability {major}.{minor}, driver for CUDA {}.{})",
                self.context.card,
                driver / 1000,
                driver % 1000 / 10
            ),
        })
    }

    fn allocate(&self, bytes: u64) -> Result<Option<Memory>, DeviceError> {
        self.context.enter()?;
        let Ok(bytes) = usize::try_from(bytes) else { return Ok(None) };
        let mut address = 0;
        // The driver gives no memory of no bytes; one byte has an address.
        match call!(cuMemAlloc_v2(&mut address, bytes.max(1))) {
            Ok(()) => {
                Ok(Some(Memory { address, owner: Some(Arc::new(Owned { context: self.context.clone(), address })) }))
            }
            Err(failure) if failure.result() == CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(None),
            Err(failure) => Err(self.context.failed(failure)),
        }
    }

    fn queue(&self) -> Result<Arc<dyn Queue>, DeviceError> {
        Ok(Arc::new(CudaQueue::new(self.context.clone())?))
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.context.enter()?;
        call!(cuCtxSynchronize()).map_err(|failure| self.context.failed(failure))
    }

    fn load(&self, ptx: &str) -> Result<Arc<dyn Code>, DeviceError> {
        Ok(Arc::new(code::CudaCode::load(self.context.clone(), ptx)?))
    }

    fn enable_peer(&self, to: &dyn Driver) -> Result<bool, DeviceError> {
        let Some(to) = to.as_any().downcast_ref::<CudaDevice>() else { return Ok(false) };
        self.context.enter()?;
        match call!(cuCtxEnablePeerAccess(to.context.handle, 0)) {
            Ok(()) => Ok(true),
            Err(failure) => match failure.result() {
                CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
                CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => Ok(false),
                _ => Err(self.context.failed(failure)),
            },
        }
    }

    fn beside(&self, other: &dyn Driver) -> bool {
        other.as_any().is::<CudaDevice>()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
