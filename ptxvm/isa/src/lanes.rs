//! From an operation on one lane's values to a function over a warp.
//!
//! A table row says what happens in one lane, `each!(|a: u32, b: u32| a.wrapping_add(b))`; what this file adds is a loop
//! over the 32 lanes that the compiler vectorises for AVX2 with FMA where the processor has it (without, for the build's
//! baseline). It knows how a register holds a value of each type ([`Value`]): narrow registers are zero-extended.

use half::{bf16, f16};

use crate::registers::{LANES, Narrow, Operands, Registers, Wide};

/// A value that a lane of a register holds.
pub(crate) trait Value: Copy {
    /// The register as it is read.
    type Source<'a>: Copy;
    /// The register as it is written.
    type Result;
    /// What writing starts with.
    const BLANK: Self::Result;
    /// The register in `slot`.
    fn source(registers: &Registers, slot: u16) -> Self::Source<'_>;
    /// The value of a lane.
    fn get(source: Self::Source<'_>, lane: usize) -> Self;
    /// Sets the value of a lane; each lane once.
    fn put(result: &mut Self::Result, lane: usize, value: Self);
    /// Writes the lanes of `mask`.
    fn store(registers: &mut Registers, slot: u16, mask: u32, result: &Self::Result);
}

/// Implements [`Value`] for a type that lives in the narrow or the wide bank.
macro_rules! banked {
    ($bank:ident, $read:ident, $write:ident, $register:ty: $($ty:ty, $get:expr, $put:expr;)*) => { $(
        impl Value for $ty {
            type Source<'a> = &'a $register;
            type Result = $register;
            const BLANK: $register = [0; LANES];
            #[inline(always)]
            fn source(registers: &Registers, slot: u16) -> &$register {
                registers.$read(slot)
            }
            #[inline(always)]
            fn get(source: &$register, lane: usize) -> $ty {
                $get(source[lane])
            }
            #[inline(always)]
            fn put(result: &mut $register, lane: usize, value: $ty) {
                result[lane] = $put(value);
            }
            #[inline(always)]
            fn store(registers: &mut Registers, slot: u16, mask: u32, result: &$register) {
                registers.$write(slot, mask, result);
            }
        }
    )* };
}

banked! { narrow, narrow, set_narrow, Narrow:
    u8, |bits| bits as u8, u32::from;
    i8, |bits| bits as i8, |value| u32::from(value as u8);
    u16, |bits| bits as u16, u32::from;
    i16, |bits| bits as i16, |value| u32::from(value as u16);
    u32, |bits| bits, |value| value;
    i32, |bits| bits as i32, |value| value as u32;
    f32, f32::from_bits, f32::to_bits;
    f16, |bits| f16::from_bits(bits as u16), |value: f16| u32::from(value.to_bits());
    bf16, |bits| bf16::from_bits(bits as u16), |value: bf16| u32::from(value.to_bits());
    [u16; 2], |bits| [bits as u16, (bits >> 16) as u16], |[low, high]: [u16; 2]| u32::from(low) | u32::from(high) << 16;
    [i16; 2], |bits| [bits as i16, (bits >> 16) as i16],
        |[low, high]: [i16; 2]| u32::from(low as u16) | u32::from(high as u16) << 16;
}

banked! { wide, wide, set_wide, Wide:
    u64, |bits| bits, |value| value;
    i64, |bits| bits as i64, |value| value as u64;
    f64, f64::from_bits, f64::to_bits;
}

impl Value for bool {
    type Source<'a> = u32;
    type Result = u32;
    const BLANK: u32 = 0;
    #[inline(always)]
    fn source(registers: &Registers, slot: u16) -> u32 {
        registers.predicate(slot)
    }
    #[inline(always)]
    fn get(source: u32, lane: usize) -> bool {
        source >> lane & 1 == 1
    }
    #[inline(always)]
    fn put(result: &mut u32, lane: usize, value: bool) {
        *result |= u32::from(value) << lane;
    }
    #[inline(always)]
    fn store(registers: &mut Registers, slot: u16, mask: u32, result: &u32) {
        registers.set_predicate(slot, mask, *result);
    }
}

/// What a row's operation returns: one value, or the several that an unpacking `mov` and pairs such
/// as `d|p` have; the destinations are the first operands.
pub(crate) trait Results {
    /// The registers as they are written.
    type Registers;
    /// What writing starts with.
    const BLANK: Self::Registers;
    /// How many operands are destinations.
    const COUNT: usize;
    /// Sets the values of a lane; each lane once.
    fn put(results: &mut Self::Registers, lane: usize, values: Self);
    /// Writes the lanes of `mask`.
    fn store(registers: &mut Registers, operands: &Operands, mask: u32, results: &Self::Registers);
}

impl<D: Value> Results for D {
    type Registers = D::Result;
    const BLANK: D::Result = D::BLANK;
    const COUNT: usize = 1;
    #[inline(always)]
    fn put(results: &mut D::Result, lane: usize, value: D) {
        D::put(results, lane, value);
    }
    #[inline(always)]
    fn store(registers: &mut Registers, operands: &Operands, mask: u32, results: &D::Result) {
        D::store(registers, operands[0], mask, results);
    }
}

impl<D: Value, E: Value> Results for (D, E) {
    type Registers = (D::Result, E::Result);
    const BLANK: Self::Registers = (D::BLANK, E::BLANK);
    const COUNT: usize = 2;
    #[inline(always)]
    fn put(results: &mut Self::Registers, lane: usize, values: (D, E)) {
        D::put(&mut results.0, lane, values.0);
        E::put(&mut results.1, lane, values.1);
    }
    #[inline(always)]
    fn store(registers: &mut Registers, operands: &Operands, mask: u32, results: &Self::Registers) {
        D::store(registers, operands[0], mask, &results.0);
        E::store(registers, operands[1], mask, &results.1);
    }
}

impl<D: Value> Results for [D; 4] {
    type Registers = [D::Result; 4];
    const BLANK: Self::Registers = [D::BLANK; 4];
    const COUNT: usize = 4;
    #[inline(always)]
    fn put(results: &mut Self::Registers, lane: usize, values: [D; 4]) {
        for (result, value) in results.iter_mut().zip(values) {
            D::put(result, lane, value);
        }
    }
    #[inline(always)]
    fn store(registers: &mut Registers, operands: &Operands, mask: u32, results: &Self::Registers) {
        for (at, result) in results.iter().enumerate() {
            D::store(registers, operands[at], mask, result);
        }
    }
}

/// Runs `body` compiled for AVX2, FMA, BMI and POPCNT where the processor has them. What `body` calls must inline into
/// it: what does not is compiled for the baseline, where `f32::mul_add` is a call of the C library.
#[inline(always)]
pub fn vectorised<R>(body: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        let Some(simd) = pulp::x86::V3::try_new() else { return plain(body) };
        simd.vectorize(body)
    }
    #[cfg(not(target_arch = "x86_64"))]
    body()
}

