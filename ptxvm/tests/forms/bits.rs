//! Logic, shifts, bit counts, bit fields and permutation, defined bit by bit as the ISA's pseudocode does.

use warpweft_ptxvm::types::{Kind, Type};

use crate::case::{Case, operation};
use crate::inputs::{Random, tuples};
use crate::integer::{number, wrapped};

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    logic(&mut all);
    three_way_logic(&mut all);
    shifts(&mut all);
    counts(&mut all);
    fields(&mut all);
    masks(&mut all);
    permutations(&mut all);
    all
}

/// Bit `at` of a value.
fn bit(value: u64, at: u32) -> bool {
    value >> at & 1 == 1
}

/// The value whose bit `at` is `f(at)`.
fn collect(bits: u32, f: impl Fn(u32) -> bool) -> u64 {
    (0..bits).filter(|&at| f(at)).map(|at| 1 << at).sum()
}

fn logic(all: &mut Vec<Case>) {
    for ty in [Type::Pred, Type::B16, Type::B32, Type::B64] {
        let (t, width) = (ty.name(), ty.bits());
        let mut binary = |name: &str, f: fn(bool, bool) -> bool| {
            let define = move |x: &[u64]| vec![collect(width, |at| f(bit(x[0], at), bit(x[1], at)))];
            all.push(operation(&format!("{name}.{t}"), &format!("d:{t} a:{t} b:{t}"), define).case());
        };
        binary("and", |a, b| a && b);
        binary("or", |a, b| a || b);
        binary("xor", |a, b| a != b);
        let not = move |x: &[u64]| vec![collect(width, |at| !bit(x[0], at))];
        all.push(operation(&format!("not.{t}"), &format!("d:{t} a:{t}"), not).case());
        if ty != Type::Pred {
            let cnot = |x: &[u64]| vec![u64::from(x[0] == 0)];
            all.push(operation(&format!("cnot.{t}"), &format!("d:{t} a:{t}"), cnot).case());
        }
    }
}

/// The table's bit for each position's (a, b, c).
fn looked_up(a: u64, b: u64, c: u64, table: u64) -> u64 {
    collect(32, |at| bit(table, u32::from(bit(a, at)) << 2 | u32::from(bit(b, at)) << 1 | u32::from(bit(c, at))))
}

fn three_way_logic(all: &mut Vec<Case>) {
    // 0xf0, 0xcc and 0xaa are the operands themselves: these bits tell every table from every other.
    let mut random = Random::of("lop3");
    let values: Vec<Vec<u64>> = (0..128)
        .map(|at| match at {
            0 => vec![0xf0f0_f0f0, 0xcccc_cccc, 0xaaaa_aaaa],
            1 => vec![0, 0, 0],
            2 => vec![0xffff_ffff; 3],
            _ => (0..3).map(|_| random.bits() >> 32).collect(),
        })
        .collect();
    let define = |x: &[u64]| vec![looked_up(x[0], x[1], x[2], x[3])];
    let every_table = (0..256).map(|table| vec![table]);
    all.push(
        operation("lop3.b32", "d:b32 a:b32 b:b32 c:b32 #immLut", define)
            .values(values.clone())
            .immediates(every_table.clone())
            .case(),
    );
    for (name, or) in [("or", true), ("and", false)] {
        let define = move |x: &[u64]| {
            let d = looked_up(x[0], x[1], x[2], x[3]);
            let (nonzero, q) = (d != 0, x[4] != 0);
            vec![d, u64::from(if or { nonzero || q } else { nonzero && q })]
        };
        let with_q =
            values.iter().enumerate().map(|(at, value)| [value.as_slice(), &[at as u64 & 1]].concat()).collect();
        let operands = "d:b32 |p:pred a:b32 b:b32 c:b32 #immLut q:pred";
        all.push(
            operation(&format!("lop3.{name}.b32"), operands, define)
                .values(with_q)
                .immediates(every_table.clone())
                .case(),
        );
    }
}

