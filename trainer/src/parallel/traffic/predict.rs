//! What all ranks together send in a step, from the sizes alone: the formulas of the parallelisms, in one place.
//!
//! Payload only, as the communicators choose where nobody overrides them. P elements of a unit on N data ranks, s bytes a
//! weight: DP 2 (N - 1) P 4; ZeRO's stages 1 and 2 (N - 1) P (4 r + s), r being 1, or at stage 2 the passes of a step;
//! stage 3 (N - 1) P (4 r + g s) with g gathers, which are counted by going through a rank's list: a unit that is still
//! whole from its last use (the head between its forward and its backward pass) is not gathered again. Everything else is a
//! count of what passes of M rows do. How many rows go to which experts is known only when they have been chosen: what is
//! predicted is even use.

use warpweft_comm::all_reduce_bytes;
use warpweft_device::DType;
use warpweft_schedule::{Kind, Schedule};

use super::Traffic;
use crate::TrainError;
use crate::model::{Chunk, Layer, Model, ModelShape, MoeShape, Recompute, Spread, Unit};
use crate::parallel::context;
use crate::parallel::exact::{LIMBS_BYTES, nodes_of};
use crate::parallel::layout::{Axes, Axis, Placement};
use crate::parallel::mesh::{Place, Sizes};
use crate::parallel::share;
use crate::parallel::zero::Zero;
use crate::recipe::Recipe;

const F32: usize = size_of::<f32>();
/// What the ranks tell each other of a row's loss: three f64.
const LOSS: usize = warpweft_kernels::cross_entropy::PARTS * size_of::<f64>();

/// What all ranks of a mesh send in one step, the gathers of new weights included.
///
/// # Errors
/// Sizes that do not fit together.
pub fn predict(shape: &ModelShape, recipe: &Recipe, sizes: Sizes, dtype: DType) -> Result<Traffic, TrainError> {
    let schedule = recipe.passes(sizes)?;
    let mut sent = Traffic { world: world(shape, recipe, sizes), ..Traffic::default() };
    for place in (0..sizes.ranks()).map(|rank| sizes.place(rank)) {
        let spread = Spread::over(shape, (sizes, place), recipe.sequence_parallel, schedule.placement())?;
        let model = Model::new(*shape, spread)?;
        let rank = Rank { model: &model, schedule: &schedule, recipe, sizes, place, element: dtype.bytes() };
        rank.units(&mut sent);
        rank.passes(&mut sent);
    }
    Ok(sent)
}

/// The sums of losses, targets, squares and what routers did.
fn world(shape: &ModelShape, recipe: &Recipe, sizes: Sizes) -> u64 {
    let ranks = sizes.ranks();
    let routers = shape.moe.map_or(0, |moe| 2 + shape.layers * moe.experts);
    let margin = if shape.moe.is_some() { all_reduce_bytes(ranks, F32) } else { 0 };
    let squares = if recipe.exact { all_reduce_bytes(ranks, LIMBS_BYTES) } else { 0 };
    all_reduce_bytes(ranks, (3 + routers) * size_of::<f64>()) + margin + squares
}

/// One rank. What a group sends is counted on its first rank.
struct Rank<'a> {
    model: &'a Model,
    schedule: &'a Schedule,
    recipe: &'a Recipe,
    sizes: Sizes,
    place: Place,
    /// Bytes of a weight, and of an activation.
    element: usize,
}

/// A micro-batch of this rank.
#[derive(Clone, Copy)]
struct Micro {
    sequences: usize,
    /// Rows inside a region, and of the residual stream on this rank.
    rows: usize,
    stream_rows: usize,
}

