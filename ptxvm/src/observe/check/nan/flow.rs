//! What an instruction does to NaNs: makes them, hands them on, or throws them away.

use super::formats::{self, Special, is_float, may_hold};
use super::tracks::{Id, Ids, Made, Makings, Tracks};
use super::{Findings, destinations, lanes, note_infinity};
use crate::observe::At;
use crate::observe::check::matrix::Marks;
use crate::program::{Bank, OperandSlot};
use crate::registers::Registers;
use crate::table::{Flow, Role};
use crate::types::Type;

fn sources_of<'a>(at: &At<'a>) -> impl Iterator<Item = (u16, &'a OperandSlot)> {
    let instruction = at.instruction;
    let slots = instruction.layout.iter().enumerate();
    slots.filter(|(_, shape)| shape.role == Role::Source).map(|(index, shape)| (instruction.operands[index], shape))
}

/// Whether the instruction computes with floats: it may make a NaN.
fn computes(at: &At<'_>) -> bool {
    let first = at.instruction.layout.first();
    at.instruction.form.flow == Flow::All
        && first.is_some_and(|shape| shape.role == Role::Destination && is_float(shape.ty))
}

/// Whether it writes one of the registers that it reads, so that its sources must be looked at before.
#[inline]
pub(super) fn overwritten(at: &At<'_>) -> bool {
    let Some(d) = at.instruction.layout.first() else { return false };
    if !computes(at) {
        return false;
    }
    destinations(at).any(|(index, _)| {
        let slot = at.instruction.operands[index];
        sources_of(at).any(|(other, shape)| shape.bank == d.bank && other == slot)
    })
}

/// The format of a source: the multiplicands of an `mma` are declared as bits.
fn format(at: &At<'_>, shape: &OperandSlot) -> Type {
    if at.instruction.form.name != "mma" {
        return shape.ty;
    }
    match at.instruction.form.pattern.types().get(usize::from(shape.operand)) {
        Some(Type::F16) => Type::F16x2,
        Some(Type::Bf16) => Type::Bf16x2,
        Some(&ty) if !matches!(shape.ty, Type::F16x2) => ty,
        _ => shape.ty,
    }
}

/// Lanes in which a source is NaN or infinite. Those of an `mma` count for all lanes.
pub(super) fn sources(at: &At<'_>, registers: &Registers) -> Special {
    let mut found = Special::default();
    for (slot, shape) in sources_of(at) {
        let one = formats::special(registers, shape.bank, slot, format(at, shape), at.mask);
        found.nan |= one.nan;
        found.infinite |= one.infinite;
    }
    if at.instruction.form.name == "mma" && found.nan != 0 {
        found.nan = u32::MAX;
    }
    if at.instruction.form.name == "mma" && found.infinite != 0 {
        found.infinite = u32::MAX;
    }
    found
}

/// Lanes in which some source holds a NaN of known making.
#[inline(always)]
fn tracked_sources(at: &At<'_>, tracks: &Tracks) -> u32 {
    let mut tracked = 0;
    for (index, shape) in at.instruction.layout.iter().enumerate() {
        if shape.role == Role::Source {
            tracked |= tracks.mask(shape.bank, at.instruction.operands[index]);
        }
    }
    tracked
}

#[inline(always)]
fn clear(at: &At<'_>, tracks: &mut Tracks) {
    for (index, shape) in at.instruction.layout.iter().enumerate() {
        if shape.role == Role::Destination {
            tracks.clear(shape.bank, at.instruction.operands[index], at.mask);
        }
    }
}

/// An instruction from registers to registers is done; `before` is what its sources held where they are gone.
#[inline]
pub(super) fn done(
    at: &At<'_>,
    registers: &Registers,
    before: Option<Special>,
    tracks: &mut Tracks,
    makings: &mut Makings,
    findings: &mut Findings,
) {
    if computes(at) {
        let suspect = destinations(at).fold(0, |suspect, (index, shape)| {
            suspect | formats::suspects(registers, shape.bank, at.instruction.operands[index], shape.ty)
        });
        return match suspect & at.mask {
            0 => clear(at, tracks),
            _ => computed(at, registers, before, tracks, makings, findings),
        };
    }
    if tracked_sources(at, tracks) & at.mask == 0 {
        return clear(at, tracks);
    }
    moved(at, registers, tracks, makings);
}

