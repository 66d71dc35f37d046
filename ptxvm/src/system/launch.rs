//! Launches: a kernel, its shape, its arguments, and how it is run and watched.

use std::sync::Arc;

use super::argument::{Argument, Value, pack};
use super::{Buffer, Kernel, LaunchOptions, Run, Stream, SystemError};
use crate::exec::{self, Asynchrony, Divergence, Schedule};
use crate::numerics::{Approx, TensorModel};
use crate::observe::check::{Checks, Selection};
use crate::observe::{Nobody, Observer};
use crate::report::Check;

/// A launch that is being put together.
#[derive(Clone, Debug)]
pub struct Launch {
    kernel: Kernel,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    arguments: Vec<Value>,
    keeps: Vec<Buffer>,
    options: LaunchOptions,
    replay: Option<String>,
    cluster: [u32; 3],
}

impl Launch {
    pub(super) fn new(kernel: Kernel, grid: [u32; 3], block: [u32; 3]) -> Launch {
        let options = kernel.module().device().options().launch;
        Launch {
            kernel,
            grid,
            block,
            shared: 0,
            arguments: Vec::new(),
            keeps: Vec::new(),
            options,
            replay: None,
            cluster: [1; 3],
        }
    }

    /// The next argument.
    pub fn arg(mut self, argument: impl Argument) -> Self {
        self.keeps.extend(argument.keeps());
        self.arguments.push(argument.value());
        self
    }

    /// Bytes of dynamic shared memory.
    pub fn shared(mut self, bytes: u32) -> Self {
        self.shared = bytes;
        self
    }

    /// Blocks of a cluster. Only one block runs here.
    pub fn cluster(mut self, cluster: [u32; 3]) -> Self {
        self.cluster = cluster;
        self
    }

    /// All options at once.
    pub fn options(mut self, options: LaunchOptions) -> Self {
        self.options = options;
        self
    }

    /// Which checks watch it.
    pub fn check(mut self, checks: Selection) -> Self {
        self.options.checks = checks;
        self
    }

    /// Seeds whatever is left to chance.
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.exec.seed = seed;
        self
    }

    /// In what order warps and blocks get their turns.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.options.exec.schedule = schedule;
        self
    }

    /// When asynchronous copies land.
    pub fn asynchrony(mut self, asynchrony: Asynchrony) -> Self {
        self.options.exec.asynchrony = asynchrony;
        self
    }

    /// How the lanes of a warp part and meet.
    pub fn divergence(mut self, divergence: Divergence) -> Self {
        self.options.exec.divergence = divergence;
        self
    }

    /// The results of approximate functions.
    pub fn approx(mut self, approx: Approx) -> Self {
        self.options.exec.settings.approx = approx;
        self
    }

    /// The model of the tensor cores.
    pub fn tensor(mut self, tensor: TensorModel) -> Self {
        self.options.exec.settings.tensor = tensor;
        self
    }

    /// Warp instructions after which it is stopped.
    pub fn limit(mut self, limit: u64) -> Self {
        self.options.exec.limit = limit;
        self
    }

    /// Threads of the host, where no check watches. With more than one, blocks interleave by chance.
    pub fn workers(mut self, workers: usize) -> Self {
        self.options.exec.workers = workers;
        self
    }

    /// What reports give as the way to see the same again; the options otherwise.
    pub fn replay(mut self, command: impl Into<String>) -> Self {
        self.replay = Some(command.into());
        self
    }

    /// Whether it could begin, without running it.
    ///
    /// # Errors
    /// What [`Launch::run`] would say before anything runs.
    pub fn validate(&self) -> Result<(), SystemError> {
        self.prepare().map(drop)
    }

    /// Runs it and waits.
    ///
    /// # Errors
    /// Where it cannot begin. What the kernel does wrong is in the run's reports.
    pub fn run(self) -> Result<Run, SystemError> {
        let params = self.prepare()?;
        self.perform(&params)
    }

    /// Gives it to a stream, which keeps its run for [`Stream::synchronize`].
    ///
    /// # Errors
    /// Where it cannot begin.
    pub fn enqueue(self, stream: &Stream) -> Result<(), SystemError> {
        let params = self.prepare()?;
        if stream.device() != self.kernel.module().device() {
            return Err(SystemError::OtherSystem { what: "the stream" });
        }
        stream.submit(move || self.perform(&params).map(Some))
    }

    /// Runs it under an observer of the caller's: the run has the observer's reports.
    ///
    /// # Errors
    /// As [`Launch::run`].
    pub fn observe(self, observer: &mut dyn Observer) -> Result<Run, SystemError> {
        let params = self.prepare()?;
        self.execute(&params, observer, false)
    }

    /// The parameters' bytes, if all is well.
    fn prepare(&self) -> Result<Vec<u8>, SystemError> {
        let device = self.kernel.module().device();
        device.check()?;
        let function = self.kernel.function();
        if self.cluster != [1; 3] {
            return Err(SystemError::Cluster { kernel: function.name.clone(), cluster: self.cluster });
        }
        if self.keeps.iter().any(|buffer| buffer.device().system() != device.system()) {
            return Err(SystemError::OtherSystem { what: "a buffer" });
        }
        let params = pack(function, &self.arguments)?;
        exec::check(&self.described(&params, 0), &device.system().host_functions())?;
        Ok(params)
    }

    fn described<'a>(&'a self, params: &'a [u8], grid_id: u64) -> exec::Launch<'a> {
        let module = self.kernel.module();
        let device = module.device();
        exec::Launch {
            program: module.program(),
            variables: module.variables(),
            function: self.kernel.index(),
            grid: self.grid,
            block: self.block,
            dynamic_shared: self.shared,
            params,
            device: device.id(),
            target: device.options().target,
            sms: device.options().multiprocessors,
            grid_id,
        }
    }

    fn perform(&self, params: &[u8]) -> Result<Run, SystemError> {
        if self.options.checks == Selection::NONE {
            return self.execute(params, &mut Nobody, false);
        }
        let memory = Arc::clone(self.kernel.module().device().memory());
        let mut checks = Checks::new(self.options.checks, self.replay_words()).watching(memory);
        self.execute(params, &mut checks, self.options.checks.has(Check::Initcheck))
    }

    fn replay_words(&self) -> String {
        self.replay.clone().unwrap_or_else(|| self.options.to_string())
    }

    /// `entered` is whether the observer enters in memory which bytes the kernel gives a value.
    fn execute(&self, params: &[u8], observer: &mut dyn Observer, entered: bool) -> Result<Run, SystemError> {
        let device = self.kernel.module().device();
        device.check()?;
        let system = device.system();
        let mut options = self.options.exec;
        options.settings.seed = options.seed;
        let launch = self.described(params, system.next_grid());
        let outcome = exec::run(&launch, device.memory(), &system.host_functions(), &options, observer)?;
        if !entered {
            device.memory().assume_defined();
        }
        let run = Run::new(&launch, outcome, observer.take_reports(), observer.is_active(), self.replay_words());
        if let Some(reason) = run.failure() {
            device.stop(&run.kernel, reason);
        }
        Ok(run)
    }
}
