//! Running a kernel on buffers of words.

use std::sync::Arc;

use warpweft_ptxvm::exec::{
    self, Asynchrony, Divergence, ExecError, HostFunctions, Launch, LaunchError, Options, Outcome, Schedule,
};
use warpweft_ptxvm::lower;
use warpweft_ptxvm::memory::{AddressSpace, DeviceId};
use warpweft_ptxvm::observe::{Nobody, Observer};
use warpweft_ptxvm::program::Program;
use warpweft_ptxvm::types::Target;

/// A module whose first kernel runs. The parameters of a kernel are the addresses of its buffers.
#[derive(Clone)]
pub(crate) struct Machine {
    program: Arc<Program>,
    pub(crate) host: HostFunctions,
    pub(crate) grid: u32,
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: u32,
}

/// A module of this text.
pub(crate) fn module(text: &str, grid: u32, block: u32) -> Machine {
    let text = format!(".version 8.0\n.target sm_80\n.address_size 64\n{text}");
    let program = lower::compile(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    Machine { program, host: HostFunctions::new(), grid, block: [block, 1, 1], dynamic_shared: 0 }
}

/// A kernel with buffers `%rd1`, `%rd2`... in global memory, the thread in its block in `%r1` (also scaled to bytes in
/// `%rd10`), the block in `%r2`, the thread in the grid in `%r3` (bytes in `%rd11`), the lane in `%r4`, and registers of
/// every kind.
pub(crate) fn kernel(buffers: u32, declarations: &str, body: &str, grid: u32, block: u32) -> Machine {
    let names = (1..=buffers).map(|at| format!(".param .u64 b{at}")).collect::<Vec<_>>().join(", ");
    let loads: String = (1..=buffers).map(|at| format!("ld.param.u64 %rd{at}, [b{at}];\n")).collect();
    let text = format!(
        "{declarations}
        .visible .entry test({names}) {{
            .reg .pred %p<40>; .reg .b16 %h<40>; .reg .b32 %r<80>; .reg .b64 %rd<80>; .reg .f32 %f<40>;
            {loads}
            mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r5, %ntid.x; mov.u32 %r4, %laneid;
            mad.lo.u32 %r3, %r2, %r5, %r1;
            mul.wide.u32 %rd10, %r1, 4; mul.wide.u32 %rd11, %r3, 4;
            {body}
        }}"
    );
    module(&text, grid, block)
}

impl Machine {
    /// Runs it on buffers, which then hold the result.
    pub(crate) fn run(&self, buffers: &mut [Vec<u32>], options: &Options) -> Result<Outcome, ExecError> {
        self.watched(buffers, options, &mut Nobody)
    }

    /// The same with an observer.
    pub(crate) fn watched<O: Observer>(
        &self,
        buffers: &mut [Vec<u32>],
        options: &Options,
        observer: &mut O,
    ) -> Result<Outcome, ExecError> {
        let mut outcome = self.attempt(buffers, options, observer).expect("a launch");
        match outcome.failure.take() {
            Some(error) => Err(error),
            None => Ok(outcome),
        }
    }

    /// The same where the launch may not begin.
    pub(crate) fn attempt<O: Observer>(
        &self,
        buffers: &mut [Vec<u32>],
        options: &Options,
        observer: &mut O,
    ) -> Result<Outcome, LaunchError> {
        let memory = AddressSpace::new(&[4 << 30]).expect("a space");
        let device = DeviceId(0);
        let mut params = Vec::new();
        let mut addresses = Vec::new();
        for (at, buffer) in buffers.iter().enumerate() {
            let tag = format!("b{}", at + 1);
            let address = memory.allocate(device, buffer.len() as u64 * 4, 256, &tag).expect("memory");
            let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_le_bytes()).collect();
            memory.write(address, &bytes).expect("a buffer");
            params.extend_from_slice(&address.to_le_bytes());
            addresses.push(address);
        }
        let variable = |variable: &warpweft_ptxvm::program::Variable| {
            let address = memory.allocate(device, variable.bytes, variable.align, &variable.name).expect("memory");
            let mut init = variable.init.clone();
            init.resize(variable.bytes as usize, 0);
            memory.write(address, &init).expect("a variable");
            address
        };
        let variables: Vec<u64> = self.program.variables.iter().map(variable).collect();
        let entry = self.program.functions.iter().position(|function| function.entry).expect("a kernel");
        let launch = Launch {
            program: &self.program,
            variables: &variables,
            function: entry as u32,
            grid: [self.grid, 1, 1],
            block: self.block,
            dynamic_shared: self.dynamic_shared,
            params: &params,
            device,
            target: Target::SM_80,
            sms: 4,
            grid_id: 1,
        };
        let outcome = exec::run(&launch, &memory, &self.host, options, observer)?;
        for (buffer, &address) in buffers.iter_mut().zip(&addresses) {
            let mut bytes = vec![0; buffer.len() * 4];
            memory.read(address, &mut bytes).expect("a buffer");
            let word = |word: &[u8]| u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            *buffer = bytes.chunks(4).map(word).collect();
        }
        Ok(outcome)
    }

    /// Runs it in every mode; each must end with this in the last buffer.
    pub(crate) fn expect(&self, buffers: &[Vec<u32>], expected: &[u32]) {
        for options in every_mode() {
            let mut buffers = buffers.to_vec();
            if let Err(error) = self.run(&mut buffers, &options) {
                panic!("{error}\n{options:?}");
            }
            let got = buffers.last().expect("a buffer");
            let differs = got.iter().zip(expected).position(|(got, expected)| got != expected);
            assert_eq!((differs, got.len()), (None, expected.len()), "{options:?}\n{got:?}\n{expected:?}");
        }
    }

    /// Runs it in every mode; each must fail, and the check tells whether as it should.
    pub(crate) fn expect_failure(&self, buffers: &[Vec<u32>], right: impl Fn(&ExecError) -> bool) {
        for options in every_mode() {
            match self.run(&mut buffers.to_vec(), &options) {
                Ok(outcome) => panic!("it ran: {outcome:?}\n{options:?}"),
                Err(error) => assert!(right(&error), "{error}\n{options:?}"),
            }
        }
    }
}

/// Options with a limit that no kernel of these tests comes near.
pub(crate) fn options() -> Options {
    Options { limit: 1 << 22, ..Options::default() }
}

/// Every schedule, both kinds of divergence, each completion, one worker and two, a few seeds.
pub(crate) fn every_mode() -> Vec<Options> {
    let mut all = Vec::new();
    for schedule in [Schedule::RoundRobin, Schedule::Reverse, Schedule::Random] {
        for divergence in [Divergence::Reconverge, Divergence::Independent] {
            for asynchrony in [Asynchrony::Eager, Asynchrony::Latest, Asynchrony::Random] {
                for (workers, seed) in [(1, 1), (2, 2)] {
                    all.push(Options { schedule, divergence, asynchrony, workers, seed, ..options() });
                }
            }
        }
    }
    all
}
