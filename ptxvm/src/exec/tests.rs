//! The executor alone, on programs made by hand: no parser, no lowering.

use super::*;
use crate::memory::SHARED_WINDOW;
use crate::program::*;
use crate::registers::{Counts, LANES, Operands, Registers};
use crate::table::TABLE;
use crate::types::{Space, Target, Type, Version};

/// A kernel under construction: parameters are 64-bit pointers; r0.. narrow, w0.. wide, p0.. predicates.
struct Kernel {
    code: Vec<Instruction>,
    preset: Vec<Preset>,
    shared: u32,
    pointers: u32,
}

const ADD: LaneFn = |r, o, mask, _| two(r, o, mask, u32::wrapping_add);
const XOR: LaneFn = |r, o, mask, _| two(r, o, mask, |a, b| a ^ b);
const WIDEN_4: LaneFn = |r, o, mask, _| {
    let (a, b) = (*r.wide(o[1]), *r.narrow(o[2]));
    r.set_wide(o[0], mask, &std::array::from_fn(|lane| a[lane].wrapping_add(u64::from(b[lane]) * 4)));
};
const LESS: LaneFn = |r, o, mask, _| {
    let (a, b) = (*r.narrow(o[1]), *r.narrow(o[2]));
    r.set_predicate(o[0], mask, (0..LANES).fold(0, |all, lane| all | u32::from(a[lane] < b[lane]) << lane));
};
const MAD: LaneFn = |r, o, mask, _| {
    let (a, b, c) = (*r.narrow(o[1]), *r.narrow(o[2]), *r.narrow(o[3]));
    r.set_narrow(o[0], mask, &std::array::from_fn(|lane| a[lane].wrapping_mul(b[lane]).wrapping_add(c[lane])));
};

fn two(r: &mut Registers, o: &Operands, mask: u32, f: fn(u32, u32) -> u32) {
    let (a, b) = (*r.narrow(o[1]), *r.narrow(o[2]));
    r.set_narrow(o[0], mask, &std::array::from_fn(|lane| f(a[lane], b[lane])));
}

impl Kernel {
    fn new(pointers: u32) -> Kernel {
        Kernel { code: Vec::new(), preset: Vec::new(), shared: 0, pointers }
    }

    fn special(&mut self, slot: u16, special: Special) -> &mut Self {
        self.preset.push(Preset::Special(slot, special));
        self
    }

    fn constant(&mut self, slot: u16, value: u32) -> &mut Self {
        self.preset.push(Preset::Narrow(slot, value));
        self
    }

    fn push(&mut self, action: Action, slots: &[u16], guard: Option<(u16, bool)>) -> &mut Self {
        let mut operands = Operands::default();
        operands.0[..slots.len()].copy_from_slice(slots);
        let site = Site { line: self.code.len() as u32 + 1, ..Site::default() };
        self.code.push(Instruction { action, operands, guard, layout: [].into(), form: &TABLE.rows()[0], site });
        self
    }

    fn lanes(&mut self, run: LaneFn, slots: &[u16]) -> &mut Self {
        self.push(Action::Lanes(run), slots, None)
    }

    fn pointer(&mut self, wide: u16, index: u32) -> &mut Self {
        let address = Address { base: AddressBase::KernelParam, offset: i64::from(index) * 8, space: Space::Param };
        self.push(Action::Load(access(address, Type::U64)), &[wide], None)
    }

    fn load(&mut self, narrow: u16, base: AddressBase, space: Space) -> &mut Self {
        self.push(Action::Load(access(Address { base, offset: 0, space }, Type::U32)), &[narrow], None)
    }

    fn store(&mut self, base: AddressBase, space: Space, narrow: u16) -> &mut Self {
        self.push(Action::Store(access(Address { base, offset: 0, space }, Type::U32)), &[narrow], None)
    }

    fn branch(&mut self, target: u32, reconverge: u32, guard: Option<(u16, bool)>) -> &mut Self {
        self.push(Action::Branch(Branch { target, reconverge, uniform: guard.is_none() }), &[], guard)
    }

    fn barrier(&mut self, id: u16) -> &mut Self {
        let barrier = Barrier { kind: BarrierKind::Sync, id, threads: None, aligned: true };
        self.push(Action::Barrier(barrier), &[], None)
    }

