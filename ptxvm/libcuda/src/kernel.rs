//! Kernels: attributes and launches.

use std::ffi::{c_uint, c_void};

use warpweft_ptxvm::system::{Kernel, Launch};

use crate::handles::{Handle, Handles};
use crate::pointer::{bytes, set, slice};
use crate::status::{Status, guard};
use crate::stream;

static KERNELS: Handles<Kernel> = Handles::new();

/// A handle for a kernel.
pub(crate) fn add(kernel: Kernel) -> Handle {
    KERNELS.add(kernel)
}

/// `CU_LAUNCH_PARAM_BUFFER_POINTER`, `CU_LAUNCH_PARAM_BUFFER_SIZE`, `CU_LAUNCH_PARAM_END`.
const BUFFER: usize = 1;
const BUFFER_BYTES: usize = 2;
const END: usize = 0;

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetAttribute(value: *mut i32, attribute: i32, function: Handle) -> i32 {
    guard(|| {
        let kernel = KERNELS.get(function)?;
        let found = kernel.function();
        let target = kernel.module().device().options().target;
        let known = match attribute {
            0 => found.max_block.map_or(1024, |shape| shape.iter().product::<u32>()) as i32,
            1 => found.shared_bytes as i32,
            3 => found.local_bytes as i32,
            4 => found.live_registers as i32,
            5 | 6 => i32::from(target.sm),
            8 => 48 << 10,
            _ => 0,
        };
        set(value, known)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(function: Handle, _attribute: i32, _value: i32) -> i32 {
    // The opt-in limit of shared memory is that of the device, whether asked for or not; the launch checks it.
    guard(|| KERNELS.get(function).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetCacheConfig(function: Handle, _config: i32) -> i32 {
    guard(|| KERNELS.get(function).map(drop))
}

/// Arguments from an array of pointers to each.
fn from_pointers(mut launch: Launch, kernel: &Kernel, params: *mut *mut c_void) -> Result<Launch, Status> {
    let wanted = &kernel.function().params;
    for (param, &pointer) in wanted.iter().zip(slice(params, wanted.len())?) {
        launch = launch.arg(bytes(pointer, param.bytes as usize)?);
    }
    Ok(launch)
}

/// Arguments from one buffer that holds them all: `extra` is pairs of a number and a pointer, up to END.
fn from_buffer(mut launch: Launch, kernel: &Kernel, extra: *mut *mut c_void) -> Result<Launch, Status> {
    let (mut buffer, mut length) = (std::ptr::null_mut(), std::ptr::null_mut());
    for at in (0..4).step_by(2) {
        let key = slice(extra, at + 1)?[at].addr();
        if key == END {
            break;
        }
        let value = slice(extra, at + 2)?[at + 1];
        match key {
            BUFFER => buffer = value,
            BUFFER_BYTES => length = value,
            _ => return Err(Status::INVALID_VALUE),
        }
    }
    let length = *slice(length.cast::<usize>().cast_const(), 1)?.first().ok_or(Status::INVALID_VALUE)?;
    let all = bytes(buffer, length)?;
    for param in &kernel.function().params {
        let range = param.offset as usize..(param.offset + param.bytes) as usize;
        launch = launch.arg(all.get(range).ok_or(Status::INVALID_VALUE)?);
    }
    Ok(launch)
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the signature is the API's")]
extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: Handle,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> i32 {
    guard(|| {
        let (kernel, queue) = (KERNELS.get(function)?, stream::queue(stream)?);
        let launch = kernel.launch([grid_x, grid_y, grid_z], [block_x, block_y, block_z]).shared(shared);
        let launch = match (params.is_null(), extra.is_null()) {
            (false, true) => from_pointers(launch, &kernel, params)?,
            (true, false) => from_buffer(launch, &kernel, extra)?,
            (true, true) if kernel.function().params.is_empty() => launch,
            _ => return Err(Status::INVALID_VALUE),
        };
        if queue.legacy {
            queue.stream.device().synchronize();
        }
        launch.enqueue(&queue.stream)?;
        if queue.legacy {
            queue.stream.device().synchronize();
        }
        Ok(())
    })
}
