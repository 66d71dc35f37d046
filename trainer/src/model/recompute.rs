//! Activation recomputation: what of a block's activations waits for its backward pass, and what is computed again.
//!
//! [`Recompute::Selective`] gives up what is large and takes no product to have again: both normed inputs and what the
//! activation gives (Korthikanti et al. 2022, arXiv 2205.05198, give up the inside of attention, which with online softmax
//! nobody keeps). [`Recompute::Full`] gives up all but a block's input (Chen et al. 2016, arXiv 1604.06174), and goes forward
//! through the block again before its backward pass, up to what nobody needs: the last product of the MLP and its sum.
//!
//! What is given up lies in memory that all passes of a rank use in turn. The kernels give the same bits for the same
//! numbers, so that all three train the same bits.

use serde::{Deserialize, Serialize};
use warpweft_device::Float;

use crate::TrainError;
use crate::memory::Allocator;
use crate::model::block::{Block, BlockKept, Cheap};
use crate::model::chunk::Room;

/// What of a block's activations is computed again in its backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing.
    #[default]
    None,
    /// What is large and takes no product.
    Selective,
    /// All but the block's input.
    Full,
}

impl Recompute {
    /// All, by the names that settings have.
    pub const ALL: [(&'static str, Self); 3] =
        [("none", Self::None), ("selective", Self::Selective), ("full", Self::Full)];
}

/// The memory of a rank for what its passes do not keep.
pub(super) struct Again<T> {
    mode: Recompute,
    /// With [`Recompute::Selective`]: what each block in turn computes again.
    cheap: Cheap<T>,
    /// With [`Recompute::Full`]: for the block at work, and for blocks whose weights wait for their gradients.
    free: Vec<BlockKept<T>>,
}

impl<T: Float> Again<T> {
    /// Memory for blocks like this one, `sets` of which may be at work or wait for the gradients of their weights.
    pub(super) fn new(
        block: &Block,
        (mode, sets): (Recompute, usize),
        room: Room,
        allocator: &mut Allocator<'_>,
    ) -> Result<Self, TrainError> {
        let sets = if mode == Recompute::Full { sets } else { 0 };
        let room_if = |wanted: bool| if wanted { room } else { Room::NONE };
        Ok(Self {
            mode,
            cheap: block.cheap(room_if(mode == Recompute::Selective), allocator)?,
            free: (0..sets).map(|_| block.kept(room, room, allocator)).collect::<Result<_, _>>()?,
        })
    }

    /// What is computed again.
    pub(super) fn mode(&self) -> Recompute {
        self.mode
    }

    /// Memory that a pass keeps for itself from forward to backward, for one block; none where all is given up.
    pub(super) fn kept(
        block: &Block,
        mode: Recompute,
        room: Room,
        allocator: &mut Allocator<'_>,
    ) -> Result<Option<BlockKept<T>>, TrainError> {
        match mode {
            Recompute::None => block.kept(room, room, allocator).map(Some),
            Recompute::Selective => block.kept(room, Room::NONE, allocator).map(Some),
            Recompute::Full => Ok(None),
        }
    }

    /// All that a block works with, from what its pass keeps.
    ///
    /// # Errors
    /// More blocks at once than there is memory for.
    pub(super) fn take(&mut self, kept: &mut Option<BlockKept<T>>) -> Result<BlockKept<T>, TrainError> {
        let mut whole = kept.take().or_else(|| self.free.pop()).ok_or(TrainError::NoRoom)?;
        self.lend(&mut whole);
        Ok(whole)
    }

    /// Ends a forward pass, or all of a backward pass, over a block: its pass keeps what it has to.
    pub(super) fn done(&mut self, mut whole: BlockKept<T>, kept: &mut Option<BlockKept<T>>) {
        match self.mode {
            Recompute::Full => {
                whole.forget();
                self.free.push(whole);
            }
            Recompute::None | Recompute::Selective => self.wait(whole, kept),
        }
    }

    /// Ends a backward pass over a block whose weights get their gradients later.
    pub(super) fn wait(&mut self, mut whole: BlockKept<T>, kept: &mut Option<BlockKept<T>>) {
        self.lend(&mut whole);
        *kept = Some(whole);
    }

    /// Lends the memory of what is cheap to a block, or takes it back.
    fn lend(&mut self, to: &mut BlockKept<T>) {
        if self.mode == Recompute::Selective {
            std::mem::swap(&mut self.cheap, to.cheap_mut());
        }
    }
}
