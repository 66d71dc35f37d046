//! Devices and what they are.

use std::ffi::{c_char, c_uint};

use warpweft_ptxvm::exec;

use crate::pointer::{set, slice_mut};
use crate::state;
use crate::status::{Status, guard};

/// The version of the API that is imitated: 12.0.
const VERSION: i32 = 12000;

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> i32 {
    guard(|| if flags == 0 { state::initialize() } else { Err(Status::INVALID_VALUE) })
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: *mut i32) -> i32 {
    guard(|| set(version, VERSION))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: *mut i32) -> i32 {
    guard(|| set(count, state::count()? as i32))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: *mut i32, ordinal: i32) -> i32 {
    guard(|| {
        state::device(ordinal)?;
        set(device, ordinal)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: *mut c_char, len: i32, device: i32) -> i32 {
    guard(|| {
        let text = format!("ptxvm software device ({})", state::device(device)?.options().target);
        let out = slice_mut(name, usize::try_from(len).map_err(|_| Status::INVALID_VALUE)?)?;
        let Some((end, room)) = out.split_last_mut() else { return Err(Status::INVALID_VALUE) };
        room.fill(0);
        *end = 0;
        room.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte as c_char);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: i32) -> i32 {
    guard(|| {
        state::device(device)?;
        let mut bytes = *b"ptxvm software  ";
        bytes[15] = device as u8;
        set(uuid, bytes)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: i32) -> i32 {
    cuDeviceGetUuid(uuid, device)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: i32) -> i32 {
    guard(|| set(bytes, state::device(device)?.options().memory_bytes as usize))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32) -> i32 {
    guard(|| {
        let options = state::device(device)?.options();
        let sm = i32::from(options.target.sm);
        let ampere_or_hopper = matches!(sm, 80 | 87);
        // Numbers of CUdevice_attribute; shared bytes and threads as the CUDA C++ Programming Guide's table has them.
        let known = match attribute {
            1 => 1024,
            2 | 3 => 1024,
            4 => 64,
            5 => i32::MAX,
            6 | 7 => 65535,
            8 => 48 << 10,
            9 => 64 << 10,
            10 => 32,
            12 | 82 => 65536,
            13 | 36 => 1_000_000,
            16 => options.multiprocessors as i32,
            31 | 41 | 83 | 88 | 89 | 90 | 91 | 115 | 122 => 1,
            35 | 40 => 0,
            39 => {
                if matches!(sm, 80 | 90) {
                    2048
                } else {
                    1536
                }
            }
            75 => sm / 10,
            76 => sm % 10,
            97 => exec::most_shared(options.target) as i32,
            81 => match sm {
                90.. => 228 << 10,
                _ if ampere_or_hopper => 164 << 10,
                _ => 100 << 10,
            },
            106 => {
                if matches!(sm, 80 | 90) {
                    32
                } else {
                    16
                }
            }
            111 => 1024,
            _ => 0,
        };
        set(value, known)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) -> i32 {
    guard(|| {
        state::device(device)?;
        state::device(peer)?;
        set(can, i32::from(device != peer))
    })
}
