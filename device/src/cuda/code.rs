//! Modules and kernels of a GPU.

use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUfunction_attribute, CUjit_option, CUresult};

use super::Context;
use super::call::call;
use super::queue::CudaQueue;
use super::signature::{self, Param};
use crate::DeviceError;
use crate::driver::{Code, Entry, Queue};
use crate::module::{Arg, ArgValue};

/// Bytes of the compiler's log that are kept.
const LOG_BYTES: usize = 16 << 10;

/// Dynamic shared bytes that a kernel may have without asking for more.
const ORDINARY_SHARED: u32 = 48 << 10;

struct Loaded {
    context: Arc<Context>,
    handle: sys::CUmodule,
}

// SAFETY: a module's handle is a name that the driver looks up; its calls may come from any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above; the driver orders calls that come at the same time.
unsafe impl Sync for Loaded {}

impl Drop for Loaded {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            let _ = call!(cuModuleUnload(self.handle));
        }
    }
}

pub(super) struct CudaCode {
    loaded: Arc<Loaded>,
    kernels: Vec<(String, Vec<Param>)>,
}

struct CudaKernel {
    /// Keeps the function valid.
    loaded: Arc<Loaded>,
    handle: sys::CUfunction,
    name: String,
    params: Vec<Param>,
}

// SAFETY: a function's handle is a name that the driver looks up; its calls may come from any thread.
unsafe impl Send for CudaKernel {}
// SAFETY: as above; the driver orders calls that come at the same time.
unsafe impl Sync for CudaKernel {}

impl CudaCode {
    /// Compiles with the driver's compiler; its log is in the error.
    pub(super) fn load(context: Arc<Context>, ptx: &str) -> Result<Self, DeviceError> {
        context.enter()?;
        let refused = |log: String| DeviceError::Module { device: context.name.clone(), log };
        let image = CString::new(ptx).map_err(|error| refused(format!("a NUL at byte {}", error.nul_position())))?;
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The second value is a number in a pointer's place, as the API wants it.
        let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(LOG_BYTES)];
        let mut handle = std::ptr::null_mut();
        let image: *const c_void = image.as_ptr().cast();
        let answer = call!(cuModuleLoadDataEx(&mut handle, image, 2, options.as_mut_ptr(), values.as_mut_ptr()));
        if let Err(failure) = answer {
            let log: Vec<u8> = log.into_iter().take_while(|&byte| byte != 0).collect();
            let log = String::from_utf8_lossy(&log);
            return Err(refused(if log.trim().is_empty() { failure.to_string() } else { format!("{failure}\n{log}") }));
        }
        let loaded = Loaded { context, handle };
        Ok(Self { loaded: Arc::new(loaded), kernels: signature::kernels(ptx) })
    }

    fn no_symbol(&self, reason: String) -> DeviceError {
        DeviceError::NoSymbol { device: self.loaded.context.name.clone(), reason }
    }

    fn symbol(&self, kind: &str, name: &str) -> Result<CString, DeviceError> {
        CString::new(name).map_err(|_| self.no_symbol(format!("no {kind} has a NUL in its name, as `{name:?}` has")))
    }
}

impl Code for CudaCode {
    fn kernel(&self, name: &str) -> Result<Arc<dyn Entry>, DeviceError> {
        let missing = || {
            let names: Vec<String> = self.kernels.iter().map(|(name, _)| format!("`{name}`")).collect();
            self.no_symbol(format!("the module has no kernel `{name}`; it has {}", names.join(", ")))
        };
        let (_, params) = self.kernels.iter().find(|(known, _)| known == name).ok_or_else(missing)?;
        let text = self.symbol("kernel", name)?;
        self.loaded.context.enter()?;
        let mut handle = std::ptr::null_mut();
        let symbol: *const c_char = text.as_ptr();
        call!(cuModuleGetFunction(&mut handle, self.loaded.handle, symbol)).map_err(|failure| {
            if failure.result() == CUresult::CUDA_ERROR_NOT_FOUND {
                return missing();
            }
            self.loaded.context.failed(failure)
        })?;
        Ok(Arc::new(CudaKernel { loaded: self.loaded.clone(), handle, name: name.to_owned(), params: params.clone() }))
    }

