//! What a rank knows of a failure: from its own troubles, from what others tell, from the health of the job.

use std::time::Duration;

use super::frame::{Notice, Reason};
use super::run::Trouble;
use crate::{Cause, Verdict};

/// What is known so far of a failure.
pub(super) struct Finding {
    pub(super) peer: Option<usize>,
    pub(super) cause: Cause,
    /// Nobody can know it better.
    pub(super) settled: bool,
    /// As the others are told: an adopted finding is passed on in the words of whoever made it.
    pub(super) notice: Notice,
}

impl Finding {
    /// A finding of rank `by`.
    fn own(by: usize, peer: Option<usize>, cause: Cause, settled: bool) -> Self {
        let notice = Notice { by, peer, reason: reason(&cause) };
        Self { peer, cause, settled, notice }
    }

    /// What trouble means before anybody else has been heard. `waits` are the ranks that this one waits for.
    pub(super) fn new(rank: usize, trouble: Trouble, members: &[usize], waits: &[usize]) -> Self {
        match trouble {
            Trouble::Own { peer, cause } => {
                let settled = !matches!(cause, Cause::TimedOut { .. } | Cause::Link { .. });
                Self::own(rank, peer, cause, settled)
            }
            Trouble::Later { peer, difference } => Self::own(rank, Some(peer), Cause::Mismatch { difference }, false),
            Trouble::Closed { peer } => {
                let how = "its link was closed in the middle of an operation".into();
                Self::own(rank, Some(peer), Cause::Died { how }, false)
            }
            Trouble::Told { by, notice } => match notice.reason {
                // The communicator is lost, but who is to blame shows only when all who wait have said so.
                Reason::TimedOut { milliseconds } => {
                    let cause = Cause::TimedOut { after: Duration::from_millis(milliseconds) };
                    Self::own(rank, waits.first().copied().or(Some(by)), cause, false)
                }
                _ => Self::adopt(rank, by, notice),
            },
            Trouble::Verdict(verdict) => Self::verdict(rank, verdict, members),
        }
    }

    /// What a peer's notice means for this rank.
    pub(super) fn adopt(rank: usize, teller: usize, notice: Notice) -> Self {
        let by = notice.by;
        let here = notice.peer == Some(rank);
        let whom = match notice.peer {
            Some(peer) if peer != rank => format!(" with rank {peer}"),
            _ => " with this rank".into(),
        };
        let (peer, cause) = match notice.reason.clone() {
            Reason::TimedOut { milliseconds } => {
                (notice.peer.or(Some(teller)), Cause::TimedOut { after: Duration::from_millis(milliseconds) })
            }
            Reason::Died { how } if !here => (notice.peer.or(Some(by)), Cause::Died { how }),
            Reason::Died { how } => {
                (Some(by), Cause::Aborted { reason: format!("it takes this rank for dead: {how}") })
            }
            Reason::Aborted { reason } => (notice.peer.filter(|_| !here).or(Some(by)), Cause::Aborted { reason }),
            Reason::Mismatch { difference } => {
                (Some(by), Cause::Mismatch { difference: format!("it disagrees{whom}: {difference}") })
            }
            Reason::Other { what } => (Some(by), Cause::Aborted { reason: format!("trouble{whom}: {what}") }),
        };
        let settled = !matches!(cause, Cause::TimedOut { .. });
        Self { peer, cause, settled, notice }
    }

    /// What the health of the job or the communicator says. `members` are the job's ranks of the ranks here.
    pub(super) fn verdict(rank: usize, verdict: Verdict, members: &[usize]) -> Self {
        let here = |job_rank: usize| members.iter().position(|&member| member == job_rank);
        let elsewhere = |job_rank: usize| match here(job_rank) {
            Some(_) => String::new(),
            None => format!("rank {job_rank} of the job: "),
        };
        let (peer, cause) = match verdict {
            Verdict::Died { rank, how } => (here(rank), Cause::Died { how: format!("{}{how}", elsewhere(rank)) }),
            Verdict::Aborted { by, reason } => {
                (here(by), Cause::Aborted { reason: format!("{}{reason}", elsewhere(by)) })
            }
            Verdict::Orphaned { how } => (None, Cause::Died { how: format!("its launcher: {how}") }),
        };
        Self::own(rank, peer, cause, true)
    }

    /// A call of `peer` that differs from the own one.
    pub(super) fn mismatch(rank: usize, peer: usize, difference: String) -> Self {
        Self::own(rank, Some(peer), Cause::Mismatch { difference }, true)
    }
}

/// The cause as the others are told.
fn reason(cause: &Cause) -> Reason {
    let shortened = |text: &str| text.chars().take(500).collect::<String>();
    match cause {
        Cause::TimedOut { after } => Reason::TimedOut { milliseconds: after.as_millis() as u64 },
        Cause::Died { how } => Reason::Died { how: shortened(how) },
        Cause::Aborted { reason } => Reason::Aborted { reason: shortened(reason) },
        Cause::Mismatch { difference } => Reason::Mismatch { difference: shortened(difference) },
        Cause::Protocol { what } | Cause::Link { reason: what } => Reason::Other { what: shortened(what) },
        Cause::Missing { ranks, .. } => Reason::Other { what: format!("ranks {ranks:?} are missing") },
    }
}
