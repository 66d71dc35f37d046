//! What a trainer does besides steps: held-out losses, logits to draw samples from, the digest of its state.

use warpweft_comm::Op;
use warpweft_device::Float;

use crate::TrainError;
use crate::model::IGNORE;
use crate::parallel::digest;
use crate::parallel::layout::Axes;
use crate::parallel::mesh::Sizes;
use crate::parallel::share;
use crate::step::{Go, Packed, Sequences, Trainer};

impl<T: Float> Trainer<T> {
    /// Mean loss over `count` sequences that the ranks share out among them; nothing is learnt from them.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn evaluate<'a>(&mut self, sequences: impl Into<Packed<'a>>, count: usize) -> Result<f64, TrainError> {
        let packed = sequences.into();
        self.check(packed)?;
        self.besides(|trainer| {
            let micro_batches = trainer.recipe.micro_batches(trainer.mesh.sizes(), count);
            let walked = trainer.walk(packed, Go::Forward { micro_batches }, None)?;
            let [loss, tokens] = trainer.total(walked.sums)?;
            Ok(loss / tokens.max(1.0))
        })
    }

    /// The logits of the last of `tokens` (at most the context) as f32, for sampling.
    ///
    /// # Errors
    /// A token outside the vocabulary; more tokens than the context.
    pub fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, TrainError> {
        // Parts of a sequence are those of a whole one; what stands behind a token does not reach it.
        let whole = self.mesh.sequence().map_or(tokens.len(), |_| self.recipe.tokens);
        let mut inputs = tokens.to_vec();
        inputs.resize(whole, 0);
        let ignored = vec![IGNORE; whole];
        self.besides(|trainer| {
            let usual = std::mem::replace(&mut trainer.recipe.tokens, whole);
            let sequences = Sequences { inputs: &inputs, targets: &ignored };
            let done = trainer.walk(sequences.into(), Go::Forward { micro_batches: 1 }, None);
            trainer.recipe.tokens = usual;
            done?;
            let places = trainer.mesh.places(whole);
            trainer.logits_of(places.iter().position(|place| *place as usize + 1 == tokens.len()))
        })
    }

    /// The logits of a row of the pass just done, which one of the context-parallel ranks has: of the whole vocabulary, on
    /// every rank.
    fn logits_of(&self, row: Option<usize>) -> Result<Vec<f32>, TrainError> {
        let (vocab, Sizes { pp, dp, cp, tp, .. }) = (self.model.shape().vocab, self.mesh.sizes());
        let mut all = vec![0.0; vocab];
        if let (Some(slot), Some(row)) = (self.pipeline.ended(&self.model), row) {
            let counts: Vec<usize> = (0..tp).map(|index| share(vocab, tp, index).len()).collect();
            let own = counts[self.mesh.place().tp];
            let logits = slot.logits().ok_or(TrainError::NotHere { unit: 0 })?;
            let last = logits.slice(row * own..(row + 1) * own)?.download(&self.stream)?;
            let last: Vec<f32> = last.into_iter().map(T::to_f32).collect();
            match self.mesh.groups(Axes::TENSOR)?.first() {
                Some(group) => group.all_gather_v(&last, &mut all, &counts)?,
                None => all = last,
            }
        }
        if self.mesh.sequence().is_some() {
            self.mesh.context().all_reduce(&mut all, Op::Sum)?;
        }
        if pp > 1 {
            let chunks = &self.model.spread().chunks;
            let stage = chunks.iter().find(|chunk| chunk.ends).map_or(0, |chunk| chunk.stage);
            self.mesh.world().broadcast(&mut all[..], stage * dp * cp * tp)?;
        }
        Ok(all)
    }

    /// Does what is no step: what it sends is not counted among what steps send, and what it gathered is given up.
    fn besides<R: Send>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<R, TrainError> + Send,
    ) -> Result<R, TrainError> {
        self.settle()?;
        let before = self.traffic();
        let done = self.on_pool(work);
        self.weights.give_up()?;
        self.besides = self.besides + (self.traffic() - before);
        done
    }

    /// The SHA-256 of all weights and all state of the optimizer, of the whole tensors in a fixed order, which is the same
    /// at every layout where the numbers are ([`Recipe::exact`](crate::step::Recipe::exact)). Collective over all ranks.
    ///
    /// # Errors
    /// A peer that died.
    pub fn state_sha256(&mut self) -> Result<String, TrainError> {
        self.besides(|trainer| {
            let Self { model, mesh, plan, sharding, weights, optimizer, .. } = &*trainer;
            digest::State { table: model.table(), mesh, plan, sharding, weights, optimizer }.sha256()
        })
    }
}
