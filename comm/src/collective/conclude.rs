//! The end of a run that failed: tells the others, listens to them, and makes one sentence of it.
//!
//! A rank that fails first completes the frame that it is in on each link, with the bytes that belong there, and then
//! sends a notice. So nobody takes a rest of garbage for a result, and everybody learns why, on every transport. After
//! a deadline it also listens for a while: whoever waits in the same operation sends a notice too, so that a rank from
//! which nothing came is the one to name, and not merely the neighbour that waits for it.

use std::time::{Duration, Instant};

use super::engine::{Engine, Run, Trouble};
use super::frame::{Notice, Reason};
use super::plan::Step;
use crate::transport::Want;
use crate::{Cause, Failure, Verdict};

/// How long a rank tries to get its notices out.
const TELL: Duration = Duration::from_millis(300);
/// How long it waits for better knowledge of a link that closed: whoever watches the processes knows within that time.
const LEARN: Duration = Duration::from_millis(1000);
/// How long it listens for others after its deadline, at least and at most; in between, a quarter of its deadline.
const LISTEN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// What is known so far of the failure.
struct Finding {
    peer: Option<usize>,
    cause: Cause,
    /// Nobody can know it better.
    settled: bool,
}

impl Engine {
    pub(super) fn conclude(&mut self, trouble: Trouble, steps: &[Step], run: &Run<'_, '_, '_>) -> Failure {
        let around = run.around;
        let begun = Instant::now();
        let mut finding = self.finding(trouble, around.members);
        let patience = match finding.cause {
            Cause::TimedOut { after } => (after / 4).clamp(LISTEN.0, LISTEN.1),
            Cause::Died { .. } if !finding.settled => LEARN,
            _ => TELL,
        };
        let notice = notice(&finding).encode();
        let mut told = vec![0; self.world];
        let mut heard = vec![false; self.world];
        heard[self.rank] = true;
        told[self.rank] = notice.len();
        // Whom ranks in this operation wait for: this one, then the others in the order in which they tell.
        let mut waited_for: Vec<usize> = finding.peer.into_iter().collect();
        loop {
            let all_told = self.tell(&notice, &mut told, steps, run);
            self.listen(&mut heard, &mut finding, &mut waited_for);
            if let Err(verdict) = around.health.check() {
                finding = from_verdict(verdict, around.members);
            }
            let all_heard = heard.iter().all(|heard| *heard);
            if begun.elapsed() >= patience || (all_told && (finding.settled || all_heard)) {
                break;
            }
            let wants: Vec<Want> = (0..self.world)
                .filter(|&peer| peer != self.rank)
                .map(|peer| Want { peer, send: told[peer] < notice.len() })
                .collect();
            self.transport.park(&wants, Duration::from_millis(2));
        }
        if matches!(finding.cause, Cause::TimedOut { .. }) {
            // All who wait have said so by now: whoever is waited for and was silent does not take part.
            finding.peer = waited_for.into_iter().find(|&peer| !heard[peer]).or(finding.peer);
        }
        let (operation, sequence) = run.told.any().map_or(("abort", 0), |told| (told.operation.name(), told.sequence));
        let address = finding.peer.map(|peer| self.transport.address(peer));
        let (rank, world) = (self.rank, self.world);
        Failure { rank, world, operation, sequence, peer: finding.peer, address, cause: finding.cause }
    }

    fn finding(&self, trouble: Trouble, members: &[usize]) -> Finding {
        match trouble {
            Trouble::Own { peer, cause } => {
                let settled = !matches!(cause, Cause::TimedOut { .. } | Cause::Link { .. });
                Finding { peer, cause, settled }
            }
            Trouble::Closed { peer } => {
                let how = "its link was closed in the middle of an operation".into();
                Finding { peer: Some(peer), cause: Cause::Died { how }, settled: false }
            }
            Trouble::Told { by, notice } => self.adopt(by, notice),
            Trouble::Verdict(verdict) => from_verdict(verdict, members),
        }
    }

    /// What a peer's notice means for this rank.
    fn adopt(&self, by: usize, notice: Notice) -> Finding {
        let here = notice.peer == Some(self.rank);
        let whom = notice.peer.map_or_else(String::new, |peer| format!(" with rank {peer}"));
        let (peer, cause) = match notice.reason {
            Reason::TimedOut { milliseconds } if here => {
                let reason = format!("this rank did not answer it within {:.1} s", milliseconds as f64 / 1e3);
                (Some(by), Cause::Aborted { reason })
            }
            Reason::TimedOut { milliseconds } => {
                (notice.peer.or(Some(by)), Cause::TimedOut { after: Duration::from_millis(milliseconds) })
            }
            Reason::Died { how } if !here => (notice.peer.or(Some(by)), Cause::Died { how }),
            Reason::Died { how } => {
                (Some(by), Cause::Aborted { reason: format!("it takes this rank for dead: {how}") })
            }
            Reason::Aborted { reason } => (notice.peer.filter(|_| !here).or(Some(by)), Cause::Aborted { reason }),
            Reason::Mismatch { difference } => (
                Some(by),
                Cause::Mismatch { difference: format!("it disagrees{whom}, of which it says: {difference}") },
            ),
            Reason::Other { what } => (Some(by), Cause::Aborted { reason: format!("trouble{whom}: {what}") }),
        };
        let settled = !matches!(cause, Cause::TimedOut { .. });
        Finding { peer, cause, settled }
    }

