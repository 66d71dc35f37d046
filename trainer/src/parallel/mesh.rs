//! The ranks of a job as a mesh: pp x dp x cp x tp, tp fastest, with ep inside dp x cp.
//!
//! Rank = ((pp · DP + dp) · CP + cp) · TP + tp. The data ranks of a stage are dp · CP + cp; each block of EP consecutive
//! ones has every expert once. Groups of ranks are communicators of their own, made once.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use warpweft_comm::{CommError, Communicator};

use crate::memory::Account;
use crate::parallel::context::{Context, Method};
use crate::parallel::layout::{Axes, Axis};
use crate::parallel::traffic::Traffic;

/// Ranks of each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sizes {
    /// Stages of the pipeline.
    pub pp: usize,
    /// Data-parallel ranks: each has sequences of its own.
    pub dp: usize,
    /// Context-parallel ranks: each has a part of every sequence.
    pub cp: usize,
    /// Tensor-parallel ranks: each has heads and columns of its own.
    pub tp: usize,
    /// Expert-parallel ranks, a divisor of dp · cp.
    pub ep: usize,
}

/// Where a rank is on each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Its stage.
    pub pp: usize,
    /// Its data-parallel index.
    pub dp: usize,
    /// Its part of every sequence.
    pub cp: usize,
    /// Its heads and columns.
    pub tp: usize,
}

/// Axis sizes that cannot be a mesh.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeshError {
    /// Not as many ranks as the axes' product.
    #[error("{world} ranks are not pp {} x dp {} x cp {} x tp {} = {}; start {}, or change an axis", sizes.pp, sizes.dp, sizes.cp, sizes.tp, sizes.ranks(), sizes.ranks())]
    World {
        /// Ranks there are.
        world: usize,
        /// The axes.
        sizes: Sizes,
    },
    /// Experts over something else than data ranks.
    #[error("ep {} does not divide dp {} x cp {} = {} data ranks; use a divisor of {}", sizes.ep, sizes.dp, sizes.cp, sizes.dp * sizes.cp, sizes.dp * sizes.cp)]
    Experts {
        /// The axes.
        sizes: Sizes,
    },
    /// State shared out over what is no group of data ranks.
    #[error("shards {shards} must divide dp {} x cp {} = {} data ranks, and be a multiple of ep {}", sizes.dp, sizes.cp, sizes.dp * sizes.cp, sizes.ep)]
    Shards {
        /// The axes.
        sizes: Sizes,
        /// Ranks over which state was to be shared out.
        shards: usize,
    },
    /// An axis of no rank.
    #[error("an axis of 0 ranks: pp {} dp {} cp {} tp {} ep {}; each is at least 1", sizes.pp, sizes.dp, sizes.cp, sizes.tp, sizes.ep)]
    Zero {
        /// The axes.
        sizes: Sizes,
    },
}

impl Sizes {
    /// One rank.
    pub const ONE: Self = Self { pp: 1, dp: 1, cp: 1, tp: 1, ep: 1 };

    /// Data parallelism alone.
    pub const fn data(dp: usize) -> Self {
        Self { dp, ..Self::ONE }
    }

    /// Ranks of the whole mesh.
    pub const fn ranks(&self) -> usize {
        self.pp * self.dp * self.cp * self.tp
    }

    /// Whether `world` ranks can be this mesh.
    ///
    /// # Errors
    /// What does not fit, with the numbers.
    pub fn check(&self, world: usize) -> Result<(), MeshError> {
        let sizes = *self;
        if [self.pp, self.dp, self.cp, self.tp, self.ep].contains(&0) {
            return Err(MeshError::Zero { sizes });
        }
        let product = [self.pp, self.dp, self.cp, self.tp].into_iter().try_fold(1usize, usize::checked_mul);
        if product != Some(world) {
            return Err(MeshError::World { world, sizes });
        }
        if !(self.dp * self.cp).is_multiple_of(self.ep) {
            return Err(MeshError::Experts { sizes });
        }
        Ok(())
    }

