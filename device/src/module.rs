//! Modules of PTX, their kernels, and what kernels are given.

use std::fmt;
use std::sync::Arc;

use crate::driver::{Code, Entry, Memory};
use crate::{Buffer, Device, DeviceError, Element, Stream, View, ViewMut, bf16, f16};

/// PTX that is loaded on a device which runs it. A clone is the same module.
#[derive(Clone)]
pub struct Module {
    device: Device,
    code: Arc<dyn Code>,
}

/// A kernel of a module. A clone is the same kernel.
#[derive(Clone)]
pub struct Kernel {
    device: Device,
    name: Arc<str>,
    entry: Arc<dyn Entry>,
}

impl Module {
    /// Compiles and loads PTX.
    ///
    /// # Errors
    /// [`DeviceError::Module`] with the compiler's log: line, column and what is wrong. [`DeviceError::NoKernels`] on a
    /// device that runs no PTX, which the CPU is.
    pub fn load(device: &Device, ptx: &str) -> Result<Self, DeviceError> {
        let code = device.driver("a PTX module")?.load(ptx)?;
        Ok(Self { device: device.clone(), code })
    }

    /// PTX that is part of the program: loaded by the first call for a device, and kept as long as that.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn of_program(device: &Device, ptx: &'static str) -> Result<Self, DeviceError> {
        Ok(Self { device: device.clone(), code: device.program(ptx)? })
    }

    /// The device it is loaded on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A kernel by its name in the PTX.
    ///
    /// # Errors
    /// [`DeviceError::NoSymbol`].
    pub fn kernel(&self, name: &str) -> Result<Kernel, DeviceError> {
        Ok(Kernel { device: self.device.clone(), name: name.into(), entry: self.code.kernel(name)? })
    }

    /// Address and bytes of a variable, to be given to kernels as [`Arg::pointer`].
    ///
    /// # Errors
    /// [`DeviceError::NoSymbol`].
    pub fn global(&self, name: &str) -> Result<(u64, u64), DeviceError> {
        self.code.global(name)
    }
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device it is loaded on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Gives a launch of `grid` blocks of `block` threads with `shared` bytes of dynamic shared memory to a stream. The
    /// memory of its arguments is kept until the kernel has ended.
    ///
    /// Whether the kernel stays in its arguments is up to the kernel; a software device reports when it does not.
    ///
    /// # Errors
    /// [`DeviceError::Launch`] that names the argument or limit, [`DeviceError::WrongDevice`]. What goes wrong while it
    /// runs is an error of [`Stream::synchronize`].
    pub fn launch(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        args: &[Arg],
    ) -> Result<(), DeviceError> {
        stream.same_device("the kernel", &self.device)?;
        for device in args.iter().filter_map(|arg| arg.device.as_ref()) {
            if !self.device.reaches(device) {
                stream.same_device("an argument of the kernel", device)?;
            }
        }
        self.entry.launch(stream.queue("a kernel")?, grid, block, shared, args)
    }
}

/// One argument of a kernel: a number, a region of device memory, or the bytes of a struct.
#[derive(Clone)]
pub struct Arg {
    pub(crate) value: ArgValue,
    /// Keeps the memory alive while the kernel runs.
    #[cfg_attr(
        not(feature = "software"),
        allow(dead_code, reason = "the CUDA driver waits for kernels before it frees")
    )]
    pub(crate) memories: Vec<Memory>,
    device: Option<Device>,
}

#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub(crate) enum ArgValue {
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    I8(i8),
    I16(i16),
    I32(i32),
    I64(i64),
    F16(f16),
    BF16(bf16),
    F32(f32),
    F64(f64),
    Pointer(u64),
    Bytes(Vec<u8>),
}

impl Arg {
    fn plain(value: ArgValue) -> Self {
        Self { value, memories: Vec::new(), device: None }
    }

    /// An address of device memory that the caller keeps alive, such as that of a module's variable.
    pub fn pointer(address: u64) -> Self {
        Self::plain(ArgValue::Pointer(address))
    }

    /// Its address, where it is one; 0 else.
    pub fn address(&self) -> u64 {
        if let ArgValue::Pointer(address) = self.value { address } else { 0 }
    }

    /// The same argument, which also keeps the memory of others alive while the kernel runs: what a table that it points to
    /// points to in turn.
    pub fn keeping(mut self, others: Vec<Arg>) -> Self {
        self.memories.extend(others.into_iter().flat_map(|other| other.memories));
        self
    }

    /// A struct, as the bytes that the kernel reads.
    pub fn bytes(bytes: &[u8]) -> Self {
        Self::plain(ArgValue::Bytes(bytes.to_vec()))
    }

    pub(crate) fn region((address, memory): (u64, Memory), device: &Device) -> Self {
        Self { value: ArgValue::Pointer(address), memories: vec![memory], device: Some(device.clone()) }
    }
}

macro_rules! numbers {
    ($($ty:ty: $variant:ident),*) => {
        $(impl From<$ty> for Arg {
            fn from(value: $ty) -> Self {
                Self::plain(ArgValue::$variant(value))
            }
        })*
    };
}

numbers! { u8: U8, u16: U16, u32: U32, u64: U64, i8: I8, i16: I16, i32: I32, i64: I64, f16: F16, bf16: BF16, f32: F32, f64: F64 }

/// A region that the kernel reads.
impl<T: Element> TryFrom<View<'_, T>> for Arg {
    type Error = DeviceError;
    fn try_from(view: View<'_, T>) -> Result<Self, DeviceError> {
        Ok(Self::region(view.pointer()?, view.device()))
    }
}

/// A region that the kernel writes. The caller's borrow ends with this call, the kernel's use does not: work on other
/// streams that touches the same elements needs an event between.
impl<T: Element> TryFrom<ViewMut<'_, T>> for Arg {
    type Error = DeviceError;
    fn try_from(view: ViewMut<'_, T>) -> Result<Self, DeviceError> {
        Ok(Self::region(view.as_view().pointer()?, view.device()))
    }
}

/// The whole of a buffer.
impl<T: Element> TryFrom<&Buffer<T>> for Arg {
    type Error = DeviceError;
    fn try_from(buffer: &Buffer<T>) -> Result<Self, DeviceError> {
        buffer.as_view().try_into()
    }
}

impl fmt::Debug for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arg({:?})", self.value)
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module(on {})", self.device)
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} on {})", self.name, self.device)
    }
}