    /// Sends on: the rest of the frame that is on its way, then the notice. `true` when nothing is left that can be sent.
    fn tell(&mut self, notice: &[u8], told: &mut [usize], steps: &[Step], run: &Run<'_, '_, '_>) -> bool {
        let mut all = true;
        for peer in 0..self.world {
            if told[peer] >= notice.len() {
                continue;
            }
            if self.links[peer].in_frame() && !self.finish_frame(peer, steps, run) {
                all = false;
                continue;
            }
            match self.transport.try_send(peer, &notice[told[peer]..]) {
                Ok(sent) => told[peer] += sent,
                // Nobody is there to be told.
                Err(_) => told[peer] = notice.len(),
            }
            all &= told[peer] >= notice.len();
        }
        all
    }

    /// `true` once the frame is complete, or the link is gone.
    fn finish_frame(&mut self, peer: usize, steps: &[Step], run: &Run<'_, '_, '_>) -> bool {
        let under_way = |(index, step): &(usize, &Step)| {
            let progress = self.progress[*index];
            matches!(step, Step::Send { peer: to, .. } if *to == peer) && progress.begun && !progress.done
        };
        let Some((index, step)) = steps.iter().enumerate().find(under_way) else { return true };
        let rest = self.rest_of_frame(step, index, run);
        let mut moved = false;
        match self.links[peer].push(&mut *self.transport, peer, &rest, &mut moved) {
            Ok(sent) => {
                self.progress[index].advance(sent);
                !self.links[peer].in_frame()
            }
            Err(_) => true,
        }
    }

    fn rest_of_frame(&self, step: &Step, index: usize, run: &Run<'_, '_, '_>) -> Vec<u8> {
        let rest = self.rest(step, index, run);
        rest[..rest.len().min(super::frame::BODY)].to_vec()
    }

    /// Takes what has come, until a notice of each peer; a better reason than the own one replaces it.
    fn listen(&mut self, heard: &mut [bool], finding: &mut Finding, waited_for: &mut Vec<usize>) {
        for (peer, heard) in heard.iter_mut().enumerate().filter(|(_, heard)| !**heard) {
            if let Ok(Some(notice)) = self.links[peer].drain(&mut *self.transport, peer) {
                *heard = true;
                waited_for.extend(notice.peer);
                let theirs = self.adopt(peer, notice);
                if !finding.settled && theirs.settled {
                    *finding = theirs;
                }
            }
        }
    }
}

fn from_verdict(verdict: Verdict, members: &[usize]) -> Finding {
    let here = |job_rank: usize| members.iter().position(|&member| member == job_rank);
    let elsewhere = |job_rank: usize| match here(job_rank) {
        Some(_) => String::new(),
        None => format!("rank {job_rank} of the job: "),
    };
    let (peer, cause) = match verdict {
        Verdict::Died { rank, how } => (here(rank), Cause::Died { how: format!("{}{how}", elsewhere(rank)) }),
        Verdict::Aborted { by, reason } => (here(by), Cause::Aborted { reason: format!("{}{reason}", elsewhere(by)) }),
        Verdict::Orphaned { how } => (None, Cause::Died { how: format!("its launcher: {how}") }),
    };
    Finding { peer, cause, settled: true }
}

/// The finding as the others are told.
fn notice(finding: &Finding) -> Notice {
    let shortened = |text: &str| text.chars().take(500).collect::<String>();
    let reason = match &finding.cause {
        Cause::TimedOut { after } => Reason::TimedOut { milliseconds: after.as_millis() as u64 },
        Cause::Died { how } => Reason::Died { how: shortened(how) },
        Cause::Aborted { reason } => Reason::Aborted { reason: shortened(reason) },
        Cause::Mismatch { difference } => Reason::Mismatch { difference: shortened(difference) },
        Cause::Protocol { what } | Cause::Link { reason: what } => Reason::Other { what: shortened(what) },
        Cause::Missing { ranks, .. } => Reason::Other { what: format!("ranks {ranks:?} are missing") },
    };
    Notice { reason, peer: finding.peer }
}
