//! Opening and closing a device.

use warpweft_device::Device;

use crate::fault::{Fault, guard};
use crate::pointer::{Out, Owned, Text};

/// Opens a device by its name.
#[unsafe(no_mangle)]
pub extern "C" fn ww_device_open(name: Text, device: Out<*mut Device>) -> i32 {
    guard("ww_device_open", || {
        device.check("device")?;
        let name = name.get().ok_or(Fault::Null { argument: "name" })?;
        device.handle("device", Device::open(&name)?)
    })
}

/// Closes it.
#[unsafe(no_mangle)]
pub extern "C" fn ww_device_close(device: Owned<Device>) -> i32 {
    guard("ww_device_close", || {
        drop(device.take());
        Ok(())
    })
}
