//! Which algorithm runs a call: as asked, or by size and world.

use std::fmt;

use super::plan::{OUTPUT, Parts, Plan, Source};
use super::{all_gather, all_reduce, all_to_all, barrier, broadcast, reduce_scatter};
use crate::CommError;

/// How a collective is carried out. Not every one has a way of its own for each: it then takes the nearest (see
/// `docs/algorithms.md` of the project).
///
/// For a given algorithm, world and count, the bits of a result are the same on all ranks and in every run (a NaN is a
/// NaN on all, its payload is not specified). `Direct` combines in rank order with one rounding, so that its bits do
/// not depend on the count or on an element's position either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// By size and world: `Algorithm::for_all_reduce` in the source.
    #[default]
    Auto,
    /// Around a ring: 2(p-1) rounds for an all-reduce, each rank sends 2(p-1)/p of the elements.
    Ring,
    /// Partners at doubling distances exchange everything: log2 p rounds. For few elements.
    RecursiveDoubling,
    /// Everybody with everybody at once: one round for few elements, two (a chunk at a time) for many.
    Direct,
}

impl Algorithm {
    /// Every algorithm, in the order of the enum.
    pub const ALL: [Algorithm; 4] = [Algorithm::Auto, Algorithm::Ring, Algorithm::RecursiveDoubling, Algorithm::Direct];

    /// The name that a flag or `WARPWEFT_ALGO` uses.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Auto => "auto",
            Algorithm::Ring => "ring",
            Algorithm::RecursiveDoubling => "recursive-doubling",
            Algorithm::Direct => "direct",
        }
    }

    /// What `Auto` is for an all-reduce of `bytes` among `world` ranks: `Direct` up to [`DIRECT_WORLD`] ranks, whatever
    /// the size; beyond, `RecursiveDoubling` up to [`SMALL_BYTES`] and `Ring` for more.
    ///
    /// `Direct` stands first because each element is combined in rank order with one rounding: a gradient's bits are
    /// then the same in whatever bucket it travels.
    pub(crate) const fn for_all_reduce(world: usize, bytes: usize) -> Algorithm {
        match () {
            () if world <= DIRECT_WORLD => Algorithm::Direct,
            () if bytes <= SMALL_BYTES => Algorithm::RecursiveDoubling,
            () => Algorithm::Ring,
        }
    }

    /// What `Auto` is for all-gather, reduce-scatter and all-to-all, of `bytes` in the largest part: `Direct` up to
    /// [`DIRECT_WORLD`] ranks or [`SMALL_BYTES`], else `Ring`.
    pub(crate) const fn for_parts(world: usize, bytes: usize) -> Algorithm {
        if world <= DIRECT_WORLD || bytes <= SMALL_BYTES { Algorithm::Direct } else { Algorithm::Ring }
    }

    /// The setting of the environment variable `WARPWEFT_ALGO`, if it is set.
    ///
    /// # Errors
    /// [`CommError::Config`] for a name that is no algorithm.
    pub fn from_env() -> Result<Option<Algorithm>, CommError> {
        match std::env::var_os("WARPWEFT_ALGO") {
            None => Ok(None),
            Some(value) => value.to_string_lossy().parse().map(Some).map_err(|error| match error {
                CommError::Config { what, fix } => CommError::Config { what: format!("WARPWEFT_ALGO: {what}"), fix },
                other => other,
            }),
        }
    }
}

/// Bytes that `world` ranks together send for an all-reduce of `bytes`, as [`Algorithm::Auto`] chooses.
pub fn all_reduce_bytes(world: usize, bytes: usize) -> u64 {
    let (ranks, bytes) = (world as u64, bytes as u64);
    let twice_to_all_but_one = 2 * ranks.saturating_sub(1) * bytes;
    match Algorithm::for_all_reduce(world, bytes as usize) {
        Algorithm::Direct if world > 2 && bytes <= ONE_SHOT_BYTES as u64 => ranks * (ranks - 1) * bytes,
        Algorithm::RecursiveDoubling => {
            // Ranks beyond a power of two give their elements to others first, and get the sum from them.
            let rounds = u64::from(ranks.ilog2());
            ((1 << rounds) * rounds + 2 * (ranks - (1 << rounds))) * bytes
        }
        _ => twice_to_all_but_one,
    }
}

/// Ranks up to which everybody talks to everybody.
pub const DIRECT_WORLD: usize = 8;
/// Bytes up to which the number of rounds matters more than the bytes sent.
pub const SMALL_BYTES: usize = 16 << 10;
/// Bytes up to which a direct all-reduce takes one shot: below, a second round costs more than the additional bytes.
const ONE_SHOT_BYTES: usize = 4 << 10;
/// The same between two ranks, where one shot sends no additional bytes: only the elements combined twice count.
const ONE_SHOT_BYTES_OF_TWO: usize = 128 << 10;
/// Bytes of a piece where many ranks' pieces lie side by side: eight of them stay within a core's second-level cache.
const CHUNK_BYTES: usize = 64 << 10;
/// Bytes from which a broadcast goes along a chain rather than down a tree (except between two ranks).
const CHAIN_BYTES: usize = 256 << 10;

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Algorithm {
    type Err = CommError;

    fn from_str(name: &str) -> Result<Self, CommError> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name).ok_or_else(|| CommError::Config {
            what: format!("`{name}` is no algorithm"),
            fix: "use auto, ring, recursive-doubling or direct".into(),
        })
    }
}

