//! Runs a plan: drives all links of a round at once, and reduces what arrives piece by piece as it arrives.

use std::time::Duration;

use warpweft_device::DType;

use super::descriptor::{Descriptor, Operation};
use super::frame::{BODY, Head, Link, Next};
use super::memory::{Ground, Memory, source};
use super::plan::{How, Plan, Span, Step};
use super::run::{Circumstances, Told, Trouble};
use crate::reduce::{Op, Reduction};
use crate::transport::{LinkError, Transport, Want};
use crate::wait::Patience;
use crate::{Cause, Failure, Verdict};

/// Bytes received at a time where they are to be combined: half a first-level cache.
const SCRATCH: usize = 16 << 10;
/// Collectives remembered, to tell what a message that nobody expected belonged to.
const HISTORY: usize = 16;
/// How long a parked rank goes without a look at the health of the job.
const PARK: Duration = Duration::from_millis(20);

/// How far a message of the current round is.
#[derive(Clone, Copy, Default)]
pub(super) struct Progress {
    /// Bytes that have left, or that have been stored or combined.
    moved: usize,
    pub(super) begun: bool,
    pub(super) done: bool,
    /// The first bytes of an element whose others have not come yet.
    carry: [u8; 8],
    carried: usize,
}

impl Progress {
    pub(super) fn advance(&mut self, bytes: usize) {
        self.moved += bytes;
    }
}

/// One run, while it lasts.
pub(super) struct Run<'r, 'm, 'a> {
    pub(super) told: Told<'r>,
    reduction: Reduction,
    /// Bytes of an element of the plan.
    size: usize,
    pub(super) memory: Memory<'m, 'a>,
    pub(super) around: &'r Circumstances<'r>,
}

impl<'m, 'a> Run<'_, 'm, 'a> {
    fn ground<'g>(&'g mut self, temp: &'g mut [u64]) -> Ground<'g, 'm, 'a> {
        Ground { memory: &mut self.memory, temp, size: self.size }
    }
}

/// One rank's end of a communicator: its links, and memory that runs share.
pub(crate) struct Engine {
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) transport: Box<dyn Transport>,
    pub(super) links: Vec<Link>,
    pub(crate) plan: Plan,
    temp: Vec<u64>,
    scratch: Vec<u64>,
    pub(super) progress: Vec<Progress>,
    wants: Vec<Want>,
    pass: u64,
    /// Bytes of the elements sent so far.
    sent: u64,
    /// The last collectives, by their numbers.
    history: [Option<Descriptor>; HISTORY],
}

impl Engine {
    pub(crate) fn new(rank: usize, world: usize, transport: Box<dyn Transport>) -> Self {
        Self {
            rank,
            world,
            transport,
            links: (0..world).map(|_| Link::new(world)).collect(),
            plan: Plan::default(),
            temp: Vec::new(),
            scratch: vec![0; SCRATCH / 8],
            progress: Vec::new(),
            wants: Vec::new(),
            pass: 0,
            sent: 0,
            history: [None; HISTORY],
        }
    }

