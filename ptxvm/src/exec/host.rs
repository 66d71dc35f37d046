//! Functions of the host that kernels call: `.extern .func`.
//!
//! A caller registers them by name; `vprintf`, `__assertfail`, `malloc` and `free` are always there.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, LazyLock};

use super::address::window;
use super::printf;
use super::warp::LocalMemory;
use crate::memory::{AddressSpace, DeviceId, Fault, FaultKind, MemoryError};
use crate::types::Space;

/// A function of the host. Kernels on several host threads may call it at once.
pub trait HostFunction: Send + Sync {
    /// Does one lane's call. It must not wait for other lanes: [`Flow::Again`] is how a call waits.
    ///
    /// # Errors
    /// Any error stops the kernel.
    fn call(&self, call: &mut HostCall<'_>) -> Result<Flow, HostError>;
}

impl<F: Fn(&mut HostCall<'_>) -> Result<Flow, HostError> + Send + Sync> HostFunction for F {
    fn call(&self, call: &mut HostCall<'_>) -> Result<Flow, HostError> {
        self(call)
    }
}

/// What follows a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The lane goes on, with the result.
    Done,
    /// The lane waits: the call is made again later, and others run meanwhile.
    Again,
}

/// Why a function of the host cannot do what it is asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum HostError {
    /// Nobody has registered it.
    #[error("no such function is registered")]
    Unknown,
    /// It takes other arguments.
    #[error("argument {index} has {given} bytes, {expected} expected")]
    Argument { index: usize, expected: usize, given: usize },
    /// An assertion of the kernel failed.
    #[error("{0}")]
    Assert(String),
    /// An address that it cannot use.
    #[error("{} of {} bytes at {:#x}", .0.kind.word(), .0.bytes, .0.address)]
    Fault(Box<Fault>),
    /// The memory says no.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Its own error.
    #[error("{0}")]
    Other(Arc<dyn Error + Send + Sync>),
}

/// One lane's call: its arguments, who calls, and the memory that the lane sees.
pub struct HostCall<'a> {
    pub(super) arguments: &'a [Vec<u8>],
    pub(super) result: &'a mut [u8],
    pub(super) thread: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) block_shape: [u32; 3],
    pub(super) grid: [u32; 3],
    pub(super) device: DeviceId,
    pub(super) memory: &'a AddressSpace,
    pub(super) output: &'a mut Vec<u8>,
    pub(super) lane: usize,
    pub(super) shared: (&'a mut [u32], u32),
    pub(super) local: &'a mut LocalMemory,
    pub(super) params: &'a [u8],
}

impl HostCall<'_> {
    /// The bytes of an argument; empty where there is none.
    pub fn argument(&self, index: usize) -> &[u8] {
        self.arguments.get(index).map_or(&[], Vec::as_slice)
    }

    /// An argument of so many bytes.
    fn exact<const N: usize>(&self, index: usize) -> Result<[u8; N], HostError> {
        let bytes = self.argument(index);
        bytes.try_into().map_err(|_| HostError::Argument { index, expected: N, given: bytes.len() })
    }

    /// An argument of 32 bits.
    ///
    /// # Errors
    /// [`HostError::Argument`].
    pub fn argument_u32(&self, index: usize) -> Result<u32, HostError> {
        self.exact(index).map(u32::from_le_bytes)
    }

    /// An argument of 64 bits.
    ///
    /// # Errors
    /// [`HostError::Argument`].
    pub fn argument_u64(&self, index: usize) -> Result<u64, HostError> {
        self.exact(index).map(u64::from_le_bytes)
    }

    /// Sets what the call returns: as many bytes as both have.
    pub fn set_result(&mut self, bytes: &[u8]) {
        let len = bytes.len().min(self.result.len());
        self.result[..len].copy_from_slice(&bytes[..len]);
    }

    /// The thread in its block, and the block's shape.
    pub fn thread(&self) -> ([u32; 3], [u32; 3]) {
        (self.thread, self.block_shape)
    }

    /// The block in its grid, and the grid's shape.
    pub fn block(&self) -> ([u32; 3], [u32; 3]) {
        (self.block, self.grid)
    }

    /// The device that the kernel runs on.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// All global memory.
    pub fn memory(&self) -> &AddressSpace {
        self.memory
    }

    /// Adds to what the kernel prints.
    pub fn print(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    fn fault(&self, address: u64, bytes: usize, write: bool) -> HostError {
        let bytes = bytes as u32;
        let mut fault = self.memory.fault(self.device, address, bytes, Space::Generic, write);
        fault.lanes = 1 << self.lane;
        if fault.kind == FaultKind::Misaligned {
            fault.kind = FaultKind::OutOfBounds;
        }
        HostError::Fault(Box::new(fault))
    }

    /// Reads at a generic address, as the lane sees it.
    ///
    /// # Errors
    /// [`HostError::Fault`].
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), HostError> {
        let fault = || self.fault(address, out.len(), false);
        let Some((space, offset)) = window(address) else {
            let bytes = out.len() as u64;
            let found = self.memory.resolve(self.device, address, bytes, false).map_err(|_| fault())?;
            found.load(address - found.base, out);
            return Ok(());
        };
        let size = match space {
            Space::Shared => self.shared.1 as usize,
            Space::Local => self.local.bytes() as usize,
            _ => self.params.len(),
        };
        let start = offset as usize;
        if start > size || out.len() > size - start {
            return Err(fault());
        }
        for (at, byte) in (start..).zip(out) {
            *byte = match space {
                Space::Shared => (self.shared.0[at / 4] >> (at % 4 * 8)) as u8,
                Space::Local => self.local.byte(self.lane, at as u32),
                _ => self.params[at],
            };
        }
        Ok(())
    }

    /// Writes at a generic address, as the lane sees it.
    ///
    /// # Errors
    /// [`HostError::Fault`].
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), HostError> {
        let Some((space, offset)) = window(address) else {
            let found = self.memory.resolve(self.device, address, bytes.len() as u64, true);
            let found = found.map_err(|_| self.fault(address, bytes.len(), true))?;
            found.store(address - found.base, bytes);
            return Ok(());
        };
        let size = match space {
            Space::Shared => self.shared.1 as usize,
            Space::Local => self.local.bytes() as usize,
            _ => 0,
        };
        let start = offset as usize;
        if start > size || bytes.len() > size - start {
            return Err(self.fault(address, bytes.len(), true));
        }
        for (at, &byte) in (start..).zip(bytes) {
            if space == Space::Local {
                self.local.set_byte(self.lane, at as u32, byte);
            } else {
                let (word, shift) = (&mut self.shared.0[at / 4], at % 4 * 8);
                *word = (*word & !(0xff << shift)) | u32::from(byte) << shift;
            }
        }
        Ok(())
    }

    /// Reads a C string, without its end, of at most 64 KiB.
    ///
    /// # Errors
    /// [`HostError::Fault`].
    pub fn read_string(&self, address: u64) -> Result<Vec<u8>, HostError> {
        let mut text = Vec::new();
        for at in 0..1 << 16 {
            let mut byte = [0];
            self.read(address.wrapping_add(at), &mut byte)?;
            if byte[0] == 0 {
                break;
            }
            text.push(byte[0]);
        }
        Ok(text)
    }
}

