//! Modules on a device: their kernels, and the memory of their variables.

use std::sync::Arc;

use super::{Device, Launch, SystemError};
use crate::program::{Function, Program, Variable};
use crate::types::Space;

/// A module on one device. A clone is the same module; the last handle frees its variables.
#[derive(Clone)]
pub struct Module(Arc<Loaded>);

struct Loaded {
    device: Device,
    program: Arc<Program>,
    /// The address of each variable.
    variables: Vec<u64>,
}

/// A kernel of a module.
#[derive(Clone)]
pub struct Kernel {
    module: Module,
    index: u32,
}

/// A variable of a module, where it lies on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Global {
    /// Its first address.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
}

impl Module {
    /// Gives a compiled module's variables memory on a device.
    ///
    /// # Errors
    /// [`SystemError::Target`], [`SystemError::ExternalVariable`], [`SystemError::Memory`].
    pub fn load(device: &Device, program: Arc<Program>) -> Result<Module, SystemError> {
        let (module, own) = (program.target, device.options().target);
        // Architecture-specific modules run on no other architecture; the device stands for a GPU that has its own.
        if module.sm > own.sm || (module.specific && module.sm != own.sm) {
            return Err(SystemError::Target { module, device: own });
        }
        if let Some(variable) = program.variables.iter().find(|variable| variable.external) {
            return Err(SystemError::ExternalVariable { name: variable.name.clone() });
        }
        let mut loaded = Loaded { device: device.clone(), program, variables: Vec::new() };
        let program = Arc::clone(&loaded.program);
        for variable in &program.variables {
            let align = variable.align.max(1);
            let address = device.memory().allocate(device.id(), variable.bytes, align, &variable.name)?;
            loaded.variables.push(address);
        }
        for (variable, &address) in program.variables.iter().zip(&loaded.variables) {
            loaded.initialise(variable, address)?;
        }
        Ok(Module(Arc::new(loaded)))
    }

    /// The device it is loaded on.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Its lowered form.
    pub fn program(&self) -> &Arc<Program> {
        &self.0.program
    }

    pub(super) fn variables(&self) -> &[u64] {
        &self.0.variables
    }

    /// Its kernels, in the order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = &Function> {
        self.0.program.functions.iter().filter(|function| function.entry)
    }

    /// A kernel.
    ///
    /// # Errors
    /// [`SystemError::NoKernel`] with the names there are.
    pub fn kernel(&self, name: &str) -> Result<Kernel, SystemError> {
        let functions = &self.0.program.functions;
        let index = functions.iter().position(|function| function.entry && function.name == name);
        let Some(index) = index else {
            let kernels = listed(self.kernels().map(|function| function.name.as_str()));
            return Err(SystemError::NoKernel { name: name.to_owned(), kernels });
        };
        Ok(Kernel { module: self.clone(), index: index as u32 })
    }

    /// A variable in global or constant memory, which the host may read and write.
    ///
    /// # Errors
    /// [`SystemError::NoVariable`] with the names there are.
    pub fn global(&self, name: &str) -> Result<Global, SystemError> {
        let variables = &self.0.program.variables;
        let found = variables.iter().zip(&self.0.variables).find(|(variable, _)| variable.name == name);
        found.map(|(variable, &address)| Global { address, bytes: variable.bytes }).ok_or_else(|| {
            let variables = listed(variables.iter().map(|variable| variable.name.as_str()));
            SystemError::NoVariable { name: name.to_owned(), variables }
        })
    }
}

/// Names in one line.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

impl Loaded {
    fn initialise(&self, variable: &Variable, address: u64) -> Result<(), SystemError> {
        let memory = self.device.memory();
        let mut init = variable.init.clone();
        for &(offset, target, addend) in &variable.addresses {
            let value = self.variables.get(target as usize).map(|base| base.wrapping_add_signed(addend));
            let place = init.get_mut(offset as usize..).and_then(|rest| rest.first_chunk_mut::<8>());
            if let (Some(value), Some(place)) = (value, place) {
                *place = value.to_le_bytes();
            }
        }
        memory.fill(address, variable.bytes, &[0])?;
        init.truncate(usize::try_from(variable.bytes).unwrap_or(usize::MAX));
        memory.write(address, &init)?;
        if variable.space == Space::Const
            && let Some(allocation) = memory.find(address)
        {
            allocation.set_read_only(true);
        }
        Ok(())
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        for &address in &self.variables {
            let _ = self.device.memory().free(address);
        }
    }
}

impl Kernel {
    /// The module it is of.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// Its index in the program.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its lowered form.
    pub fn function(&self) -> &Function {
        &self.module.0.program.functions[self.index as usize]
    }

    /// A launch with `grid` blocks of `block` threads each, along x, y and z.
    pub fn launch(&self, grid: [u32; 3], block: [u32; 3]) -> Launch {
        Launch::new(self.clone(), grid, block)
    }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Module({} kernels on {})", self.kernels().count(), self.device())
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Kernel({} on {})", self.function().name, self.module.device())
    }
}