fn shifts(all: &mut Vec<Case>) {
    let types = [Type::B16, Type::B32, Type::B64, Type::U16, Type::U32, Type::U64, Type::S16, Type::S32, Type::S64];
    for ty in types {
        let t = ty.name();
        let operands = format!("d:{t} a:{t} b:u32");
        // Amounts above the width are clamped to it.
        let amount = move |x: u64| x.min(u64::from(ty.bits())) as u32;
        if ty.kind() == Kind::Bits {
            let left = move |x: &[u64]| vec![wrapped(ty, number(ty, x[0]) << amount(x[1]))];
            all.push(operation(&format!("shl.{t}"), &operands, left).case());
        }
        let right = move |x: &[u64]| vec![wrapped(ty, number(ty, x[0]) >> amount(x[1]))];
        all.push(operation(&format!("shr.{t}"), &operands, right).case());
    }
    for (mode, clamp) in [("clamp", true), ("wrap", false)] {
        let amount = move |c: u64| if clamp { c.min(32) } else { c & 31 };
        let both = |x: &[u64]| u128::from(x[1]) << 32 | u128::from(x[0]);
        let left = move |x: &[u64]| vec![(both(x) << amount(x[2]) >> 32) as u64 & 0xffff_ffff];
        let right = move |x: &[u64]| vec![(both(x) >> amount(x[2])) as u64 & 0xffff_ffff];
        all.push(operation(&format!("shf.l.{mode}.b32"), "d:b32 a:b32 b:b32 c:u32", left).case());
        all.push(operation(&format!("shf.r.{mode}.b32"), "d:b32 a:b32 b:b32 c:u32", right).case());
    }
}

fn counts(all: &mut Vec<Case>) {
    for ty in [Type::B32, Type::B64] {
        let (t, width) = (ty.name(), ty.bits());
        let popc = move |x: &[u64]| vec![(0..width).filter(|&at| bit(x[0], at)).count() as u64];
        all.push(operation(&format!("popc.{t}"), &format!("d:u32 a:{t}"), popc).case());
        let clz = move |x: &[u64]| vec![(0..width).rev().take_while(|&at| !bit(x[0], at)).count() as u64];
        all.push(operation(&format!("clz.{t}"), &format!("d:u32 a:{t}"), clz).case());
        let brev = move |x: &[u64]| vec![collect(width, |at| bit(x[0], width - 1 - at))];
        all.push(operation(&format!("brev.{t}"), &format!("d:{t} a:{t}"), brev).case());
    }
    for ty in [Type::U32, Type::S32, Type::U64, Type::S64] {
        let (t, msb) = (ty.name(), ty.bits() - 1);
        let found = move |a: u64| {
            let sought = !(ty.kind() == Kind::Signed && bit(a, msb));
            (0..=msb).rev().find(|&at| bit(a, at) == sought)
        };
        let plain = move |x: &[u64]| vec![found(x[0]).map_or(0xffff_ffff, u64::from)];
        let amount = move |x: &[u64]| vec![found(x[0]).map_or(0xffff_ffff, |at| u64::from(msb - at))];
        all.push(operation(&format!("bfind.{t}"), &format!("d:u32 a:{t}"), plain).case());
        all.push(operation(&format!("bfind.shiftamt.{t}"), &format!("d:u32 a:{t}"), amount).case());
    }
    find_nth_set(all);
}

fn find_nth_set(all: &mut Vec<Case>) {
    let define = |x: &[u64]| {
        let (mask, base, offset) = (x[0], x[1] as i64, number(Type::S32, x[2]) as i64);
        if offset == 0 {
            return vec![if bit(mask, base as u32) { base as u64 } else { 0xffff_ffff }];
        }
        let (mut position, mut count) = (base, offset.abs() - 1);
        while (0..32).contains(&position) {
            if bit(mask, position as u32) {
                if count == 0 {
                    return vec![position as u64];
                }
                count -= 1;
            }
            position += offset.signum();
        }
        vec![0xffff_ffff]
    };
    // A base past 31 is undefined; offsets matter up to 32 and at the ends.
    let offsets = [0u32, 1, 2, 3, 15, 16, 31, 32, 33, 0x7fff_ffff, 0x8000_0000];
    let mut values = tuples("fns", &[Type::B32, Type::B32, Type::S32]);
    for (at, value) in values.iter_mut().enumerate() {
        let offset = offsets[at % offsets.len()];
        value[1] &= 31;
        value[2] = u64::from(if at / 11 % 2 == 0 { offset } else { offset.wrapping_neg() });
    }
    all.push(operation("fns.b32", "d:b32 mask:b32 base:b32 offset:s32", define).values(values).case());
}

