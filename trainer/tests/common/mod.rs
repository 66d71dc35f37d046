//! Ranks as threads, for the tests of training.
#![allow(dead_code)] // each test file uses some of it

use warpweft_comm::{Communicator, Options, bootstrap};

/// Calls `work` on every rank of a job of threads; gives what each returned, by rank.
pub(crate) fn ranks<R: Send>(world: usize, work: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    ranks_with(Options::default(), world, work)
}

/// The same with communicators that work as `options` say.
pub(crate) fn ranks_with<R: Send>(options: Options, world: usize, work: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let bootstraps = bootstrap::threads(world).expect("a job of threads");
    std::thread::scope(|scope| {
        let start = |bootstrap| scope.spawn(|| work(Communicator::new(bootstrap, options).expect("all ranks")));
        let running: Vec<_> = bootstraps.into_iter().map(start).collect();
        running.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}
