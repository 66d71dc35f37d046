//! Comparisons of floats of every width: `setp` and `set`, ordered and unordered, alone and combined.

use warpweft_ptxvm::table::TABLE;
use warpweft_ptxvm::types::Type;

use crate::case::{Case, operation};
use crate::exact::Format;
use crate::floats::{format, value};

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for name in ["setp", "set"] {
        for row in TABLE.named(name) {
            if row.pattern.types().last().is_some_and(|ty| format(ty.name()).is_some()) {
                all.extend(row.pattern.spellings().filter_map(|words| case(&format!("{name}{words}"))));
            }
        }
    }
    all
}

/// Whether the comparison holds for two values.
fn holds(comparison: &str, a: f64, b: f64) -> bool {
    let unordered = a.is_nan() || b.is_nan();
    match comparison {
        "eq" => a == b,
        "ne" => !unordered && a != b,
        "lt" => a < b,
        "le" => a <= b,
        "gt" => a > b,
        "ge" => a >= b,
        "equ" => unordered || a == b,
        "neu" => a != b,
        "ltu" => unordered || a < b,
        "leu" => unordered || a <= b,
        "gtu" => unordered || a > b,
        "geu" => unordered || a >= b,
        "num" => !unordered,
        _ => unordered,
    }
}

fn case(spelled: &str) -> Option<Case> {
    let words: Vec<String> = spelled.split('.').map(str::to_owned).collect();
    let source = words.last()?.clone();
    let (format, packed) = format(&source)?;
    let ftz = words.iter().any(|word| word == "ftz");
    let comparison = words[1..].iter().find(|word| !["and", "or", "xor", "ftz"].contains(&word.as_str()))?.clone();
    let combination = words.iter().find(|word| ["and", "or", "xor"].contains(&word.as_str())).cloned();
    let combined = move |t: bool, c: bool| match combination.as_deref() {
        Some("and") => t && c,
        Some("or") => t || c,
        Some("xor") => t != c,
        _ => t,
    };
    let c = if words.iter().any(|word| ["and", "or", "xor"].contains(&word.as_str())) { " c:pred" } else { "" };
    let test = move |x: &[u64], half: u32| {
        let cut = |bits: u64| if packed { bits >> (16 * half) & 0xffff } else { bits };
        let [a, b] = [x[0], x[1]].map(|bits| {
            let bits = cut(bits);
            value(format, if ftz { format.flushed(bits) } else { bits })
        });
        holds(&comparison, a, b)
    };
    if words[0] == "setp" {
        // Single values of 16 bits have one destination.
        let single = matches!(source.as_str(), "f16" | "bf16");
        let define = move |x: &[u64]| {
            let c = x.get(2).is_some_and(|&c| c != 0);
            // Of packed values the second predicate is the high half's; else it is of the opposite.
            let other = if packed { test(x, 1) } else { !test(x, 0) };
            let both = vec![u64::from(combined(test(x, 0), c)), u64::from(combined(other, c))];
            if single { both[..1].to_vec() } else { both }
        };
        let second = if single { "" } else { " |q:pred" };
        return Some(operation(spelled, &format!("d:pred{second} a:{source} b:{source}{c}"), define).case());
    }
    let result = words[words.len() - 2].clone();
    let truth = truth(&result, packed)?;
    let define = move |x: &[u64]| {
        let c = x.get(2).is_some_and(|&c| c != 0);
        let one = |half: u32| if combined(test(x, half), c) { truth } else { 0 };
        vec![if packed { one(0) | one(1) << 16 } else { one(0) }]
    };
    Some(operation(spelled, &format!("d:{result} a:{source} b:{source}{c}"), define).case())
}

/// What is written where it holds: all ones of an integer, 1.0 of a float; of packed sources for each half.
fn truth(result: &str, packed: bool) -> Option<u64> {
    if let Some((format, _)) = format(result) {
        return Some(one(format));
    }
    let bits = Type::from_name(result)?.bits();
    Some(if packed { 0xffff } else { u64::MAX >> (64 - bits) })
}

fn one(format: Format) -> u64 {
    format.one()
}