/// The makings in the sources of a lane, the first where there are several.
fn first_of_each(at: &At<'_>, tracks: &Tracks) -> (u32, Ids) {
    let mut ids = [0; 32];
    let mut all = 0;
    for (slot, shape) in sources_of(at) {
        let new = tracks.mask(shape.bank, slot) & !all & at.mask;
        if new != 0 {
            let own = tracks.ids(shape.bank, slot);
            lanes(new).for_each(|lane| ids[lane] = own[lane]);
            all |= new;
        }
    }
    (all, ids)
}

/// A computation has left a NaN or an infinity.
#[cold]
fn computed(
    at: &At<'_>,
    registers: &Registers,
    before: Option<Special>,
    tracks: &mut Tracks,
    makings: &mut Makings,
    findings: &mut Findings,
) {
    let given = before.unwrap_or_else(|| sources(at, registers));
    let (mut tracked, mut ids) = first_of_each(at, tracks);
    if at.instruction.form.name == "mma" && tracked != 0 {
        // Which element spoilt which does not show in the values: the first of a marked row or column stands for all.
        let first = ids[tracked.trailing_zeros() as usize % 32];
        (tracked, ids) = (spoilt(at, tracks), [first; 32]);
    }
    clear(at, tracks);
    for (index, shape) in destinations(at) {
        let slot = at.instruction.operands[index];
        let found = formats::special(registers, shape.bank, slot, shape.ty, at.mask);
        let infinite = found.infinite & !found.nan & !given.infinite & !given.nan;
        if infinite != 0 {
            note_infinity(at, infinite, findings);
        }
        tracks.set(shape.bank, slot, found.nan & tracked, &ids);
        let made = found.nan & !given.nan;
        if made != 0 {
            let id = making(at, made, shape.ty, makings, findings);
            tracks.set(shape.bank, slot, made, &[id; 32]);
        }
    }
}

fn making(at: &At<'_>, lanes: u32, ty: Type, makings: &mut Makings, findings: &Findings) -> Id {
    makings.note(Made { site: findings.site(at), block: at.block, warp: at.warp, lanes, ty })
}

/// Lanes of an `mma` that hold elements of a row or column in which a tracked NaN was multiplied or added.
fn spoilt(at: &At<'_>, tracks: &Tracks) -> u32 {
    let of = |operand: u8| sources_of(at).filter(move |(_, shape)| shape.operand == operand);
    let mask = |(slot, shape): (u16, &OperandSlot)| tracks.mask(shape.bank, slot) & at.mask;
    let mut marks = Marks::default();
    of(1).enumerate().for_each(|(register, source)| marks.a(register, mask(source)));
    of(2).for_each(|source| marks.b(mask(source)));
    let added = of(3).fold(0, |lanes, source| lanes | mask(source));
    let results = destinations(at).count();
    let packed = |shape: &OperandSlot| shape.ty == Type::F16x2;
    destinations(at).enumerate().fold(added, |lanes, (at, (_, shape))| lanes | marks.d(at, results, packed(shape)))
}

/// An instruction that computes no float has tracked NaNs among its sources.
#[cold]
fn moved(at: &At<'_>, registers: &Registers, tracks: &mut Tracks, makings: &Makings) {
    let form = at.instruction.form;
    let (tracked, ids) = match form.name {
        "selp" => chosen(at, registers, tracks),
        "shfl" => exchanged(at, registers, tracks),
        _ => first_of_each(at, tracks),
    };
    let keeps = match form.flow {
        Flow::Bytes | Flow::Bits | Flow::Select | Flow::Shift => true,
        _ => form.name == "shfl",
    };
    clear(at, tracks);
    for (index, shape) in destinations(at) {
        let slot = at.instruction.operands[index];
        let kept = match shape.bank {
            Bank::Predicate if form.flow == Flow::Bits || compares(at) => tracked,
            Bank::Predicate => 0,
            _ if !keeps => 0,
            _ => lanes(tracked)
                .filter(|&lane| holds(makings, ids[lane], registers, shape, (slot, lane)))
                .fold(0, |mask, lane| mask | 1 << lane),
        };
        tracks.set(shape.bank, slot, kept & at.mask, &ids);
    }
}

