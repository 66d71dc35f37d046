//! The transport over a segment of rings, and how it waits: spins while that has paid off lately, then sleeps.

use std::time::Duration;

use super::segment::{Impossible, Place};
use crate::transport::{LinkError, Transport, TransportKind, Want};

const FEWEST_SPINS: u32 = 16;
const MOST_SPINS: u32 = 1024;
/// Looks, with the processor given away between them, where there are more ranks than cores.
const YIELDS: u32 = 2;

/// One rank's links through rings in memory.
pub(in crate::transport) struct Rings {
    place: Place,
    kind: TransportKind,
    addresses: Vec<String>,
    /// Ranks outnumber cores: spinning would keep the awaited rank from running.
    crowded: bool,
    spins: u32,
}

impl Rings {
    pub(in crate::transport) fn new(place: Place, kind: TransportKind, addresses: Vec<String>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let crowded = place.world() > cores;
        Self { place, kind, addresses, crowded, spins: FEWEST_SPINS }
    }

    fn broken(peer: usize, impossible: &Impossible) -> LinkError {
        let Impossible { written, read } = impossible;
        let reason = format!("its ring says {written} bytes were written and {read} read, which cannot be");
        LinkError::Broken { peer, reason }
    }

    /// Looks for a while, in the hope that a sleep and its system calls can be saved.
    fn spin(&mut self, wanted: &[Want]) -> bool {
        if self.crowded {
            return (0..YIELDS).any(|_| {
                std::thread::yield_now();
                any_ready(&mut self.place, wanted)
            });
        }
        let found = (0..self.spins).any(|_| {
            std::hint::spin_loop();
            any_ready(&mut self.place, wanted)
        });
        let spins = if found { self.spins * 2 } else { self.spins / 2 };
        self.spins = spins.clamp(FEWEST_SPINS, MOST_SPINS);
        found
    }
}

/// Whether a call on one of the links would not return 0; a link that is closed or broken counts, for its error.
fn any_ready(place: &mut Place, wanted: &[Want]) -> bool {
    wanted.iter().any(|want| {
        let moved = if want.send { place.room(want.peer) } else { place.available(want.peer) };
        moved.map_or(true, |bytes| bytes > 0) || place.is_closed(want.peer)
    })
}

impl Transport for Rings {
    fn kind(&self) -> TransportKind {
        self.kind
    }

    fn buffer_bytes(&self) -> usize {
        self.place.outgoing_bytes()
    }

    fn address(&self, peer: usize) -> String {
        self.addresses.get(peer).cloned().unwrap_or_default()
    }

    fn try_send(&mut self, peer: usize, bytes: &[u8]) -> Result<usize, LinkError> {
        if self.place.is_closed(peer) {
            return Err(LinkError::Closed { peer });
        }
        self.place.push(peer, bytes).map_err(|impossible| Self::broken(peer, &impossible))
    }

    fn try_recv(&mut self, peer: usize, into: &mut [u8]) -> Result<usize, LinkError> {
        // Looked at first: what a peer wrote before it closed is then visible to the `pop`.
        let closed = self.place.is_closed(peer);
        match self.place.pop(peer, into) {
            Ok(0) if closed && !into.is_empty() => Err(LinkError::Closed { peer }),
            taken => taken.map_err(|impossible| Self::broken(peer, &impossible)),
        }
    }

    fn park(&mut self, wanted: &[Want], timeout: Duration) {
        if any_ready(&mut self.place, wanted) || self.spin(wanted) {
            return;
        }
        self.place.sleep_unless(timeout, |place| any_ready(place, wanted));
    }
}
