//! Where the paths of a branch meet again.
//!
//! When a branch divides a fragment, its lanes wait for each other at the branch's immediate post-dominator: a *join*.
//! Joins form a tree (each knows the join around it), as the convergence barriers of Volta and later do, and unlike the
//! stack of older hardware every side of a branch can run at any time, so lanes may wait for each other in loops.
//!
//! A join is a convenience, not a promise: the ISA lets lanes run apart. Lanes that wait at one are let go
//! - when the lanes that they wait for wait for them in a `.sync` instruction,
//! - when the lanes that they wait for spin: after [`PATIENCE`] strong accesses to memory, which is what a lane does
//!   that waits for a lock held by a lane at the join.
//!
//! Lanes that exit are no longer expected. Nested loops need no more joins than the post-dominator tree is deep, since
//! a branch whose post-dominator is the innermost join's place uses that join.

use super::warp::{Fragment, NONE, State, Warp};

/// Strong accesses that lanes make inside before lanes at the join go on without them: more than the 32 rounds that a
/// warp's lanes need to replace one word by compare-and-swap, each in turn.
pub(super) const PATIENCE: u32 = 40;

/// A place where lanes wait for the rest of those that a branch divided.
#[derive(Debug)]
struct Join {
    pc: u32,
    depth: u32,
    /// Lanes that are to come, those that have come included.
    expected: u32,
    /// The join around it.
    parent: u32,
    /// Lanes that have come.
    waiting: Option<Fragment>,
    patience: u32,
}

/// The joins of a warp; a place is reused once its join is done.
#[derive(Debug, Default)]
pub(super) struct Joins {
    places: Vec<Option<Join>>,
    open: u32,
}

impl Joins {
    fn add(&mut self, join: Join) -> u32 {
        self.open += 1;
        if let Some(free) = self.places.iter().position(Option::is_none) {
            self.places[free] = Some(join);
            return free as u32;
        }
        self.places.push(Some(join));
        self.places.len() as u32 - 1
    }

    fn get(&self, at: u32) -> Option<&Join> {
        self.places.get(at as usize).and_then(Option::as_ref)
    }

    fn get_mut(&mut self, at: u32) -> Option<&mut Join> {
        self.places.get_mut(at as usize).and_then(Option::as_mut)
    }

    fn remove(&mut self, at: u32) -> Option<Join> {
        let join = self.places.get_mut(at as usize).and_then(Option::take);
        self.open -= u32::from(join.is_some());
        join
    }

    /// Whether any join is open.
    pub(super) fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Where a fragment has to stop: its join's place, if that is in the function that it runs.
    pub(super) fn stop(&self, fragment: &Fragment) -> u32 {
        match self.get(fragment.join) {
            Some(join) if join.depth == fragment.depth() => join.pc,
            _ => NONE,
        }
    }

    /// Whether a fragment's join is deeper in calls than `depth`.
    pub(super) fn is_deeper(&self, fragment: &Fragment, depth: u32) -> bool {
        self.get(fragment.join).is_some_and(|join| join.depth > depth)
    }

    /// Lanes that wait at joins.
    pub(super) fn waiting(&self) -> u32 {
        let of = |join: &Join| join.waiting.as_ref().map_or(0, |fragment| fragment.mask);
        self.places.iter().flatten().fold(0, |all, join| all | of(join))
    }

    /// The fragments that wait at joins.
    pub(super) fn fragments(&self) -> impl Iterator<Item = &Fragment> {
        self.places.iter().flatten().filter_map(|join| join.waiting.as_ref())
    }
}

impl Warp {
    /// Gives a fragment a join at (pc, depth) unless that is its join already.
    pub(super) fn open_join(&mut self, fragment: &mut Fragment, pc: u32, depth: u32) {
        if self.joins.get(fragment.join).is_some_and(|join| join.pc == pc && join.depth == depth) {
            return;
        }
        let (expected, parent) = (fragment.mask, fragment.join);
        let join = Join { pc, depth, expected, parent, waiting: None, patience: PATIENCE };
        fragment.join = self.joins.add(join);
    }

    /// A fragment has come to its join: it waits, or goes on with all that waited if it is the last.
    pub(super) fn arrive(&mut self, mut fragment: Fragment) -> Option<Fragment> {
        let at = fragment.join;
        let Some(join) = self.joins.get_mut(at) else { return Some(fragment) };
        let came = join.waiting.as_ref().map_or(0, |waiting| waiting.mask) | fragment.mask;
        if came == join.expected {
            fragment.mask = came;
            fragment.join = join.parent;
            self.joins.remove(at);
            return Some(fragment);
        }
        match &mut join.waiting {
            Some(waiting) => waiting.mask = came,
            None => join.waiting = Some(fragment),
        }
        None
    }

    /// Lanes have left the reach of joins by exiting: those that waited for no one else go on.
    pub(super) fn forget_exited(&mut self) {
        if self.joins.is_empty() {
            return;
        }
        let live = self.live;
        for at in 0..self.joins.places.len() as u32 {
            self.forget(at, !live);
        }
    }

    /// A join no longer waits for some lanes.
    fn forget(&mut self, at: u32, lanes: u32) {
        let Some(join) = self.joins.get_mut(at) else { return };
        join.expected &= !lanes;
        let came = join.waiting.as_ref().map_or(0, |waiting| waiting.mask);
        if came == join.expected
            && let Some(join) = self.joins.remove(at)
            && let Some(waiting) = join.waiting
        {
            self.fragments.push(Fragment { join: join.parent, ..waiting });
        }
    }

    /// A fragment returns to `depth`: joins of the functions that it leaves do not wait for it.
    pub(super) fn leave_joins(&mut self, fragment: &mut Fragment, depth: u32) {
        while let Some(join) = self.joins.get(fragment.join)
            && join.depth > depth
        {
            let (at, parent) = (fragment.join, join.parent);
            self.forget(at, fragment.mask);
            fragment.join = parent;
        }
    }

    /// Lets all lanes that wait at joins go on; whether there were any.
    pub(super) fn release_joins(&mut self) -> bool {
        let before = self.fragments.len();
        for at in 0..self.joins.places.len() as u32 {
            self.release(at);
        }
        self.fragments.len() > before
    }

    fn release(&mut self, at: u32) {
        let Some(join) = self.joins.get_mut(at) else { return };
        let Some(waiting) = join.waiting.take() else { return };
        join.expected &= !waiting.mask;
        join.patience = PATIENCE;
        self.fragments.push(Fragment { join: join.parent, state: State::Ready, ..waiting });
    }

    /// A fragment that is still inside its joins made so many strong accesses: those that wait for it lose patience.
    pub(super) fn spun(&mut self, mut join: u32, accesses: u32) {
        while let Some(found) = self.joins.get_mut(join) {
            let (at, parent) = (join, found.parent);
            if found.waiting.is_some() {
                found.patience = found.patience.saturating_sub(accesses);
                if found.patience == 0 {
                    self.release(at);
                }
            }
            join = parent;
        }
    }
}
