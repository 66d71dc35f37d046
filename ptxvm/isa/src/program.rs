//! The lowered form: what the executor runs. Types are resolved, registers numbered, labels are instruction indices.

use std::sync::Arc;

use crate::numerics::Settings;
use crate::registers::{Counts, Operands, Registers};
use crate::table::{Form, Role};
use crate::types::{Scope, Space, Target, Type, Version};

/// A module as loaded: its code, and the data that a device must hold for it.
#[derive(Debug)]
pub struct Program {
    /// Of its `.version` line.
    pub version: Version,
    /// Of its `.target` line.
    pub target: Target,
    /// Entries and device functions.
    pub functions: Vec<Function>,
    /// Module-scope variables in global and constant memory.
    pub variables: Vec<Variable>,
    /// Names of `.extern .func`, which the host provides.
    pub externs: Vec<Extern>,
    /// File names that `.loc` numbers.
    pub files: Vec<(u32, String)>,
    /// The text, for reports.
    pub text: Arc<str>,
}

/// A module-scope variable.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its name in the text.
    pub name: String,
    /// `Global` or `Const`.
    pub space: Space,
    /// Bytes.
    pub bytes: u64,
    /// Alignment in bytes.
    pub align: u64,
    /// The first bytes; the rest is zero.
    pub init: Vec<u8>,
    /// Places in `init` that hold addresses: (offset, index in [`Program::variables`], addend, generic address wanted).
    pub addresses: Vec<(u64, u32, i64)>,
    /// Declared `.extern`: another module or the host defines it.
    pub external: bool,
}

/// A function that the host provides (`.extern .func`).
#[derive(Clone, Debug)]
pub struct Extern {
    /// Its name.
    pub name: String,
    /// Bytes of each parameter.
    pub params: Vec<u32>,
    /// Bytes of what it returns, 0 for nothing.
    pub returns: u32,
}

/// A parameter of an entry or function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name in the text.
    pub name: String,
    /// Its type; arrays have an element type.
    pub ty: Type,
    /// Bytes.
    pub bytes: u32,
    /// Offset in the parameter space.
    pub offset: u32,
    /// Alignment that `.align` or the type demands.
    pub align: u32,
    /// `.ptr`: the space it points into and the alignment promised.
    pub pointer: Option<(Space, u32)>,
}

/// An entry or a device function.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// A kernel, which the host launches.
    pub entry: bool,
    /// Its parameters; a device function's lie in its caller's call frame ([`Call`]).
    pub params: Vec<Param>,
    /// Bytes of all parameters.
    pub param_bytes: u32,
    /// Its instructions; execution begins at 0.
    pub code: Vec<Instruction>,
    /// Registers of its window, constants and specials included.
    pub registers: Counts,
    /// Registers filled on entry.
    pub preset: Vec<Preset>,
    /// Static `.shared` bytes of the module (and where dynamic ones begin).
    pub shared_bytes: u32,
    /// Where `.extern .shared` begins: `shared_bytes` rounded up to its alignment.
    pub dynamic_shared: u32,
    /// Bytes of local memory in its frame: depots, `.local` variables and call parameters. Its own parameters are not
    /// among them: [`AddressBase::FunctionParam`] is a place of its own.
    pub local_bytes: u32,
    /// Where in its frame a device function builds what it returns, and how many bytes; `ret` copies them to the caller.
    pub returns: Option<(u32, u32)>,
    /// `.reqntid`: the only block shape allowed.
    pub required_block: Option<[u32; 3]>,
    /// `.maxntid`: the most threads, as a shape.
    pub max_block: Option<[u32; 3]>,
    /// `.minnctapersm`.
    pub min_blocks: Option<u32>,
    /// Registers a thread holds at the widest point, in 32-bit units: an estimate for occupancy.
    pub live_registers: u32,
    /// Forms it holds that do not run on this device, refused by name at launch.
    pub refused: Vec<Refusal>,
    /// Line of its name.
    pub line: u32,
}

/// An instruction that parses but does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// As the text spells it.
    pub instruction: String,
    /// Why it does not run.
    pub reason: String,
    /// Its line.
    pub line: u32,
}

/// A register whose value is known when its function is entered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Preset {
    /// An immediate in a narrow register.
    Narrow(u16, u32),
    /// An immediate in a wide register.
    Wide(u16, u64),
    /// A predicate constant.
    Predicate(u16, bool),
    /// The address of a module variable (generic or in its space) plus an addend, in a wide register.
    Variable(u16, u32, i64),
    /// A special register that does not change while the block lives (`%tid.x`, `%laneid`...).
    Special(u16, Special),
    /// Address of a place in the frame's local memory (offset), as a local address, in a wide register.
    Local(u16, u32),
}

