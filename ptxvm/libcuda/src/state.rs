//! The devices of the process.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use warpweft_ptxvm::system::{Device, DeviceOptions, Stream, System, SystemError};
use warpweft_ptxvm::types::Target;

use crate::status::Status;

static INITIALIZED: AtomicBool = AtomicBool::new(false);

struct State {
    devices: Vec<Device>,
    /// The stream that a null handle means, of each device.
    streams: Vec<Stream>,
}

fn build() -> Result<State, SystemError> {
    let count = std::env::var("PTXVM_DEVICES").ok().and_then(|count| count.parse().ok()).unwrap_or(2);
    let wanted = std::env::var("PTXVM_OPTIONS").unwrap_or_default();
    let pairs = || wanted.split('&').filter_map(|pair| pair.split_once('='));
    let mut options = DeviceOptions::from(Target::SM_80);
    for (_, value) in pairs().filter(|(key, _)| *key == "sm") {
        options = DeviceOptions::named(&format!("sm_{value}"))?;
    }
    for (key, value) in pairs().filter(|(key, _)| *key != "sm") {
        options.set(key, value)?;
    }
    let system = System::new(std::iter::repeat_n(options, count))?;
    let devices = (0..system.devices()).map(|index| system.device(index)).collect::<Result<Vec<_>, _>>()?;
    let streams = devices.iter().map(Device::stream).collect();
    Ok(State { devices, streams })
}

fn state() -> Result<&'static State, Status> {
    static STATE: OnceLock<Result<State, Status>> = OnceLock::new();
    if !INITIALIZED.load(Relaxed) {
        return Err(Status::NOT_INITIALIZED);
    }
    STATE.get_or_init(|| build().map_err(Status::from)).as_ref().map_err(|status| *status)
}

/// `cuInit`.
pub(crate) fn initialize() -> Result<(), Status> {
    INITIALIZED.store(true, Relaxed);
    state().map(drop)
}

/// How many devices there are.
pub(crate) fn count() -> Result<usize, Status> {
    Ok(state()?.devices.len())
}

/// A device by its ordinal.
pub(crate) fn device(ordinal: i32) -> Result<&'static Device, Status> {
    usize::try_from(ordinal)
        .ok()
        .and_then(|at| state().map(|state| state.devices.get(at)).transpose())
        .ok_or(Status::INVALID_DEVICE)?
}

/// The stream that a null handle means on a device.
pub(crate) fn default_stream(ordinal: i32) -> Result<&'static Stream, Status> {
    device(ordinal)?;
    state()?.streams.get(ordinal as usize).ok_or(Status::INVALID_DEVICE)
}
