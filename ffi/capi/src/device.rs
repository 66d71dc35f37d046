//! Devices, and the streams that order what is given to them.

use warpweft_device::{Device, Stream};

use crate::fault::{Fault, guard};
use crate::pointer::{Out, Output, Owned, Ref, Text};

/// Opens a device by its name.
#[unsafe(no_mangle)]
pub extern "C" fn ww_device_open(name: Text, device: Out<*mut Device>) -> i32 {
    guard("ww_device_open", || {
        device.check("device")?;
        let name = name.get().ok_or(Fault::Null { argument: "name" })?;
        device.handle("device", Device::open(&name)?)
    })
}

/// Closes it; what was made on it keeps it.
#[unsafe(no_mangle)]
pub extern "C" fn ww_device_close(device: Owned<Device>) -> i32 {
    guard("ww_device_close", || {
        drop(device.take());
        Ok(())
    })
}

/// A new stream.
#[unsafe(no_mangle)]
pub extern "C" fn ww_stream_create(device: Ref<Device>, stream: Out<*mut Stream>) -> i32 {
    guard("ww_stream_create", || {
        stream.check("stream")?;
        stream.handle("stream", device.get("device")?.stream())
    })
}

/// A CUDA stream of another runtime.
#[unsafe(no_mangle)]
pub extern "C" fn ww_stream_from_cuda(device: Ref<Device>, cuda_stream: Output, stream: Out<*mut Stream>) -> i32 {
    guard("ww_stream_from_cuda", || {
        stream.check("stream")?;
        let device = device.get("device")?;
        // SAFETY: the header binds the caller to give a live stream, or null, and to keep it longer than the handle.
        let wrapped = unsafe { device.stream_of_cuda(cuda_stream.0) };
        stream.handle("stream", wrapped?)
    })
}

/// Waits for all that was given to it.
#[unsafe(no_mangle)]
pub extern "C" fn ww_stream_synchronize(stream: Ref<Stream>) -> i32 {
    guard("ww_stream_synchronize", || Ok(stream.get("stream")?.synchronize()?))
}

/// Frees the handle.
#[unsafe(no_mangle)]
pub extern "C" fn ww_stream_destroy(stream: Owned<Stream>) -> i32 {
    guard("ww_stream_destroy", || {
        drop(stream.take());
        Ok(())
    })
}
