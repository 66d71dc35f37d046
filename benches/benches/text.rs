//! From PTX text to what runs: parsing alone, and parsing, typing and lowering. `cargo bench -p warpweft-benches --bench text`
//!
//! The text is a module of about 1 MB: kernels of ours, as compilers space and comment them, under many names. Where
//! `WARPWEFT_FOREIGN_KERNELS` names a folder that `scripts/foreign-kernels` has made, its largest module too.
#![forbid(unsafe_code)]

use std::fmt::Write;
use std::path::PathBuf;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use warpweft_ptxvm::{lower, text};

/// Modules of one kernel each, whose entry has the module's name.
const KERNELS: [(&str, &str); 4] = [
    ("softmax", include_str!("../../ptxvm/tests/counts/softmax.ptx")),
    ("layer_norm", include_str!("../../ptxvm/tests/counts/layer_norm.ptx")),
    ("scan", include_str!("../../ptxvm/tests/counts/scan.ptx")),
    ("product", include_str!("../../ptxvm/tests/counts/product.ptx")),
];

/// A module of at least so many bytes, with a line table's directive at every third instruction.
fn module(bytes: usize) -> String {
    let mut out = ".version 7.8\n.target sm_80\n.address_size 64\n.file 1 \"kernels.cu\"\n".to_owned();
    for number in 0.. {
        if out.len() >= bytes {
            break;
        }
        let (name, kernel) = KERNELS[number % KERNELS.len()];
        let (_, body) = kernel.split_once(".address_size 64\n").expect("a module names its address size");
        let body = body.replace(&format!(".entry {name}("), &format!(".entry {name}_{number}("));
        for (at, line) in body.lines().enumerate() {
            if at % 3 == 0 && line.starts_with('\t') && line.ends_with(';') && line.contains('%') {
                writeln!(out, "\t.loc\t1 {at} 17                         // kernels.cu:{at}:17")
                    .expect("a string takes it");
            }
            writeln!(out, "{line}").expect("a string takes it");
        }
    }
    out
}

/// The largest module of the folder that `WARPWEFT_FOREIGN_KERNELS` names.
fn foreign() -> Option<String> {
    let folder = PathBuf::from(std::env::var_os("WARPWEFT_FOREIGN_KERNELS")?);
    let files = std::fs::read_dir(&folder).expect("WARPWEFT_FOREIGN_KERNELS is a folder");
    let modules = files.map(|file| file.expect("an entry of the folder").path());
    let modules = modules.filter(|path| path.extension().is_some_and(|extension| extension == "ptx"));
    modules.map(|path| std::fs::read_to_string(path).expect("a module is text")).max_by_key(String::len)
}

fn benches(criterion: &mut Criterion) {
    let sources = [("ours", Some(module(1_000_000))), ("largest foreign module", foreign())];
    for (name, source) in sources.iter().filter_map(|(name, source)| Some((name, source.as_deref()?))) {
        lower::compile(source).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut group = criterion.benchmark_group(format!("{name}, {} bytes", source.len()));
        group.throughput(Throughput::Bytes(source.len() as u64)).sample_size(10);
        group.bench_function("parse", |bencher| bencher.iter(|| text::parse(source).expect("it parses")));
        group.bench_function("parse, type and lower", |bencher| {
            bencher.iter(|| lower::compile(source).expect("it compiles"));
        });
        group.finish();
    }
}

criterion_group!(all, benches);
criterion_main!(all);
