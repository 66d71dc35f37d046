//! Doing a job: memory, launches in order, dumps.

use std::path::Path;
use std::sync::Arc;

use warpweft::device::ptxvm::memory::AddressSpace;
use warpweft::device::ptxvm::observe::check::Selection;
use warpweft::device::ptxvm::system::Launch as LaunchOf;
use warpweft::device::ptxvm::system::{Argument, Device, DeviceOptions, Module, Pointer, Run, SystemError, Value};

use super::job::{Job, Launch, Param, Target};

/// A job whose buffers are there and whose module is loaded.
pub(super) struct Session<'a> {
    job: &'a Job,
    device: Device,
    module: Module,
    /// Name, address and bytes of each buffer.
    buffers: Vec<(&'a str, u64, u64)>,
    replay: String,
}

/// Why a job cannot be done.
pub(super) enum Refused {
    /// In a sentence.
    Sentence(String),
    /// The PTX does not compile.
    Compile(warpweft::device::ptxvm::lower::CompileError),
}

impl From<String> for Refused {
    fn from(sentence: String) -> Self {
        Refused::Sentence(sentence)
    }
}

impl From<SystemError> for Refused {
    fn from(error: SystemError) -> Self {
        match error {
            SystemError::Compile(error) => Refused::Compile(error),
            error => Refused::Sentence(error.to_string()),
        }
    }
}