/// Special registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Special {
    /// Component 0 to 2 is x, y, z; 3 (w) is 0.
    Tid(u8),
    Ntid(u8),
    CtaId(u8),
    NctaId(u8),
    LaneId,
    WarpId,
    NwarpId,
    SmId,
    NsmId,
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    ClusterId(u8),
    NclusterId(u8),
    ClusterCtaId(u8),
    ClusterNctaId(u8),
    ClusterCtaRank,
    ClusterNctaRank,
    IsExplicitCluster,
    DynamicSharedSize,
    TotalSharedSize,
    /// `%envreg0` to `%envreg31`.
    EnvReg(u8),
    /// Changes while it runs: read by [`Action::Special`], never preset.
    Clock,
    ClockHi,
    Clock64,
    GlobalTimer,
    GlobalTimerLo,
    GlobalTimerHi,
    /// `%pm0`...: performance counters, always 0 here.
    Pm,
}

/// One instruction.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// What it does.
    pub action: Action,
    /// Registers, in the order of the text ([`Operands`]).
    pub operands: Operands,
    /// `@p` or `@!p`: the predicate's slot, and whether it is negated.
    pub guard: Option<(u16, bool)>,
    /// What the slots in `operands` hold, one entry for each slot in use. Instructions of one shape share it.
    pub layout: Arc<[OperandSlot]>,
    /// The table row it was decoded by.
    pub form: &'static Form,
    /// Where to find the rest about it.
    pub site: Site,
}

/// What a slot of an instruction's operands holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OperandSlot {
    /// The instruction's type for it: of one element, where the operand is a vector.
    pub ty: Type,
    /// The type the register was declared with, which may be wider for `ld`, `st` and `cvt`; of an immediate, `ty`.
    pub register: Type,
    /// Written or read.
    pub role: Role,
    /// The bank the slot counts in.
    pub bank: Bank,
    /// Index in [`Form::operands`]: elements of a vector and both halves of a pair share it.
    pub operand: u8,
}

/// A bank of registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bank {
    /// 32 bits or fewer.
    Narrow,
    /// 64 bits.
    Wide,
    /// Truth values.
    Predicate,
}

impl Bank {
    /// Where a value of a type lives.
    pub fn of(ty: Type) -> Bank {
        match ty {
            Type::Pred => Bank::Predicate,
            _ if ty.bits() > 32 => Bank::Wide,
            _ => Bank::Narrow,
        }
    }
}

/// Where an instruction stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// First byte and one past the last in [`Program::text`].
    pub span: (u32, u32),
    /// Line in the PTX text, from 1.
    pub line: u32,
    /// `.loc` in force: file number and line; 0 is none.
    pub file: u32,
    /// Line in that file.
    pub source_line: u32,
}

/// A function over the lanes of a warp: reads the operands of every lane, writes the destination in the lanes of the mask.
pub type LaneFn = fn(&mut Registers, &Operands, u32, &Settings);

/// What an instruction does.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Action {
    /// Registers to registers, each lane for itself.
    Lanes(LaneFn),
    /// Registers to registers across lanes, once all lanes of the mask have come.
    Collective {
        run: LaneFn,
        members: Members,
    },
    /// `ld`: registers from memory.
    Load(Access),
    /// `st`.
    Store(Access),
    /// `atom` (returns the old value) and `red` (does not).
    Atomic(Atomic),
    /// `ldmatrix`: operands are the 1, 2 or 4 destinations; the address is in `address`.
    LoadMatrix {
        address: Address,
        count: u8,
        transposed: bool,
    },
    /// `cp.async`: copies `bytes` to shared memory later. The source size, where given, is a narrow slot; the rest is zero.
    CopyAsync {
        to: Address,
        from: Address,
        bytes: u8,
        source_bytes: Option<u16>,
        ignore_source: Option<u16>,
    },
    CommitGroup,
    /// Waits until at most so many of the lane's latest groups are pending; `None` is `wait_all`.
    WaitGroup(Option<u32>),
    Branch(Branch),
    /// `brx.idx`: narrow slot of the index, and the targets.
    BranchIndexed {
        index: u16,
        targets: Box<[u32]>,
        reconverge: u32,
    },
    Call(Box<Call>),
    Return,
    Exit,
    Trap,
    Breakpoint,
    /// `bar`, `barrier`.
    Barrier(Barrier),
    /// `bar.warp.sync`: narrow slot of the mask.
    WarpBarrier {
        mask: u16,
    },
    /// `membar`, `fence`.
    Fence {
        scope: Scope,
        sequential: bool,
    },
    /// `nanosleep`: lets others run.
    Sleep,
    /// `mov` from a special register that changes: the destination is operand 0.
    Special(Special),
    /// `activemask.b32`.
    ActiveMask,
    /// `isspacep`, resolved against the device's windows: operands p, a.
    IsSpace(Space),
    /// `cvta` and `cvta.to`: operands d, a. The sense is `to_generic`.
    ConvertAddress {
        space: Space,
        to_generic: bool,
        wide: bool,
    },
    /// Hints, `prefetch`, `discard`, `pragma`: nothing to do.
    Nothing,
    /// A form that parses and does not run. A launch refuses it before anything runs.
    Refused,
}

