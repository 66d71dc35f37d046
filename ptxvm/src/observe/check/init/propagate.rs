//! How undefined bytes pass from the operands of an instruction to its results.

use super::registers::{Planes, Registers as Shadow, width};
use super::vary::Trial;
use super::window::Bytes;
use super::{Site, lanes};
use crate::observe::At;
use crate::observe::check::matrix::Marks;
use crate::program::{Access, Action, Bank, LaneFn, OperandSlot};
use crate::registers::{LANES, Registers};
use crate::table::{Flow, Role};
use crate::types::{Kind, Type};

/// The slots of an instruction that it reads, or that it writes.
fn slots<'a>(at: &At<'a>, role: Role) -> impl Iterator<Item = (u16, &'a OperandSlot)> {
    let instruction = at.instruction;
    let of = move |(index, shape): (usize, &'a OperandSlot)| {
        (shape.role == role).then(|| (instruction.operands[index], shape))
    };
    instruction.layout.iter().enumerate().filter_map(of)
}

/// Lanes in which some source has an undefined byte.
#[inline(always)]
fn undefined_sources(at: &At<'_>, shadow: &Shadow) -> u32 {
    let mut undefined = 0;
    for (index, shape) in at.instruction.layout.iter().enumerate() {
        if shape.role == Role::Source {
            undefined |= shadow.undefined(shape.bank, at.instruction.operands[index]);
        }
    }
    undefined
}

/// All results have a value.
#[inline(always)]
pub(super) fn written(at: &At<'_>, shadow: &mut Shadow) {
    for (index, shape) in at.instruction.layout.iter().enumerate() {
        if shape.role == Role::Destination {
            shadow.define(shape.bank, at.instruction.operands[index], at.mask);
        }
    }
}

/// The origin of the first source that has undefined bytes.
fn origin(at: &At<'_>, shadow: &Shadow) -> Site {
    let unknown = slots(at, Role::Source).filter(|(slot, shape)| shadow.undefined(shape.bank, *slot) & at.mask != 0);
    let mut origins = unknown.map(|(slot, shape)| shadow.origin(shape.bank, slot));
    origins.find(|&origin| origin != Site::NONE).unwrap_or(Site::NONE)
}

/// All results are undefined in those lanes.
fn poison(at: &At<'_>, shadow: &mut Shadow, undefined: u32) {
    let origin = origin(at, shadow);
    for (slot, shape) in slots(at, Role::Destination) {
        shadow.set(shape.bank, slot, at.mask, &[undefined; 8], origin);
    }
}

/// An operation of each lane for itself.
#[inline(always)]
pub(super) fn each(at: &At<'_>, registers: &Registers, shadow: &mut Shadow, trial: &mut Trial) {
    let undefined = undefined_sources(at, shadow) & at.mask;
    match undefined {
        0 => written(at, shadow),
        _ => each_undefined(at, registers, shadow, trial, undefined),
    }
}

#[cold]
fn each_undefined(at: &At<'_>, registers: &Registers, shadow: &mut Shadow, trial: &mut Trial, undefined: u32) {
    match (&at.instruction.action, at.instruction.form.flow) {
        (_, Flow::None) => written(at, shadow),
        (Action::Lanes(run), Flow::Bytes | Flow::Bits | Flow::Select | Flow::Shift) => {
            varied(at, *run, registers, shadow, trial, undefined);
        }
        _ if at.instruction.layout.iter().all(|shape| is_packed(shape.ty)) => halves(at, shadow),
        _ => poison(at, shadow, undefined),
    }
}

/// The results are undefined where they hang on undefined bytes.
fn varied(at: &At<'_>, run: LaneFn, registers: &Registers, shadow: &mut Shadow, trial: &mut Trial, undefined: u32) {
    let Some(results) = trial.run(run, at, registers, shadow) else { return poison(at, shadow, undefined) };
    let origin = origin(at, shadow);
    for ((slot, shape), planes) in slots(at, Role::Destination).zip(results) {
        shadow.set(shape.bank, slot, at.mask, &planes, origin);
    }
}

fn is_packed(ty: Type) -> bool {
    matches!(ty, Type::F16x2 | Type::Bf16x2 | Type::U16x2 | Type::S16x2)
}

/// Two values of 16 bits side by side, of which one may be padding.
fn halves(at: &At<'_>, shadow: &mut Shadow) {
    let mut planes: Planes = [0; 8];
    for (slot, shape) in slots(at, Role::Source) {
        let source = shadow.planes(shape.bank, slot);
        for half in [0, 2] {
            let undefined = source[half] | source[half + 1];
            planes[half] |= undefined;
            planes[half + 1] |= undefined;
        }
    }
    let origin = origin(at, shadow);
    for (slot, shape) in slots(at, Role::Destination) {
        shadow.set(shape.bank, slot, at.mask, &planes, origin);
    }
}

/// An operation across the lanes of a warp.
pub(super) fn collective(at: &At<'_>, registers: &Registers, shadow: &mut Shadow, trial: &mut Trial) {
    let undefined = undefined_sources(at, shadow) & at.mask;
    if undefined == 0 {
        return written(at, shadow);
    }
    match (at.instruction.form.name, &at.instruction.action) {
        ("shfl" | "vote" | "movmatrix", Action::Collective { run, .. }) => {
            varied(at, *run, registers, shadow, trial, at.mask);
        }
        ("mma", _) if rows_and_columns(at) => multiplied(at, shadow),
        _ => poison(at, shadow, at.mask),
    }
}

/// Whether the fragments lie as [`Marks`] has them: all shapes but that of the first tensor cores.
fn rows_and_columns(at: &At<'_>) -> bool {
    let first = at.instruction.layout.first().map(|shape| shape.ty);
    !at.instruction.form.text.contains("m8n8k4") || first == Some(Type::F64)
}

