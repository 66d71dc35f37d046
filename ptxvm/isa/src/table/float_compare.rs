//! Comparisons of floats: `setp` and `set` of f32, f64, f16, bf16 and the packed types.

use half::{bf16, f16};

use super::{Form, Mods, lanes};
use crate::lanes::{Value, over_lanes};
use crate::numerics::Settings;
use crate::numerics::bits::comparison::{EQUAL, GREATER, LESS, UNORDERED};
use crate::numerics::bits::{Bits, compare};
use crate::program::LaneFn;
use crate::registers::{LANES, Operands, Registers};

/// How a comparison is combined with the predicate `c`.
const ALONE: u32 = 0;
const AND: u32 = 1;
const OR: u32 = 2;
const XOR: u32 = 3;

/// The sources that are compared: single values, or the halves of packed ones (the low half's lanes come first).
trait Compared {
    /// Lanes in which `a` and `b` stand in one of the ways of `WAYS`, of the low and the high half.
    fn lanes<const WAYS: u32, const FTZ: bool>(r: &Registers, a: u16, b: u16) -> [u32; 2];
}

#[inline(always)]
fn holds<T: Bits, const WAYS: u32, const FTZ: bool>(a: T, b: T) -> bool {
    if FTZ { compare::<T, WAYS>(a.flushed(), b.flushed()) } else { compare::<T, WAYS>(a, b) }
}

/// Values that fill a register.
struct Single<T>(T);

impl<T: Value + Bits> Compared for Single<T> {
    #[inline(never)]
    fn lanes<const WAYS: u32, const FTZ: bool>(r: &Registers, a: u16, b: u16) -> [u32; 2] {
        over_lanes(
            #[inline(always)]
            |lanes| {
                let (a, b) = (T::source(r, a), T::source(r, b));
                let mut low = 0;
                for number in 0..LANES {
                    let lane = lanes.lane(number);
                    low |= u32::from(holds::<T, WAYS, FTZ>(T::get(a, lane), T::get(b, lane))) << lane;
                }
                [low, 0]
            },
        )
    }
}

/// Two values in a register.
struct Packed<T>(T);

macro_rules! packed {
    ($($float:ident)*) => { $(
        impl Compared for Packed<$float> {
            #[inline(never)]
            fn lanes<const WAYS: u32, const FTZ: bool>(r: &Registers, a: u16, b: u16) -> [u32; 2] {
                over_lanes(#[inline(always)] |lanes| {
                    let (a, b) = (r.narrow(a), r.narrow(b));
                    let mut found = [0; 2];
                    for (half, found) in found.iter_mut().enumerate() {
                        let of = |bits: u32| $float::from_bits((bits >> (16 * half)) as u16);
                        for number in 0..LANES {
                            let lane = lanes.lane(number);
                            *found |= u32::from(holds::<$float, WAYS, FTZ>(of(a[lane]), of(b[lane]))) << lane;
                        }
                    }
                    found
                })
            }
        }
    )* };
}

packed! { f16 bf16 }

/// Combines a comparison with the predicate in `slot`.
#[inline(always)]
fn combined<const BOOL: u32>(r: &Registers, slot: u16, holds: u32) -> u32 {
    match BOOL {
        AND => holds & r.predicate(slot),
        OR => holds | r.predicate(slot),
        XOR => holds ^ r.predicate(slot),
        _ => holds,
    }
}

/// A lane function for each set of ways, flush and combination. There are thousands, so each does little by itself: the
/// comparison is one copy for each type, and so is what writes the result.
trait Choose {
    fn run<const WAYS: u32, const FTZ: bool, const BOOL: u32>(r: &mut Registers, o: &Operands, mask: u32, _: &Settings);
}

/// `setp` of single values: p is the comparison, q its complement, each combined with c. Operands p, q, a, b, c.
struct Setp<C>(C);