/// Cold, so that the compiler does not spend half its time on optimising what processors of this decade never run.
#[cfg(target_arch = "x86_64")]
#[cold]
fn plain<R>(body: impl FnOnce() -> R) -> R {
    body()
}

/// How a loop over the lanes is compiled.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) enum Lanes {
    /// Unrolled and vectorised.
    Vector,
    /// As small as it gets: one lane after the other. A second vectorised copy of thousands of functions would take a third
    /// of this package's compile time, for processors of the decade before.
    Plain,
}

impl Lanes {
    /// A lane by its number.
    #[inline(always)]
    pub(crate) fn lane(self, number: usize) -> usize {
        match self {
            Lanes::Vector => number,
            // A number that the compiler does not know is a loop that it neither unrolls nor vectorises.
            Lanes::Plain => std::hint::black_box(number) % LANES,
        }
    }

    /// Writes results in the lanes of `mask`.
    #[inline(always)]
    fn store<D: Results>(self, r: &mut Registers, o: &Operands, mask: u32, d: &D::Registers) {
        match self {
            Lanes::Vector => D::store(r, o, mask, d),
            Lanes::Plain => store_plainly::<D>(r, o, mask, d),
        }
    }
}

/// One copy for each type, whatever the operation.
#[cold]
#[inline(never)]
fn store_plainly<D: Results>(r: &mut Registers, o: &Operands, mask: u32, d: &D::Registers) {
    D::store(r, o, mask, d);
}

/// Runs `body`, a loop over the lanes, compiled for AVX2 and its companions where the processor has them, and as a plain
/// loop where it has not.
#[inline(always)]
pub(crate) fn over_lanes<R>(body: impl FnOnce(Lanes) -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(simd) = pulp::x86::V3::try_new() {
            return simd.vectorize(
                #[inline(always)]
                || body(Lanes::Vector),
            );
        }
        body(Lanes::Plain)
    }
    #[cfg(not(target_arch = "x86_64"))]
    body(Lanes::Vector)
}

/// `d = f(a)` in each lane.
#[inline(always)]
pub(crate) fn map1<A: Value, D: Results>(r: &mut Registers, o: &Operands, mask: u32, f: impl Fn(A) -> D) {
    over_lanes(
        #[inline(always)]
        |lanes| {
            let a = A::source(r, o[D::COUNT]);
            let mut d = D::BLANK;
            for number in 0..LANES {
                let lane = lanes.lane(number);
                D::put(&mut d, lane, f(A::get(a, lane)));
            }
            lanes.store::<D>(r, o, mask, &d);
        },
    );
}