/// Functions of the host, by name.
#[derive(Clone, Default)]
pub struct HostFunctions {
    registered: BTreeMap<String, Arc<dyn HostFunction>>,
}

/// Those that CUDA's own headers call.
static BUILT_IN: LazyLock<BTreeMap<&'static str, Arc<dyn HostFunction>>> = LazyLock::new(|| {
    BTreeMap::from([
        ("vprintf", Arc::new(vprintf) as Arc<dyn HostFunction>),
        ("__assertfail", Arc::new(assert_fail)),
        ("malloc", Arc::new(allocate)),
        ("free", Arc::new(free)),
    ])
});

impl HostFunctions {
    /// Only those that are always there.
    pub fn new() -> HostFunctions {
        HostFunctions::default()
    }

    /// Adds a function, in place of any other of that name.
    pub fn insert(&mut self, name: &str, function: impl HostFunction + 'static) {
        self.registered.insert(name.to_owned(), Arc::new(function));
    }

    /// The function of a name.
    pub fn find(&self, name: &str) -> Option<&Arc<dyn HostFunction>> {
        self.registered.get(name).or_else(|| BUILT_IN.get(name))
    }
}

/// `int vprintf(const char *format, va_list arguments)`: returns the number of arguments, as CUDA's does.
fn vprintf(call: &mut HostCall<'_>) -> Result<Flow, HostError> {
    let format = call.read_string(call.argument_u64(0)?)?;
    let (text, count) = printf::format(&format, call.argument_u64(1)?, call)?;
    call.print(&text);
    call.set_result(&count.to_le_bytes());
    Ok(Flow::Done)
}

/// `void __assertfail(const char *message, const char *file, unsigned line, const char *function, size_t char_bytes)`.
fn assert_fail(call: &mut HostCall<'_>) -> Result<Flow, HostError> {
    let text = |index: usize| -> Result<String, HostError> {
        Ok(String::from_utf8_lossy(&call.read_string(call.argument_u64(index)?)?).into_owned())
    };
    let (message, file, line, function) = (text(0)?, text(1)?, call.argument_u32(2)?, text(3)?);
    let ([bx, by, bz], [tx, ty, tz]) = (call.block, call.thread);
    Err(HostError::Assert(format!(
        "{file}:{line}: {function}: block: [{bx},{by},{bz}], thread: [{tx},{ty},{tz}] Assertion `{message}` failed."
    )))
}

/// `void *malloc(size_t bytes)`: null where memory is short.
fn allocate(call: &mut HostCall<'_>) -> Result<Flow, HostError> {
    let bytes = call.argument_u64(0)?;
    let address = call.memory.allocate(call.device, bytes, 16, "malloc of a kernel").unwrap_or(0);
    call.set_result(&address.to_le_bytes());
    Ok(Flow::Done)
}

/// `void free(void *address)`.
fn free(call: &mut HostCall<'_>) -> Result<Flow, HostError> {
    let address = call.argument_u64(0)?;
    if address != 0 {
        call.memory.free(address)?;
    }
    Ok(Flow::Done)
}