impl<C: Compared> Choose for Setp<C> {
    fn run<const WAYS: u32, const FTZ: bool, const BOOL: u32>(
        r: &mut Registers,
        o: &Operands,
        mask: u32,
        _: &Settings,
    ) {
        let [holds, _] = C::lanes::<WAYS, FTZ>(r, o[2], o[3]);
        let (p, q) = (combined::<BOOL>(r, o[4], holds), combined::<BOOL>(r, o[4], !holds));
        r.set_predicate(o[0], mask, p);
        r.set_predicate(o[1], mask, q);
    }
}

/// `setp` of 16-bit single values, which has no q. Operands p, a, b, c.
struct SetpShort<C>(C);

impl<C: Compared> Choose for SetpShort<C> {
    fn run<const WAYS: u32, const FTZ: bool, const BOOL: u32>(
        r: &mut Registers,
        o: &Operands,
        mask: u32,
        _: &Settings,
    ) {
        let [holds, _] = C::lanes::<WAYS, FTZ>(r, o[1], o[2]);
        let p = combined::<BOOL>(r, o[3], holds);
        r.set_predicate(o[0], mask, p);
    }
}

/// `setp` of packed values: p is of the low halves, q of the high ones. Operands p, q, a, b, c.
struct SetpPacked<C>(C);

impl<C: Compared> Choose for SetpPacked<C> {
    fn run<const WAYS: u32, const FTZ: bool, const BOOL: u32>(
        r: &mut Registers,
        o: &Operands,
        mask: u32,
        _: &Settings,
    ) {
        let [low, high] = C::lanes::<WAYS, FTZ>(r, o[2], o[3]);
        let (p, q) = (combined::<BOOL>(r, o[4], low), combined::<BOOL>(r, o[4], high));
        r.set_predicate(o[0], mask, p);
        r.set_predicate(o[1], mask, q);
    }
}

/// `set`: `LOW` in the lanes where the low half (or the single value) holds, and `HIGH` where the high one does.
/// Operands d, a, b, c.
struct Set<C, const LOW: u32, const HIGH: u32>(C);

impl<C: Compared, const LOW: u32, const HIGH: u32> Choose for Set<C, LOW, HIGH> {
    fn run<const WAYS: u32, const FTZ: bool, const BOOL: u32>(
        r: &mut Registers,
        o: &Operands,
        mask: u32,
        _: &Settings,
    ) {
        write_true(r, o, mask, C::lanes::<WAYS, FTZ>(r, o[1], o[2]), BOOL, [LOW, HIGH]);
    }
}

/// Writes what `set` does: `truth` of the low and the high half where they hold, combined with c.
#[inline(never)]
fn write_true(r: &mut Registers, o: &Operands, mask: u32, holds: [u32; 2], combination: u32, truth: [u32; 2]) {
    let [low, high] = holds.map(|holds| match combination {
        AND => combined::<AND>(r, o[3], holds),
        OR => combined::<OR>(r, o[3], holds),
        XOR => combined::<XOR>(r, o[3], holds),
        _ => holds,
    });
    let chosen = |lanes: u32, lane: usize, value: u32| if lanes >> lane & 1 == 1 { value } else { 0 };
    let value = std::array::from_fn(|lane| chosen(low, lane, truth[0]) | chosen(high, lane, truth[1]));
    r.set_narrow(o[0], mask, &value);
}

/// The lane function for the comparison that the modifiers name.
fn choose<F: Choose>(m: &Mods) -> LaneFn {
    if m.has("ftz") { combination::<F, true>(m) } else { combination::<F, false>(m) }
}

fn combination<F: Choose, const FTZ: bool>(m: &Mods) -> LaneFn {
    if m.has("and") {
        ways::<F, FTZ, AND>(m)
    } else if m.has("or") {
        ways::<F, FTZ, OR>(m)
    } else if m.has("xor") {
        ways::<F, FTZ, XOR>(m)
    } else {
        ways::<F, FTZ, ALONE>(m)
    }
}