    fn program(&self) -> Program {
        let params = (0..self.pointers).map(|index| Param {
            name: format!("p{index}"),
            ty: Type::U64,
            bytes: 8,
            offset: index * 8,
            align: 8,
            pointer: None,
        });
        let function = Function {
            name: "kernel".to_owned(),
            entry: true,
            params: params.collect(),
            param_bytes: self.pointers * 8,
            code: self.code.clone(),
            registers: Counts { narrow: 32, wide: 16, predicates: 8 },
            preset: self.preset.clone(),
            shared_bytes: self.shared,
            dynamic_shared: self.shared,
            local_bytes: 0,
            returns: None,
            required_block: None,
            max_block: None,
            min_blocks: None,
            live_registers: 0,
            refused: Vec::new(),
            line: 1,
        };
        Program {
            version: Version(8, 0),
            target: Target::SM_80,
            functions: vec![function],
            variables: Vec::new(),
            externs: Vec::new(),
            files: Vec::new(),
            text: "".into(),
        }
    }
}

fn access(address: Address, ty: Type) -> Access {
    let wide = ty.bits() == 64;
    let order = Order::Weak;
    Access { address, ty, count: 1, order, non_coherent: false, wide, register_bits: ty.bits() as u8 }
}

/// Runs with buffers of words, and gives them back.
fn run_on(
    kernel: &Kernel,
    (grid, block): (u32, u32),
    buffers: &mut [Vec<u32>],
    options: &Options,
) -> Result<Outcome, ExecError> {
    let program = kernel.program();
    let memory = AddressSpace::new(&[1 << 30]).unwrap();
    let device = DeviceId(0);
    let mut params = Vec::new();
    let mut addresses = Vec::new();
    for buffer in buffers.iter() {
        let address = memory.allocate(device, buffer.len() as u64 * 4, 4, "buffer").unwrap();
        let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_le_bytes()).collect();
        memory.write(address, &bytes).unwrap();
        params.extend_from_slice(&address.to_le_bytes());
        addresses.push(address);
    }
    let launch = Launch {
        program: &program,
        variables: &[],
        function: 0,
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        dynamic_shared: 0,
        params: &params,
        device,
        target: Target::SM_80,
        sms: 4,
        grid_id: 1,
    };
    let mut outcome = run(&launch, &memory, &HostFunctions::new(), options, &mut Nobody).unwrap();
    for (buffer, &address) in buffers.iter_mut().zip(&addresses) {
        let mut bytes = vec![0; buffer.len() * 4];
        memory.read(address, &mut bytes).unwrap();
        *buffer = bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    }
    match outcome.failure.take() {
        Some(error) => Err(error),
        None => Ok(outcome),
    }
}

fn every_mode() -> Vec<Options> {
    let mut all = Vec::new();
    for schedule in [Schedule::RoundRobin, Schedule::Reverse, Schedule::Random] {
        for divergence in [Divergence::Reconverge, Divergence::Independent] {
            for workers in [1, 2] {
                all.push(Options { schedule, divergence, workers, seed: 7, limit: 1 << 24, ..Options::default() });
            }
        }
    }
    all
}

/// r0 the thread in the grid, w2 its place in buffer 0, w3 in buffer 1.
fn with_places(pointers: u32) -> Kernel {
    let mut kernel = Kernel::new(pointers);
    kernel.special(1, Special::Tid(0)).special(2, Special::CtaId(0)).special(3, Special::Ntid(0));
    kernel.lanes(MAD, &[0, 2, 3, 1]);
    for index in 0..pointers as u16 {
        kernel.pointer(index, u32::from(index)).lanes(WIDEN_4, &[index + 2, index, 0]);
    }
    kernel
}

#[test]
fn loads_adds_and_stores() {
    let mut kernel = with_places(2);
    kernel.load(4, AddressBase::Wide(2), Space::Global).lanes(ADD, &[5, 4, 0]);
    kernel.store(AddressBase::Wide(3), Space::Generic, 5).push(Action::Return, &[], None);
    for options in every_mode() {
        let mut buffers = [(0..300).map(|at| at * 3).collect(), vec![0; 300]];
        run_on(&kernel, (3, 100), &mut buffers, &options).unwrap();
        assert_eq!(buffers[1], (0..300).map(|at| at * 4).collect::<Vec<u32>>(), "{options:?}");
    }
}