    fn global(&self, name: &str) -> Result<(u64, u64), DeviceError> {
        let text = self.symbol("variable", name)?;
        self.loaded.context.enter()?;
        let (mut address, mut bytes) = (0, 0);
        let symbol: *const c_char = text.as_ptr();
        call!(cuModuleGetGlobal_v2(&mut address, &mut bytes, self.loaded.handle, symbol))
            .map_err(|failure| self.no_symbol(format!("the module has no variable `{name}`: {failure}")))?;
        Ok((address, bytes as u64))
    }
}

impl CudaKernel {
    fn refused(&self, reason: String) -> DeviceError {
        DeviceError::Launch { device: self.loaded.context.name.clone(), reason }
    }

    /// The bytes of each argument, if their number and sizes are the kernel's.
    fn packed(&self, args: &[Arg]) -> Result<Vec<Vec<u8>>, DeviceError> {
        if args.len() != self.params.len() {
            let (name, wanted, given) = (&self.name, self.params.len(), args.len());
            return Err(self.refused(format!("kernel `{name}` takes {wanted} arguments, {given} given")));
        }
        let packed: Vec<Vec<u8>> = args.iter().map(|arg| bytes_of(&arg.value)).collect();
        for (index, (bytes, param)) in packed.iter().zip(&self.params).enumerate() {
            if bytes.len() != param.bytes {
                return Err(self.refused(format!(
                    "kernel `{}`: parameter {index} `{}` has {} bytes, given are {}",
                    self.name,
                    param.name,
                    param.bytes,
                    bytes.len()
                )));
            }
        }
        Ok(packed)
    }

    /// Shared memory beyond the ordinary limit has to be asked for.
    fn allow_shared(&self, shared: u32) -> Result<(), DeviceError> {
        if shared <= ORDINARY_SHARED {
            return Ok(());
        }
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        call!(cuFuncSetAttribute(self.handle, attribute, shared as i32)).map_err(|failure| {
            self.refused(format!("kernel `{}` cannot have {shared} shared bytes here: {failure}", self.name))
        })
    }
}

fn bytes_of(value: &ArgValue) -> Vec<u8> {
    match value {
        ArgValue::U8(value) => value.to_ne_bytes().to_vec(),
        ArgValue::U16(value) => value.to_ne_bytes().to_vec(),
        ArgValue::U32(value) => value.to_ne_bytes().to_vec(),
        ArgValue::U64(value) | ArgValue::Pointer(value) => value.to_ne_bytes().to_vec(),
        ArgValue::I8(value) => value.to_ne_bytes().to_vec(),
        ArgValue::I16(value) => value.to_ne_bytes().to_vec(),
        ArgValue::I32(value) => value.to_ne_bytes().to_vec(),
        ArgValue::I64(value) => value.to_ne_bytes().to_vec(),
        ArgValue::F16(value) => value.to_ne_bytes().to_vec(),
        ArgValue::BF16(value) => value.to_ne_bytes().to_vec(),
        ArgValue::F32(value) => value.to_ne_bytes().to_vec(),
        ArgValue::F64(value) => value.to_ne_bytes().to_vec(),
        ArgValue::Bytes(value) => value.clone(),
    }
}

impl Entry for CudaKernel {
    fn launch(
        &self,
        queue: &dyn Queue,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        args: &[Arg],
    ) -> Result<(), DeviceError> {
        let mut packed = self.packed(args)?;
        let queue = queue.as_any().downcast_ref::<CudaQueue>();
        let queue = queue.ok_or_else(|| self.refused("the stream is of another kind".to_owned()))?;
        self.loaded.context.enter()?;
        self.allow_shared(shared)?;
        let mut pointers: Vec<*mut c_void> = packed.iter_mut().map(|bytes| bytes.as_mut_ptr().cast()).collect();
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        let params = pointers.as_mut_ptr();
        let none = std::ptr::null_mut();
        // The driver copies the arguments before it returns. Memory of the arguments may be let go of at any time after:
        // freeing waits for the kernels that were given before.
        let answer = call!(cuLaunchKernel(self.handle, gx, gy, gz, bx, by, bz, shared, queue.handle, params, none));
        answer.map_err(|failure| match failure.is_of_a_kernel() {
            true => self.loaded.context.failed(failure),
            false => self.refused(format!("kernel `{}`, grid {grid:?}, block {block:?}: {failure}", self.name)),
        })
    }
}
