//! What a run is given besides a plan and memory, and why it may stop.

use std::time::Duration;

use super::descriptor::Descriptor;
use super::frame::Notice;
use crate::transport::LinkError;
use crate::{Cause, Health, Verdict};

/// What surrounds a run.
pub(crate) struct Circumstances<'a> {
    pub(crate) health: &'a Health,
    /// The job's rank of each rank here.
    pub(crate) members: &'a [usize],
    /// The deadline of every wait.
    pub(crate) timeout: Duration,
    /// Fruitless looks at the links before a rank gives its processor away.
    pub(crate) spins: u32,
}

/// What the messages of a run say of it.
#[derive(Clone, Copy)]
pub(crate) enum Told<'a> {
    /// All the same: a collective.
    Same(Descriptor),
    /// Each step's own: point-to-point messages.
    Each(&'a [Descriptor]),
}

impl Told<'_> {
    pub(super) fn of(&self, step: usize) -> Descriptor {
        match self {
            Told::Same(descriptor) => *descriptor,
            Told::Each(list) => list[step],
        }
    }

    pub(super) fn any(&self) -> Option<Descriptor> {
        match self {
            Told::Same(descriptor) => Some(*descriptor),
            Told::Each(list) => list.first().copied(),
        }
    }
}

/// Why a run stopped.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Found by this rank.
    Own { peer: Option<usize>, cause: Cause },
    /// A peer is in a later operation already, without the message that this one needs. What it did instead may show on
    /// another link.
    Later { peer: usize, difference: String },
    /// A link ended; who or what ended it, somebody may know better.
    Closed { peer: usize },
    /// A peer told of it.
    Told { by: usize, notice: Notice },
    /// The job's or the communicator's health.
    Verdict(Verdict),
}

impl From<LinkError> for Trouble {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Closed { peer } => Trouble::Closed { peer },
            LinkError::Broken { peer, reason } => Trouble::Own { peer: Some(peer), cause: Cause::Link { reason } },
        }
    }
}