#[test]
fn lanes_loop_as_often_as_they_want() {
    // i = 0; while (i < thread) { sum += i; i += 1 }
    let mut kernel = with_places(1);
    kernel.constant(10, 0).constant(11, 1).constant(12, 37).lanes(ADD, &[6, 10, 10]).lanes(ADD, &[7, 10, 10]);
    let head = kernel.code.len() as u32;
    kernel.lanes(LESS, &[0, 6, 0]).branch(head + 6, head + 6, Some((0, true)));
    kernel.lanes(ADD, &[7, 7, 6]).lanes(ADD, &[6, 6, 11]).lanes(XOR, &[8, 6, 6]).branch(head, head, None);
    kernel.store(AddressBase::Wide(2), Space::Global, 7).push(Action::Exit, &[], None);
    for options in every_mode() {
        let mut buffers = [vec![0; 64]];
        let outcome = run_on(&kernel, (1, 64), &mut buffers, &options).unwrap();
        assert_eq!(buffers[0], (0..64).map(|n: u32| n * n.saturating_sub(1) / 2).collect::<Vec<_>>(), "{options:?}");
        if options.divergence == Divergence::Reconverge {
            // The longest lane of each warp, six instructions a round, and a few around.
            assert!(outcome.warp_instructions < (32 + 64) * 6 + 40, "{outcome:?}");
        }
    }
}

#[test]
fn a_barrier_lets_warps_exchange_through_shared_memory() {
    // shared[thread] = thread + 100; barrier; out[thread] = shared[thread ^ 32]
    let mut kernel = with_places(1);
    kernel.shared = 256;
    kernel.constant(10, 0).constant(11, 100).constant(12, 32).constant(13, 4);
    kernel.lanes(ADD, &[4, 1, 11]).lanes(MAD, &[5, 1, 13, 10]).store(AddressBase::Narrow(5), Space::Shared, 4);
    kernel.barrier(10).lanes(XOR, &[6, 1, 12]).lanes(MAD, &[6, 6, 13, 10]);
    kernel.load(7, AddressBase::Narrow(6), Space::Shared).store(AddressBase::Wide(2), Space::Global, 7);
    for options in every_mode() {
        let mut buffers = [vec![0; 64 * 40]];
        run_on(&kernel, (40, 64), &mut buffers, &options).unwrap();
        let expected: Vec<u32> = (0..64 * 40).map(|at| ((at % 64) ^ 32) + 100).collect();
        assert_eq!(buffers[0], expected, "{options:?}");
    }
}

#[test]
fn an_access_out_of_bounds_stops_the_kernel() {
    let mut kernel = with_places(1);
    kernel.store(AddressBase::Wide(2), Space::Global, 0);
    let mut buffers = [vec![0; 40]];
    let error = run_on(&kernel, (1, 64), &mut buffers, &Options::default()).unwrap_err();
    let ExecError::Fault { fault, place } = &error else { panic!("{error}") };
    assert_eq!((fault.lanes, place.warp, place.line), (0xffff_ff00, 1, 4), "{error}");
}

#[test]
fn a_barrier_that_one_warp_never_reaches_is_a_deadlock() {
    let mut kernel = Kernel::new(0);
    kernel.special(1, Special::WarpId).constant(2, 1).constant(3, 5).lanes(LESS, &[0, 1, 2]);
    // Warp 0 waits at barrier 1, the others at barrier 5.
    kernel.branch(3, 4, Some((0, false))).barrier(3).barrier(2);
    let error = run_on(&kernel, (1, 96), &mut [], &Options::default()).unwrap_err();
    let ExecError::Deadlock { waiting } = &error else { panic!("{error}") };
    assert_eq!(waiting.len(), 3);
    assert!(error.to_string().contains("barrier 5: warps 0 have not come"), "{error}");
}

#[test]
fn a_kernel_without_end_stops_at_the_limit() {
    let mut kernel = Kernel::new(0);
    kernel.branch(0, 1, None);
    let options = Options { limit: 10_000, ..Options::default() };
    let error = run_on(&kernel, (1, 32), &mut [], &options).unwrap_err();
    assert!(matches!(error, ExecError::Limit { limit: 10_000, .. }), "{error}");
}

#[test]
fn generic_addresses_reach_shared_memory() {
    let mut kernel = with_places(1);
    kernel.shared = 128;
    kernel.preset.push(Preset::Wide(8, SHARED_WINDOW));
    kernel.lanes(WIDEN_4, &[9, 8, 1]).store(AddressBase::Wide(9), Space::Generic, 0);
    kernel.load(5, AddressBase::Wide(9), Space::Generic).store(AddressBase::Wide(2), Space::Generic, 5);
    let mut buffers = [vec![0; LANES]];
    run_on(&kernel, (1, 32), &mut buffers, &Options::default()).unwrap();
    assert_eq!(buffers[0], (0..32).collect::<Vec<u32>>());
}
