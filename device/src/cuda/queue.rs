//! Streams and events of a GPU.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{self, CUresult};

use super::Context;
use super::call::{Failure, call};
use crate::DeviceError;
use crate::driver::{Mark, Memory, Queue};

pub(super) struct CudaQueue {
    context: Arc<Context>,
    pub(super) handle: sys::CUstream,
    /// Another runtime's, which destroys it.
    foreign: bool,
}

// SAFETY: a stream's handle is a name that the driver looks up; its calls may come from any thread.
unsafe impl Send for CudaQueue {}
// SAFETY: as above; the driver orders calls that come at the same time.
unsafe impl Sync for CudaQueue {}

/// Not ordered with the default stream: what orders work is what the caller writes.
const NON_BLOCKING: u32 = 1;

impl CudaQueue {
    pub(super) fn new(context: Arc<Context>) -> Result<Self, DeviceError> {
        context.enter()?;
        let mut handle = std::ptr::null_mut();
        call!(cuStreamCreate(&mut handle, NON_BLOCKING)).map_err(|failure| context.failed(failure))?;
        Ok(Self { context, handle, foreign: false })
    }

    /// A stream that somebody else made and keeps. The driver follows the handle, so it must be one.
    pub(super) fn of_foreign(context: Arc<Context>, handle: sys::CUstream) -> Result<Self, DeviceError> {
        context.enter()?;
        let refused = |reason: String| DeviceError::ForeignStream { device: context.name.clone(), reason };
        let mut owner = std::ptr::null_mut();
        call!(cuStreamGetCtx(handle, &mut owner)).map_err(|failure| refused(failure.to_string()))?;
        if owner != context.handle {
            return Err(refused("it belongs to another device, or not to its primary context".to_owned()));
        }
        Ok(Self { context, handle, foreign: true })
    }

    fn check(&self, result: Result<(), Failure>) -> Result<(), DeviceError> {
        result.map_err(|failure| self.context.failed(failure))
    }
}

impl Drop for CudaQueue {
    fn drop(&mut self) {
        if !self.foreign && self.context.enter().is_ok() {
            let _ = call!(cuStreamDestroy_v2(self.handle));
        }
    }
}

impl Queue for CudaQueue {
    fn write(&self, to: &Memory, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.context.enter()?;
        // From pageable memory the driver has taken the bytes when the call returns (CUDA driver API, "API synchronization
        // behavior"), so the borrow may end then.
        let from: *const c_void = bytes.as_ptr().cast();
        self.check(call!(cuMemcpyHtoDAsync_v2(to.address + offset, from, bytes.len(), self.handle)))
    }

    fn read(&self, from: &Memory, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.context.enter()?;
        let to: *mut c_void = out.as_mut_ptr().cast();
        let copied = call!(cuMemcpyDtoHAsync_v2(to, from.address + offset, out.len(), self.handle));
        // Waited for in either case: nothing may write to `out` after this returns.
        let waited = self.synchronize();
        self.check(copied)?;
        waited
    }

    fn fill(&self, to: &Memory, offset: u64, bytes: u64, value: &[u8]) -> Result<(), DeviceError> {
        self.context.enter()?;
        let address = to.address + offset;
        let count = (bytes / value.len().max(1) as u64) as usize;
        match *value {
            _ if count == 0 => Ok(()),
            [value] => self.check(call!(cuMemsetD8Async(address, value, count, self.handle))),
            [a, b] => self.check(call!(cuMemsetD16Async(address, u16::from_le_bytes([a, b]), count, self.handle))),
            [a, b, c, d] => {
                self.check(call!(cuMemsetD32Async(address, u32::from_le_bytes([a, b, c, d]), count, self.handle)))
            }
            [a, b, c, d, e, f, g, h] => {
                // Two columns of words, 8 bytes from row to row.
                let halves = [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])];
                for (at, half) in halves.into_iter().enumerate() {
                    let start = address + 4 * at as u64;
                    self.check(call!(cuMemsetD2D32Async(start, 8, half, 1, count, self.handle)))?;
                }
                Ok(())
            }
            _ => Err(DeviceError::Backend {
                device: self.context.name.clone(),
                reason: format!("a fill repeats 1, 2, 4 or 8 bytes, not {}", value.len()),
            }),
        }
    }

    fn copy(
        &self,
        to: &Memory,
        to_offset: u64,
        from: &Memory,
        from_offset: u64,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        self.context.enter()?;
        let (target, source) = (to.address + to_offset, from.address + from_offset);
        self.check(call!(cuMemcpyDtoDAsync_v2(target, source, bytes as usize, self.handle)))
    }

    fn record(&self) -> Result<Arc<dyn Mark>, DeviceError> {
        self.context.enter()?;
        let mut handle = std::ptr::null_mut();
        self.check(call!(cuEventCreate(&mut handle, 0)))?;
        let mark = CudaMark { context: self.context.clone(), handle };
        self.check(call!(cuEventRecord(mark.handle, self.handle)))?;
        Ok(Arc::new(mark))
    }

    fn wait(&self, mark: &dyn Mark) -> Result<(), DeviceError> {
        self.context.enter()?;
        match mark.as_any().downcast_ref::<CudaMark>() {
            Some(mark) => self.check(call!(cuStreamWaitEvent(self.handle, mark.handle, 0))),
            None => Ok(()),
        }
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.context.enter()?;
        self.check(call!(cuStreamSynchronize(self.handle)))
    }

    fn take_output(&self) -> Vec<u8> {
        // The driver writes what kernels print to standard output itself.
        Vec::new()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct CudaMark {
    context: Arc<Context>,
    handle: sys::CUevent,
}

// SAFETY: an event's handle is a name that the driver looks up; its calls may come from any thread.
unsafe impl Send for CudaMark {}
// SAFETY: as above; the driver orders calls that come at the same time.
unsafe impl Sync for CudaMark {}

impl Mark for CudaMark {
    fn is_reached(&self) -> bool {
        // A failed kernel before it counts as reached: the next synchronise says what happened.
        let answer = self.context.enter().map(|()| call!(cuEventQuery(self.handle)));
        !matches!(answer, Ok(Err(failure)) if failure.result() == CUresult::CUDA_ERROR_NOT_READY)
    }

    fn since(&self, earlier: &dyn Mark) -> Option<Duration> {
        let earlier = earlier.as_any().downcast_ref::<CudaMark>()?;
        self.context.enter().ok()?;
        let mut milliseconds = 0f32;
        call!(cuEventElapsedTime(&mut milliseconds, earlier.handle, self.handle)).ok()?;
        Duration::try_from_secs_f32(milliseconds * 1e-3).ok()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for CudaMark {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            let _ = call!(cuEventDestroy_v2(self.handle));
        }
    }
}
