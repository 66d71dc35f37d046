//! Floating-point modifiers as a constant: picks the copy of a lane function that is compiled for an instruction's.

use super::Mods;
use crate::numerics::bits::{PROPAGATE, XORSIGN};
use crate::numerics::flags::{AWAY, DOWN, FTZ, NEAREST, RELU, SAT, SATFINITE, UP, ZERO};

/// What a modifier adds to the flags of [`crate::numerics::flags`].
const WORDS: [(&str, u32); 15] = [
    ("rn", NEAREST),
    ("rz", ZERO),
    ("rm", DOWN),
    ("rp", UP),
    ("rna", AWAY),
    ("rni", NEAREST),
    ("rzi", ZERO),
    ("rmi", DOWN),
    ("rpi", UP),
    ("ftz", FTZ),
    ("sat", SAT),
    ("relu", RELU),
    ("satfinite", SATFINITE),
    ("NaN", PROPAGATE),
    ("xorsign", XORSIGN),
];

/// The flags that an instruction's modifiers stand for; others add nothing.
pub(super) fn flags(mods: &Mods) -> u32 {
    WORDS.iter().filter(|(word, _)| mods.has(word)).fold(0, |flags, (_, flag)| flags | flag)
}

/// The lane function compiled with the constant `$m` set to the flags that the modifiers stand for. The sets are what a
/// row's pattern can make; the table's test builds every spelling.
macro_rules! flagged {
    ($mods:expr, $m:ident of rounding, $lane:expr) => { flagged!($mods, $m in [0 1 2 3], $lane) };
    ($mods:expr, $m:ident of ftz, $lane:expr) => { flagged!($mods, $m in [0 8], $lane) };
    ($mods:expr, $m:ident of sat, $lane:expr) => { flagged!($mods, $m in [0 16], $lane) };
    ($mods:expr, $m:ident of relu, $lane:expr) => { flagged!($mods, $m in [0 32], $lane) };
    ($mods:expr, $m:ident of ftz sat, $lane:expr) => { flagged!($mods, $m in [0 8 16 24], $lane) };
    ($mods:expr, $m:ident of ftz relu, $lane:expr) => { flagged!($mods, $m in [32 40], $lane) };
    ($mods:expr, $m:ident of rounding ftz, $lane:expr) => { flagged!($mods, $m in [0 1 2 3 8 9 10 11], $lane) };
    ($mods:expr, $m:ident of rounding sat, $lane:expr) => { flagged!($mods, $m in [0 1 2 3 16 17 18 19], $lane) };
    ($mods:expr, $m:ident of rounding relu, $lane:expr) => { flagged!($mods, $m in [0 1 2 3 32 33 34 35], $lane) };
    ($mods:expr, $m:ident of rounding ftz sat, $lane:expr) => {
        flagged!($mods, $m in [0 1 2 3 8 9 10 11 16 17 18 19 24 25 26 27], $lane)
    };
    ($mods:expr, $m:ident in [$($value:literal)*], $lane:expr) => {
        flagged!(@ $crate::table::flagged::flags($mods), $m in [$($value)*], $lane)
    };
    // Without the flags that make no difference to the operation.
    ($mods:expr, $m:ident in [$($value:literal)*] but $same:expr, $lane:expr) => {
        flagged!(@ $crate::table::flagged::flags($mods) & !($same), $m in [$($value)*], $lane)
    };
    (@ $flags:expr, $m:ident in [$($value:literal)*], $lane:expr) => {
        match $flags {
            $($value => {
                const $m: u32 = $value;
                $lane
            })*
            flags => unreachable!("a row allows modifiers that its lane function has no copy for: flags {flags}"),
        }
    };
}
pub(super) use flagged;

#[cfg(test)]
mod tests {
    use crate::table::{Build, TABLE};

    #[test]
    fn every_spelling_of_every_row_has_a_lane_function() {
        let mut built = 0;
        for form in TABLE.rows() {
            let (Build::Lanes(choose) | Build::Collective(choose)) = form.build else { continue };
            for spelling in form.pattern.spellings() {
                let modifiers: Vec<&str> = spelling.split('.').skip(1).collect();
                choose(&form.pattern.matches(&modifiers).expect("a row matches its own spelling"));
                built += 1;
            }
        }
        assert!(built > 2000, "{built} lane functions");
    }
}
