//! Rows of exchanges between the lanes of a warp: `shfl`, `vote`, `match`, `redux`, `elect` (PTX ISA 9.7.9.6, 9.7.13.9 to
//! 9.7.13.14). A function gets the lanes that take part as its mask: the members that have not exited.

use super::{Form, Mods, collective};
use crate::program::LaneFn;
use crate::registers::{LANES, Narrow, Operands, Registers};

/// What a lane reads from one that takes no part: undefined, and unlike any sensible number.
const UNDEFINED: u32 = 0xfff5_fff5;

/// A reduction over the lanes that take part, whose result each of them gets.
macro_rules! reduce {
    (|$a:ident, $b:ident| $combine:expr) => {
        |r, o, mask, _| {
            let values = r.narrow(o[1]);
            let all = lanes(mask).map(|lane| values[lane]).reduce(|$a: u32, $b: u32| $combine).unwrap_or(0);
            r.set_narrow(o[0], mask, &[all; LANES]);
        }
    };
}
/// A vote whose result each lane gets.
macro_rules! vote {
    (|$votes:ident, $mask:ident| $result:expr) => {
        |r, o, $mask, _| {
            let $votes = r.predicate(o[1]) & $mask;
            r.set_predicate(o[0], $mask, u32::from($result).wrapping_neg());
        }
    };
}
pub(super) fn rows(out: &mut Vec<Form>) {
    shuffles(out);
    votes(out);
    matches(out);
    reductions(out);
    // The ISA leaves open which lane is elected, as long as it is always the same for a mask.
    out.extend([collective("elect.sync", "d:b32|p membermask:b32", |_| {
        |r, o, mask, _| {
            let leader = mask.trailing_zeros();
            r.set_narrow(o[0], mask, &[leader; LANES]);
            r.set_predicate(o[1], mask, 1u32.checked_shl(leader).unwrap_or(0));
        }
    })
    .since(8, 0, 90)]);
}

fn matches(out: &mut Vec<Form>) {
    out.extend([
        collective("match.any.sync.b32", "d:b32 a:b32 membermask:b32", |_| {
            |r, o, mask, _| {
                let values = r.narrow(o[1]).map(u64::from);
                match_any(r, o[0], mask, &values);
            }
        })
        .since(6, 0, 70),
        collective("match.any.sync.b64", "d:b32 a:b64 membermask:b32", |_| {
            |r, o, mask, _| {
                let values = *r.wide(o[1]);
                match_any(r, o[0], mask, &values);
            }
        })
        .since(6, 0, 70),
        collective("match.all.sync.b32", "d:b32|p a:b32 membermask:b32", |_| {
            |r, o, mask, _| {
                let values = r.narrow(o[2]).map(u64::from);
                match_all(r, o, mask, &values);
            }
        })
        .since(6, 0, 70),
        collective("match.all.sync.b64", "d:b32|p a:b64 membermask:b32", |_| {
            |r, o, mask, _| {
                let values = *r.wide(o[2]);
                match_all(r, o, mask, &values);
            }
        })
        .since(6, 0, 70),
    ]);
}

fn reductions(out: &mut Vec<Form>) {
    out.extend([
        collective("redux.sync(.add|.min|.max).u32", "d:u32 a:u32 membermask:b32", |m| match operation(m) {
            "add" => reduce!(|a, b| a.wrapping_add(b)),
            "min" => reduce!(|a, b| a.min(b)),
            _ => reduce!(|a, b| a.max(b)),
        })
        .since(7, 0, 80),
        collective("redux.sync(.add|.min|.max).s32", "d:s32 a:s32 membermask:b32", |m| match operation(m) {
            "add" => reduce!(|a, b| a.wrapping_add(b)),
            "min" => reduce!(|a, b| (a as i32).min(b as i32) as u32),
            _ => reduce!(|a, b| (a as i32).max(b as i32) as u32),
        })
        .since(7, 0, 80),
        collective("redux.sync(.and|.or|.xor).b32", "d:b32 a:b32 membermask:b32", |m| match operation(m) {
            "and" => reduce!(|a, b| a & b),
            "or" => reduce!(|a, b| a | b),
            _ => reduce!(|a, b| a ^ b),
        })
        .since(7, 0, 80),
    ]);
}

/// The modifier that is not `sync`.
fn operation(m: &Mods) -> &'static str {
    m.words().iter().copied().find(|word| *word != "sync").unwrap_or("")
}

fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 == 1)
}

fn shuffles(out: &mut Vec<Form>) {
    let text = ["shfl.sync.up.b32", "shfl.sync.down.b32", "shfl.sync.bfly.b32", "shfl.sync.idx.b32"];
    let choose: [fn(&Mods) -> LaneFn; 4] = [
        |_| |r, o, mask, _| shuffle(r, o, mask, |lane, b, bound, _| (lane - b, lane - b >= bound.most)),
        |_| |r, o, mask, _| shuffle(r, o, mask, |lane, b, bound, _| (lane + b, lane + b <= bound.most)),
        |_| |r, o, mask, _| shuffle(r, o, mask, |lane, b, bound, _| (lane ^ b, lane ^ b <= bound.most)),
        |_| {
            |r, o, mask, _| {
                shuffle(r, o, mask, |_, b, bound, segment| {
                    let source = bound.least | (b & !segment);
                    (source, source <= bound.most)
                });
            }
        },
    ];
    for (text, choose) in text.into_iter().zip(choose) {
        let row = collective(text, "d:b32|p a:b32 b:b32 c:b32 membermask:b32", choose);
        out.push(row.since(6, 0, 30));
    }
}

