//! The end of a run that failed: listens to the others, tells them, and makes one sentence of it.
//!
//! A rank that fails first completes the frame that it is in on each link, with the bytes that belong there, and then
//! sends a notice. So nobody takes a rest of garbage for a result, and everybody learns why, on every transport. After
//! a deadline it also listens for a while: whoever waits in the same operation sends a notice too, so that a rank from
//! which nothing came is the one to name, and not merely the neighbour that waits for it.

use std::time::{Duration, Instant};

use super::engine::{Engine, Run};
use super::finding::Finding;
use super::frame::{BODY, Next};
use super::plan::Step;
use super::run::{Told, Trouble};
use crate::transport::Want;
use crate::{Cause, Failure};

/// How long a rank tries to get its notices out.
const TELL: Duration = Duration::from_millis(500);
/// How long it waits for better knowledge before it tells of a link that closed: whoever watches the processes knows
/// within that time, and whoever closed it for a reason has said why.
const LEARN: Duration = Duration::from_millis(1000);
/// How long it waits for the message that shows what a rank did that is already past this operation.
const LOOK: Duration = Duration::from_millis(300);
/// How long it listens for others after a deadline, at least and at most; in between, a quarter of the deadline.
const LISTEN: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// The conclusion while it is being drawn.
struct Conclusion {
    finding: Finding,
    /// Ranks that ranks in this operation wait for: this one's, then the others' in the order in which they tell.
    waited_for: Vec<usize>,
    /// A rank that waited for this one until its deadline.
    accuser: Option<usize>,
    /// From whom a notice came.
    heard: Vec<bool>,
    /// Whose link has ended.
    gone: Vec<bool>,
    /// Bytes of the own notice sent to each.
    told: Vec<usize>,
}

impl Engine {
    pub(super) fn conclude(&mut self, trouble: Trouble, steps: &[Step], run: &Run<'_, '_, '_>) -> Failure {
        let begun = Instant::now();
        let mut state = self.open_conclusion(trouble, steps, run);
        let mut notice: Option<(Vec<u8>, Instant)> = None;
        loop {
            self.listen(&mut state, run);
            if let Err(verdict) = run.around.health.check() {
                state.finding = Finding::verdict(self.rank, verdict, run.around.members);
            }
            let timed_out = matches!(state.finding.cause, Cause::TimedOut { .. });
            let learned = match state.finding.cause {
                Cause::Mismatch { .. } => LOOK,
                _ => LEARN,
            };
            if notice.is_none() && (state.finding.settled || timed_out || begun.elapsed() >= learned) {
                notice = Some((state.finding.notice.encode(), Instant::now()));
            }
            if let Some((bytes, since)) = &notice {
                let all_told = self.tell(bytes, &mut state, steps, run);
                let patience = match state.finding.cause {
                    Cause::TimedOut { after } => (after / 4).clamp(LISTEN.0, LISTEN.1),
                    _ => TELL,
                };
                let all_heard = state.heard.iter().all(|heard| *heard);
                if since.elapsed() >= patience || (all_told && (!timed_out || all_heard)) {
                    break;
                }
            }
            let length = notice.as_ref().map_or(0, |(bytes, _)| bytes.len());
            let wants: Vec<Want> = (0..self.world)
                .filter(|&peer| peer != self.rank && !state.gone[peer])
                .map(|peer| Want { peer, send: state.told[peer] < length })
                .filter(|want| want.send || (!state.heard[want.peer] && !self.links[want.peer].holds_head()))
                .collect();
            self.transport.park(&wants, Duration::from_millis(2));
        }
        self.sentence(state, run)
    }

    fn open_conclusion(&self, trouble: Trouble, steps: &[Step], run: &Run<'_, '_, '_>) -> Conclusion {
        let undone = |(index, _): &(usize, &Step)| !self.progress[*index].done;
        let receives = steps.iter().enumerate().filter(undone).filter_map(|(_, step)| match *step {
            Step::Recv { peer, .. } => Some(peer),
            _ => None,
        });
        let sends = steps.iter().enumerate().filter(undone).filter_map(|(_, step)| match *step {
            Step::Send { peer, .. } => Some(peer),
            _ => None,
        });
        let mut waited_for: Vec<usize> = receives.chain(sends).collect();
        let mut heard = vec![false; self.world];
        heard[self.rank] = true;
        let mut accuser = None;
        if let Trouble::Told { by, notice } = &trouble {
            heard[*by] = true;
            accuser = Some(*by).filter(|_| notice.peer == Some(self.rank));
            waited_for.extend(notice.peer);
        }
        let finding = Finding::new(self.rank, trouble, run.around.members, &waited_for);
        if let Cause::TimedOut { .. } = finding.cause {
            waited_for.splice(0..0, finding.peer);
        }
        let (gone, told) = (vec![false; self.world], vec![0; self.world]);
        Conclusion { finding, waited_for, accuser, heard, gone, told }
    }

