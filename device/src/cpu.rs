//! The CPU device's threads.

use std::sync::Arc;

use crate::DeviceError;

/// More threads than any machine has cores: beyond it a count is a mistake, and rayon would try to serve it.
pub(crate) const MAX_THREADS: usize = 1024;

/// The threads on which the kernels of one CPU device run.
///
/// Ranks that share a process open a device each, so that no rank's work waits in another's queue. With one thread
/// nothing is spawned and everything runs on the caller's.
#[derive(Clone)]
pub struct CpuPool {
    pool: Option<Arc<rayon::ThreadPool>>,
    threads: usize,
}

impl CpuPool {
    pub(crate) fn new(threads: usize) -> Result<Self, DeviceError> {
        if threads == 0 || threads > MAX_THREADS {
            return Err(DeviceError::BadThreads { asked: threads, limit: MAX_THREADS });
        }
        let pool = if threads == 1 {
            None
        } else {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|index| format!("warpweft-cpu-{index}"))
                .build()
                .map_err(|error| DeviceError::Threads { threads, reason: error.to_string() })?;
            Some(Arc::new(pool))
        };
        Ok(Self { pool, threads })
    }

    /// How many threads work on one kernel.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work` on the pool: rayon calls inside it use this device's threads. With one thread it runs on the
    /// caller's, where the caller must not fan out through rayon (that would reach rayon's global pool): see
    /// [`for_each`](Self::for_each).
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Calls `work` once for every item, spread over the threads. Which thread takes which item is not fixed, so `work`
    /// must not depend on it; the results are then the same whatever the thread count.
    pub fn for_each<I: Send>(&self, items: Vec<I>, work: impl Fn(I) + Sync) {
        use rayon::prelude::*;
        match &self.pool {
            Some(pool) if items.len() > 1 => pool.install(|| items.into_par_iter().with_max_len(1).for_each(&work)),
            _ => items.into_iter().for_each(work),
        }
    }
}
