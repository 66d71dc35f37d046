//! Contexts: each device has its primary one, whose handle is its number and one.

use std::cell::Cell;
use std::ffi::c_uint;

use warpweft_ptxvm::system::Device;

use crate::pointer::set;
use crate::state;
use crate::status::{Status, guard};
use crate::stream;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The ordinal of the current context's device.
pub(crate) fn current() -> Result<i32, Status> {
    CURRENT.get().checked_sub(1).map(|ordinal| ordinal as i32).ok_or(Status::INVALID_CONTEXT)
}

/// The device of the current context.
pub(crate) fn device() -> Result<&'static Device, Status> {
    state::device(current()?)
}

/// The primary context of a device.
pub(crate) fn of(ordinal: i32) -> usize {
    ordinal as usize + 1
}

fn ordinal(context: usize) -> Result<i32, Status> {
    let ordinal = context.checked_sub(1).and_then(|ordinal| i32::try_from(ordinal).ok());
    let ordinal = ordinal.ok_or(Status::INVALID_CONTEXT)?;
    state::device(ordinal).map(|_| ordinal).map_err(|_| Status::INVALID_CONTEXT)
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: i32) -> i32 {
    guard(|| {
        state::device(device)?;
        set(context, of(device))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> i32 {
    guard(|| state::device(device).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut c_uint, active: *mut i32) -> i32 {
    guard(|| {
        state::device(device)?;
        set(flags, 0)?;
        set(active, 1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: usize) -> i32 {
    guard(|| {
        if context != 0 {
            ordinal(context)?;
        }
        CURRENT.set(context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: *mut usize) -> i32 {
    guard(|| set(context, CURRENT.get()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: *mut i32) -> i32 {
    guard(|| set(device, current()?))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> i32 {
    guard(|| stream::synchronize_device(current()?))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(peer: usize, flags: c_uint) -> i32 {
    guard(|| {
        let (own, peer) = (current()?, ordinal(peer)?);
        if flags != 0 || own == peer {
            return Err(if flags != 0 { Status::INVALID_VALUE } else { Status::PEER_ACCESS_UNSUPPORTED });
        }
        let (device, peer) = (state::device(own)?, state::device(peer)?);
        if device.memory().reachable(device.id(), peer.id()) {
            return Err(Status::PEER_ACCESS_ALREADY_ENABLED);
        }
        Ok(device.enable_peer(peer)?)
    })
}
