//! Bit counting, bit fields and byte permutation: PTX ISA 9.7.1.14 to 9.7.1.22 and `prmt`.

use super::typed::typed;
use super::{Flow, Form, lanes};
use crate::lanes::each;
use crate::program::LaneFn;
use crate::table::Mods;

pub(super) fn rows(out: &mut Vec<Form>) {
    counts(out);
    fields(out);
    masks(out);
    out.push(
        lanes("prmt.b32{.f4e|.b4e|.rc8|.ecl|.ecr|.rc16}", "d:b32 a:b32 b:b32 c:b32", permutation)
            .since(2, 0, 20)
            .flow(Flow::Shift),
    );
}

fn counts(out: &mut Vec<Form>) {
    out.extend(typed!("popc", "d:u32 a:T", [b32 b64], |a: T| a.count_ones()).map(|row| row.since(2, 0, 20)));
    out.extend(typed!("clz", "d:u32 a:T", [b32 b64], |a: T| a.leading_zeros()).map(|row| row.since(2, 0, 20)));
    out.extend(typed!("brev", "d:T a:T", [b32 b64], |a: T| a.reverse_bits()).map(|row| row.since(2, 0, 20)));
    out.extend(
        typed!("bfind{.shiftamt}", "d:u32 a:T", [u32 s32 u64 s64], m => match m.has("shiftamt") {
            true => each!(|a: T| a.found().map_or(u32::MAX, |at| T::BITS - 1 - at)),
            false => each!(|a: T| a.found().unwrap_or(u32::MAX)),
        })
        .map(|row| row.since(2, 0, 20)),
    );
    out.push(
        lanes("fns.b32", "d:b32 mask:b32 base:b32 offset:s32", |_| {
            each!(|mask: u32, base: u32, offset: i32| nth_set(mask, base, offset))
        })
        .since(6, 0, 30),
    );
}

/// The most significant bit that is not a copy of the sign.
trait Find {
    fn found(self) -> Option<u32>;
}

macro_rules! find {
    ($($ty:ty: |$a:ident| $magnitude:expr),*) => { $(
        impl Find for $ty {
            #[inline(always)]
            fn found(self) -> Option<u32> {
                let $a = self;
                $magnitude.checked_ilog2()
            }
        }
    )* };
}
find!(u32: |a| a, u64: |a| a, i32: |a| (a ^ a >> 31) as u32, i64: |a| (a ^ a >> 63) as u64);

/// `fns`: the position of the bit of `mask` that is the |offset|-th set one from `base` on, upwards for a positive
/// offset, downwards for a negative one. All ones where there is none, and for a base past 31, which the ISA leaves open.
#[inline(always)]
fn nth_set(mask: u32, base: u32, offset: i32) -> u32 {
    if base > 31 {
        return u32::MAX;
    }
    if offset == 0 {
        return if mask >> base & 1 == 1 { base } else { u32::MAX };
    }
    let (mut left, up) = (offset.unsigned_abs(), offset > 0);
    // What lies before the base is out of reach.
    let mut rest = if up { mask >> base << base } else { mask << (31 - base) >> (31 - base) };
    loop {
        if rest == 0 {
            return u32::MAX;
        }
        let at = if up { rest.trailing_zeros() } else { 31 - rest.leading_zeros() };
        left -= 1;
        if left == 0 {
            return at;
        }
        rest &= !(1 << at);
    }
}

/// Bit fields; positions and lengths are taken modulo 256.
trait Field: Copy {
    fn extract(self, position: u32, length: u32) -> Self;
    fn insert(self, into: Self, position: u32, length: u32) -> Self;
}

macro_rules! field {
    ($($unsigned:ty, $signed:ty);*) => { $(
        impl Field for $unsigned {
            #[inline(always)]
            fn extract(self, position: u32, length: u32) -> $unsigned {
                self.checked_shr(position & 0xff).unwrap_or(0) & ones(length & 0xff) as $unsigned
            }
            #[inline(always)]
            fn insert(self, into: $unsigned, position: u32, length: u32) -> $unsigned {
                let position = position & 0xff;
                let mask = (ones(length & 0xff) as $unsigned).checked_shl(position).unwrap_or(0);
                (self.checked_shl(position).unwrap_or(0) & mask) | (into & !mask)
            }
        }
        impl Field for $signed {
            #[inline(always)]
            fn extract(self, position: u32, length: u32) -> $signed {
                let length = length & 0xff;
                if length == 0 {
                    return 0;
                }
                // An arithmetic shift fills with the sign, which is what a field past the last bit holds.
                let field = self >> (position & 0xff).min(<$signed>::BITS - 1);
                let above = <$signed>::BITS.saturating_sub(length);
                field << above >> above
            }
            #[inline(always)]
            fn insert(self, into: $signed, position: u32, length: u32) -> $signed {
                (self as $unsigned).insert(into as $unsigned, position, length) as $signed
            }
        }
    )* };
}
field!(u32, i32; u64, i64);

