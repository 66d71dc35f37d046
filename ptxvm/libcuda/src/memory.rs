//! Memory: allocation, copies, fills. Device addresses are ptxvm's own, in one space for all devices.

use std::ffi::{c_uchar, c_uint, c_ushort, c_void};

use warpweft_ptxvm::system::SystemError;

use crate::handles::Handle;
use crate::pointer::{bytes, bytes_mut, set};
use crate::status::{Status, guard};
use crate::{context, stream};

/// As `cuMemAlloc` aligns.
const ALIGNMENT: u64 = 256;

fn allocate(count: usize) -> Result<u64, Status> {
    if count == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let device = context::device()?;
    device.check()?;
    Ok(device.memory().allocate(device.id(), count as u64, ALIGNMENT, "cuMemAlloc")?)
}

fn free(address: u64) -> Result<(), Status> {
    if address == 0 {
        return Ok(());
    }
    Ok(context::device()?.memory().free(address)?)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: *mut u64, count: usize) -> i32 {
    guard(|| set(address, allocate(count)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> i32 {
    guard(|| {
        // A free waits for the kernels that may use the memory.
        context::device()?.synchronize();
        free(address)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(address: *mut u64, count: usize, stream: Handle) -> i32 {
    guard(|| {
        stream::queue(stream)?;
        set(address, allocate(count)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: u64, stream: Handle) -> i32 {
    guard(|| {
        let device = context::device()?.clone();
        stream::queue(stream)?.submit(move || {
            device.memory().free(address)?;
            Ok(None)
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> i32 {
    guard(|| {
        let device = context::device()?;
        let (used, all) = device.memory().usage(device.id())?;
        set(free, (all - used) as usize)?;
        set(total, all as usize)
    })
}

/// A write in a stream's order; the bytes are taken at the call.
fn write(stream: Handle, to: u64, from: *const c_void, count: usize) -> Result<(), Status> {
    let (queue, data) = (stream::queue(stream)?, bytes(from, count)?.to_vec());
    let device = queue.stream.device().clone();
    queue.submit(move || {
        device.check()?;
        device.memory().write(to, &data)?;
        Ok(None)
    })
}

fn read(stream: Handle, to: *mut c_void, from: u64, count: usize) -> Result<(), Status> {
    let queue = stream::queue(stream)?;
    queue.synchronize()?;
    Ok(queue.stream.device().memory().read(from, bytes_mut(to, count)?)?)
}

fn copy(stream: Handle, to: u64, from: u64, count: usize) -> Result<(), Status> {
    let queue = stream::queue(stream)?;
    let device = queue.stream.device().clone();
    queue.submit(move || {
        device.check()?;
        device.memory().copy(to, from, count as u64)?;
        Ok(None)
    })
}

fn fill(stream: Handle, to: u64, value: Vec<u8>, count: usize) -> Result<(), Status> {
    let queue = stream::queue(stream)?;
    let device = queue.stream.device().clone();
    let length = (count as u64).checked_mul(value.len() as u64).ok_or(Status::INVALID_VALUE)?;
    queue.submit(move || {
        device.check()?;
        device.memory().fill(to, length, &value).map_err(SystemError::from)?;
        Ok(None)
    })
}

/// A call without stream returns when it is done.
fn done(given: Result<(), Status>) -> Result<(), Status> {
    given?;
    stream::queue(0)?.synchronize()
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, count: usize) -> i32 {
    guard(|| done(write(0, to, from, count)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, count: usize, stream: Handle) -> i32 {
    guard(|| write(stream, to, from, count))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, count: usize) -> i32 {
    guard(|| read(0, to, from, count))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, count: usize, stream: Handle) -> i32 {
    guard(|| read(stream, to, from, count))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, count: usize) -> i32 {
    guard(|| done(copy(0, to, from, count)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, count: usize, stream: Handle) -> i32 {
    guard(|| copy(stream, to, from, count))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    _to_context: usize,
    from: u64,
    _from_context: usize,
    count: usize,
    stream: Handle,
) -> i32 {
    guard(|| copy(stream, to, from, count))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(to: u64, value: c_uchar, count: usize) -> i32 {
    guard(|| done(fill(0, to, vec![value], count)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: u64, value: c_uchar, count: usize, stream: Handle) -> i32 {
    guard(|| fill(stream, to, vec![value], count))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD16Async(to: u64, value: c_ushort, count: usize, stream: Handle) -> i32 {
    guard(|| fill(stream, to, value.to_le_bytes().to_vec(), count))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: Handle) -> i32 {
    guard(|| fill(stream, to, value.to_le_bytes().to_vec(), count))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD2D32Async(
    to: u64,
    pitch: usize,
    value: c_uint,
    width: usize,
    rows: usize,
    stream: Handle,
) -> i32 {
    guard(|| {
        let queue = stream::queue(stream)?;
        let device = queue.stream.device().clone();
        let row = (width as u64).checked_mul(4).ok_or(Status::INVALID_VALUE)?;
        if (pitch as u64) < row {
            return Err(Status::INVALID_VALUE);
        }
        queue.submit(move || {
            device.check()?;
            for at in 0..rows as u64 {
                device.memory().fill(to + at * pitch as u64, row, &value.to_le_bytes())?;
            }
            Ok(None)
        })
    })
}
