//! A kernel of a few lines, run under every schedule with one check, and what must come of it.

use std::sync::Arc;

use warpweft_ptxvm::exec::{Asynchrony, Divergence, HostFunctions, Launch, Options, Schedule, run};
use warpweft_ptxvm::lower;
use warpweft_ptxvm::memory::{AddressSpace, DeviceId};
use warpweft_ptxvm::observe::Observer;
use warpweft_ptxvm::observe::check::{Checks, Selection};
use warpweft_ptxvm::report::{Check, Report, Severity};
use warpweft_ptxvm::types::Target;

/// What a buffer of global memory holds.
#[derive(Clone, Debug)]
pub(crate) enum Init {
    /// These words.
    Words(Vec<u32>),
    /// Nothing yet: so many bytes.
    Undefined(u64),
    /// These words, and kernels may not write them.
    ReadOnly(Vec<u32>),
    /// So many bytes that have been freed.
    Freed(u64),
    /// So many bytes on another device, with or without peer access.
    Peer(u64, bool),
}

/// A kernel and its launch.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    text: String,
    buffers: Vec<Init>,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
}

impl Case {
    /// A kernel of these statements. It has plenty of registers (`%r`, `%rd`, `%f`, `%d`, `%h`, `%p`), the addresses of the
    /// buffers are its parameters `p0`, `p1`, `p2`.
    pub(crate) fn new(statements: &str) -> Case {
        Case::module(&format!(
            ".visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2)\n{{\n.reg .b16 %h<16>; .reg .b32 %r<32>; \
             .reg .b64 %rd<32>; .reg .f32 %f<32>; .reg .f64 %d<16>; .reg .pred %p<16>;\n{statements}\nret;\n}}\n"
        ))
    }

    /// A module with an entry `k` of such parameters.
    pub(crate) fn module(text: &str) -> Case {
        let text = format!(".version 8.0\n.target sm_80\n.address_size 64\n{text}");
        Case { text, buffers: Vec::new(), grid: [1; 3], block: [32, 1, 1], shared: 0 }
    }

    pub(crate) fn buffer(mut self, init: Init) -> Case {
        self.buffers.push(init);
        self
    }

    pub(crate) fn words(self, words: &[u32]) -> Case {
        self.buffer(Init::Words(words.to_vec()))
    }

    pub(crate) fn block(mut self, threads: u32) -> Case {
        self.block = [threads, 1, 1];
        self
    }

    #[allow(dead_code)]
    pub(crate) fn grid(mut self, blocks: u32) -> Case {
        self.grid = [blocks, 1, 1];
        self
    }

    pub(crate) fn shared(mut self, bytes: u32) -> Case {
        self.shared = bytes;
        self
    }

    /// Runs it in every way; the reports of the check, of each.
    fn reports(&self, check: Check) -> Vec<Vec<Report>> {
        let program = lower::compile(&self.text).unwrap_or_else(|error| panic!("{}\n{error}", self.text));
        let schedules = [Schedule::RoundRobin, Schedule::Reverse, Schedule::Random];
        let ways = [(Asynchrony::Eager, 1), (Asynchrony::Latest, 2), (Asynchrony::Random, 3)];
        let mut all = Vec::new();
        for divergence in [Divergence::Reconverge, Divergence::Independent] {
            for ((asynchrony, seed), schedule) in ways.into_iter().zip(schedules) {
                let memory = Arc::new(AddressSpace::new(&[1 << 30, 1 << 30]).expect("two devices"));
                let mut params = Vec::new();
                for init in &self.buffers {
                    params.extend_from_slice(&prepare(&memory, init).to_le_bytes());
                }
                params.resize(24, 0);
                let launch = Launch {
                    program: &program,
                    variables: &[],
                    function: program.functions.iter().position(|function| function.name == "k").expect("k") as u32,
                    grid: self.grid,
                    block: self.block,
                    dynamic_shared: self.shared,
                    params: &params,
                    device: DeviceId(0),
                    target: Target::SM_80,
                    sms: 4,
                    grid_id: 1,
                };
                let options =
                    Options { divergence, asynchrony, schedule, seed, limit: 1_000_000, ..Options::default() };
                let mut checks = Checks::new(Selection::only(check), "again").watching(memory.clone());
                let outcome = run(&launch, &memory, &HostFunctions::default(), &options, &mut checks);
                let mut reports = checks.take_reports();
                if let Err(error) = outcome {
                    assert!(!reports.is_empty(), "{error} is not reported\n{}", self.text);
                }
                reports.retain(|report| report.check == check || report.check == Check::Execution);
                all.push(reports);
            }
        }
        all
    }

    /// In every way the check reports an error of `kind`, and no other, at the one line with `line` in it, for these lanes.
    pub(crate) fn fails(self, check: Check, kind: &str, line: &str, lanes: &[u32]) -> Report {
        let number = self.line(line);
        let mut last = None;
        for reports in self.reports(check) {
            let errors: Vec<&Report> = reports.iter().filter(|report| report.severity == Severity::Error).collect();
            let [report] = errors.as_slice() else { panic!("{reports:#?}\n{}", self.text) };
            assert_eq!((report.check, report.kind), (check, kind), "{report:#?}");
            assert_eq!(report.place.line, number, "{report:#?}\n{}", self.text);
            assert_eq!(report.place.lanes, lanes, "{report:#?}");
            assert!(!report.message.is_empty() && report.kernel == "k" && report.replay == "again", "{report:#?}");
            last = Some((*report).clone());
        }
        last.expect("it ran")
    }

    /// In no way the check reports an error; the notes of the last.
    pub(crate) fn passes(self, check: Check) -> Vec<Report> {
        let mut last = Vec::new();
        for reports in self.reports(check) {
            assert!(reports.iter().all(|report| report.severity != Severity::Error), "{reports:#?}\n{}", self.text);
            last = reports;
        }
        last
    }

    /// The number of the one line that holds `part`.
    fn line(&self, part: &str) -> u32 {
        let found: Vec<usize> =
            self.text.lines().enumerate().filter(|(_, line)| line.contains(part)).map(|(at, _)| at).collect();
        let [at] = found.as_slice() else { panic!("{part:?} is on {} lines of\n{}", found.len(), self.text) };
        *at as u32 + 1
    }
}

fn prepare(memory: &AddressSpace, init: &Init) -> u64 {
    let new = |device: u32, bytes: u64| memory.allocate(DeviceId(device), bytes, 256, "buffer").expect("memory");
    let write = |address: u64, words: &[u32]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        memory.write(address, &bytes).expect("the buffer is there");
        address
    };
    match init {
        Init::Words(words) => write(new(0, 4 * words.len() as u64), words),
        Init::Undefined(bytes) => new(0, *bytes),
        Init::ReadOnly(words) => {
            let address = write(new(0, 4 * words.len() as u64), words);
            memory.find(address).expect("the buffer is there").set_read_only(true);
            address
        }
        Init::Freed(bytes) => {
            let address = new(0, *bytes);
            memory.free(address).expect("the buffer is there");
            address
        }
        Init::Peer(bytes, access) => {
            if *access {
                memory.enable_peer(DeviceId(0), DeviceId(1)).expect("two devices");
            }
            new(1, *bytes)
        }
    }
}

/// All lanes of a warp.
pub(crate) const ALL: &[u32] = &[
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
    31,
];
