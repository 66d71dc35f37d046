//! Sub-communicators.

use std::time::Duration;

use super::point::Group;
use super::{Communicator, Membership, Shared};
use crate::CommError;
use crate::transport::{Exchange, Setup, connect};

impl Communicator {
    /// Splits the ranks into groups: those that give the same `color` form one, in the order of their `key` (ranks with
    /// the same key in the order of their ranks here). `None` gets `Ok(None)` and takes part in no group.
    ///
    /// Collective over this communicator. A group has links, an order and a health of its own: it works at the same
    /// time as this one, from other threads. Aborting this communicator ends its groups too.
    ///
    /// # Errors
    /// As for collectives.
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Communicator>, CommError> {
        let shared = &self.shared;
        let _turn = self.enter();
        let own = [i64::from(color.is_some()), i64::from(color.unwrap_or(0)), key];
        let mut all = vec![0; own.len() * self.world()];
        shared.all_gather(Some(&own), &mut all, None)?;
        let Some(color) = color else { return Ok(None) };
        let choice = |rank: usize| (all[own.len() * rank], all[own.len() * rank + 1], all[own.len() * rank + 2]);
        let mut group: Vec<usize> = (0..self.world())
            .filter(|&rank| {
                let (takes_part, theirs, _) = choice(rank);
                takes_part == 1 && theirs == i64::from(color)
            })
            .collect();
        group.sort_by_key(|&rank| (choice(rank).2, rank));
        let rank = group.iter().position(|&member| member == self.rank()).unwrap_or(0);
        let shape = Membership {
            rank,
            world: group.len(),
            local_rank: shared.local_rank,
            members: group.iter().map(|&member| shared.members[member]).collect(),
            algorithm: shared.algorithm,
            timeout: shared.timeout(),
            health: shared.health.child(),
        };
        let mut exchange = Within { shared, group: &group };
        let setup = Setup {
            rank,
            world: group.len(),
            exchange: &mut exchange,
            health: &shape.health,
            timeout: shape.timeout,
            site: &shared.job.site,
        };
        let transport = connect(shared.kind, setup)?;
        Ok(Some(Self::assemble(shape, shared.job.clone(), transport)))
    }
}

/// An all-gather among some ranks of a communicator, by messages between them: the others need not take part.
struct Within<'a> {
    shared: &'a Shared,
    group: &'a [usize],
}

impl Within<'_> {
    fn swap<'m>(&self, own: &'m [u8], theirs: impl Iterator<Item = &'m mut [u8]>) -> Result<(), CommError> {
        let mut group = Group::default();
        for (&peer, into) in self.group.iter().zip(theirs) {
            if peer != self.shared.rank {
                group.send(own, peer).recv(into, peer);
            }
        }
        self.shared.points(group)
    }
}

/// The longest message of the exchange that a rank accepts: far more than any transport says of itself.
const LONGEST: u64 = 16 << 20;

impl Exchange for Within<'_> {
    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        let own = (bytes.len() as u64).to_le_bytes();
        let mut lengths = vec![own; self.group.len()];
        self.swap(&own, lengths.iter_mut().map(|length| &mut length[..]))?;
        let mut all = Vec::with_capacity(lengths.len());
        for (&peer, length) in self.group.iter().zip(lengths) {
            let length = u64::from_le_bytes(length);
            if length > LONGEST {
                let what = format!("rank {peer} wants to say {length} bytes of itself, {LONGEST} are allowed");
                return Err(CommError::Argument { operation: "split", what });
            }
            all.push(if peer == self.shared.rank { bytes.to_vec() } else { vec![0; length as usize] });
        }
        self.swap(bytes, all.iter_mut().map(|theirs| &mut theirs[..]))?;
        Ok(all)
    }

    fn set_timeout(&mut self, _timeout: Duration) {
        // Each message has the communicator's own deadline.
    }
}