fn fields(all: &mut Vec<Case>) {
    for ty in [Type::U32, Type::S32, Type::U64, Type::S64] {
        let (t, msb, signed) = (ty.name(), ty.bits() - 1, ty.kind() == Kind::Signed);
        let define = move |x: &[u64]| {
            let (position, length) = ((x[1] & 0xff) as u32, (x[2] & 0xff) as u32);
            let sign = signed && length != 0 && bit(x[0], (position + length - 1).min(msb));
            let field = |at| if at < length && position + at <= msb { bit(x[0], position + at) } else { sign };
            vec![collect(msb + 1, field)]
        };
        all.push(operation(&format!("bfe.{t}"), &format!("d:{t} a:{t} b:u32 c:u32"), define).case());
    }
    for ty in [Type::B32, Type::B64] {
        let (t, msb) = (ty.name(), ty.bits() - 1);
        let define = move |x: &[u64]| {
            let (position, length) = ((x[2] & 0xff) as u32, (x[3] & 0xff) as u32);
            let inserted = |at| at >= position && at - position < length;
            vec![collect(msb + 1, |at| if inserted(at) { bit(x[0], at - position) } else { bit(x[1], at) })]
        };
        all.push(operation(&format!("bfi.{t}"), &format!("d:{t} a:{t} b:{t} c:u32 e:u32"), define).case());
    }
}

fn masks(all: &mut Vec<Case>) {
    for (mode, clamp) in [("clamp", true), ("wrap", false)] {
        for (t, signed) in [("u32", false), ("s32", true)] {
            let define = move |x: &[u64]| {
                // N bits of a; of 32 or more, all where clamped.
                let bits = if clamp { x[1].min(32) } else { x[1] & 31 } as u32;
                let sign = signed && bits > 0 && bit(x[0], bits - 1);
                vec![collect(32, |at| if at < bits { bit(x[0], at) } else { sign })]
            };
            all.push(operation(&format!("szext.{mode}.{t}"), &format!("d:{t} a:{t} b:u32"), define).case());
        }
        let define = move |x: &[u64]| {
            let [first, width] = [x[0], x[1]].map(|value| if clamp { value } else { value & 31 });
            vec![collect(32, |at| u64::from(at) >= first && u64::from(at) - first < width)]
        };
        all.push(operation(&format!("bmsk.{mode}.b32"), "d:b32 a:b32 b:b32", define).case());
    }
}

/// The ISA's table: for each mode and selector the source bytes, from the highest of the result to the lowest.
const PERMUTATIONS: [(&str, [[u64; 4]; 4]); 6] = [
    ("f4e", [[3, 2, 1, 0], [4, 3, 2, 1], [5, 4, 3, 2], [6, 5, 4, 3]]),
    ("b4e", [[5, 6, 7, 0], [6, 7, 0, 1], [7, 0, 1, 2], [0, 1, 2, 3]]),
    ("rc8", [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]]),
    ("ecl", [[3, 2, 1, 0], [3, 2, 1, 1], [3, 2, 2, 2], [3, 3, 3, 3]]),
    ("ecr", [[0, 0, 0, 0], [1, 1, 1, 0], [2, 2, 1, 0], [3, 2, 1, 0]]),
    ("rc16", [[1, 0, 1, 0], [3, 2, 3, 2], [1, 0, 1, 0], [3, 2, 3, 2]]),
];

fn permutations(all: &mut Vec<Case>) {
    let operands = "d:b32 a:b32 b:b32 c:b32";
    let byte = |x: &[u64], at: u64| (x[1] << 32 | x[0]) >> (8 * at) & 0xff;
    for (mode, table) in PERMUTATIONS {
        let define = move |x: &[u64]| {
            let sources = table[(x[2] & 3) as usize];
            vec![sources.iter().fold(0, |result, &source| result << 8 | byte(x, source))]
        };
        all.push(operation(&format!("prmt.b32.{mode}"), operands, define).case());
    }
    let generic = move |x: &[u64]| {
        let one = |at: u32| {
            let selector = x[2] >> (4 * at) & 15;
            let byte = byte(x, selector & 7);
            if selector < 8 { byte } else { 0xff * (byte >> 7) }
        };
        vec![(0..4).map(|at| one(at) << (8 * at)).sum()]
    };
    all.push(operation("prmt.b32", operands, generic).case());
}