    /// Where a rank is.
    pub const fn place(&self, rank: usize) -> Place {
        let (rest, tp) = (rank / self.tp, rank % self.tp);
        let (rest, cp) = (rest / self.cp, rest % self.cp);
        Place { pp: rest / self.dp, dp: rest % self.dp, cp, tp }
    }

    /// Which rank is there.
    pub const fn rank(&self, place: Place) -> usize {
        ((place.pp * self.dp + place.dp) * self.cp + place.cp) * self.tp + place.tp
    }

    /// Its index among the data ranks of its stage.
    pub const fn data_rank(&self, place: Place) -> usize {
        place.dp * self.cp + place.cp
    }
}

/// The mesh as one rank sees it: where it is, and the groups it belongs to.
pub struct Mesh {
    sizes: Sizes,
    place: Place,
    /// Tensor-parallel ranks that share a key/value head.
    kv: usize,
    /// Groups of data ranks that each hold all state.
    replicas: usize,
    world: Arc<Communicator>,
    /// Groups that tensors are communicated over, by their axes.
    groups: Vec<(Axes, Arc<Communicator>)>,
    context: Arc<Communicator>,
    /// This rank's part of every sequence, where it has not all of it.
    sequence: Option<Context>,
}

impl Mesh {
    /// The mesh of all ranks of `world`; `kv` tensor-parallel ranks share each key/value head (1: none does).
    ///
    /// Collective over `world`.
    ///
    /// # Errors
    /// Sizes that are not those of `world`; a failed split.
    pub fn new(world: Arc<Communicator>, sizes: Sizes, kv: usize) -> Result<Self, crate::TrainError> {
        sizes.check(world.world())?;
        let place = sizes.place(world.rank());
        let mut mesh = Self {
            sizes,
            place,
            kv,
            replicas: 1,
            world,
            groups: Vec::new(),
            context: Arc::new(Communicator::alone()),
            sequence: None,
        };
        let Sizes { pp, dp, cp, tp, ep } = sizes;
        let data = sizes.data_rank(place);
        let edp = dp * cp / ep;
        let stage = place.pp * dp * cp * tp;
        // Each group: the axes, how many ranks it has, and a number that its ranks share and no others have.
        let same_stage_and_tp = stage + place.tp;
        let whole_data = Axes::TOKENS;
        let wanted = [
            (Axes::TENSOR, tp, stage + data * tp),
            (Axes::of(&[Axis::Kv]), kv, stage + data * tp + place.tp / kv * kv),
            (whole_data, dp * cp, same_stage_and_tp),
            (Axes::SAME_EXPERTS, edp, same_stage_and_tp + data % ep * tp),
            (Axes::of(&[Axis::Ep]), ep, same_stage_and_tp + data / ep * ep * tp),
        ];
        for (axes, size, color) in wanted {
            let group = mesh.split(size, Some(color))?;
            mesh.groups.push((axes, group));
        }
        mesh.context = mesh.split(cp, Some(stage + place.dp * cp * tp + place.tp))?;
        let opposite = pp - 1 - place.pp;
        let pair = place.pp.min(opposite) * dp * cp * tp + data * tp + place.tp;
        let pairs = mesh.split(pp.min(2), (place.pp != opposite).then_some(pair))?;
        mesh.groups.push((Axes::of(&[Axis::Pp]), pairs));
        Ok(mesh)
    }

    /// Data parallelism alone.
    ///
    /// # Errors
    /// A failed split.
    pub fn data(world: Arc<Communicator>) -> Result<Self, crate::TrainError> {
        let sizes = Sizes::data(world.world());
        Self::new(world, sizes, 1)
    }

    /// A mesh of one rank, which talks to nobody.
    ///
    /// # Errors
    /// None that a caller could cause.
    pub fn alone() -> Result<Self, crate::TrainError> {
        Self::new(Arc::new(Communicator::alone()), Sizes::ONE, 1)
    }