impl Rank<'_> {
    fn micro_batches(&self) -> usize {
        self.recipe.micro_batches(self.sizes, self.recipe.batch)
    }

    fn micro(&self, index: usize) -> Micro {
        let (Recipe { micro_batch, tokens, batch, .. }, Sizes { dp, cp, tp, .. }) = (*self.recipe, self.sizes);
        let mine = share(batch, dp, self.place.dp).len();
        let sequences = mine.saturating_sub(index * micro_batch).min(micro_batch);
        let rows = sequences * self.recipe.context.cut().tokens(tokens, cp, self.place.cp);
        let stream_rows = if self.recipe.sequence_parallel { share(rows, tp, self.place.tp).len() } else { rows };
        Micro { sequences, rows, stream_rows }
    }

    /// Gradients, and weights where they are shared out.
    fn units(&self, sent: &mut Traffic) {
        let copies = self.schedule.placement().copies();
        let of_copy = |copy| (0..self.micro_batches()).filter(|micro_batch| micro_batch % copies == copy).count();
        let (passes, gathers) = (self.model.passes(of_copy), self.gathers());
        for (id, unit) in self.model.table().units_here() {
            let times = if self.recipe.zero.stage >= 2 { passes[id.0] } else { 1 };
            if self.recipe.exact {
                self.exact(unit, sent);
            } else {
                self.gradient(unit, times, sent);
            }
            self.weights(unit, gathers[id.0], sent);
        }
    }

    /// Ranks that share a unit's state out, groups of them, and whether this is the first of all.
    fn shards(&self, unit: &Unit) -> (usize, usize, bool) {
        let (Sizes { dp, cp, ep, .. }, Zero { stage, shards }) = (self.sizes, self.recipe.zero);
        let ep = if unit.copies.has(Axis::Ep) { 1 } else { ep };
        let (all, first) = (dp * cp / ep, self.sizes.data_rank(self.place) / ep == 0);
        let shards = if stage == 0 { 1 } else { shards.unwrap_or(dp * cp) / ep };
        (shards, all / shards, first)
    }

    fn gradient(&self, unit: &Unit, times: usize, sent: &mut Traffic) {
        let (bytes, (shards, replicas, first)) = (F32 * unit.elements, self.shards(unit));
        for (ranks, elements, leads) in self.tensor_sums(unit) {
            sent.tensor += if leads { times as u64 * all_reduce_bytes(ranks, F32 * elements) } else { 0 };
        }
        if first {
            sent.data += (times * replicas * (shards - 1) * bytes) as u64;
            let parts = (0..shards).map(|rank| share(unit.elements, shards, rank).len());
            sent.data += parts.map(|part| all_reduce_bytes(replicas, F32 * part)).sum::<u64>();
        }
        let mine = share(unit.elements, shards, self.sizes.data_rank(self.place) % shards).len();
        sent.pipeline += self.ends(unit, F32 * mine);
    }

    /// Sums over tensor-parallel ranks: of how many, how many elements, and whether this is the first of them.
    fn tensor_sums(&self, unit: &Unit) -> Vec<(usize, usize, bool)> {
        let (tp, kv) = (self.sizes.tp, self.model.spread().kv);
        let mut by_axes: Vec<(Axes, usize)> = Vec::new();
        for parameter in unit.ids().map(|id| self.model.table().get(id)) {
            let over = parameter.local_gradient().axes(|p| p == Placement::Partial).and(Axes::TENSOR);
            match by_axes.iter_mut().find(|(axes, _)| *axes == over) {
                Some((_, elements)) => *elements += parameter.len(),
                None => by_axes.push((over, parameter.len())),
            }
        }
        let group = |(axes, elements): (Axes, usize)| {
            let ranks = if axes.has(Axis::Tp) { tp } else { kv };
            let over = (!axes.is_empty()).then_some((ranks, elements, self.place.tp.is_multiple_of(ranks)));
            over.filter(|(ranks, _, _)| *ranks > 1)
        };
        by_axes.into_iter().filter_map(group).collect()
    }

    /// The sum over two stages that both hold a unit.
    fn ends(&self, unit: &Unit, bytes: usize) -> u64 {
        let opposite = self.sizes.pp - 1 - self.place.pp;
        let on_both = unit.ids().next().is_some_and(|id| self.model.table().get(id).is_on_opposite_stages());
        if on_both && self.place.pp < opposite { all_reduce_bytes(2, bytes) } else { 0 }
    }

    /// A gradient whose sum is exact: the nodes of each rank's tree for the parts of all others, and the parts gathered.
    fn exact(&self, unit: &Unit, sent: &mut Traffic) {
        let Sizes { dp, cp, .. } = self.sizes;
        let ranks = dp * cp;
        let samples = self.recipe.batch;
        let trees = if unit.ids().any(|id| self.model.table().get(id).uses > 1) { 2 } else { 1 };
        let nodes = nodes_of(samples, share(samples, ranks, self.sizes.data_rank(self.place))).len();
        let mine = share(unit.elements, ranks, self.sizes.data_rank(self.place)).len();
        let exchanged = trees * nodes * (unit.elements - mine);
        let gathered = (ranks - 1) * mine;
        sent.data += (F32 * (exchanged + gathered)) as u64;
        sent.pipeline += self.ends(unit, F32 * unit.elements);
    }

    fn weights(&self, unit: &Unit, gathers: usize, sent: &mut Traffic) {
        let (shards, replicas, first) = self.shards(unit);
        let times = match self.recipe.zero.stage {
            3 => gathers,
            _ => 1,
        };
        if first {
            sent.data += (times * replicas * (shards - 1) * unit.elements * self.element) as u64;
        }
    }

    /// How often each unit is gathered where weights are shared out: when it is needed and not whole.
    fn gathers(&self) -> Vec<usize> {
        let units = self.model.table().units().len();
        let (mut whole, mut gathers) = (vec![false; units], vec![0; units]);
        let mut need = |layer: Layer, stays: bool| {
            for unit in self.model.units_of(layer) {
                gathers[unit.0] += usize::from(!whole[unit.0]);
                whole[unit.0] = stays;
            }
        };
        let again = self.recipe.recompute == Recompute::Selective;
        for operation in self.schedule.computations(self.place.pp) {
            let chunk = &self.model.spread().chunks[operation.chunk];
            match operation.kind {
                Kind::F => {
                    if chunk.embeds {
                        need(Layer::Embedding, false);
                    }
                    chunk.blocks.clone().for_each(|block| need(Layer::Block(block), false));
                    if chunk.ends {
                        need(Layer::Head, true);
                    }
                }
                Kind::B | Kind::BW => {
                    if chunk.ends {
                        need(Layer::Head, false);
                    }
                    chunk.blocks.clone().rev().for_each(|block| need(Layer::Block(block), false));
                }
                Kind::W if again => chunk.blocks.clone().rev().for_each(|block| need(Layer::Block(block), false)),
                Kind::W => {}
            }
        }
        gathers
    }

    /// What passes send.
    fn passes(&self, sent: &mut Traffic) {
        let placement = self.schedule.placement();
        for (index, chunk) in self.model.spread().chunks.iter().enumerate().filter(|(_, chunk)| chunk.here) {
            let goes_on = placement.after(index).is_some_and(|after| placement.place(after) != self.place.pp);
            for micro in (0..self.micro_batches()).filter(|m| placement.carries(index, *m)).map(|m| self.micro(m)) {
                let message = micro.stream_rows * self.model.shape().channels * self.element;
                sent.pipeline += if goes_on { 2 * message as u64 } else { 0 };
                self.tensor(chunk, micro, sent);
                self.context(chunk, micro, sent);
                self.experts(chunk, micro, sent);
            }
        }
    }

    /// Passes through a block's attention and experts: one, or two where a backward pass computes them again.
    fn forwards(&self) -> usize {
        if self.recipe.recompute == Recompute::Full { 2 } else { 1 }
    }

    /// What enters and leaves regions.
    fn tensor(&self, chunk: &Chunk, Micro { rows, .. }: Micro, sent: &mut Traffic) {
        let tp = self.sizes.tp;
        if tp == 1 || self.place.tp > 0 {
            return;
        }
        let (ends, embeds) = (usize::from(chunk.ends), usize::from(chunk.embeds));
        let (bytes, again) = (rows * self.model.shape().channels * self.element, self.forwards() - 1);
        sent.tensor += match self.recipe.sequence_parallel {
            true => ((chunk.blocks.len() * (10 + 3 * again) + 3 * ends + 2 * embeds) * (tp - 1) * bytes) as u64,
            false => (chunk.blocks.len() * (4 + again) + ends + embeds) as u64 * all_reduce_bytes(tp, bytes),
        };
        sent.tensor += (ends * tp * (tp - 1) * rows * LOSS) as u64;
    }

    /// What attention over parts of sequences sends, and what experts need of whole ones.
    fn context(&self, chunk: &Chunk, Micro { sequences, .. }: Micro, sent: &mut Traffic) {
        let (Sizes { cp, .. }, shape, spread) = (self.sizes, self.model.shape(), self.model.spread());
        if cp == 1 || self.place.cp > 0 {
            return;
        }
        let (Recipe { tokens, context: method, .. }, forwards) = (*self.recipe, self.forwards() as u64);
        let (heads, kv_heads) = (spread.tp.share(shape.heads).len(), spread.kv_heads(shape).len());
        let of = context::Sizes {
            batch: sequences,
            heads,
            kv_heads,
            head_size: shape.head_size(),
            options: Default::default(),
            documents: &[],
        };
        let [way, back] = context::sent_bytes(method, cp, tokens, &of, self.element);
        let mut bytes = forwards * way + back;
        if let Some(MoeShape { experts, top_k, balance, capacity, .. }) = shape.moe {
            let sums = all_reduce_bytes(cp, sequences * 2 * experts * size_of::<f64>());
            bytes += if balance > 0.0 { forwards * sums } else { 0 };
            let choices = ((cp - 1) * sequences * tokens * top_k * size_of::<u32>()) as u64;
            bytes += if capacity.is_some() { forwards * choices } else { 0 };
        }
        sent.context += chunk.blocks.len() as u64 * bytes;
    }

    /// Counts and rows to experts of other ranks, as many as even use sends.
    fn experts(&self, chunk: &Chunk, Micro { rows, .. }: Micro, sent: &mut Traffic) {
        let (Some(MoeShape { experts, top_k, .. }), Sizes { ep, .. }) = (self.model.shape().moe, self.sizes) else {
            return;
        };
        if ep == 1 {
            return;
        }
        let elsewhere = experts - self.model.spread().ep.share(experts).len();
        let rows = rows as f64 * top_k as f64 * elsewhere as f64 / experts as f64;
        let row = (self.model.shape().channels * self.element) as f64;
        let (forwards, counts) = (self.forwards() as f64, (elsewhere * size_of::<u32>()) as f64);
        let each = forwards * counts + (2.0 * forwards + 2.0) * rows * row;
        sent.experts += (chunk.blocks.len() as f64 * each).round() as u64;
    }
}