/// The lanes of the segment that a lane is in, as `minLane` and `maxLane` of the ISA.
struct Bound {
    least: i32,
    most: i32,
}

/// The ISA's semantics of `shfl.sync`; `source` gives the source lane and whether it is in range.
#[inline(always)]
fn shuffle(r: &mut Registers, o: &Operands, mask: u32, source: impl Fn(i32, i32, &Bound, i32) -> (i32, bool)) {
    let (a, b, c) = (r.narrow(o[2]), r.narrow(o[3]), r.narrow(o[4]));
    let mut out: Narrow = [0; LANES];
    let mut in_range = 0;
    for lane in 0..LANES {
        let (clamp, segment) = ((c[lane] & 31) as i32, (c[lane] >> 8 & 31) as i32);
        let number = lane as i32;
        let least = number & segment;
        let bound = Bound { least, most: least | (clamp & !segment) };
        let (chosen, valid) = source(number, (b[lane] & 31) as i32, &bound, segment);
        let from = if valid { chosen as usize & 31 } else { lane };
        in_range |= u32::from(valid) << lane;
        out[lane] = if mask >> from & 1 == 1 { a[from] } else { UNDEFINED };
    }
    r.set_narrow(o[0], mask, &out);
    r.set_predicate(o[1], mask, in_range);
}

fn votes(out: &mut Vec<Form>) {
    out.extend([
        collective("vote.sync(.all|.any|.uni).pred", "d:pred a:pred membermask:b32", |m| match operation(m) {
            "all" => vote!(|votes, mask| votes == mask),
            "any" => vote!(|votes, mask| votes != 0),
            _ => vote!(|votes, mask| votes == 0 || votes == mask),
        })
        .since(6, 0, 30),
        collective("vote.sync.ballot.b32", "d:b32 a:pred membermask:b32", |_| {
            |r, o, mask, _| {
                let votes = r.predicate(o[1]) & mask;
                r.set_narrow(o[0], mask, &[votes; LANES]);
            }
        })
        .since(6, 0, 30),
    ]);
}

/// `d` is the lanes that hold the same value.
fn match_any(r: &mut Registers, d: u16, mask: u32, values: &[u64; LANES]) {
    let same = |lane: usize, other: usize| u32::from(values[other] == values[lane]) << other;
    let out: Narrow = std::array::from_fn(|lane| lanes(mask).fold(0, |all, other| all | same(lane, other)));
    r.set_narrow(d, mask, &out);
}

/// `d` is all lanes if they hold the same value, else 0; the predicate says which.
fn match_all(r: &mut Registers, o: &Operands, mask: u32, values: &[u64; LANES]) {
    let first = values[mask.trailing_zeros() as usize & 31];
    let same = lanes(mask).all(|lane| values[lane] == first);
    r.set_narrow(o[0], mask, &[if same { mask } else { 0 }; LANES]);
    r.set_predicate(o[1], mask, u32::from(same).wrapping_neg());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::Settings;
    use crate::registers::{Base, Counts};
    use crate::table::{Build, TABLE};

    /// Runs an exchange: r2 = a, r3 = b, r4 = c; the destination is r0, predicate 1.
    fn exchange(name: &str, modifiers: &[&str], mask: u32, b: u32, c: u32) -> (Narrow, u32) {
        let (form, mods) = TABLE.find(name, modifiers).unwrap();
        let Build::Collective(choose) = form.build else { panic!("{name}") };
        let mut r = Registers::default();
        r.enter(Base::default(), Counts { narrow: 8, wide: 0, predicates: 8 });
        *r.narrow_mut(2) = std::array::from_fn(|lane| 100 + lane as u32);
        *r.narrow_mut(3) = [b; LANES];
        *r.narrow_mut(4) = [c; LANES];
        let operands = Operands(std::array::from_fn(|at| at as u16));
        choose(&mods)(&mut r, &operands, mask, &Settings::default());
        (*r.narrow(0), r.predicate(1))
    }

    /// `__shfl_*_sync` of CUDA with a width gives c = (32 - width) << 8 | (0 for up, else 31).
    #[test]
    fn shuffles_stay_in_their_segment() {
        let c = (32 - 8) << 8 | 31;
        let (d, p) = exchange("shfl", &["sync", "down", "b32"], u32::MAX, 3, c);
        assert_eq!((d[0], d[4], d[5], d[12]), (103, 107, 105, 115), "the last three of eight keep their own");
        assert_eq!(p, 0x1f1f_1f1f);
        let (d, p) = exchange("shfl", &["sync", "up", "b32"], u32::MAX, 1, (32 - 8) << 8);
        assert_eq!((d[0], d[1], d[8], d[9]), (100, 100, 108, 108));
        assert_eq!(p, 0xfefe_fefe);
        let (d, p) = exchange("shfl", &["sync", "idx", "b32"], u32::MAX, 9, c);
        assert_eq!((d[0], d[31], p), (101, 125, u32::MAX), "lane 9 & 7 of each segment");
        let (d, _) = exchange("shfl", &["sync", "bfly", "b32"], 0x0000_ffff, 16, 31);
        assert_eq!(d[0], UNDEFINED, "lane 16 takes no part");
    }
}
