//! Memory of a device for programs that have no allocator of their own there.

use std::ffi::c_void;
use std::sync::Arc;

use warpweft_device::{Buffer, Device, DeviceError, DeviceKind, Stream};

use crate::arguments::Arguments;
use crate::element::{count as product, dtype as type_of};
use crate::fault::{Fault, guard};
use crate::pointer::{Input, Out, Output, Owned, Ref};

/// What a `ww_buffer` is a handle to, and every tensor that was made of it.
pub struct Shared(pub(crate) Arc<Memory>);

/// The memory. It is only reached through the pointer that the caller has too, never through the owner again.
pub(crate) struct Memory {
    _owner: Buffer<u8>,
    pub(crate) device: Device,
    pub(crate) data: *mut c_void,
    pub(crate) dtype: warpweft_device::DType,
    pub(crate) count: usize,
}

// SAFETY: the pointer is only handed on here, and followed in calls whose callers answer for what they do at once.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(device: &Device, code: i32, count: usize) -> Result<Self, Fault> {
        let dtype = type_of("dtype", code)?;
        let bytes = product("count", &[count, dtype.bytes()])?;
        let mut owner = device.uninitialized::<u8>(bytes).map_err(|error| match error {
            DeviceError::OutOfMemory { device, .. } => DeviceError::OutOfMemory { count, dtype, device },
            other => other,
        })?;
        let data = match device.kind() {
            DeviceKind::Cpu => owner.as_view_mut().host()?.as_mut_ptr().cast(),
            _ => std::ptr::without_provenance_mut(owner.as_view().address() as usize),
        };
        Ok(Self { _owner: owner, device: device.clone(), data, dtype, count })
    }

    /// Where `count` elements from `first` on begin, and their bytes.
    fn part(&self, first: usize, count: usize) -> Result<(*mut c_void, usize), Fault> {
        let end = first.checked_add(count).filter(|&end| end <= self.count);
        if end.is_none() {
            let end = first.saturating_add(count);
            return Err(DeviceError::OutOfRange { start: first, end, len: self.count }.into());
        }
        let size = self.dtype.bytes();
        Ok((self.data.wrapping_byte_add(first * size), count * size))
    }
}

/// New memory.
#[unsafe(no_mangle)]
pub extern "C" fn ww_buffer_create(device: Ref<Device>, dtype: i32, count: usize, buffer: Out<*mut Shared>) -> i32 {
    guard("ww_buffer_create", || {
        buffer.check("buffer")?;
        buffer.handle("buffer", Shared(Arc::new(Memory::new(device.get("device")?, dtype, count)?)))
    })
}

/// Frees it, once no tensor shares it.
#[unsafe(no_mangle)]
pub extern "C" fn ww_buffer_destroy(buffer: Owned<Shared>) -> i32 {
    guard("ww_buffer_destroy", || {
        drop(buffer.take());
        Ok(())
    })
}

/// Its first element.
#[unsafe(no_mangle)]
pub extern "C" fn ww_buffer_data(buffer: Ref<Shared>, data: Out<*mut c_void>) -> i32 {
    guard("ww_buffer_data", || data.set("data", buffer.get("buffer")?.0.data))
}

/// A copy from the host, in the order of the stream.
#[unsafe(no_mangle)]
pub extern "C" fn ww_buffer_copy_from_host(
    stream: Ref<Stream>,
    buffer: Ref<Shared>,
    first: usize,
    host: Input,
    count: usize,
) -> i32 {
    guard("ww_buffer_copy_from_host", || {
        let (mut args, memory) = (Arguments::of("stream", &stream)?, &buffer.get("buffer")?.0);
        args.handle.same_device("`buffer`", &memory.device)?;
        let (at, bytes) = memory.part(first, count)?;
        let to = args.write::<u8>("buffer", Output(at), &[bytes])?;
        let from = args.host().slice::<u8>("host", host, bytes)?;
        Ok(to.copy_from_host(args.handle, from)?)
    })
}

/// A copy to the host, after all work before.
#[unsafe(no_mangle)]
pub extern "C" fn ww_buffer_copy_to_host(
    stream: Ref<Stream>,
    buffer: Ref<Shared>,
    first: usize,
    host: Output,
    count: usize,
) -> i32 {
    guard("ww_buffer_copy_to_host", || {
        let (mut args, memory) = (Arguments::of("stream", &stream)?, &buffer.get("buffer")?.0);
        args.handle.same_device("`buffer`", &memory.device)?;
        let (at, bytes) = memory.part(first, count)?;
        let from = args.read::<u8>("buffer", Input(at), &[bytes])?;
        let to = args.host().slice_mut::<u8>("host", host, bytes)?;
        Ok(from.copy_to_host(args.handle, to)?)
    })
}
