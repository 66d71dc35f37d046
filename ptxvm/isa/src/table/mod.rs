//! The instruction table: one row per opcode form. The decoder, the type checks, the coverage report and the
//! documentation all come from it.
//!
//! A row is written as the ISA writes its syntax:
//!
//! ```text
//! lanes("add{.sat}.s32", "d:s32 a:s32 b:s32", |m| if m.has("sat") { ... } else { ... }).since(1, 0, 10)
//! ```
//!
//! `{.a|.b}` is an optional choice, `(.a|.b)` a required one, any other modifier is required. Types are matched in
//! order, all other modifiers as a set, as ptxas does (`atom.gpu.global` is `atom.global.gpu`).

mod approx;
mod bits;
mod carry;
mod classify;
mod compare;
mod control;
mod convert;
mod double;
mod flagged;
mod float;
mod float_compare;
mod half;
mod hopper;
mod integer;
mod logic;
mod memory;
pub mod moves;
mod pattern;
mod select;
mod shape;
mod sync;
mod tensor;
mod typed;
mod warp;
mod widths;

use std::collections::HashMap;
use std::sync::LazyLock;

pub use pattern::{Mods, Pattern};
pub use shape::{OperandShape, Role, ValueShape};

use crate::program::LaneFn;
use crate::types::{Target, Version};

/// One opcode form.
#[derive(Debug)]
pub struct Form {
    /// The operation's name, `add`.
    pub name: &'static str,
    /// Its modifiers.
    pub pattern: Pattern,
    /// Its operands, in the order of the text.
    pub operands: Vec<OperandShape>,
    /// The lowest `.version` that has it.
    pub version: Version,
    /// The lowest `.target` that has it.
    pub target: Target,
    /// What lowering makes of it.
    pub build: Build,
    /// How undefined bytes and NaN flow through it.
    pub flow: Flow,
    /// The row's text, `add{.sat}.s32`: its identity in reports and documentation.
    pub text: &'static str,
}

/// What lowering makes of a form. Where the variant carries no function, lowering knows the action by its name.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Build {
    /// Registers to registers: the function is chosen by the modifiers.
    Lanes(fn(&Mods) -> LaneFn),
    /// Across lanes: waits for the members first. The member mask is the operand named `membermask`; without one the
    /// form is `.aligned` and takes the whole warp.
    Collective(fn(&Mods) -> LaneFn),
    Move,
    Load,
    Store,
    Atomic,
    Reduce,
    LoadMatrix,
    CopyAsync,
    CommitGroup,
    WaitGroup,
    WaitAll,
    Branch,
    BranchIndexed,
    Call,
    Return,
    Exit,
    Trap,
    Breakpoint,
    Barrier,
    WarpBarrier,
    Fence,
    Sleep,
    ActiveMask,
    IsSpace,
    ConvertAddress,
    /// A hint without effect on values.
    Nothing,
    /// Parses; a launch refuses it for this reason.
    Refused(&'static str),
}

/// How undefined bytes flow from the sources to the destination, for initcheck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Any undefined bit of a source makes the lane's whole result undefined.
    All,
    /// Bytes keep their places: `mov`, vectors packed and unpacked.
    Bytes,
    /// `and`, `or`, `xor`, `not`, `lop3`: bit by bit, and a defined absorbing bit (0 of `and`, 1 of `or`) defines the result.
    Bits,
    /// `selp`, `slct`: of the chosen source, and of all of it when the condition is undefined.
    Select,
    /// `shl`, `shr`, `prmt`, `bfe`, `bfi`, `cvt` between integers: a helper of initcheck knows the operation.
    Shift,
    /// The result does not depend on undefined sources in this case: `xor r, r, r`, `sub r, r, r`.
    None,
}

impl Form {
    /// Sets the lowest version and target: `.since(7, 0, 80)`.
    pub fn since(mut self, major: u8, minor: u8, sm: u16) -> Form {
        (self.version, self.target) = (Version(major, minor), Target { sm, specific: false });
        self
    }