/// Whether a register may hold the NaN of that making in a lane.
fn holds(makings: &Makings, id: Id, registers: &Registers, shape: &OperandSlot, (slot, lane): (u16, usize)) -> bool {
    let bits = formats::value(registers, shape.bank, slot, lane);
    makings.get(id).is_some_and(|made| may_hold(made.ty, bits, shape.register.bits().min(64)))
}

/// A comparison whose result hangs on the NaN, and that does not ask for it: not `setp.nan`, nor `x != x`.
fn compares(at: &At<'_>) -> bool {
    let form = at.instruction.form;
    let text = at.program.text.get(at.instruction.site.span.0 as usize..at.instruction.site.span.1 as usize);
    let asks = text.is_some_and(|text| text.contains(".nan") || text.contains(".num"));
    let mut floats = sources_of(at).filter(|(_, shape)| is_float(shape.ty)).map(|(slot, _)| slot);
    let same = matches!((floats.next(), floats.next()), (Some(a), Some(b)) if a == b);
    form.name == "setp" && !asks && !same
}

/// `selp`: the NaN of the source that each lane chose.
fn chosen(at: &At<'_>, registers: &Registers, tracks: &Tracks) -> (u32, Ids) {
    let mut all = sources_of(at);
    let (Some((a, shape)), Some((b, _)), Some((c, _))) = (all.next(), all.next(), all.next()) else {
        return first_of_each(at, tracks);
    };
    let first = registers.predicate(c);
    let (from_a, from_b) = (tracks.ids(shape.bank, a), tracks.ids(shape.bank, b));
    let tracked = (tracks.mask(shape.bank, a) & first) | (tracks.mask(shape.bank, b) & !first);
    (tracked & at.mask, std::array::from_fn(|lane| if first >> lane & 1 == 1 { from_a[lane] } else { from_b[lane] }))
}

/// `shfl`: a NaN that a lane receives is that of a lane which gave the same bits.
fn exchanged(at: &At<'_>, registers: &Registers, tracks: &Tracks) -> (u32, Ids) {
    let (Some((a, shape)), Some((index, d))) = (sources_of(at).next(), destinations(at).next()) else {
        return (0, [0; 32]);
    };
    let slot = at.instruction.operands[index];
    let (given, own) = (tracks.mask(shape.bank, a), tracks.ids(shape.bank, a));
    if slot == a && d.bank == shape.bank {
        // What the lanes gave is gone; the first NaN stands for all.
        return (at.mask, [own[given.trailing_zeros() as usize % 32]; 32]);
    }
    let mut ids = [0; 32];
    let mut tracked = 0;
    for lane in lanes(at.mask) {
        let bits = formats::value(registers, d.bank, slot, lane);
        let giver = lanes(given).find(|&giver| formats::value(registers, shape.bank, a, giver) == bits);
        if let Some(giver) = giver {
            (ids[lane], tracked) = (own[giver], tracked | 1 << lane);
        }
    }
    (tracked, ids)
}

/// A load is done: only what may still be the NaN is one.
pub(super) fn confirm(at: &At<'_>, registers: &Registers, tracks: &mut Tracks, makings: &Makings) {
    for (index, shape) in destinations(at) {
        let slot = at.instruction.operands[index];
        let tracked = tracks.mask(shape.bank, slot) & at.mask;
        if tracked != 0 {
            let ids = tracks.ids(shape.bank, slot);
            let gone = lanes(tracked).filter(|&lane| !holds(makings, ids[lane], registers, shape, (slot, lane)));
            let gone = gone.fold(0, |mask, lane| mask | 1 << lane);
            tracks.clear(shape.bank, slot, gone);
        }
    }
}
