//! One test over every way of running: a device, its buffers, launches under all checks, and what reports are expected.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use bytemuck::Pod;
use warpweft_ptxvm::exec::{Asynchrony, Divergence, Schedule};
use warpweft_ptxvm::lower;
use warpweft_ptxvm::numerics::{Approx, TensorModel};
use warpweft_ptxvm::observe::check::Checks;
use warpweft_ptxvm::program::Program;
use warpweft_ptxvm::report::{Check, Report, Severity};
use warpweft_ptxvm::system::{self, Device};
use warpweft_ptxvm::types::Target;

use crate::corpus;

pub(crate) use warpweft_ptxvm::system::Buffer;

/// One way of running a kernel: right code is right under all of them.
#[derive(Clone, Copy, Debug)]
struct Way {
    divergence: Divergence,
    asynchrony: Asynchrony,
    schedule: Schedule,
    seed: u64,
    approx: Approx,
    tensor: TensorModel,
}

const fn way(divergence: Divergence, asynchrony: Asynchrony, schedule: Schedule, seed: u64) -> Way {
    Way { divergence, asynchrony, schedule, seed, approx: Approx::Rounded, tensor: TensorModel::ExactSm80 }
}

/// Both divergence modes, every completion of copies, every schedule, several seeds; copies as late as allowed come first.
const WAYS: [Way; 7] = [
    way(Divergence::Reconverge, Asynchrony::Latest, Schedule::RoundRobin, 1),
    way(Divergence::Independent, Asynchrony::Random, Schedule::Random, 2),
    way(Divergence::Reconverge, Asynchrony::Eager, Schedule::Reverse, 3),
    Way { approx: Approx::Adversary, ..way(Divergence::Independent, Asynchrony::Latest, Schedule::Reverse, 4) },
    way(Divergence::Reconverge, Asynchrony::Random, Schedule::Random, 5),
    Way { tensor: TensorModel::ExactSm90, ..way(Divergence::Independent, Asynchrony::Eager, Schedule::RoundRobin, 6) },
    Way {
        approx: Approx::Adversary,
        tensor: TensorModel::Native,
        ..way(Divergence::Reconverge, Asynchrony::Random, Schedule::Random, 7)
    },
];

/// A report that a kernel gets, and that is right: found in at least one way, and `why` says what it is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) check: Check,
    /// Any of these: which of two accesses comes first may differ from way to way.
    pub(crate) kinds: &'static [&'static str],
    /// Part of the kernel's name.
    pub(crate) kernel: &'static str,
    /// The beginning of the instruction it is about, and of the other one, where there is one.
    pub(crate) instructions: &'static [&'static str],
    /// What else must be so.
    pub(crate) only: fn(&Report) -> bool,
    pub(crate) why: &'static str,
}

impl Known {
    fn is(&self, report: &Report) -> bool {
        let places = report.related.iter().map(|(_, place)| place).chain([&report.place]);
        let met = |beginning: &&str| places.clone().any(|place| place.instruction.contains(*beginning));
        report.check == self.check
            && self.kinds.contains(&report.kind)
            && report.kernel.contains(self.kernel)
            && self.instructions.iter().all(met)
            && (self.only)(report)
    }
}

/// The ways of one test.
pub(crate) struct Ways(());

impl Ways {
    pub(crate) fn all() -> Self {
        Ways(())
    }

    /// Runs the body in every way; no error may be reported.
    pub(crate) fn each(&self, body: impl Fn(&Machine)) {
        self.each_knowing(&[], body);
    }

    /// A second body that needs no more than two ways: its data differs, its code does not.
    pub(crate) fn few(&self, body: impl Fn(&Machine)) {
        WAYS[..2].iter().for_each(|way| {
            under(*way, &[], &body);
        });
    }

    /// The same, where some reports are known; each of them must come in some way, and no other in any.
    pub(crate) fn each_knowing(&self, known: &[Known], body: impl Fn(&Machine)) {
        let mut seen = vec![0; known.len()];
        for way in WAYS {
            under(way, known, &body).iter().zip(&mut seen).for_each(|(count, seen)| *seen += count);
        }
        for (known, seen) in known.iter().zip(seen) {
            assert!(seen > 0, "{}: nobody reported {:?}, though {}", known.kernel, known.kinds, known.why);
        }
    }
}

/// How often each known report came.
fn under(way: Way, known: &[Known], body: &impl Fn(&Machine)) -> Vec<u64> {
    let machine = Machine::new(way, known);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(&machine))) {
        panic!("{way}: {}", words(&*panic));
    }
    machine.known.iter().map(|(_, seen)| seen.get()).collect()
}