    /// The same mesh, whose data ranks share out state over groups of `shards` neighbours (HSDP where there are several).
    ///
    /// Collective over the world.
    ///
    /// # Errors
    /// [`MeshError::Shards`]; a failed split.
    pub fn sharded(mut self, shards: usize) -> Result<Self, crate::TrainError> {
        let Sizes { dp, cp, tp, ep, .. } = self.sizes;
        if shards == 0 || !(dp * cp).is_multiple_of(shards) || !shards.is_multiple_of(ep) {
            return Err(MeshError::Shards { sizes: self.sizes, shards }.into());
        }
        if shards == dp * cp {
            return Ok(self);
        }
        self.replicas = dp * cp / shards;
        let data = self.sizes.data_rank(self.place);
        let (replica, of_stage) = (data / shards, self.place.pp * dp * cp * tp + self.place.tp);
        let wanted = [
            (Axes::of(&[Axis::Replica]), self.replicas, of_stage + data % shards * tp),
            (Axes::SHARDS, shards, of_stage + replica * shards * tp),
            (Axes::of(&[Axis::Data]), shards / ep, of_stage + (replica * shards + data % ep) * tp),
        ];
        for (axes, size, color) in wanted {
            let group = self.split(size, Some(color))?;
            self.groups.push((axes, group));
        }
        Ok(self)
    }

    /// A group of `size` ranks, all of which give the same `color`; groups of one need no communicator of their own.
    fn split(&self, size: usize, color: Option<usize>) -> Result<Arc<Communicator>, CommError> {
        if size == 1 {
            return Ok(Arc::new(Communicator::alone()));
        }
        let group = self.world.split(color.map(|color| color as u32), self.world.rank() as i64)?;
        Ok(Arc::new(group.unwrap_or_else(Communicator::alone)))
    }

    /// Ranks of each axis.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Where this rank is.
    pub fn place(&self) -> Place {
        self.place
    }

    /// All ranks.
    pub fn world(&self) -> &Arc<Communicator> {
        &self.world
    }

    /// The ranks that have the other parts of this rank's sequences.
    pub fn context(&self) -> &Arc<Communicator> {
        &self.context
    }

    /// Shares sequences of `tokens` tokens out over the context-parallel ranks, where there are several; what that needs is
    /// entered in `account`.
    ///
    /// # Errors
    /// No memory.
    pub fn share_sequences(
        &mut self,
        device: &warpweft_device::Device,
        account: &Account,
        (method, tokens): (Method, usize),
    ) -> Result<(), crate::TrainError> {
        self.sequence = match self.sizes.cp {
            1 => None,
            _ => Some(Context::new(device, self.context.clone(), method, tokens)?.entered_in(account)),
        };
        Ok(())
    }

    /// This rank's part of every sequence, where it has not all of it.
    pub fn sequence(&self) -> Option<&Context> {
        self.sequence.as_ref()
    }

    /// The places of this rank's tokens in a sequence of `tokens` tokens.
    pub fn places(&self, tokens: usize) -> Vec<u32> {
        self.sequence.as_ref().map_or_else(|| (0..tokens as u32).collect(), Context::positions)
    }

    /// Ranks along one axis of layouts, as this rank sees them. Along [`Axis::Pp`] these are a stage and the one opposite: the
    /// ends of the pipeline, which may share an embedding, and so on inwards, where the model is there twice.
    pub fn size(&self, axis: Axis) -> usize {
        let Sizes { dp, cp, tp, ep, .. } = self.sizes;
        match axis {
            Axis::Pp => self.group_of(Axes::of(&[Axis::Pp])).map_or(1, |group| group.world()),
            Axis::Replica => self.replicas,
            Axis::Data => dp * cp / ep / self.replicas,
            Axis::Ep => ep,
            Axis::Tp => tp / self.kv,
            Axis::Kv => self.kv,
        }
    }

    /// This rank's index along one axis of layouts; on [`Axis::Pp`] that of the stage in its pair of opposite ones.
    pub fn index(&self, axis: Axis) -> usize {
        let Sizes { pp, ep, .. } = self.sizes;
        let data = self.sizes.data_rank(self.place);
        match axis {
            Axis::Pp => usize::from(self.place.pp > pp - 1 - self.place.pp),
            Axis::Replica => data / ep / self.size(Axis::Data),
            Axis::Data => data / ep % self.size(Axis::Data),
            Axis::Ep => data % ep,
            Axis::Tp => self.place.tp / self.kv,
            Axis::Kv => self.place.tp % self.kv,
        }
    }