    /// Takes what has come, until a notice of each peer; a better reason than the own one replaces it.
    fn listen(&mut self, state: &mut Conclusion, run: &Run<'_, '_, '_>) {
        for peer in 0..self.world {
            if state.heard[peer] {
                continue;
            }
            loop {
                match self.links[peer].discard(&mut *self.transport, peer) {
                    Ok(Next::Nothing | Next::Garbage) => break,
                    Err(_) => {
                        state.gone[peer] = true;
                        break;
                    }
                    Ok(Next::Data(head)) => {
                        let difference = match run.told {
                            Told::Same(own) if own.sequence == head.descriptor.sequence => {
                                own.difference(&head.descriptor)
                            }
                            _ => None,
                        };
                        if let (Some(difference), false) = (difference, state.finding.settled) {
                            state.finding = Finding::mismatch(self.rank, peer, difference);
                        }
                    }
                    Ok(Next::Notice(notice)) => {
                        state.heard[peer] = true;
                        state.waited_for.extend(notice.peer);
                        let theirs = Finding::adopt(self.rank, peer, notice);
                        if matches!(theirs.cause, Cause::TimedOut { .. }) && theirs.peer == Some(self.rank) {
                            state.accuser = state.accuser.or(Some(peer));
                        }
                        let timed_out = matches!(state.finding.cause, Cause::TimedOut { .. });
                        if !state.finding.settled && (theirs.settled || !timed_out) {
                            state.finding = theirs;
                        }
                        break;
                    }
                }
            }
        }
    }

    /// Sends on: the rest of the frame that is on its way, then the notice. `true` when all have it.
    fn tell(&mut self, notice: &[u8], state: &mut Conclusion, steps: &[Step], run: &Run<'_, '_, '_>) -> bool {
        let mut all = true;
        for peer in 0..self.world {
            if peer == self.rank || state.told[peer] >= notice.len() {
                continue;
            }
            if self.links[peer].in_frame() && !self.finish_frame(peer, steps, run) {
                all = false;
                continue;
            }
            match self.transport.try_send(peer, &notice[state.told[peer]..]) {
                Ok(sent) => state.told[peer] += sent,
                // Nobody is there to be told.
                Err(_) => state.told[peer] = notice.len(),
            }
            all &= state.told[peer] >= notice.len();
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
        // A copy, as the bytes belong to the engine whose link is written to; it is short and made only here.
        let rest = self.rest(step, index, run);
        let rest = rest[..rest.len().min(BODY)].to_vec();
        let mut moved = false;
        match self.links[peer].push(&mut *self.transport, peer, &rest, &mut moved) {
            Ok(sent) => {
                self.progress[index].advance(sent);
                !self.links[peer].in_frame()
            }
            Err(_) => true,
        }
    }

    /// The failure as this rank reports it.
    fn sentence(&self, state: Conclusion, run: &Run<'_, '_, '_>) -> Failure {
        let Conclusion { mut finding, waited_for, accuser, heard, .. } = state;
        if let Cause::TimedOut { after } = finding.cause {
            // All who wait have said so by now: whoever is waited for and was silent does not take part.
            match (waited_for.into_iter().find(|&peer| !heard[peer]), accuser) {
                (Some(silent), _) => finding.peer = Some(silent),
                (None, Some(accuser)) => {
                    let reason = format!("this rank did not answer it within {:.1} s", after.as_secs_f64());
                    (finding.peer, finding.cause) = (Some(accuser), Cause::Aborted { reason });
                }
                (None, None) => {}
            }
        }
        let (operation, sequence) = run.told.any().map_or(("abort", 0), |told| (told.operation.name(), told.sequence));
        let address = finding.peer.filter(|&peer| peer != self.rank).map(|peer| self.transport.address(peer));
        Failure {
            rank: self.rank,
            world: self.world,
            operation,
            sequence,
            peer: finding.peer,
            address,
            cause: finding.cause,
        }
    }
}