/// `d = f(a, b)` in each lane.
#[inline(always)]
pub(crate) fn map2<A: Value, B: Value, D: Results>(r: &mut Registers, o: &Operands, mask: u32, f: impl Fn(A, B) -> D) {
    over_lanes(
        #[inline(always)]
        |lanes| {
            let (a, b) = (A::source(r, o[D::COUNT]), B::source(r, o[D::COUNT + 1]));
            let mut d = D::BLANK;
            for number in 0..LANES {
                let lane = lanes.lane(number);
                D::put(&mut d, lane, f(A::get(a, lane), B::get(b, lane)));
            }
            lanes.store::<D>(r, o, mask, &d);
        },
    );
}

/// `d = f(a, b, c)` in each lane.
#[inline(always)]
pub(crate) fn map3<A: Value, B: Value, C: Value, D: Results>(
    r: &mut Registers,
    o: &Operands,
    mask: u32,
    f: impl Fn(A, B, C) -> D,
) {
    over_lanes(
        #[inline(always)]
        |lanes| {
            let (a, b) = (A::source(r, o[D::COUNT]), B::source(r, o[D::COUNT + 1]));
            let c = C::source(r, o[D::COUNT + 2]);
            let mut d = D::BLANK;
            for number in 0..LANES {
                let lane = lanes.lane(number);
                D::put(&mut d, lane, f(A::get(a, lane), B::get(b, lane), C::get(c, lane)));
            }
            lanes.store::<D>(r, o, mask, &d);
        },
    );
}

/// `d = f(a, b, c, e)` in each lane.
#[inline(always)]
pub(crate) fn map4<A: Value, B: Value, C: Value, E: Value, D: Results>(
    r: &mut Registers,
    o: &Operands,
    mask: u32,
    f: impl Fn(A, B, C, E) -> D,
) {
    over_lanes(
        #[inline(always)]
        |lanes| {
            let (a, b) = (A::source(r, o[D::COUNT]), B::source(r, o[D::COUNT + 1]));
            let (c, e) = (C::source(r, o[D::COUNT + 2]), E::source(r, o[D::COUNT + 3]));
            let mut d = D::BLANK;
            for number in 0..LANES {
                let lane = lanes.lane(number);
                D::put(&mut d, lane, f(A::get(a, lane), B::get(b, lane), C::get(c, lane), E::get(e, lane)));
            }
            lanes.store::<D>(r, o, mask, &d);
        },
    );
}

/// Bit l is `f(a, b)` in lane l. One copy for each `f`, whoever calls it: comparisons have many users.
#[inline(never)]
pub(crate) fn compared<T: Value>(r: &Registers, a: u16, b: u16, f: impl Fn(T, T) -> bool) -> u32 {
    over_lanes(
        #[inline(always)]
        |lanes| {
            let (a, b) = (T::source(r, a), T::source(r, b));
            let mut bits = 0;
            for number in 0..LANES {
                let lane = lanes.lane(number);
                bits |= u32::from(f(T::get(a, lane), T::get(b, lane))) << lane;
            }
            bits
        },
    )
}

