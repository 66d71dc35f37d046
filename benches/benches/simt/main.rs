//! Kernels of SIMT code end to end, in warp instructions a second: without checks on one and on two workers, and under all
//! checks. `cargo bench -p warpweft-benches --bench simt`
//!
//! Softmax, layer norm and a scan of ours; with `WARPWEFT_FOREIGN_KERNELS` the same of Triton and CUB.
#![forbid(unsafe_code)]

mod foreign;
mod ours;

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use warpweft_ptxvm::observe::check::{Checks, Selection};
use warpweft_ptxvm::system::{Buffer, Launch};

/// Launches that run one after the other.
struct Work {
    name: String,
    launches: Vec<Launch>,
    /// Memory that the launches know by its address only.
    _memory: Vec<Buffer>,
}

impl Work {
    /// Runs everything; the warp instructions.
    fn run(&self, checks: Selection, workers: usize) -> u64 {
        let run = |launch: &Launch| {
            let run = launch.clone().check(checks).workers(workers).run().expect("it begins");
            assert_eq!((run.failure(), run.errors()), (None, 0), "{}: {run}", self.name);
            run.warp_instructions
        };
        self.launches.iter().map(run).sum()
    }
}

fn benches(criterion: &mut Criterion) {
    for work in ours::all().into_iter().chain(foreign::all()) {
        let mut group = criterion.benchmark_group(&work.name);
        group.sample_size(10).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
        let ways =
            [("no check", Checks::NONE, 1), ("no check, 2 workers", Checks::NONE, 2), ("all checks", Checks::ALL, 1)];
        for (way, checks, workers) in ways {
            // Where blocks wait for each other, how often they look depends on the way.
            group.throughput(Throughput::Elements(work.run(checks, workers)));
            group.bench_function(way, |bencher| bencher.iter(|| work.run(checks, workers)));
        }
        group.finish();
    }
}

criterion_group!(all, benches);
criterion_main!(all);
