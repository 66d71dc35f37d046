//! Four ranks as threads of this process sum their gradients: once while they wait, once while they compute on.
//!
//! `cargo run --release --example all_reduce`
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::thread;

use warpweft::comm::bootstrap::{self, Bootstrap};
use warpweft::comm::{CommError, Communicator, Op, Options};

const RANKS: usize = 4;

fn rank(bootstrap: Bootstrap) -> Result<(), CommError> {
    let comm = Communicator::new(bootstrap, Options::default())?;

    // Blocking, in place.
    let mut gradient = vec![1.0f32 + comm.rank() as f32; 1000];
    comm.all_reduce(&mut gradient, Op::Avg)?;
    assert!(gradient.iter().all(|&value| value == 2.5));

    // Non-blocking, inside a scope that joins: the slices are borrowed, and other work goes on meanwhile.
    let (mut first, mut second) = (vec![1.0f32; 1 << 20], vec![2.0f32; 1 << 20]);
    let busy: u64 = comm.scope(|scope| {
        scope.all_reduce(&mut first, Op::Sum);
        scope.all_reduce(&mut second, Op::Sum);
        (0..1_000_000u64).sum()
    })?;
    assert_eq!((first[0], second[0], busy), (4.0, 8.0, 499_999_500_000));

    comm.barrier()?;
    if comm.rank() == 0 {
        println!(
            "{} ranks over `{}`: the mean is {}, the sums are {} and {}",
            comm.world(),
            comm.transport(),
            gradient[0],
            first[0],
            second[0]
        );
    }
    Ok(())
}

fn main() -> Result<(), CommError> {
    let bootstraps = bootstrap::threads(RANKS)?;
    thread::scope(|scope| {
        let ranks: Vec<_> = bootstraps.into_iter().map(|bootstrap| scope.spawn(|| rank(bootstrap))).collect();
        ranks.into_iter().try_for_each(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