fn ways<F: Choose, const FTZ: bool, const BOOL: u32>(m: &Mods) -> LaneFn {
    macro_rules! first {
        ($($word:literal: $ways:expr;)*) => { $(
            if m.has($word) {
                return F::run::<{ $ways }, FTZ, BOOL>;
            }
        )* };
    }
    first! {
        "eq": EQUAL;
        "ne": LESS | GREATER;
        "lt": LESS;
        "le": LESS | EQUAL;
        "gt": GREATER;
        "ge": GREATER | EQUAL;
        "equ": EQUAL | UNORDERED;
        "neu": LESS | GREATER | UNORDERED;
        "ltu": LESS | UNORDERED;
        "leu": LESS | EQUAL | UNORDERED;
        "gtu": GREATER | UNORDERED;
        "geu": GREATER | EQUAL | UNORDERED;
        "num": LESS | EQUAL | GREATER;
    }
    F::run::<UNORDERED, FTZ, BOOL>
}

/// The two rows of a comparison: alone, and combined with a predicate.
macro_rules! compared {
    ($out:ident, $name:literal, $types:literal, $operands:literal, $choose:ty, $since:tt) => {
        $out.extend([
            compared!(@ $name, "", $types, $operands, "", $choose, $since),
            compared!(@ $name, "(.and|.or|.xor)", $types, $operands, " c:pred", $choose, $since),
        ]);
    };
    (@ $name:literal, $bool:literal, $types:literal, $operands:literal, $c:literal, $choose:ty,
        ($major:literal, $minor:literal, $sm:literal)) => {
        lanes(
            concat!($name, "(.eq|.ne|.lt|.le|.gt|.ge|.equ|.neu|.ltu|.leu|.gtu|.geu|.num|.nan)", $bool, $types),
            concat!($operands, $c),
            choose::<$choose>,
        )
        .since($major, $minor, $sm)
    };
}

/// The rows.
pub(super) fn rows(out: &mut Vec<Form>) {
    predicates(out);
    values(out);
    short_values(out);
}

fn predicates(out: &mut Vec<Form>) {
    compared!(out, "setp", "{.ftz}.f32", "d:pred|p a:f32 b:f32", Setp<Single<f32>>, (1, 0, 10));
    compared!(out, "setp", ".f64", "d:pred|p a:f64 b:f64", Setp<Single<f64>>, (1, 0, 13));
    compared!(out, "setp", "{.ftz}.f16", "d:pred a:f16 b:f16", SetpShort<Single<f16>>, (4, 2, 53));
    compared!(out, "setp", "{.ftz}.f16x2", "d:pred|p a:f16x2 b:f16x2", SetpPacked<Packed<f16>>, (4, 2, 53));
    compared!(out, "setp", ".bf16", "d:pred a:bf16 b:bf16", SetpShort<Single<bf16>>, (7, 8, 90));
    compared!(out, "setp", ".bf16x2", "d:pred|p a:bf16x2 b:bf16x2", SetpPacked<Packed<bf16>>, (7, 8, 90));
}

/// One in the formats that `set` writes.
const ONE: u32 = 0x3f80_0000;
const ONE_F16: u32 = 0x3c00;
const ONE_BF16: u32 = 0x3f80;
const ALL: u32 = u32::MAX;
const ALL_SHORT: u32 = 0xffff;
const HIGH: u32 = 0xffff_0000;

fn values(out: &mut Vec<Form>) {
    compared!(out, "set", "{.ftz}.u32.f32", "d:u32 a:f32 b:f32", Set<Single<f32>, ALL, 0>, (1, 0, 10));
    compared!(out, "set", "{.ftz}.s32.f32", "d:s32 a:f32 b:f32", Set<Single<f32>, ALL, 0>, (1, 0, 10));
    compared!(out, "set", "{.ftz}.f32.f32", "d:f32 a:f32 b:f32", Set<Single<f32>, ONE, 0>, (1, 0, 10));
    compared!(out, "set", "{.ftz}.f16.f32", "d:f16 a:f32 b:f32", Set<Single<f32>, ONE_F16, 0>, (4, 2, 53));
    compared!(out, "set", ".bf16.f32", "d:bf16 a:f32 b:f32", Set<Single<f32>, ONE_BF16, 0>, (7, 8, 90));
    compared!(out, "set", ".u32.f64", "d:u32 a:f64 b:f64", Set<Single<f64>, ALL, 0>, (1, 0, 13));
    compared!(out, "set", ".s32.f64", "d:s32 a:f64 b:f64", Set<Single<f64>, ALL, 0>, (1, 0, 13));
    compared!(out, "set", ".f32.f64", "d:f32 a:f64 b:f64", Set<Single<f64>, ONE, 0>, (1, 0, 13));
    compared!(out, "set", ".f16.f64", "d:f16 a:f64 b:f64", Set<Single<f64>, ONE_F16, 0>, (4, 2, 53));
    compared!(out, "set", ".bf16.f64", "d:bf16 a:f64 b:f64", Set<Single<f64>, ONE_BF16, 0>, (7, 8, 90));
}

