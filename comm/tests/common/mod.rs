//! Ranks as threads, under a watchdog: a test that hangs fails instead.
#![allow(dead_code)]

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use warpweft_comm::transport::TransportKind;
use warpweft_comm::{Algorithm, Cause, CommError, Communicator, Failure, Options, bootstrap};

/// Every transport that threads can use.
pub(crate) const KINDS: [TransportKind; 3] = [TransportKind::Thread, TransportKind::Shm, TransportKind::Tcp];

/// Far longer than any test takes on a busy machine.
const WATCHDOG: Duration = Duration::from_secs(120);

/// Runs `body` on every rank of a new job and gives the results in rank order.
pub(crate) fn ranks<R: Send + 'static>(
    world: usize,
    options: Options,
    body: impl Fn(Communicator) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let body = Arc::new(body);
    let (sender, receiver) = channel();
    for (rank, bootstrap) in bootstrap::threads(world).expect("a job of threads").into_iter().enumerate() {
        let (body, sender) = (body.clone(), sender.clone());
        std::thread::spawn(move || {
            let result = Communicator::new(bootstrap, options).map(|comm| body(comm));
            sender.send((rank, result)).ok();
        });
    }
    drop(sender);
    let mut results: Vec<Option<R>> = (0..world).map(|_| None).collect();
    for _ in 0..world {
        let (rank, result) = receiver.recv_timeout(WATCHDOG).expect("a rank panicked or hangs");
        results[rank] = Some(result.expect("the ranks connect"));
    }
    results.into_iter().flatten().collect()
}

pub(crate) fn options(transport: TransportKind, algorithm: Algorithm) -> Options {
    Options { transport, algorithm, timeout: Some(Duration::from_secs(60)) }
}

/// The failure in an error that is one.
pub(crate) fn failure(error: &CommError) -> &Failure {
    match error {
        CommError::Failed(failure) => failure,
        other => panic!("not a failure: {other}"),
    }
}

/// The text of a mismatch.
pub(crate) fn mismatch(result: &Result<(), CommError>) -> String {
    let error = result.as_ref().expect_err("a mismatch is an error");
    match &failure(error).cause {
        Cause::Mismatch { difference } => difference.clone(),
        other => panic!("not a mismatch: {other:?} in {error}"),
    }
}
