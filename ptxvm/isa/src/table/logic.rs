//! Logic and shifts: PTX ISA 9.7.8.

use super::typed::typed;
use super::{Flow, Form, Mods, lanes};
use crate::lanes::{each, map3};
use crate::program::LaneFn;
use crate::registers::{Operands, Registers};

pub(super) fn rows(out: &mut Vec<Form>) {
    let bits = |row: Form| row.flow(Flow::Bits);
    out.extend(typed!("and", "d:T a:T b:T", [b16 b32 b64 pred], |a: T, b: T| a & b).map(bits));
    out.extend(typed!("or", "d:T a:T b:T", [b16 b32 b64 pred], |a: T, b: T| a | b).map(bits));
    out.extend(typed!("xor", "d:T a:T b:T", [b16 b32 b64 pred], |a: T, b: T| a ^ b).map(bits));
    out.extend(typed!("not", "d:T a:T", [b16 b32 b64 pred], |a: T| !a).map(bits));
    out.extend(typed!("cnot", "d:T a:T", [b16 b32 b64], |a: T| T::from(a == 0)));
    out.extend([
        lanes("lop3.b32", "d:b32 a:b32 b:b32 c:b32 #immLut", |_| lop3).since(4, 3, 50).flow(Flow::Bits),
        lanes("lop3(.or|.and).b32", "d:b32|p a:b32 b:b32 c:b32 #immLut q:pred", lop3_with_predicate)
            .since(8, 2, 70)
            .flow(Flow::All),
    ]);
    shifts(out);
}

/// A function of three bits, as masks of 32 bits: first for every (a, b) with c = 0, then what c = 1 changes of it.
fn of_three_bits(table: u32) -> impl Fn(u32, u32, u32) -> u32 {
    let mask = |at: u32| 0u32.wrapping_sub(table >> at & 1);
    let (zero, change) = ([0, 2, 4, 6].map(mask), [0, 2, 4, 6].map(|at| mask(at) ^ mask(at + 1)));
    #[inline(always)]
    move |a, b, c| {
        let with_c = |at: usize| zero[at] ^ (c & change[at]);
        let choose = |condition: u32, one: u32, other: u32| other ^ (condition & (one ^ other));
        choose(a, choose(b, with_c(3), with_c(2)), choose(b, with_c(1), with_c(0)))
    }
}

fn lop3(r: &mut Registers, o: &Operands, mask: u32, _: &crate::numerics::Settings) {
    let f = of_three_bits(r.narrow(o[4])[0]);
    map3(r, o, mask, |a: u32, b: u32, c: u32| f(a, b, c));
}

/// `p = (d != 0) op q`; q may be p.
fn lop3_with_predicate(m: &Mods) -> LaneFn {
    fn run(r: &mut Registers, o: &Operands, mask: u32, combine: impl Fn(u32, u32) -> u32) {
        let (f, q) = (of_three_bits(r.narrow(o[5])[0]), r.predicate(o[6]));
        map3(r, o, mask, |a: u32, b: u32, c: u32| {
            let d = f(a, b, c);
            (d, d != 0)
        });
        let nonzero = r.predicate(o[1]);
        r.set_predicate(o[1], mask, combine(nonzero, q));
    }
    match m.has("or") {
        true => |r, o, mask, _| run(r, o, mask, |t, q| t | q),
        false => |r, o, mask, _| run(r, o, mask, |t, q| t & q),
    }
}

fn shifts(out: &mut Vec<Form>) {
    let shift = |row: Form| row.flow(Flow::Shift);
    out.extend(typed!("shl", "d:T a:T b:u32", [b16 b32 b64], |a: T, b: u32| a.checked_shl(b).unwrap_or(0)).map(shift));
    out.extend(
        typed!("shr", "d:T a:T b:u32", [b16 b32 b64 u16 u32 u64], |a: T, b: u32| a.checked_shr(b).unwrap_or(0))
            .map(shift),
    );
    out.extend(typed!("shr", "d:T a:T b:u32", [s16 s32 s64], |a: T, b: u32| a >> b.min(T::BITS - 1)).map(shift));
    let funnel = [
        lanes("shf.l.clamp.b32", "d:b32 a:b32 b:b32 c:u32", |_| {
            each!(|a: u32, b: u32, c: u32| (joined(a, b) << c.min(32) >> 32) as u32)
        }),
        lanes("shf.l.wrap.b32", "d:b32 a:b32 b:b32 c:u32", |_| {
            each!(|a: u32, b: u32, c: u32| (joined(a, b) << (c & 31) >> 32) as u32)
        }),
        lanes("shf.r.clamp.b32", "d:b32 a:b32 b:b32 c:u32", |_| {
            each!(|a: u32, b: u32, c: u32| (joined(a, b) >> c.min(32)) as u32)
        }),
        lanes("shf.r.wrap.b32", "d:b32 a:b32 b:b32 c:u32", |_| {
            each!(|a: u32, b: u32, c: u32| (joined(a, b) >> (c & 31)) as u32)
        }),
    ];
    out.extend(funnel.map(|row| row.since(3, 1, 32).flow(Flow::Shift)));
}

/// `b` above `a`.
#[inline(always)]
fn joined(a: u32, b: u32) -> u64 {
    u64::from(b) << 32 | u64::from(a)
}
