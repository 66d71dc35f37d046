//! What strong accesses to one place tell each other: release and acquire patterns (PTX ISA, memory consistency model).
//!
//! A strong write publishes what its thread knew at its last fence (or knows now, if it releases). A strong read of it
//! makes that pending, and the reader's next fence (or the read itself, if it acquires) makes it known. Read-modify-write
//! operations pass on what they read, as the observation order does.

use super::clock::{Shared, Stamp, join};
use super::order::Block;
use super::shadow::Strength;
use crate::program::Order;
use crate::types::Scope;

/// What a place has been told by strong accesses since the last write that broke the chain.
#[derive(Clone, Debug, Default)]
pub(super) struct Channel {
    /// The last strong write.
    last: Stamp,
    strength: Option<Strength>,
    /// Published to threads of the writer's own block: (block, what).
    near: Vec<(u32, Shared)>,
    /// Published to all.
    far: Shared,
    /// The only block that published to all, while it is only one.
    single: Option<u32>,
    /// Published by `fence.sc` of any thread in the writers' past.
    fenced: Shared,
    /// Strong reads of the last write: what they order, it is ordered before. (moment, lanes)
    seen: Vec<(Stamp, u32)>,
    /// Writes of the same value that were concurrent. (moment, lanes)
    pub(super) twins: Vec<(Stamp, u32)>,
}

/// The most readers and twins that a channel remembers. Forgetting one can only hide a race.
const REMEMBERED: usize = 64;

/// A strong access of one lane.
#[derive(Clone, Copy)]
pub(super) struct Strong {
    pub(super) warp: u32,
    pub(super) lane: u32,
    /// Without its lane.
    pub(super) stamp: Stamp,
    pub(super) strength: Strength,
    pub(super) acquires: bool,
    pub(super) releases: bool,
    /// `red` reads too, but forms no acquire pattern.
    pub(super) learns: bool,
}

/// The strength of an access.
pub(super) fn strength(order: Order) -> Strength {
    match order {
        Order::Weak => Strength::Weak,
        Order::Volatile => Strength::Device,
        Order::Relaxed(scope) | Order::Acquire(scope) | Order::Release(scope) | Order::AcquireRelease(scope) => {
            of(scope)
        }
    }
}

/// Without clusters, a cluster is a block; on one device, the system is the device.
pub(super) fn of(scope: Scope) -> Strength {
    match scope {
        Scope::Cta | Scope::Cluster => Strength::Block,
        Scope::Gpu | Scope::System => Strength::Device,
    }
}

/// (acquires, releases)
pub(super) fn sides(order: Order) -> (bool, bool) {
    match order {
        Order::Acquire(_) => (true, false),
        Order::Release(_) => (false, true),
        Order::AcquireRelease(_) => (true, true),
        Order::Weak | Order::Volatile | Order::Relaxed(_) => (false, false),
    }
}

/// Adds lanes to a short list of moments.
pub(super) fn remember(list: &mut Vec<(Stamp, u32)>, stamp: Stamp, lane: u32) {
    let moment = stamp.of_lane(0);
    if let Some((_, lanes)) = list.iter_mut().find(|(known, _)| *known == moment) {
        *lanes |= 1 << lane;
    } else if list.len() < REMEMBERED {
        list.push((moment, 1 << lane));
    }
}

impl Channel {
    /// What a strong write that published nothing leaves for its readers to note themselves in.
    pub(super) fn of_write(write: Stamp, strength: Strength) -> Channel {
        Channel { last: write, strength: Some(strength), ..Channel::default() }
    }

    /// A weak write: nothing can be learnt from it.
    pub(super) fn reset(&mut self) {
        if self.strength.is_some() || !self.twins.is_empty() {
            *self = Channel::default();
        }
    }

    /// Strong reads of the last write.
    pub(super) fn seen(&self) -> &[(Stamp, u32)] {
        &self.seen
    }

    /// A strong read by a thread of `block`, of what was written last.
    pub(super) fn read(&mut self, block: &mut Block, access: Strong) {
        let same_block = self.last.serial() == block.serial;
        if !self.strength.is_some_and(|writer| writer.meets(access.strength, same_block)) {
            return;
        }
        remember(&mut self.seen, access.stamp, access.lane);
        if !access.learns {
            return;
        }
        let mut near = self.near.iter().find(|(serial, _)| *serial == block.serial).and_then(|(_, what)| what.clone());
        if self.single == Some(block.serial) {
            join(&mut near, &self.far);
        }
        if near.is_none() && self.far.is_none() && self.fenced.is_none() {
            return;
        }
        let own = &mut block.warps[access.warp as usize].lanes_mut()[access.lane as usize];
        join(&mut own.fenced, &self.fenced);
        if access.acquires {
            join(&mut own.known, &near);
            if access.strength == Strength::Device {
                join(&mut own.known, &self.far);
            }
        } else {
            join(&mut own.pending_block, &near);
            join(&mut own.pending_device, &self.far);
        }
    }

    /// A strong write by a thread of `block`; `chained` where it read the last one in the same step.
    pub(super) fn write(&mut self, block: &Block, access: Strong, chained: bool) {
        let same_block = self.last.serial() == block.serial;
        let meets = self.strength.is_some_and(|writer| writer.meets(access.strength, same_block));
        // A thread's own release stands before its later strong writes, too.
        if !(meets && (chained || self.last.thread() == access.stamp.of_lane(access.lane).thread())) {
            (self.near, self.far, self.single, self.fenced) = (Vec::new(), None, None, None);
        }
        self.seen.clear();
        self.twins.clear();
        (self.last, self.strength) = (access.stamp.of_lane(access.lane), Some(access.strength));
        block.join_fenced(&mut self.fenced, access.warp, access.lane);
        let lanes = block.warps[access.warp as usize].lanes.as_deref();
        let own = lanes.map(|lanes| &lanes[access.lane as usize]);
        let mut near = own.map(|own| own.release_block.clone()).unwrap_or_default();
        let mut far = own.map(|own| own.release_device.clone()).unwrap_or_default();
        if access.releases {
            near = block.knowledge(access.warp, access.lane);
            if access.strength == Strength::Device {
                far = near.clone();
            }
        }
        if !far.is_nothing() {
            let first = self.far.is_none();
            self.single = (first || self.single == Some(block.serial)).then_some(block.serial);
            far.join_to(&mut self.far, block.serial, access.warp, access.lane);
        }
        if !near.is_nothing() && !near.same(&far) {
            let at = self.near.iter().position(|(serial, _)| *serial == block.serial).unwrap_or_else(|| {
                self.near.push((block.serial, None));
                self.near.len() - 1
            });
            near.join_to(&mut self.near[at].1, block.serial, access.warp, access.lane);
        }
    }

    /// Whether a strong write publishes anything.
    pub(super) fn tells(block: &Block, access: Strong) -> bool {
        let lanes = block.warps[access.warp as usize].lanes.as_deref();
        let own = lanes.is_some_and(|lanes| !lanes[access.lane as usize].release_block.is_nothing());
        access.releases || own || block.has_fenced(access.warp, access.lane)
    }
}