    /// The groups over which a tensor is communicated along `axes`, one after the other: the ranks with other tokens, the
    /// tensor-parallel ones, the two ends of the pipeline; those of one rank are left out.
    ///
    /// # Errors
    /// [`crate::TrainError::NoGroup`] for axes that no tensor is communicated over.
    pub fn groups(&self, axes: Axes) -> Result<Vec<&Arc<Communicator>>, crate::TrainError> {
        let wide = |axes: Axes| axes.iter().filter(|axis| self.size(*axis) > 1).fold(Axes::NONE, Axes::with);
        let mut groups = Vec::new();
        for part in [Axes::TOKENS, Axes::TENSOR, Axes::of(&[Axis::Pp])] {
            let wanted = wide(axes.and(part));
            if wanted.is_empty() {
                continue;
            }
            // Several may have the same ranks; the one that is asked for by name has traffic of its own.
            let named = self.groups.iter().find(|(group, _)| *group == axes.and(part));
            let found = named.or_else(|| self.groups.iter().find(|(axes, _)| wide(*axes) == wanted));
            groups.push(found.map(|(_, group)| group).ok_or(crate::TrainError::NoGroup { axes: wanted })?);
        }
        Ok(groups)
    }

    fn group_of(&self, exactly: Axes) -> Option<&Arc<Communicator>> {
        self.groups.iter().find(|(axes, _)| *axes == exactly).map(|(_, group)| group)
    }

    /// Bytes that this rank has sent to others of its groups.
    pub fn traffic(&self) -> Traffic {
        let mut traffic =
            Traffic { context: self.context.sent_bytes(), world: self.world.sent_bytes(), ..Traffic::default() };
        for (axes, group) in &self.groups {
            let kind = match axes.iter().next() {
                Some(Axis::Pp) => &mut traffic.pipeline,
                Some(Axis::Tp | Axis::Kv) => &mut traffic.tensor,
                Some(Axis::Ep) => &mut traffic.experts,
                Some(Axis::Replica | Axis::Data) | None => &mut traffic.data,
            };
            *kind += group.sent_bytes();
        }
        traffic
    }

    /// Time in which this rank has waited for others of its groups, pipeline messages not among them.
    pub fn waited(&self) -> Duration {
        let groups = self.groups.iter().map(|(_, group)| group).chain([&self.context, &self.world]);
        groups.map(|group| group.waited()).sum()
    }

    /// Bytes that the communicators of all groups hold.
    pub fn buffer_bytes(&self) -> usize {
        let groups = self.groups.iter().map(|(_, group)| group).chain([&self.context, &self.world]);
        groups.map(|group| group.buffer_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tp_is_fastest_and_pp_slowest() {
        let sizes = Sizes { pp: 2, dp: 3, cp: 2, tp: 4, ep: 2 };
        assert_eq!(sizes.check(48), Ok(()));
        assert_eq!(sizes.place(0), Place { pp: 0, dp: 0, cp: 0, tp: 0 });
        assert_eq!(sizes.place(5), Place { pp: 0, dp: 0, cp: 1, tp: 1 });
        assert_eq!(sizes.place(47), Place { pp: 1, dp: 2, cp: 1, tp: 3 });
        for rank in 0..48 {
            assert_eq!(sizes.rank(sizes.place(rank)), rank);
        }
    }

    #[test]
    fn what_is_no_mesh_is_said_with_the_numbers() {
        let sizes = Sizes { pp: 2, dp: 2, cp: 1, tp: 2, ep: 1 };
        let error = sizes.check(6).unwrap_err().to_string();
        assert_eq!(error, "6 ranks are not pp 2 x dp 2 x cp 1 x tp 2 = 8; start 8, or change an axis");
        let error = Sizes { ep: 3, ..sizes }.check(8).unwrap_err().to_string();
        assert_eq!(error, "ep 3 does not divide dp 2 x cp 1 = 2 data ranks; use a divisor of 2");
        assert!(matches!(Sizes { tp: 0, ..sizes }.check(0), Err(MeshError::Zero { .. })));
    }
}