/// So many ones from the lowest bit on.
#[inline(always)]
fn ones(length: u32) -> u64 {
    if length > 63 { u64::MAX } else { (1 << length) - 1 }
}

fn fields(out: &mut Vec<Form>) {
    let since = |row: Form| row.since(2, 0, 20).flow(Flow::Shift);
    out.extend(
        typed!("bfe", "d:T a:T b:u32 c:u32", [u32 s32 u64 s64], |a: T, b: u32, c: u32| a.extract(b, c)).map(since),
    );
    out.extend(
        typed!("bfi", "d:T a:T b:T c:u32 e:u32", [b32 b64], |a: T, b: T, c: u32, e: u32| a.insert(b, c, e)).map(since),
    );
}

fn masks(out: &mut Vec<Form>) {
    let rows = [
        lanes("szext.clamp.u32", "d:u32 a:u32 b:u32", |_| {
            each!(|a: u32, b: u32| if b > 31 { a } else { a & !(u32::MAX << b) })
        }),
        lanes("szext.wrap.u32", "d:u32 a:u32 b:u32", |_| each!(|a: u32, b: u32| a & !(u32::MAX << (b & 31)))),
        lanes("szext.clamp.s32", "d:s32 a:s32 b:u32", |_| {
            each!(|a: i32, b: u32| if b > 31 { a } else { sign_extended(a, b) })
        }),
        lanes("szext.wrap.s32", "d:s32 a:s32 b:u32", |_| each!(|a: i32, b: u32| sign_extended(a, b & 31))),
        lanes("bmsk.clamp.b32", "d:b32 a:b32 b:b32", |_| {
            each!(|a: u32, b: u32| u32::MAX.checked_shl(a).unwrap_or(0) & ones(a.saturating_add(b).min(63)) as u32)
        }),
        lanes("bmsk.wrap.b32", "d:b32 a:b32 b:b32", |_| {
            each!(|a: u32, b: u32| u32::MAX << (a & 31) & ones((a & 31) + (b & 31)) as u32)
        }),
    ];
    out.extend(rows.map(|row| row.since(7, 6, 70)));
}

/// The low `bits` (0 to 31) of `a` with their sign; 0 of no bits.
#[inline(always)]
fn sign_extended(a: i32, bits: u32) -> i32 {
    if bits == 0 { 0 } else { a << (32 - bits) >> (32 - bits) }
}

/// `prmt`: which byte of `{b, a}` goes to each byte of the result. The modes are tables of selectors by `c & 3`.
fn permutation(m: &Mods) -> LaneFn {
    match m.words().first() {
        Some(&"f4e") => each!(|a: u32, b: u32, c: u32| permute(a, b, [0x3210, 0x4321, 0x5432, 0x6543][c as usize & 3])),
        Some(&"b4e") => each!(|a: u32, b: u32, c: u32| permute(a, b, [0x5670, 0x6701, 0x7012, 0x0123][c as usize & 3])),
        Some(&"rc8") => each!(|a: u32, b: u32, c: u32| permute(a, b, [0x0000, 0x1111, 0x2222, 0x3333][c as usize & 3])),
        Some(&"ecl") => each!(|a: u32, b: u32, c: u32| permute(a, b, [0x3210, 0x3211, 0x3222, 0x3333][c as usize & 3])),
        Some(&"ecr") => each!(|a: u32, b: u32, c: u32| permute(a, b, [0x0000, 0x1110, 0x2210, 0x3210][c as usize & 3])),
        Some(&"rc16") => {
            each!(|a: u32, b: u32, c: u32| permute(a, b, [0x1010, 0x3232, 0x1010, 0x3232][c as usize & 3]))
        }
        _ => each!(|a: u32, b: u32, c: u32| permute(a, b, c)),
    }
}

/// Four nibbles of `selector` choose a byte of `{b, a}` each; their highest bit replicates that byte's sign instead.
#[inline(always)]
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let both = u64::from(b) << 32 | u64::from(a);
    let mut result = 0;
    for at in 0..4 {
        let nibble = selector >> (4 * at) & 15;
        let byte = (both >> (8 * (nibble & 7))) as u8;
        let byte = if nibble & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 };
        result |= u32::from(byte) << (8 * at);
    }
    result
}
