//! Extended-precision integer arithmetic with the carry flag: PTX ISA 9.7.2. The flag is a predicate register that the
//! text does not name: `>cc` writes it, `<cc` reads it. After a subtraction it holds the borrow.

use super::Form;
use super::integer::{Widening, high};
use super::typed::typed;

/// A sum or difference with a flag in, and the flag out.
trait Carry: Sized {
    fn add_carry(self, b: Self, carry: bool) -> (Self, bool);
    fn sub_borrow(self, b: Self, borrow: bool) -> (Self, bool);
}

macro_rules! carry {
    ($($ty:ty: $unsigned:ty),*) => { $(
        impl Carry for $ty {
            #[inline(always)]
            fn add_carry(self, b: $ty, carry: bool) -> ($ty, bool) {
                let (sum, first) = (self as $unsigned).overflowing_add(b as $unsigned);
                let (sum, second) = sum.overflowing_add(<$unsigned>::from(carry));
                (sum as $ty, first | second)
            }
            #[inline(always)]
            fn sub_borrow(self, b: $ty, borrow: bool) -> ($ty, bool) {
                let (rest, first) = (self as $unsigned).overflowing_sub(b as $unsigned);
                let (rest, second) = rest.overflowing_sub(<$unsigned>::from(borrow));
                (rest as $ty, first | second)
            }
        }
    )* };
}
carry!(u32: u32, i32: u32, u64: u64, i64: u64);

/// The rows of a list of types that came with the same version.
macro_rules! rows_since {
    ($out:ident, $types:tt, $sums:expr, $products:expr) => {
        let (sums, products): (fn(Form) -> Form, fn(Form) -> Form) = ($sums, $products);
        $out.extend(typed!("add.cc", "d:T >cc a:T b:T", $types, |a: T, b: T| a.add_carry(b, false)).map(sums));
        $out.extend(
            typed!("addc.cc", "d:T >cc a:T b:T <cc", $types, |a: T, b: T, cc: bool| a.add_carry(b, cc)).map(sums),
        );
        $out.extend(typed!("addc", "d:T a:T b:T <cc", $types, |a: T, b: T, cc: bool| a.add_carry(b, cc).0).map(sums));
        $out.extend(typed!("sub.cc", "d:T >cc a:T b:T", $types, |a: T, b: T| a.sub_borrow(b, false)).map(sums));
        $out.extend(
            typed!("subc.cc", "d:T >cc a:T b:T <cc", $types, |a: T, b: T, cc: bool| a.sub_borrow(b, cc)).map(sums),
        );
        $out.extend(typed!("subc", "d:T a:T b:T <cc", $types, |a: T, b: T, cc: bool| a.sub_borrow(b, cc).0).map(sums));
        $out.extend(
            typed!("mad.lo.cc", "d:T >cc a:T b:T c:T", $types, |a: T, b: T, c: T| {
                a.wrapping_mul(b).add_carry(c, false)
            })
            .map(products),
        );
        $out.extend(
            typed!("mad.hi.cc", "d:T >cc a:T b:T c:T", $types, |a: T, b: T, c: T| {
                high(a.widening(b)).add_carry(c, false)
            })
            .map(products),
        );
        $out.extend(
            typed!("madc.lo.cc", "d:T >cc a:T b:T c:T <cc", $types, |a: T, b: T, c: T, cc: bool| {
                a.wrapping_mul(b).add_carry(c, cc)
            })
            .map(products),
        );
        $out.extend(
            typed!("madc.hi.cc", "d:T >cc a:T b:T c:T <cc", $types, |a: T, b: T, c: T, cc: bool| {
                high(a.widening(b)).add_carry(c, cc)
            })
            .map(products),
        );
        $out.extend(
            typed!("madc.lo", "d:T a:T b:T c:T <cc", $types, |a: T, b: T, c: T, cc: bool| {
                a.wrapping_mul(b).add_carry(c, cc).0
            })
            .map(products),
        );
        $out.extend(
            typed!("madc.hi", "d:T a:T b:T c:T <cc", $types, |a: T, b: T, c: T, cc: bool| {
                high(a.widening(b)).add_carry(c, cc).0
            })
            .map(products),
        );
    };
}

pub(super) fn rows(out: &mut Vec<Form>) {
    rows_since!(out, [u32 s32], |row| row.since(1, 2, 10), |row| row.since(3, 0, 20));
    rows_since!(out, [u64 s64], |row| row.since(4, 3, 20), |row| row.since(4, 3, 20));
}