fn short_values(out: &mut Vec<Form>) {
    compared!(out, "set", "{.ftz}.f16.f16", "d:f16 a:f16 b:f16", Set<Single<f16>, ONE_F16, 0>, (4, 2, 53));
    compared!(out, "set", "{.ftz}.u16.f16", "d:u16 a:f16 b:f16", Set<Single<f16>, ALL_SHORT, 0>, (6, 5, 53));
    compared!(out, "set", "{.ftz}.s16.f16", "d:s16 a:f16 b:f16", Set<Single<f16>, ALL_SHORT, 0>, (6, 5, 53));
    compared!(out, "set", "{.ftz}.u32.f16", "d:u32 a:f16 b:f16", Set<Single<f16>, ALL, 0>, (6, 5, 53));
    compared!(out, "set", "{.ftz}.s32.f16", "d:s32 a:f16 b:f16", Set<Single<f16>, ALL, 0>, (6, 5, 53));
    compared!(out, "set", ".bf16.f16", "d:bf16 a:f16 b:f16", Set<Single<f16>, ONE_BF16, 0>, (7, 8, 90));
    compared!(out, "set", ".bf16.bf16", "d:bf16 a:bf16 b:bf16", Set<Single<bf16>, ONE_BF16, 0>, (7, 8, 90));
    compared!(out, "set", ".u16.bf16", "d:u16 a:bf16 b:bf16", Set<Single<bf16>, ALL_SHORT, 0>, (7, 8, 90));
    compared!(out, "set", ".s16.bf16", "d:s16 a:bf16 b:bf16", Set<Single<bf16>, ALL_SHORT, 0>, (7, 8, 90));
    compared!(out, "set", ".u32.bf16", "d:u32 a:bf16 b:bf16", Set<Single<bf16>, ALL, 0>, (7, 8, 90));
    compared!(out, "set", ".s32.bf16", "d:s32 a:bf16 b:bf16", Set<Single<bf16>, ALL, 0>, (7, 8, 90));

    compared!(
        out,
        "set",
        "{.ftz}.f16x2.f16x2",
        "d:f16x2 a:f16x2 b:f16x2",
        Set<Packed<f16>, ONE_F16, { ONE_F16 << 16 }>,
        (4, 2, 53)
    );
    compared!(out, "set", "{.ftz}.u32.f16x2", "d:u32 a:f16x2 b:f16x2", Set<Packed<f16>, ALL_SHORT, HIGH>, (6, 5, 53));
    compared!(out, "set", "{.ftz}.s32.f16x2", "d:s32 a:f16x2 b:f16x2", Set<Packed<f16>, ALL_SHORT, HIGH>, (6, 5, 53));
    compared!(
        out,
        "set",
        ".bf16x2.bf16x2",
        "d:bf16x2 a:bf16x2 b:bf16x2",
        Set<Packed<bf16>, ONE_BF16, { ONE_BF16 << 16 }>,
        (7, 8, 90)
    );
    compared!(out, "set", ".u32.bf16x2", "d:u32 a:bf16x2 b:bf16x2", Set<Packed<bf16>, ALL_SHORT, HIGH>, (7, 8, 90));
    compared!(out, "set", ".s32.bf16x2", "d:s32 a:bf16x2 b:bf16x2", Set<Packed<bf16>, ALL_SHORT, HIGH>, (7, 8, 90));
}
