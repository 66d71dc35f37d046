//! Messages between the stages of a pipeline: a communicator of two ranks for each direction in which anything flows, so
//! that no message waits for one that goes the other way.

use std::collections::VecDeque;

use warpweft_comm::{Communicator, OwnedRegion, Pending, Region, RegionMut};
use warpweft_device::{Buffer, Element};
use warpweft_schedule::{Message, Schedule, Step};

use crate::TrainError;
use crate::parallel::executor::named;
use crate::parallel::mesh::{Mesh, Sizes};
use crate::report::trace::{Trace, Track};

/// Messages that may be under way in one direction before the next one waits.
pub(crate) const UNDER_WAY: usize = 2;

/// The directions in which this rank sends and receives.
pub(crate) struct Links<T> {
    links: Vec<Link<T>>,
}

/// One direction.
struct Link<T> {
    from: usize,
    to: usize,
    pair: Communicator,
    /// Messages on their way out, the oldest first.
    sending: VecDeque<Sending<T>>,
}

/// A message on its way out.
struct Sending<T> {
    message: Message,
    pending: Pending<Rows<T>>,
}

impl<T: Element> Sending<T> {
    /// Its buffer, once it has left.
    fn wait(self, trace: Option<&Trace>) -> Result<Buffer<T>, TrainError> {
        let done = self.pending.wait().map_err(|failed| failed.error)?;
        let of = || format!("{} to stage {}, {} bytes", named(self.message), self.message.peer, done.buffer.bytes());
        if let Some(trace) = trace {
            trace.add(Track::Send, of(), done.started, done.finished);
        }
        Ok(done.buffer.buffer)
    }
}

/// The first elements of a buffer: a micro-batch may have fewer rows than there is memory for.
pub(crate) struct Rows<T> {
    pub(crate) buffer: Buffer<T>,
    len: usize,
}

/// A message that will arrive, or has.
pub(crate) enum Arrival<T> {
    /// On its way from another rank.
    Pending(Pending<Rows<T>>),
    /// Made on this rank.
    Here(Buffer<T>),
}

impl<T: Element> OwnedRegion<T> for Rows<T> {
    fn region(&self) -> Region<'_, T> {
        // Never shorter than `len`: see `Rows::of`.
        self.buffer.view(..self.len).unwrap_or_else(|_| self.buffer.as_view()).into()
    }

    fn region_mut(&mut self) -> RegionMut<'_, T> {
        match self.buffer.view_mut(..self.len) {
            Ok(rows) => rows.into(),
            Err(_) => (&mut [][..]).into(),
        }
    }
}

impl<T: Element> Rows<T> {
    fn of(buffer: Buffer<T>, len: usize) -> Self {
        let len = len.min(buffer.len());
        Self { buffer, len }
    }

    fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

/// The directions between stages that a schedule sends messages in, the same on every rank.
pub(crate) fn directions(schedule: &Schedule) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = (0..schedule.ranks())
        .flat_map(|rank| schedule.rank(rank).iter().map(move |step| (rank, step)))
        .filter_map(|(rank, step)| if let Step::Send(message) = step { Some((rank, message.peer)) } else { None })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

impl<T: Element> Links<T> {
    /// The links of a pipeline.
    ///
    /// Collective over the world of the mesh.
    ///
    /// # Errors
    /// A failed split.
    pub(crate) fn new(mesh: &Mesh, directions: &[(usize, usize)]) -> Result<Self, TrainError> {
        let (Sizes { dp, cp, tp, .. }, place) = (mesh.sizes(), mesh.place());
        debug_assert!(place.dp < dp && place.cp < cp, "a place of the mesh");
        let lane = mesh.sizes().data_rank(place) * tp + place.tp;
        let mut links = Vec::new();
        for &(from, to) in directions {
            let mine = place.pp == from || place.pp == to;
            let pair = mesh.world().split(mine.then_some(lane as u32), mesh.world().rank() as i64)?;
            links.extend(pair.map(|pair| Link { from, to, pair, sending: VecDeque::new() }));
        }
        Ok(Self { links })
    }

    fn link(&mut self, from: usize, to: usize) -> Result<&mut Link<T>, TrainError> {
        let found = self.links.iter_mut().find(|link| (link.from, link.to) == (from, to));
        found.ok_or(TrainError::NoLink { from, to })
    }

    /// Starts a message of the first `len` elements. Gives back the buffer of an earlier one, where too many are under way.
    ///
    /// # Errors
    /// A failed message; no link in this direction.
    pub(crate) fn send(
        &mut self,
        (from, message): (usize, Message),
        buffer: Buffer<T>,
        len: usize,
        trace: Option<&Trace>,
    ) -> Result<Option<Buffer<T>>, TrainError> {
        if len == 0 {
            return Ok(Some(buffer));
        }
        let Link { pair, sending, .. } = self.link(from, message.peer)?;
        let earlier = if sending.len() < UNDER_WAY { None } else { sending.pop_front() };
        let earlier = earlier.map(|sent| sent.wait(trace)).transpose()?;
        let peer = 1 - pair.rank();
        sending.push_back(Sending { message, pending: pair.start_send(Rows::of(buffer, len), peer) });
        Ok(earlier)
    }

    /// Begins to receive the first `len` elements of `buffer`.
    ///
    /// # Errors
    /// No link in this direction.
    pub(crate) fn receive(
        &mut self,
        (from, to): (usize, usize),
        buffer: Buffer<T>,
        len: usize,
    ) -> Result<Arrival<T>, TrainError> {
        if len == 0 {
            return Ok(Arrival::Here(buffer));
        }
        let Link { pair, .. } = self.link(from, to)?;
        let peer = 1 - pair.rank();
        Ok(Arrival::Pending(pair.start_recv(Rows::of(buffer, len), peer)))
    }

    /// Waits for all messages that were sent; gives their buffers back.
    ///
    /// # Errors
    /// The first that failed.
    pub(crate) fn finish(&mut self, trace: Option<&Trace>) -> Result<Vec<Buffer<T>>, TrainError> {
        let sending = self.links.iter_mut().flat_map(|link| link.sending.drain(..));
        sending.map(|sent| sent.wait(trace)).collect()
    }

    /// Bytes that this rank has sent.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.links.iter().map(|link| link.pair.sent_bytes()).sum()
    }

    /// Bytes that the communicators hold.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.links.iter().map(|link| link.pair.buffer_bytes()).sum()
    }
}

impl<T: Element> Arrival<T> {
    /// The buffer of this message, once it is there.
    ///
    /// # Errors
    /// A failed message.
    pub(crate) fn wait(self, message: Message, trace: Option<&Trace>) -> Result<Buffer<T>, TrainError> {
        let done = match self {
            Self::Pending(pending) => pending.wait().map_err(|failed| failed.error)?,
            Self::Here(buffer) => return Ok(buffer),
        };
        if let Some(trace) = trace {
            let of = format!("{}, {} bytes", named(message), done.buffer.bytes());
            trace.add(Track::Receive, of, done.started, done.finished);
        }
        Ok(done.buffer.buffer)
    }
}
