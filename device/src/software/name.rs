//! Software GPUs by name: `software`, `software:1`, `software?sm=90&check=all`.

use std::sync::OnceLock;

use warpweft_ptxvm::system::{DeviceOptions, System, SystemError};
use warpweft_ptxvm::types::Target;

use super::SoftwareDevice;
use crate::Device;

/// Devices of the system that a process shares: ranks that are threads open one each, and can be peers.
const SHARED: u32 = 8;

/// Opens what follows `software` in a name. The error is what was looked for.
pub(crate) fn open(argument: &str) -> Result<Device, String> {
    let (index, query) = argument.split_once('?').unwrap_or((argument, ""));
    let pairs = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').ok_or_else(|| format!("`{pair}` is no option; one is written `check=all`")));
    let pairs: Vec<(&str, &str)> = pairs.collect::<Result<_, _>>()?;
    let said = |error: SystemError| error.to_string();
    if let Some(index) = index.strip_prefix(':') {
        let number: u32 = index.parse().map_err(|_| format!("`{index}` is not a device number"))?;
        if number >= SHARED {
            return Err(format!("the software devices that a process shares are 0 to {}", SHARED - 1));
        }
        let device = shared()?.device(number).map_err(said)?;
        let mut launch = device.options().launch;
        for (key, value) in pairs {
            if matches!(key, "sm" | "memory" | "multiprocessors") {
                return Err(format!(
                    "`{key}` is fixed for the devices that a process shares; use `software?{key}={value}`"
                ));
            }
            launch.set(key, value).map_err(said)?;
        }
        return Ok(SoftwareDevice { device, launch, name: format!("software:{number}") }.into_device());
    }
    let mut options = DeviceOptions::from(Target::SM_80);
    // The target first: it decides the defaults of the rest.
    for (key, value) in pairs.iter().filter(|(key, _)| *key == "sm") {
        options = DeviceOptions::named(&format!("sm_{value}")).map_err(|_| format!("there is no `{key}={value}`"))?;
    }
    for (key, value) in pairs.iter().filter(|(key, _)| *key != "sm") {
        options.set(key, value).map_err(said)?;
    }
    Device::software(options).map_err(|error| error.to_string())
}

fn shared() -> Result<&'static System, String> {
    static SYSTEM: OnceLock<Result<System, String>> = OnceLock::new();
    let devices = || System::new((0..SHARED).map(|_| Target::SM_80)).map_err(|error| error.to_string());
    SYSTEM.get_or_init(devices).as_ref().map_err(Clone::clone)
}
