//! Modules, with the compiler's log where the caller asks for it.

use std::ffi::{c_char, c_uint, c_void};

use warpweft_ptxvm::system::Module;

use crate::handles::{Handle, Handles};
use crate::pointer::{set, set_if_wanted, slice, slice_mut, text};
use crate::status::{Status, guard};
use crate::{context, kernel};

static MODULES: Handles<Module> = Handles::new();

/// `CUjit_option`: where the error log goes, and how long it may be.
const ERROR_LOG: i32 = 5;
const ERROR_LOG_BYTES: i32 = 6;

/// What a fat binary and a cubin begin with: machine code, which never runs here.
const NOT_TEXT: [[u8; 4]; 2] = [*b"\x7fELF", [0x50, 0xed, 0x55, 0xba]];

struct Log {
    buffer: *mut c_char,
    bytes: usize,
    /// The entry of the option's array that receives the length written.
    length: *mut usize,
}

impl Log {
    /// Reads the options of `cuModuleLoadDataEx`: values are pointers, or numbers cast to pointers.
    fn from_options(count: c_uint, options: *const i32, values: *mut *mut c_void) -> Result<Option<Log>, Status> {
        let options = slice(options, count as usize)?;
        let values = slice_mut(values, count as usize)?;
        let at = |wanted| options.iter().position(|&option| option == wanted);
        let (Some(buffer), Some(bytes)) = (at(ERROR_LOG), at(ERROR_LOG_BYTES)) else { return Ok(None) };
        let size = values[bytes].addr();
        let buffer = values[buffer].cast();
        Ok(Some(Log { buffer, bytes: size, length: (&raw mut values[bytes]).cast() }))
    }

    fn write(&self, message: &str) -> Result<(), Status> {
        let out = slice_mut(self.buffer, self.bytes)?;
        let Some((end, room)) = out.split_last_mut() else { return Ok(()) };
        let length = message.len().min(room.len());
        room.iter_mut().zip(message.bytes()).for_each(|(to, byte)| *to = byte as c_char);
        let stop = room.get_mut(length).unwrap_or(end);
        *stop = 0;
        set_if_wanted(self.length, length);
        Ok(())
    }
}

fn load(image: *const c_void, log: Option<&Log>) -> Result<Handle, Status> {
    let head = slice(image.cast::<u8>(), 4)?;
    if NOT_TEXT.iter().any(|magic| head == magic) {
        return Err(Status::NO_BINARY_FOR_GPU);
    }
    let ptx = text(image.cast()).map_err(|_| Status::INVALID_IMAGE)?;
    match context::device()?.load(&ptx) {
        Ok(module) => Ok(MODULES.add(module)),
        Err(error) => {
            if let Some(log) = log {
                log.write(&error.to_string())?;
            }
            Err(error.into())
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> i32 {
    guard(|| set(module, load(image, None)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadDataEx(
    module: *mut Handle,
    image: *const c_void,
    count: c_uint,
    options: *const i32,
    values: *mut *mut c_void,
) -> i32 {
    guard(|| {
        let log = Log::from_options(count, options, values)?;
        set(module, load(image, log.as_ref())?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: Handle) -> i32 {
    guard(|| MODULES.remove(module).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> i32 {
    guard(|| set(function, kernel::add(MODULES.get(module)?.kernel(&text(name)?)?)))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetGlobal_v2(address: *mut u64, bytes: *mut usize, module: Handle, name: *const c_char) -> i32 {
    guard(|| {
        let global = MODULES.get(module)?.global(&text(name)?)?;
        set_if_wanted(address, global.address);
        set_if_wanted(bytes, global.bytes as usize);
        Ok(())
    })
}