/// `mma`: an undefined element of A spoils a row of D, one of B a column, one of C itself.
fn multiplied(at: &At<'_>, shadow: &mut Shadow) {
    let layout = &at.instruction.layout;
    let of = |operand: u8| layout.iter().enumerate().filter(move |(_, shape)| shape.operand == operand);
    let undefined =
        |index: usize, shape: &OperandSlot| shadow.undefined(shape.bank, at.instruction.operands[index]) & at.mask;
    let mut marks = Marks::default();
    of(1).enumerate().for_each(|(register, (index, shape))| marks.a(register, undefined(index, shape)));
    of(2).for_each(|(index, shape)| marks.b(undefined(index, shape)));
    let added: Vec<Planes> =
        of(3).map(|(index, shape)| shadow.planes(shape.bank, at.instruction.operands[index])).collect();
    let origin = origin(at, shadow);
    let results: Vec<(u16, &OperandSlot)> = slots(at, Role::Destination).collect();
    for (register, (slot, shape)) in results.iter().enumerate() {
        let spoilt = marks.d(register, results.len(), is_packed(shape.ty));
        let planes = added.get(register).copied().unwrap_or([0; 8]);
        // Of a sum all bytes hang on each.
        let any = planes.iter().fold(spoilt, |any, plane| any | plane);
        shadow.set(shape.bank, *slot, at.mask, &[any; 8], origin);
    }
}

/// A load has brought `undefined` bytes, in order of the elements.
#[inline]
pub(super) fn loaded(
    at: &At<'_>,
    load: &Access,
    mask: u32,
    undefined: Option<&Bytes>,
    origin: Site,
    shadow: &mut Shadow,
) {
    let size = load.ty.bytes() as usize;
    let signed = load.ty.kind() == Kind::Signed;
    for (element, (slot, shape)) in slots(at, Role::Destination).take(usize::from(load.count)).enumerate() {
        let Some(undefined) = undefined else {
            shadow.define(shape.bank, slot, mask);
            continue;
        };
        let mut planes: Planes = [0; 8];
        for (byte, plane) in planes.iter_mut().enumerate().take(width(shape.bank)) {
            // What is beyond the value in memory is its sign, or zeros.
            let from = match byte < size {
                true => byte,
                false if signed => size - 1,
                false => break,
            };
            for lane in lanes(mask) {
                *plane |= ((undefined[lane] >> (element * size + from) & 1) as u32) << lane;
            }
        }
        shadow.set(shape.bank, slot, mask, &planes, origin);
    }
}

/// `ldmatrix`: lane 8 m + r gave the address of row r of matrix m, and each lane receives two elements of 16 bits.
pub(super) fn matrix(
    at: &At<'_>,
    count: u8,
    transposed: bool,
    undefined: Option<&Bytes>,
    origin: Site,
    shadow: &mut Shadow,
) {
    let everyone = u32::MAX;
    for (matrix, (slot, shape)) in slots(at, Role::Destination).take(usize::from(count)).enumerate() {
        let Some(undefined) = undefined else {
            shadow.define(shape.bank, slot, everyone);
            continue;
        };
        let mut planes: Planes = [0; 8];
        for lane in 0..LANES {
            let (high, low) = (lane / 4, 2 * (lane % 4));
            for half in 0..2 {
                let (row, column) = if transposed { (low + half, high) } else { (high, low + half) };
                let element = undefined[(8 * matrix + row) % LANES] >> (2 * column);
                planes[2 * half] |= ((element & 1) as u32) << lane;
                planes[2 * half + 1] |= ((element >> 1 & 1) as u32) << lane;
            }
        }
        shadow.set(shape.bank, slot, everyone, &planes, origin);
    }
}

/// The old value that an atomic returns.
pub(super) fn returned(at: &At<'_>, mask: u32, undefined: Option<&Bytes>, origin: Site, shadow: &mut Shadow) {
    for (slot, shape) in slots(at, Role::Destination) {
        let mut planes: Planes = [0; 8];
        if let Some(undefined) = undefined {
            for lane in lanes(mask) {
                planes
                    .iter_mut()
                    .enumerate()
                    .for_each(|(byte, plane)| *plane |= ((undefined[lane] >> byte & 1) as u32) << lane);
            }
        }
        shadow.set(shape.bank, slot, mask, &planes, origin);
    }
}

/// The undefined bytes of what a store writes; `None` where there are none.
#[inline]
pub(super) fn stored(at: &At<'_>, store: &Access, mask: u32, shadow: &Shadow) -> Option<Bytes> {
    let data = || slots(at, Role::Source).take(usize::from(store.count));
    if data().all(|(slot, shape)| shadow.undefined(shape.bank, slot) & mask == 0) {
        return None;
    }
    let size = store.ty.bytes() as usize;
    let mut undefined: Bytes = [0; LANES];
    let mut any = 0;
    for (element, (slot, shape)) in data().enumerate() {
        let planes = shadow.planes(shape.bank, slot);
        for (byte, plane) in planes.iter().enumerate().take(size.min(width(shape.bank))) {
            any |= plane & mask;
            for lane in lanes(plane & mask) {
                undefined[lane] |= 1 << (element * size + byte);
            }
        }
    }
    (any != 0).then_some(undefined)
}

/// A bank that a slot counts in.
pub(super) fn sources<'a>(at: &At<'a>) -> impl Iterator<Item = (Bank, u16, u8)> {
    slots(at, Role::Source).map(|(slot, shape)| (shape.bank, slot, shape.operand))
}