impl<'a> Session<'a> {
    /// Loads the module, makes the buffers. `command` is what was typed, settings aside.
    pub(super) fn open(job: &'a Job, command: &str) -> Result<Session<'a>, Refused> {
        let mut options = DeviceOptions::named(&job.device)?;
        options.launch.checks = Selection::ALL;
        for (key, value) in &job.settings {
            options.set(key, value)?;
        }
        let replay = format!("{command} {}", options.launch);
        let device = Device::new(options)?;
        let path = job.folder.join(&job.module);
        let text =
            std::fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        // Buffers come first: their addresses then depend on the job alone, whatever variables the module has.
        let mut session_buffers = Vec::new();
        for (name, buffer) in &job.buffers {
            session_buffers.push(make(job, &device, name, buffer.bytes, &buffer.init)?);
        }
        let module = device.load(&text)?;
        let session = Session { job, device, module, buffers: session_buffers, replay };
        for (name, _) in &job.dump {
            session.buffer(name).map_err(|error| format!("dump: {error}"))?;
        }
        Ok(session)
    }

    fn memory(&self) -> &Arc<AddressSpace> {
        self.device.memory()
    }

    fn buffer(&self, name: &str) -> Result<(u64, u64), String> {
        let found = self.buffers.iter().find(|(known, ..)| *known == name);
        found.map(|&(_, address, bytes)| (address, bytes)).ok_or_else(|| {
            let names: Vec<String> = self.buffers.iter().map(|(name, ..)| format!("`{name}`")).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            format!("there is no buffer `{name}`; the buffers are {names}")
        })
    }

    fn address(&self, target: &Target) -> Result<u64, String> {
        Ok(self.buffer(&target.buffer)?.0.wrapping_add_signed(target.offset))
    }

    fn value(&self, param: &Param) -> Result<Value, String> {
        match param {
            Param::Scalar(scalar) => Ok(scalar.value()),
            Param::Pointer(target) => Ok(Pointer(self.address(target)?).value()),
            Param::Bytes(bytes, places) => {
                let mut bytes = bytes.clone();
                for (at, target) in places {
                    bytes[*at..at + 8].copy_from_slice(&self.address(target)?.to_le_bytes());
                }
                Ok(bytes.as_slice().value())
            }
        }
    }

    /// Runs all launches in order, until one fails. All are checked before the first runs.
    pub(super) fn run(&self) -> Result<Vec<Run>, Refused> {
        self.run_each(LaunchOf::run)
    }

    /// The same, each launch done by `perform`.
    pub(super) fn run_each(
        &self,
        mut perform: impl FnMut(LaunchOf) -> Result<Run, SystemError>,
    ) -> Result<Vec<Run>, Refused> {
        let described = self.job.launches.iter().enumerate().map(|(at, launch)| {
            let place =
                |error: String| if self.job.launches.len() == 1 { error } else { format!("launches[{at}]: {error}") };
            let launch = self.describe(launch).map_err(place)?;
            launch.validate().map_err(|error| place(error.to_string()))?;
            Ok(launch)
        });
        let described: Vec<_> = described.collect::<Result<_, String>>()?;
        let mut runs = Vec::new();
        for launch in described {
            let run = perform(launch)?;
            let failed = run.failure().is_some();
            runs.push(run);
            if failed {
                break;
            }
        }
        Ok(runs)
    }

    fn describe(&self, launch: &Launch) -> Result<LaunchOf, String> {
        let name = if launch.kernel.is_empty() { self.only_kernel()? } else { launch.kernel.clone() };
        let kernel = self.module.kernel(&name).map_err(|error| error.to_string())?;
        let start = kernel.launch(launch.grid, launch.block).shared(launch.shared).cluster(launch.cluster);
        let values = launch
            .params
            .iter()
            .enumerate()
            .map(|(at, param)| self.value(param).map_err(|error| format!("params[{at}]: {error}")));
        let values: Vec<Value> = values.collect::<Result<_, String>>()?;
        Ok(values.into_iter().fold(start.replay(&self.replay), |launch, value| launch.arg(value)))
    }

    /// The kernel of a module that has one.
    fn only_kernel(&self) -> Result<String, String> {
        let names: Vec<&str> = self.module.kernels().map(|function| function.name.as_str()).collect();
        match names.as_slice() {
            [name] => Ok((*name).to_owned()),
            [] => Err("the module has no kernel".to_owned()),
            _ => Err(format!("--kernel is missing; the module has {}", names.join(", "))),
        }
    }

    /// Writes the buffers that are to be kept, as the last kernel left them.
    pub(super) fn dump(&self) -> Result<(), String> {
        for (name, file) in &self.job.dump {
            let (address, bytes) = self.buffer(name)?;
            let path = self.job.folder.join(file);
            write(self.memory(), address, bytes, &path)
                .map_err(|error| format!("cannot write `{name}` to {}: {error}", path.display()))?;
        }
        Ok(())
    }
}

fn make<'a>(
    job: &Job,
    device: &Device,
    name: &'a str,
    bytes: Option<u64>,
    init: &str,
) -> Result<(&'a str, u64, u64), String> {
    let place = |error: String| format!("buffer `{name}`: {error}");
    let missing = || place(format!("bytes is missing, which {init} needs"));
    let content = match init {
        "zero" | "poison" => None,
        file => {
            let path = job.folder.join(file);
            let content = std::fs::read(&path);
            Some(content.map_err(|error| place(format!("cannot read {}: {error}", path.display())))?)
        }
    };
    let bytes = match (bytes, &content) {
        (Some(bytes), Some(content)) if content.len() as u64 != bytes => {
            return Err(place(format!("{init} has {} bytes and the buffer {bytes}", content.len())));
        }
        (Some(bytes), _) => bytes,
        (None, Some(content)) => content.len() as u64,
        (None, None) => return Err(missing()),
    };
    let memory = device.memory();
    let address = memory.allocate(device.id(), bytes, 1, name).map_err(|error| error.to_string())?;
    let filled = match &content {
        Some(content) => memory.write(address, content),
        None if init == "zero" => memory.fill(address, bytes, &[0]),
        None => Ok(()),
    };
    filled.map_err(|error| place(error.to_string()))?;
    Ok((name, address, bytes))
}

/// In pieces, so that a buffer larger than the host's memory can be kept.
fn write(memory: &AddressSpace, address: u64, bytes: u64, path: &Path) -> std::io::Result<()> {
    use std::io::Write;
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    let mut piece = vec![0; 1 << 20];
    let mut done = 0;
    while done < bytes {
        let len = (bytes - done).min(piece.len() as u64) as usize;
        memory.read(address + done, &mut piece[..len]).map_err(std::io::Error::other)?;
        file.write_all(&piece[..len])?;
        done += len as u64;
    }
    file.flush()
}
