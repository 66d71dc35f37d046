//! What a rank knows of the life of the others; every wait looks at it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::{Cause, Failure};

/// The first thing that went wrong. Nothing that waits goes on after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A rank of the job has ended without leaving in order.
    Died {
        /// Its rank in the job's world.
        rank: usize,
        /// How that showed.
        how: String,
    },
    /// A rank called `abort`.
    Aborted {
        /// Its rank in the job's world.
        by: usize,
        /// The reason it gave.
        reason: String,
    },
    /// The process that started the ranks and watched them has ended.
    Orphaned {
        /// How that showed.
        how: String,
    },
}

impl Verdict {
    /// The verdict as the failure of an operation of `rank`.
    pub fn failure(self, rank: usize, world: usize, operation: &'static str) -> Failure {
        let (peer, address, cause) = match self {
            Verdict::Died { rank, how } => (Some(rank), None, Cause::Died { how }),
            Verdict::Aborted { by, reason } => (Some(by), None, Cause::Aborted { reason }),
            Verdict::Orphaned { how } => (None, Some("its launcher".to_owned()), Cause::Died { how }),
        };
        Failure { rank, world, operation, sequence: 0, peer, address, cause }
    }
}

/// The health of a job or of one communicator in it. Clones share it; a look costs one atomic load per level.
#[derive(Clone, Default)]
pub struct Health(Arc<Inner>);

type Listener = Box<dyn Fn(&Verdict) + Send + Sync>;

#[derive(Default)]
struct Inner {
    bad: AtomicBool,
    verdict: OnceLock<Verdict>,
    listener: OnceLock<Listener>,
    parent: Option<Health>,
}

impl Health {
    /// Nothing wrong yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The health of a part: bad when itself is, or the whole.
    pub fn child(&self) -> Self {
        Self(Arc::new(Inner { parent: Some(self.clone()), ..Inner::default() }))
    }

    /// Reports a verdict; the first one stays. [`Verdict::Aborted`] of this rank, reported to the health of a job of
    /// several processes, reaches the others through the rendezvous.
    pub fn report(&self, verdict: Verdict) {
        if self.0.verdict.set(verdict).is_ok() {
            self.0.bad.store(true, Ordering::Release);
            if let (Some(listener), Some(verdict)) = (self.0.listener.get(), self.0.verdict.get()) {
                listener(verdict);
            }
        }
    }

    /// Has the verdict passed on when it comes; only the first listener is kept.
    pub(crate) fn on_report(&self, listener: impl Fn(&Verdict) + Send + Sync + 'static) {
        let _ = self.0.listener.set(Box::new(listener));
    }

    /// The verdict, if there is one.
    ///
    /// # Errors
    /// The verdict that ended the job or this communicator.
    pub fn check(&self) -> Result<(), Verdict> {
        if self.0.bad.load(Ordering::Acquire)
            && let Some(verdict) = self.0.verdict.get()
        {
            return Err(verdict.clone());
        }
        self.0.parent.as_ref().map_or(Ok(()), Health::check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_verdict_stays_and_children_see_it() {
        let job = Health::new();
        let part = job.child();
        assert_eq!(part.check(), Ok(()));
        let died = Verdict::Died { rank: 2, how: "killed by signal 9".into() };
        part.report(Verdict::Aborted { by: 0, reason: "first".into() });
        job.report(died.clone());
        job.report(Verdict::Aborted { by: 1, reason: "too late".into() });
        assert_eq!(job.check(), Err(died));
        assert_eq!(part.check(), Err(Verdict::Aborted { by: 0, reason: "first".into() }));
        assert!(job.child().check().is_err());
    }
}