fn words(panic: &(dyn Any + Send)) -> String {
    let owned = panic.downcast_ref::<String>().cloned();
    owned.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

impl fmt::Display for Way {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Way { divergence, asynchrony, schedule, seed, approx, tensor } = self;
        write!(out, "{divergence:?}, copies {asynchrony:?}, {schedule:?}, seed {seed}, {approx:?}, {tensor:?}")
    }
}

/// A module as text, compiled once for all tests of the process.
pub(crate) struct Module {
    name: String,
    program: Arc<Program>,
}

static PROGRAMS: LazyLock<Mutex<HashMap<String, Arc<Program>>>> = LazyLock::new(Mutex::default);

impl Module {
    pub(crate) fn open(name: &str) -> Self {
        let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
        let compiled = || match lower::compile(&corpus::text(name)) {
            Ok(program) => program,
            Err(error) => panic!("{name}: {error}"),
        };
        let program = Arc::clone(programs.entry(name.to_owned()).or_insert_with(compiled));
        Module { name: name.to_owned(), program }
    }
}

/// A kernel parameter as the bytes that the kernel reads.
pub(crate) struct Parameter(Vec<u8>);

impl Parameter {
    pub(crate) fn pointer(buffer: &Buffer) -> Self {
        Parameter::bytes(&buffer.address())
    }

    pub(crate) fn bytes<T: Pod>(value: &T) -> Self {
        Parameter(bytemuck::bytes_of(value).to_vec())
    }

    pub(crate) fn raw(bytes: Vec<u8>) -> Self {
        Parameter(bytes)
    }
}

/// A fresh device that runs everything in one way, watched by every check.
pub(crate) struct Machine {
    way: Way,
    device: Device,
    modules: RefCell<BTreeMap<String, system::Module>>,
    known: Vec<(Known, Cell<u64>)>,
}

impl Machine {
    fn new(way: Way, known: &[Known]) -> Self {
        let device = Device::new(Target::SM_80).expect("a device");
        let known = known.iter().map(|known| (*known, Cell::new(0))).collect();
        Machine { way, device, modules: RefCell::default(), known }
    }

    pub(crate) fn upload<T: Pod>(&self, values: &[T]) -> Buffer {
        self.device.upload(values).expect("memory")
    }

    /// Memory in which nothing has a value yet.
    pub(crate) fn output<T>(&self, count: usize) -> Buffer {
        self.device.allocate((count * size_of::<T>()) as u64).expect("memory")
    }

    pub(crate) fn zeros<T: Pod>(&self, count: usize) -> Buffer {
        self.upload(&vec![T::zeroed(); count])
    }

    pub(crate) fn fill(&self, buffer: &Buffer, offset: u64, bytes: u64, value: u8) {
        self.device.memory().fill(buffer.address() + offset, bytes, &[value]).expect("memory of the buffer");
    }

    pub(crate) fn download<T: Pod>(&self, buffer: &Buffer) -> Vec<T> {
        self.device.download(buffer).expect("whole elements")
    }

    pub(crate) fn launch(
        &self,
        module: &Module,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        parameters: &[Parameter],
    ) {
        let mut modules = self.modules.borrow_mut();
        let loaded = modules.entry(module.name.clone()).or_insert_with(|| {
            system::Module::load(&self.device, Arc::clone(&module.program)).expect("the module loads")
        });
        let Way { divergence, asynchrony, schedule, seed, approx, tensor } = self.way;
        let mut launch = loaded.kernel(kernel).expect("the kernel").launch(grid, block).shared(shared);
        for Parameter(bytes) in parameters {
            launch = launch.arg(bytes.as_slice());
        }
        let launch =
            launch.check(Checks::ALL).divergence(divergence).asynchrony(asynchrony).schedule(schedule).seed(seed);
        let run = launch.approx(approx).tensor(tensor).run().unwrap_or_else(|error| panic!("{kernel}: {error}"));
        for report in &run.reports {
            self.judge(report);
        }
        assert_eq!(run.failure(), None, "{kernel}");
    }

    /// Notes are allowed. An error or a warning must be a known one.
    fn judge(&self, report: &Report) {
        if report.severity == Severity::Note {
            return;
        }
        match self.known.iter().find(|(known, _)| known.is(report)) {
            Some((_, seen)) => seen.set(seen.get() + report.count),
            None => panic!("{report}"),
        }
    }
}
