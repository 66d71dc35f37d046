//! Every instruction form has a test: a module of its own, run on the device, compared with what the ISA's text says.
//!
//! `WARPWEFT_DUMP_FORMS=DIR cargo test -p warpweft-ptxvm --test forms` writes the modules into a folder, where
//! `scripts/check-forms` has the real ptxas assemble each of them.
#![forbid(unsafe_code)]

mod bits;
// Until the device runs the modules.
#[allow(dead_code)]
mod case;
mod compare;
mod direct;
mod inputs;
mod integer;
mod moves;
mod run;

use case::Case;

/// Every case, file by file.
fn all_cases() -> Vec<Case> {
    [bits::cases(), compare::cases(), integer::cases(), moves::cases()].into_iter().flatten().collect()
}

/// A test for each file of cases.
macro_rules! tests {
    ($($name:ident),*) => { $(
        #[test]
        fn $name() {
            run::check($name::cases());
        }
    )* };
}
mod each {
    use super::*;
    tests!(bits, compare, integer, moves);
}

#[test]
fn dumped() {
    if let Some(folder) = std::env::var_os("WARPWEFT_DUMP_FORMS") {
        let folder = std::path::Path::new(&folder);
        std::fs::create_dir_all(folder).expect("the folder for the modules");
        for case in all_cases() {
            std::fs::write(folder.join(case.file_name()), &case.ptx).expect("a module");
        }
    }
}