/// Which lanes a collective instruction waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Members {
    /// The lanes in a member mask: its narrow slot.
    Mask(u16),
    /// All lanes of the warp that have not exited (`.aligned` without mask).
    Warp,
}

/// The base of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressBase {
    /// The offset alone.
    Absolute,
    /// A wide register.
    Wide(u16),
    /// A narrow register (shared and local addresses of 32 bits).
    Narrow(u16),
    /// A module variable: index in [`Program::variables`].
    Variable(u32),
    /// The local memory of this frame (also call parameters).
    Frame,
    /// The parameters of the kernel.
    KernelParam,
    /// The parameters that this device function was called with.
    FunctionParam,
}

/// An address as an instruction gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Where it starts.
    pub base: AddressBase,
    /// Bytes added.
    pub offset: i64,
    /// The space it is in.
    pub space: Space,
}

/// How strong a memory access is (PTX ISA, memory consistency model).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Order {
    /// Ordinary, also `.nc`.
    Weak,
    /// `.volatile`: as relaxed at system scope.
    Volatile,
    Relaxed(Scope),
    Acquire(Scope),
    Release(Scope),
    AcquireRelease(Scope),
}

/// A load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Where.
    pub address: Address,
    /// The type in memory.
    pub ty: Type,
    /// Elements: 1, 2, 4 or 8. Registers are operands 0.. in order.
    pub count: u8,
    /// Its strength.
    pub order: Order,
    /// `.nc`: through the read-only path.
    pub non_coherent: bool,
    /// Whether the registers are wide (the register may be wider than the type: loads extend, stores truncate).
    pub wide: bool,
    /// Bits of the registers as declared (8, 16, 32, 64): `ld.s8` into a `.s16` register extends to these.
    pub register_bits: u8,
}

/// Read-modify-write operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum AtomicOp {
    Add,
    /// `.noftz` adds of 16-bit floats are `Add` too; their type says so.
    Inc,
    Dec,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    CompareAndSwap,
}

/// `atom` or `red`. Operands: destination first where it returns (a sink otherwise absent), then b, then c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// Where.
    pub address: Address,
    /// What.
    pub op: AtomicOp,
    /// The type in memory.
    pub ty: Type,
    /// Its strength; never `Weak`.
    pub order: Order,
    /// `atom`: operand 0 receives the old value. `red`: operands start with b.
    pub returns: bool,
}

/// `bra`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Index of the target instruction.
    pub target: u32,
    /// Where the paths meet again: the immediate post-dominator's first instruction; the code's length where there is none.
    pub reconverge: u32,
    /// `.uni`: the program promises that all active lanes go the same way.
    pub uniform: bool,
}

/// `call`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What is called.
    pub callee: Callee,
    /// Offsets in the frame's local memory of the arguments, in order.
    pub arguments: Vec<u32>,
    /// Offset in the frame's local memory of the returned value.
    pub result: Option<u32>,
}

/// The target of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callee {
    /// Index in [`Program::functions`].
    Function(u32),
    /// Index in [`Program::externs`].
    Extern(u32),
}

/// `bar` and `barrier`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// What it does.
    pub kind: BarrierKind,
    /// Narrow slot of the barrier's number, 0 to 15.
    pub id: u16,
    /// Narrow slot of the number of threads; all of the block where absent.
    pub threads: Option<u16>,
    /// `.aligned` (all `bar` forms): every lane of the warp must execute it together.
    pub aligned: bool,
}

/// What a barrier does beside synchronising.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BarrierKind {
    Sync,
    Arrive,
    /// `.red`: operand 0 is the count, or the result predicate; `source` is the predicate's slot, negated or not.
    Popc {
        source: u16,
        negated: bool,
    },
    And {
        source: u16,
        negated: bool,
    },
    Or {
        source: u16,
        negated: bool,
    },
}