    /// Only `sm_90a` and other architecture-specific targets have it.
    pub fn specific(mut self) -> Form {
        self.target.specific = true;
        self
    }

    /// Sets how undefined bytes flow; [`Flow::All`] otherwise.
    pub fn flow(mut self, flow: Flow) -> Form {
        self.flow = flow;
        self
    }
}

/// A row. Panics on a malformed row, which the table's own test finds.
pub fn row(text: &'static str, operands: &str, build: Build) -> Form {
    let name = text.split(['.', '{', '(']).next().unwrap_or(text);
    Form {
        name,
        pattern: Pattern::parse(&text[name.len()..]),
        operands: shape::parse(operands),
        version: Version(1, 0),
        target: Target { sm: 10, specific: false },
        build,
        flow: Flow::All,
        text,
    }
}

/// A row of registers to registers.
pub fn lanes(text: &'static str, operands: &str, choose: fn(&Mods) -> LaneFn) -> Form {
    row(text, operands, Build::Lanes(choose))
}

/// A row across lanes.
pub fn collective(text: &'static str, operands: &str, choose: fn(&Mods) -> LaneFn) -> Form {
    row(text, operands, Build::Collective(choose))
}

/// All rows, by operation.
pub struct Table {
    rows: Vec<Form>,
    by_name: HashMap<&'static str, Vec<usize>>,
}

/// Where the rows come from: one file for each theme.
const SOURCES: &[fn(&mut Vec<Form>)] = &[
    approx::rows,        // approximate functions
    bits::rows,          // counts, bit fields, byte permutation
    carry::rows,         // extended-precision arithmetic
    classify::rows,      // signs, classes, minimum and maximum of floats
    compare::rows,       // setp and set of integers
    control::rows,       // branches, calls, ends
    convert::rows,       // conversions from and to floats
    double::rows,        // f64
    float::rows,         // f32
    float_compare::rows, // setp and set of floats
    half::rows,          // f16 and bf16
    hopper::rows,        // what parses and does not run
    integer::rows,       // integer arithmetic
    logic::rows,         // logic and shifts
    memory::rows,        // loads, stores, atomics, copies
    moves::rows,         // mov
    select::rows,        // selp, slct
    sync::rows,          // barriers, fences
    tensor::rows,        // mma
    warp::rows,          // exchanges between lanes
    widths::rows,        // cvt between integers
];

/// The table.
pub static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut rows: Vec<Form> = Vec::new();
    for source in SOURCES {
        source(&mut rows);
    }
    let mut by_name: HashMap<&'static str, Vec<usize>> = HashMap::new();
    for (at, form) in rows.iter().enumerate() {
        by_name.entry(form.name).or_default().push(at);
    }
    Table { rows, by_name }
});

impl Table {
    /// Every row.
    pub fn rows(&self) -> &[Form] {
        &self.rows
    }

    /// The rows of an operation; empty where there is none of that name.
    pub fn named(&self, name: &str) -> impl Iterator<Item = &Form> {
        self.by_name.get(name).into_iter().flatten().map(|&at| &self.rows[at])
    }

    /// The row that an instruction's name and modifiers (without dots) match, and what they chose.
    pub fn find<'a>(&'a self, name: &str, modifiers: &[&str]) -> Option<(&'a Form, Mods)> {
        self.named(name).find_map(|form| form.pattern.matches(modifiers).map(|mods| (form, mods)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_spelling_finds_its_own_row() {
        let mut texts = HashSet::new();
        for form in TABLE.rows() {
            assert!(texts.insert(form.text), "{} stands twice", form.text);
            let (Build::Lanes(choose) | Build::Collective(choose)) = form.build else { continue };
            for spelling in form.pattern.spellings() {
                let words: Vec<&str> = spelling.split('.').skip(1).collect();
                let (found, mods) = TABLE.find(form.name, &words).expect("its own pattern matches it");
                assert_eq!(found.text, form.text, "{}{spelling}", form.name);
                choose(&mods);
            }
        }
    }
}
