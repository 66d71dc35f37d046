//! What fixed kernels cost, to the last sector: the profile's counters beside a committed table (`counts.txt`). A change of
//! the executor, the lowering or the profiler that alters what the hardware would be charged for shows here.
//!
//! The kernels are ours, so their results are known too, and so are some of the counts, by hand. After a change that is
//! meant: `WARPWEFT_WRITE_COUNTS=1 cargo test -p warpweft-ptxvm --test counts`, and say in the commit why they moved.
#![forbid(unsafe_code)]

mod kernels;

use std::fmt::Write;
use std::path::Path;

use kernels::{Case, cases};
use warpweft_ptxvm::observe::check::Checks;
use warpweft_ptxvm::observe::profile::{Profile, Profiler};

/// A row of the table.
fn row(table: &mut String, name: &str, profile: &Profile) {
    let Profile { wide_requests: (wide, requests), wavefronts: (wavefronts, conflicts), .. } = *profile;
    let (branches, divergent) = profile.branches;
    let numbers = [
        profile.warp_instructions,
        profile.thread_instructions,
        profile.read_bytes / 32,
        profile.written_bytes / 32,
        profile.least_bytes,
        requests,
        wide,
        wavefronts,
        conflicts,
        branches,
        divergent,
        profile.f32_operations,
        profile.tensor_operations,
    ];
    write!(table, "{name:10}").expect("a string takes it");
    numbers.iter().for_each(|number| write!(table, " {number:>9}").expect("a string takes it"));
    table.push('\n');
}

const HEAD: &str = "kernel         warp    thread   sectors   sectors     least  requests   of >=16    shared      bank  branches \
                    divergent       f32    tensor\n               instr     instr      read   written     bytes    global  \
                    bytes/lane passes conflicts                           ops       ops\n";

fn profiled(case: &Case) -> Profile {
    let mut profiler = Profiler::default();
    let run = case.launch().observe(&mut profiler).expect("it begins");
    assert_eq!(run.failure(), None, "{}", case.name);
    let profile = profiler.finish();
    assert_eq!(profile.warp_instructions, run.warp_instructions, "{}: the profile counts what ran", case.name);
    profile
}

#[test]
fn fixed_kernels_cost_what_they_did() {
    let mut table = HEAD.to_owned();
    for case in cases() {
        row(&mut table, case.name, &profiled(&case));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/counts/counts.txt");
    if std::env::var_os("WARPWEFT_WRITE_COUNTS").is_some() {
        std::fs::write(&path, &table).expect("the table can be written");
    }
    let committed = std::fs::read_to_string(&path).expect("the table is there");
    assert!(committed == table, "counts have changed; committed:\n{committed}\nnow:\n{table}");
}

#[test]
fn what_they_compute_is_right_and_no_check_complains() {
    for case in cases() {
        let run = case.launch().check(Checks::ALL).run().expect("it begins");
        assert_eq!(run.errors(), 0, "{}: {run}", case.name);
        case.verify();
    }
}

/// Of a tile of 32 by 32 words: a row is four sectors, a column in one bank takes 32 passes, and one in 32 banks a single one.
#[test]
fn a_transposition_costs_what_its_layout_says() {
    let cases = cases();
    let of = |name: &str| profiled(cases.iter().find(|case| case.name == name).expect("a kernel of the table"));
    for (name, conflicts) in [("conflicts", 32 * 31), ("padded", 0)] {
        let profile = of(name);
        let tiles = u64::from(profile.grid[0]);
        assert_eq!((profile.read_bytes, profile.written_bytes), (tiles * 4096, tiles * 4096), "{name}");
        assert_eq!(profile.least_bytes, tiles * 2 * 4096, "{name}");
        assert_eq!(profile.wavefronts, (tiles * (64 + conflicts), tiles * conflicts), "{name}");
    }
}

/// `m16n8k16` is 16 * 8 * 16 multiplications and as many additions; a step of the product moves 16 + 8 rows of 32 bytes.
#[test]
fn a_product_costs_what_its_shape_says() {
    let cases = cases();
    let case = cases.iter().find(|case| case.name == "product").expect("a kernel of the table");
    let profile = profiled(case);
    assert_eq!(profile.tensor_operations, kernels::STEPS * 2 * 16 * 8 * 16);
    assert_eq!(profile.read_bytes, kernels::STEPS * (16 + 8) * 32);
    assert_eq!(profile.written_bytes, 16 * 8 * 4);
}
