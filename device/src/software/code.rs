//! Modules and kernels of a software GPU.

use std::sync::Arc;

use warpweft_ptxvm::system::{Kernel, LaunchOptions, Module, Pointer, SystemError};

use super::failed;
use super::queue::SoftwareQueue;
use crate::DeviceError;
use crate::driver::{Code, Entry, Queue};
use crate::module::{Arg, ArgValue};

pub(super) struct SoftwareCode {
    pub(super) module: Module,
    pub(super) launch: LaunchOptions,
    pub(super) name: String,
}

struct SoftwareKernel {
    kernel: Kernel,
    launch: LaunchOptions,
    name: String,
}

impl SoftwareCode {
    fn no_symbol(&self, error: &SystemError) -> DeviceError {
        DeviceError::NoSymbol { device: self.name.clone(), reason: error.to_string() }
    }
}

impl Code for SoftwareCode {
    fn kernel(&self, name: &str) -> Result<Arc<dyn Entry>, DeviceError> {
        let kernel = self.module.kernel(name).map_err(|error| self.no_symbol(&error))?;
        Ok(Arc::new(SoftwareKernel { kernel, launch: self.launch, name: self.name.clone() }))
    }

    fn global(&self, name: &str) -> Result<(u64, u64), DeviceError> {
        let global = self.module.global(name).map_err(|error| self.no_symbol(&error))?;
        Ok((global.address, global.bytes))
    }
}

impl Entry for SoftwareKernel {
    fn launch(
        &self,
        queue: &dyn Queue,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        args: &[Arg],
    ) -> Result<(), DeviceError> {
        let refused = |error: SystemError| match &error {
            SystemError::Stopped { .. } | SystemError::Thread { .. } => failed(&self.name, &error),
            _ => DeviceError::Launch { device: self.name.clone(), reason: error.to_string() },
        };
        let mut launch = self.kernel.launch(grid, block).shared(shared).options(self.launch);
        for arg in args {
            launch = match &arg.value {
                ArgValue::U8(value) => launch.arg(*value),
                ArgValue::U16(value) => launch.arg(*value),
                ArgValue::U32(value) => launch.arg(*value),
                ArgValue::U64(value) => launch.arg(*value),
                ArgValue::I8(value) => launch.arg(*value),
                ArgValue::I16(value) => launch.arg(*value),
                ArgValue::I32(value) => launch.arg(*value),
                ArgValue::I64(value) => launch.arg(*value),
                ArgValue::F16(value) => launch.arg(*value),
                ArgValue::BF16(value) => launch.arg(*value),
                ArgValue::F32(value) => launch.arg(*value),
                ArgValue::F64(value) => launch.arg(*value),
                ArgValue::Pointer(value) => launch.arg(Pointer(*value)),
                ArgValue::Bytes(value) => launch.arg(value.as_slice()),
            };
        }
        let Some(queue) = queue.as_any().downcast_ref::<SoftwareQueue>() else {
            return Err(DeviceError::Launch {
                device: self.name.clone(),
                reason: "the stream is of another kind".to_owned(),
            });
        };
        queue.enqueue(launch).map_err(refused)?;
        // The kernel may outlive the caller's buffers; the stream lets go of them after it.
        let memories: Vec<_> = args.iter().flat_map(|arg| arg.memories.iter().cloned()).collect();
        queue
            .stream()
            .submit(move || {
                drop(memories);
                Ok(None)
            })
            .map_err(refused)
    }
}