/// The shape of a call: what a plan is made from, besides the rank.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape<'a> {
    /// All-reduce of `count` elements.
    AllReduce { count: usize },
    /// All-gather of these parts.
    AllGather { parts: Parts<'a> },
    /// Reduce-scatter of these parts.
    ReduceScatter { parts: Parts<'a> },
    /// Broadcast of `count` elements.
    Broadcast { count: usize, root: usize },
    /// All-to-all: these parts to and from each rank.
    AllToAll { sent: Parts<'a>, received: Parts<'a> },
    /// Barrier.
    Barrier,
}

/// A call, for which [`plan`] finds the steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) shape: Shape<'a>,
    pub(crate) in_place: bool,
    /// Bytes of one element.
    pub(crate) size: usize,
}

impl Call<'_> {
    /// The algorithm that runs it where `asked` was asked for; never `Auto`.
    pub(crate) fn algorithm(&self, asked: Algorithm, world: usize) -> Algorithm {
        let bytes = |elements: usize| elements.saturating_mul(self.size);
        match (self.shape, asked) {
            (Shape::AllReduce { count }, Algorithm::Auto) => Algorithm::for_all_reduce(world, bytes(count)),
            (Shape::AllReduce { .. }, asked) => asked,
            (Shape::AllGather { parts } | Shape::ReduceScatter { parts }, Algorithm::Auto) => {
                Algorithm::for_parts(world, bytes(parts.largest()))
            }
            (Shape::Broadcast { count, .. }, Algorithm::Auto) if world > 2 && bytes(count) >= CHAIN_BYTES => {
                Algorithm::Ring
            }
            (Shape::Broadcast { .. }, Algorithm::Ring) => Algorithm::Ring,
            // Each pair exchanges one message whatever the algorithm of an all-to-all, so that ranks with other counts
            // may choose differently; what they tell each other must agree.
            (Shape::AllToAll { .. } | Shape::Broadcast { .. } | Shape::Barrier, _) => Algorithm::Direct,
            (_, Algorithm::RecursiveDoubling) => Algorithm::Direct,
            (_, asked) => asked,
        }
    }
}

/// Writes the steps of `rank` into `plan`. `asked` is what the user asked for, `algorithm` what it came to.
pub(crate) fn plan(
    plan: &mut Plan,
    call: &Call<'_>,
    asked: Algorithm,
    algorithm: Algorithm,
    rank: usize,
    world: usize,
) {
    plan.clear();
    let source = if call.in_place { Source::IN_PLACE } else { Source::APART };
    let chunk = (CHUNK_BYTES / call.size).max(1);
    match (call.shape, algorithm) {
        (Shape::AllReduce { count }, Algorithm::Ring) => all_reduce::ring(plan, rank, world, count, source),
        (Shape::AllReduce { count }, Algorithm::RecursiveDoubling) => {
            all_reduce::recursive_doubling(plan, rank, world, count, source);
        }
        (Shape::AllReduce { count }, _) => {
            let limit = if world == 2 { ONE_SHOT_BYTES_OF_TWO } else { ONE_SHOT_BYTES };
            if count.saturating_mul(call.size) <= limit {
                all_reduce::one_shot(plan, rank, world, count, source);
            } else {
                all_reduce::two_shot(plan, rank, world, count, source, chunk);
            }
        }
        (Shape::AllGather { parts }, Algorithm::Ring) => all_gather::ring(plan, rank, parts, source),
        (Shape::AllGather { parts }, _) => all_gather::direct(plan, rank, parts, source),
        (Shape::ReduceScatter { parts }, Algorithm::Ring) if source.0 == OUTPUT => {
            reduce_scatter::ring_keeping_places(plan, rank, parts, source);
        }
        (Shape::ReduceScatter { parts }, Algorithm::Ring) => reduce_scatter::ring(plan, rank, parts),
        (Shape::ReduceScatter { parts }, _) => reduce_scatter::direct(plan, rank, parts, source, chunk),
        (Shape::Broadcast { count, root }, _) => {
            if algorithm == Algorithm::Ring {
                broadcast::chain(plan, rank, world, count, root, chunk);
            } else {
                broadcast::binomial(plan, rank, world, count, root);
            }
        }
        (Shape::AllToAll { sent, received }, _) => {
            let pairwise = match asked {
                Algorithm::Auto => world > DIRECT_WORLD && sent.largest().saturating_mul(call.size) > SMALL_BYTES,
                asked => asked != Algorithm::Direct,
            };
            if pairwise {
                all_to_all::pairwise(plan, rank, sent, received);
            } else {
                all_to_all::direct(plan, rank, sent, received);
            }
        }
        (Shape::Barrier, _) => barrier::dissemination(plan, rank, world),
    }
}