    /// Bytes of memory that it holds for data on its way.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.transport.buffer_bytes() + size_of_val(&self.temp[..]) + size_of_val(&self.scratch[..])
    }

    /// Bytes of the elements that it has sent to others, in rounds that ended well.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent
    }

    /// The number of the next message to (`send`) or from a peer.
    pub(crate) fn next_point(&mut self, peer: usize, send: bool) -> u64 {
        let link = &mut self.links[peer];
        let count = if send { &mut link.points_sent } else { &mut link.points_received };
        *count += 1;
        *count
    }

    /// Runs the plan that lies in `self.plan`, whose spans count elements of `size` bytes.
    ///
    /// # Errors
    /// The failure as this rank reports it; the links are then unusable, and the others have been told.
    pub(crate) fn run(
        &mut self,
        told: Told<'_>,
        reduction: Reduction,
        size: usize,
        memory: Memory<'_, '_>,
        around: &Circumstances<'_>,
    ) -> Result<(), Failure> {
        if let Told::Same(own) = told {
            self.history[(own.sequence % HISTORY as u64) as usize] = Some(own);
        }
        let plan = std::mem::take(&mut self.plan);
        let words = (plan.temp() * size).div_ceil(8);
        if self.temp.len() < words {
            self.temp.resize(words, 0);
        }
        let mut run = Run { told, reduction, size, memory, around };
        let mut result = Ok(());
        for round in 0..plan.rounds() {
            let range = plan.round(round);
            if let Err(trouble) = self.round(plan.steps(range.clone()), range.start, &mut run) {
                result = Err(self.conclude(trouble, plan.steps(range), &run));
                break;
            }
            self.sent += plan.sent(range) as u64 * size as u64;
        }
        self.plan = plan;
        result
    }

    /// Gives up without an operation: tells the others what the health says.
    pub(crate) fn abort(&mut self, verdict: Verdict, around: &Circumstances<'_>) -> Failure {
        let reduction = Reduction { dtype: DType::U8, op: Op::Sum, world: self.world };
        let memory = Memory { inputs: &[], outputs: &mut [] };
        let run = Run { told: Told::Each(&[]), reduction, size: 1, memory, around };
        self.conclude(Trouble::Verdict(verdict), &[], &run)
    }

    fn round(&mut self, steps: &[Step], first: usize, run: &mut Run<'_, '_, '_>) -> Result<(), Trouble> {
        self.progress.clear();
        self.progress.resize(steps.len(), Progress::default());
        for (index, step) in steps.iter().enumerate() {
            match *step {
                Step::Copy { from, into } => {
                    run.ground(&mut self.temp).copy(from, into);
                    self.progress[index].done = true;
                }
                Step::Fold { .. } => self.progress[index].done = true,
                _ => {}
            }
        }
        let mut patience = None;
        let mut fruitless = 0;
        loop {
            let (moved, done) = self.pass(steps, first, run)?;
            if done {
                break;
            }
            if moved {
                patience = None;
                fruitless = 0;
                continue;
            }
            fruitless += 1;
            if fruitless <= run.around.spins {
                std::hint::spin_loop();
                continue;
            }
            self.wait(steps, first, run, patience.get_or_insert_with(|| Patience::looking_within(50 * PARK)))?;
        }
        for step in steps {
            if let Step::Fold { .. } = step {
                let reduction = run.reduction;
                run.ground(&mut self.temp).fold(reduction, step);
            }
        }
        Ok(())
    }

    /// One look at every message of the round: whether anything moved, and whether all are done.
    fn pass(&mut self, steps: &[Step], first: usize, run: &mut Run<'_, '_, '_>) -> Result<(bool, bool), Trouble> {
        self.pass += 1;
        let (mut moved, mut done) = (false, true);
        for index in 0..steps.len() {
            if self.progress[index].done {
                continue;
            }
            match steps[index] {
                Step::Send { peer, from } if self.links[peer].out_busy != self.pass => {
                    moved |= self.send(index, peer, from, run.told.of(first + index), run)?;
                    if !self.progress[index].done {
                        self.links[peer].out_busy = self.pass;
                    }
                }
                Step::Recv { peer, into, how } if self.links[peer].in_busy != self.pass => {
                    let limit = self.sent_before(steps, index, peer, how);
                    moved |= self.recv(index, peer, (into, how), limit, run.told.of(first + index), run)?;
                    if !self.progress[index].done {
                        self.links[peer].in_busy = self.pass;
                    }
                }
                _ => {}
            }
            done &= self.progress[index].done;
        }
        Ok((moved, done))
    }

    /// How far a result may be written that overwrites what the same round sends to the same peer.
    fn sent_before(&self, steps: &[Step], index: usize, peer: usize, how: How) -> usize {
        let How::Reduce { behind: true, .. } = how else { return usize::MAX };
        let send = steps[..index].iter().position(|step| matches!(step, Step::Send { peer: to, .. } if *to == peer));
        send.map_or(usize::MAX, |send| if self.progress[send].done { usize::MAX } else { self.progress[send].moved })
    }

    fn send(
        &mut self,
        index: usize,
        peer: usize,
        from: Span,
        told: Descriptor,
        run: &Run<'_, '_, '_>,
    ) -> Result<bool, Trouble> {
        let bytes = source(&run.memory, &self.temp, from, run.size);
        let (link, progress) = (&mut self.links[peer], &mut self.progress[index]);
        let mut moved = false;
        loop {
            if !link.in_frame() {
                if progress.begun && progress.moved == bytes.len() {
                    progress.done = true;
                    return Ok(moved);
                }
                // A peer that has given up throws away what comes: no long message may seem to have arrived.
                let ahead = (progress.begun && !link.is_open()).then(|| link.next(&mut *self.transport, peer));
                if let Some(Ok(Next::Notice(notice))) = ahead {
                    return Err(Trouble::Told { by: peer, notice });
                }
                let body = BODY.min(bytes.len() - progress.moved) as u32;
                link.begin(&Head { descriptor: told, message: bytes.len() as u64, body });
                progress.begun = true;
            }
            progress.moved += link.push(&mut *self.transport, peer, &bytes[progress.moved..], &mut moved)?;
            if link.in_frame() {
                return Ok(moved);
            }
        }
    }

    fn recv(
        &mut self,
        index: usize,
        peer: usize,
        (into, how): (Span, How),
        limit: usize,
        told: Descriptor,
        run: &mut Run<'_, '_, '_>,
    ) -> Result<bool, Trouble> {
        let len = into.len * run.size;
        let mut moved = false;
        loop {
            if !self.links[peer].is_open() {
                let progress = &mut self.progress[index];
                let come = progress.moved + progress.carried;
                if progress.begun && come == len {
                    progress.done = true;
                    return Ok(moved);
                }
                match self.links[peer].next(&mut *self.transport, peer)? {
                    Next::Nothing => return Ok(moved),
                    Next::Notice(notice) => return Err(Trouble::Told { by: peer, notice }),
                    Next::Garbage => return Err(garbage(peer)),
                    Next::Data(head) => {
                        self.check(&told, &head, peer, (len, come), run.size)?;
                        self.progress[index].begun = true;
                        self.links[peer].open(&head);
                        moved = true;
                        continue;
                    }
                }
            }
            let got = match how {
                How::Store => self.store(index, peer, into, run)?,
                How::Reduce { own, finish, .. } => self.reduce(index, peer, (into, own, finish), limit, run)?,
            };
            if got == 0 {
                return Ok(moved);
            }
            moved = true;
        }
    }

    fn store(&mut self, index: usize, peer: usize, into: Span, run: &mut Run<'_, '_, '_>) -> Result<usize, Trouble> {
        let at = self.progress[index].moved;
        let left = self.links[peer].body_left();
        let mut ground = run.ground(&mut self.temp);
        let target = &mut ground.target(into)[at..at + left];
        let got = self.links[peer].pull(&mut *self.transport, peer, target)?;
        self.progress[index].moved += got;
        Ok(got)
    }

    /// Takes a piece into the scratch memory and combines its whole elements.
    fn reduce(
        &mut self,
        index: usize,
        peer: usize,
        (into, own, finish): (Span, Span, bool),
        limit: usize,
        run: &mut Run<'_, '_, '_>,
    ) -> Result<usize, Trouble> {
        let progress = &mut self.progress[index];
        let (at, carried) = (progress.moved, progress.carried);
        let scratch: &mut [u8] = bytemuck::cast_slice_mut(&mut self.scratch);
        scratch[..carried].copy_from_slice(&progress.carry[..carried]);
        let room = self.links[peer].body_left().min(scratch.len() - carried).min(limit.saturating_sub(at + carried));
        if room == 0 {
            return Ok(0);
        }
        let got = self.links[peer].pull(&mut *self.transport, peer, &mut scratch[carried..carried + room])?;
        if got == 0 {
            return Ok(0);
        }
        let whole = (carried + got) / run.size * run.size;
        let rest = carried + got - whole;
        progress.carry[..rest].copy_from_slice(&scratch[whole..whole + rest]);
        progress.carried = rest;
        progress.moved += whole;
        let range = at..at + whole;
        let incoming: &[u8] = &bytemuck::cast_slice::<u64, u8>(&self.scratch)[..whole];
        let reduction = run.reduction;
        run.ground(&mut self.temp).combine(reduction, (into, own), range, incoming, finish);
        Ok(got)
    }

    /// Nothing has moved for a while: looks at everything else that could have happened, then sleeps for a moment.
    fn wait(
        &mut self,
        steps: &[Step],
        first: usize,
        run: &Run<'_, '_, '_>,
        patience: &mut Patience,
    ) -> Result<(), Trouble> {
        run.around.health.check().map_err(Trouble::Verdict)?;
        self.wants.clear();
        let mut waited_for = None;
        for (index, step) in steps.iter().enumerate().filter(|(index, _)| !self.progress[*index].done) {
            let (peer, send) = match *step {
                Step::Send { peer, .. } => (peer, true),
                Step::Recv { peer, .. } => (peer, false),
                _ => continue,
            };
            // Who has not begun to send is more to blame than who does not take what is sent to it.
            if waited_for.is_none() || (!send && !self.progress[index].begun) {
                waited_for = waited_for.filter(|_| send).or(Some(peer));
            }
            self.wants.push(Want { peer, send });
        }
        for peer in 0..self.world {
            if peer == self.rank {
                continue;
            }
            let expected = self.wants.iter().any(|want| want.peer == peer && !want.send);
            if !expected {
                self.look(peer, run, first)?;
            }
        }
        let waited = patience.spent();
        if waited >= run.around.timeout {
            return Err(Trouble::Own { peer: waited_for, cause: Cause::TimedOut { after: run.around.timeout } });
        }
        self.transport.park(&self.wants, PARK.min(run.around.timeout - waited));
        Ok(())
    }

    /// Looks at a link from which this round expects nothing: a notice, or a call that does not fit this one.
    fn look(&mut self, peer: usize, run: &Run<'_, '_, '_>, first: usize) -> Result<(), Trouble> {
        if self.links[peer].is_open() {
            return Ok(());
        }
        let next = match self.links[peer].next(&mut *self.transport, peer) {
            Ok(next) => next,
            // It has done its part and left; whoever still needs it will notice there.
            Err(LinkError::Closed { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        match next {
            Next::Nothing => self.wants.push(Want { peer, send: false }),
            Next::Notice(notice) => return Err(Trouble::Told { by: peer, notice }),
            Next::Garbage => return Err(garbage(peer)),
            Next::Data(head) => {
                let own = run.told.of(first);
                let theirs = head.descriptor;
                let comparable = own.operation != Operation::Point && theirs.operation != Operation::Point;
                // A later one is for a call that this rank has not come to yet.
                if comparable && theirs.sequence <= own.sequence {
                    self.compare(&own, &theirs, peer)?;
                }
            }
        }
        Ok(())
    }

    /// What stands at the head of a message must be what this rank expects from that peer, before any of it is written.
    fn check(
        &self,
        told: &Descriptor,
        head: &Head,
        peer: usize,
        (len, come): (usize, usize),
        size: usize,
    ) -> Result<(), Trouble> {
        let own = |cause| Err(Trouble::Own { peer: Some(peer), cause });
        self.compare(told, &head.descriptor, peer)?;
        if head.message != len as u64 {
            let elements = |bytes: u64| bytes / size.max(1) as u64;
            let (here, there) = (elements(len as u64), elements(head.message));
            let difference = format!("count {here} expected here from that rank, {there} sent there");
            return own(Cause::Mismatch { difference });
        }
        let left = len - come;
        if head.body as usize > left || (head.body == 0 && left > 0) {
            return own(Cause::Protocol { what: format!("a frame of {} bytes where {left} are left", head.body) });
        }
        Ok(())
    }

    /// Whether a peer is in the same call.
    fn compare(&self, own: &Descriptor, theirs: &Descriptor, peer: usize) -> Result<(), Trouble> {
        let Some(difference) = own.difference(theirs) else { return Ok(()) };
        let collective = own.operation != Operation::Point && theirs.operation != Operation::Point;
        if collective && theirs.sequence > own.sequence {
            return Err(Trouble::Later { peer, difference });
        }
        // A message that no earlier operation of this rank has taken: it belongs to a call that differed then.
        let past = self.history[(theirs.sequence % HISTORY as u64) as usize];
        let difference = match past.filter(|past| collective && past.sequence == theirs.sequence) {
            Some(past) if theirs.sequence < own.sequence => {
                let name = past.operation.name();
                let what = past.difference(theirs).unwrap_or_else(|| "a message that was not expected here".into());
                format!("in {name} #{}: {what}", past.sequence)
            }
            _ => difference,
        };
        Err(Trouble::Own { peer: Some(peer), cause: Cause::Mismatch { difference } })
    }

    /// The bytes of a message that is on its way, for the rest of its frame.
    pub(super) fn rest<'r>(&'r self, step: &Step, index: usize, run: &'r Run<'_, '_, '_>) -> &'r [u8] {
        match *step {
            Step::Send { from, .. } => &source(&run.memory, &self.temp, from, run.size)[self.progress[index].moved..],
            _ => &[],
        }
    }
}

fn garbage(peer: usize) -> Trouble {
    let what = "bytes that begin no frame of this version".into();
    Trouble::Own { peer: Some(peer), cause: Cause::Protocol { what } }
}