/// A [`LaneFn`](crate::program::LaneFn) from an operation on one lane's sources, of the types given. It returns the
/// destination, or several ([`Results`]); they are the first operands, the sources follow.
macro_rules! each {
    (|$a:ident: $ta:ty $(,)?| $body:expr) => { $crate::lanes::each!(@ map1, |$a: $ta| $body) };
    (|$a:ident: $ta:ty, $b:ident: $tb:ty $(,)?| $body:expr) => {
        $crate::lanes::each!(@ map2, |$a: $ta, $b: $tb| $body)
    };
    (|$a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty $(,)?| $body:expr) => {
        $crate::lanes::each!(@ map3, |$a: $ta, $b: $tb, $c: $tc| $body)
    };
    (|$a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty, $e:ident: $te:ty $(,)?| $body:expr) => {
        $crate::lanes::each!(@ map4, |$a: $ta, $b: $tb, $c: $tc, $e: $te| $body)
    };
    (@ $map:ident, $f:expr) => {
        (|r, o, mask, _| $crate::lanes::$map(r, o, mask, $f)) as $crate::program::LaneFn
    };
}
pub(crate) use each;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::Settings;
    use crate::program::LaneFn;
    use crate::registers::{Base, Counts};

    fn registers() -> Registers {
        let mut registers = Registers::default();
        registers.enter(Base::default(), Counts { narrow: 4, wide: 4, predicates: 4 });
        registers
    }

    fn operands(slots: &[u16]) -> Operands {
        let mut operands = Operands::default();
        operands.0[..slots.len()].copy_from_slice(slots);
        operands
    }

    #[test]
    fn only_the_lanes_of_the_mask_are_written() {
        let mut r = registers();
        for lane in 0..LANES {
            r.narrow_mut(1)[lane] = 0xffff_0000 | lane as u32;
            r.narrow_mut(0)[lane] = 77;
        }
        let negate = each!(|a: i16| a.wrapping_neg());
        negate(&mut r, &operands(&[0, 1]), 0x0000_fff2, &Settings::default());
        for lane in 0..LANES {
            let expected = if 0xfff2 >> lane & 1 == 1 { 0x1_0000 - lane as u32 } else { 77 };
            assert_eq!(r.narrow(0)[lane], expected, "lane {lane}: zero-extended, or kept");
        }
    }

    #[test]
    fn two_destinations_and_predicates() {
        let mut r = registers();
        for lane in 0..LANES {
            r.narrow_mut(1)[lane] = u32::MAX - lane as u32;
            r.narrow_mut(2)[lane] = 5;
        }
        let add = each!(|a: u32, b: u32| a.overflowing_add(b));
        add(&mut r, &operands(&[0, 3, 1, 2]), u32::MAX, &Settings::default());
        assert_eq!(r.predicate(3), 0b1_1111, "lanes 0 to 4 carry");
        assert_eq!(r.narrow(0)[..6], [4, 3, 2, 1, 0, u32::MAX]);
        let choose = each!(|a: u32, b: u32, p: bool| if p { a } else { b });
        choose(&mut r, &operands(&[0, 1, 2, 3]), u32::MAX, &Settings::default());
        assert_eq!((r.narrow(0)[4], r.narrow(0)[5]), (u32::MAX - 4, 5));
    }

    /// What a processor without AVX2 runs.
    #[test]
    fn plain_loops_see_every_lane_and_write_those_of_the_mask() {
        assert!((0..LANES).all(|number| Lanes::Plain.lane(number) == number));
        for mask in [u32::MAX, 0x8000_0001, 0] {
            let (mut vector, mut plain) = (registers(), registers());
            let results = (std::array::from_fn(|lane| lane as u32 * 3), 0x5555_5555);
            Lanes::Vector.store::<(u32, bool)>(&mut vector, &operands(&[2, 1]), mask, &results);
            Lanes::Plain.store::<(u32, bool)>(&mut plain, &operands(&[2, 1]), mask, &results);
            assert_eq!((vector.narrow(2), vector.predicate(1)), (plain.narrow(2), plain.predicate(1)));
        }
    }

    /// Nanoseconds of a call, the best of several rounds.
    fn nanoseconds(f: LaneFn, r: &mut Registers, o: &Operands, mask: u32) -> f64 {
        let settings = Settings::default();
        let round = |r: &mut Registers| {
            let start = std::time::Instant::now();
            for _ in 0..1000 {
                std::hint::black_box(f)(r, o, mask, &settings);
            }
            start.elapsed().as_nanos() as f64 / 1000.0
        };
        (0..50).map(|_| round(r)).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn an_instruction_is_a_few_vector_instructions() {
        let mut r = registers();
        let o = operands(&[0, 1, 2, 3]);
        let cases: [(&str, LaneFn); 7] = [
            ("add.u32", each!(|a: u32, b: u32| a.wrapping_add(b))),
            ("fma.f32", each!(|a: f32, b: f32, c: f32| a.mul_add(b, c))),
            ("mul.s64", each!(|a: i64, b: i64| a.wrapping_mul(b))),
            ("popc", each!(|a: u32| a.count_ones())),
            ("add.s16", each!(|a: i16, b: i16| a.wrapping_add(b))),
            ("setp", each!(|a: u32, b: u32| a < b)),
            ("selp", each!(|a: u32, b: u32, p: bool| if p { a } else { b })),
        ];
        for (name, f) in cases {
            let (all, some) = (nanoseconds(f, &mut r, &o, u32::MAX), nanoseconds(f, &mut r, &o, 0x7777_7777));
            // Scalar code or a library call takes several hundred; the bound leaves room for a busy machine.
            assert!(all < 150.0 && some < 150.0, "{name}: {all:.1} ns for all lanes, {some:.1} ns for some");
            if std::env::var_os("WARPWEFT_SHOW_TIMES").is_some() {
                show(name, all, some);
            }
        }
    }

    fn show(name: &str, all: f64, some: f64) {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "{name:10} {all:6.1} ns all lanes, {some:6.1} ns some");
    }
}
