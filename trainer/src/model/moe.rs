//! A mixture of experts beside the MLP of a block: a router sends each token to some of many small MLPs.
//!
//! The block's own MLP is the expert that all tokens share (DeepSeekMoE, arXiv 2401.06066), of any width, 0 too. Each rank of
//! the expert-parallel group has some of the experts, each tensor-parallel rank some columns of every expert. All is part of
//! the MLP's region: what comes out, and every error that goes back, is a summand over the tensor-parallel ranks.

use std::sync::Arc;

use warpweft_comm::{Communicator, Op};
use warpweft_device::{Buffer, Float, Stream, View, ViewMut};
use warpweft_kernels::Write;
use warpweft_kernels::matmul::{self, Activation, Epilogue};
use warpweft_kernels::moe::balance::{self, Sequences};
use warpweft_kernels::moe::dispatch::{self, Rows};
use warpweft_kernels::moe::router::{self, Margin, Options, Score};
use warpweft_kernels::moe::{self, grouped};

use crate::TrainError;
use crate::model::pass::Pass;
use crate::model::portion::Portion;
use crate::model::routing::Routed;
use crate::model::shape::{ModelShape, MoeShape};
use crate::model::spread::Spread;
use crate::model::table::{Entry, Init, Table, TensorId};
use crate::parallel::context::Context;
use crate::parallel::exact::fixed_point;
use crate::parallel::expert::Exchange;
use crate::parallel::gradients::Gradients;
use crate::parallel::layout::{Axes, Axis, Layout, Placement};

/// The router and this rank's experts, its columns of each.
#[derive(Clone, Debug)]
pub struct Moe {
    router: TensorId,
    up: TensorId,
    down: TensorId,
    of: MoeShape,
    channels: usize,
    /// Columns of each expert that this rank has.
    hidden: usize,
    activation: Activation,
    /// The block's.
    index: usize,
}

/// What a forward pass keeps, made by it: how many rows come to a rank's experts is known only then.
pub struct MoeKept<T> {
    scores: Buffer<f32>,
    experts: Buffer<u32>,
    weights: Buffer<f32>,
    order: Buffer<u32>,
    places: Buffer<u32>,
    /// Of each whole sequence, for the auxiliary loss: how often each expert was chosen, and its shares of the scores.
    sums: Buffer<f64>,
    /// How near a choice came to be another one.
    pub margin: Margin,
    /// Assignments of this rank that were over an expert's capacity.
    pub dropped: usize,
    exchange: Exchange,
    /// By expert: what goes in, before and after the activation.
    rows: Buffer<T>,
    pre: Buffer<T>,
    activated: Buffer<T>,
    /// What the experts made of this rank's rows.
    made: Buffer<T>,
}

/// What the backward pass to the input leaves for the one to the weights.
pub struct MoeErrors<T> {
    logits: Buffer<T>,
    pre: Buffer<T>,
    out: Buffer<T>,
}

impl Moe {
    /// The mixture of block `index`; enters the router in the unit begun last, and begins one for the experts.
    pub(super) fn new(
        table: &mut Table,
        (model, of): (&ModelShape, MoeShape),
        spread: &Spread,
        (index, name): (usize, &str),
        (activation, [plain, small]): (Activation, [f64; 2]),
    ) -> Self {
        let (channels, units) = (model.channels, spread.tp.share(of.hidden));
        let [router] = table.group([Entry {
            // What each adds to the error of a weight is for its columns of the experts.
            seen_in_part: Axes::TENSOR,
            ..Entry::replicated(format!("{name}.gate.weight"), vec![of.experts, channels], Init::Normal(plain))
        }]);
        table.begin_unit(format!("experts {index}"), spread.has_block(index), Axes::SAME_EXPERTS);
        let mut columns = vec![units.clone()];
        if activation == Activation::SwiGlu {
            columns.push(of.hidden + units.start..of.hidden + units.end);
        }
        let mut expert = |kind: &str, shape: [usize; 3], along: u8, held, deviation| {
            let shape = [of.experts, shape[1], shape[2]].to_vec();
            let experts = vec![spread.ep.share(of.experts)];
            let layout = Layout::REPLICATED.with(Axes::of(&[Axis::Ep]), Placement::Sharded(0));
            let [id] = table.group([Entry {
                portion: Portion::whole(&shape).only(0, experts).only(usize::from(along), held),
                layout: layout.with(Axes::TENSOR, Placement::Sharded(along)),
                ..Entry::replicated(format!("{name}.experts.{kind}.weight"), shape, Init::Normal(deviation))
            }]);
            id
        };
        let outputs = if activation == Activation::SwiGlu { 2 * of.hidden } else { of.hidden };
        let up = expert("up", [0, outputs, channels], 1, columns, plain);
        let down = expert("down", [0, channels, of.hidden], 2, vec![units.clone()], small);
        Self { router, up, down, of, channels, hidden: units.len(), activation, index }
    }

    fn group<'a, T>(&self, pass: &Pass<'a, T>) -> Result<Option<&'a Arc<Communicator>>, TrainError> {
        Ok(pass.mesh.groups(Axes::of(&[Axis::Ep]))?.first().copied())
    }

    fn options(&self) -> Options {
        let score = if self.of.sigmoid { Score::Sigmoid } else { Score::Softmax };
        Options { score, normalize: self.of.normalize, scale: 1.0 }
    }

    fn routing(&self, rows: usize) -> moe::Shape {
        moe::Shape { rows, experts: self.of.experts, top_k: self.of.top_k }
    }

    /// The sequences of a pass, wherever their tokens are.
    fn sequences<T>(&self, pass: &Pass<'_, T>) -> Sequences {
        let tokens = pass.mesh.sequence().map_or(pass.tokens, Context::tokens);
        Sequences { shape: self.routing(pass.rows()), sequences: pass.batch, tokens }
    }

    /// What the auxiliary loss needs of whole sequences. Collective over the context-parallel ranks.
    fn sums<T>(
        &self,
        pass: &Pass<'_, T>,
        scores: View<'_, f32>,
        experts: View<'_, u32>,
    ) -> Result<Buffer<f64>, TrainError> {
        let of = self.sequences(pass);
        let mut sums = pass.stream.device().zeros(of.sequences * 2 * self.of.experts)?;
        if pass.tokens > 0 {
            balance::sums(pass.stream, of, self.options().score, scores, experts, sums.as_view_mut())?;
        }
        if pass.mesh.sequence().is_some() {
            pass.mesh.context().all_reduce(&mut sums, Op::Sum)?;
        }
        Ok(sums)
    }

    /// The gradients of the scores by the auxiliary loss, where there is one, a token's loss being scaled by `scale`. They
    /// are one tensor-parallel rank's to add.
    fn balance<T>(&self, pass: &Pass<'_, T>, kept: &MoeKept<T>, scale: f32) -> Result<Option<Buffer<f32>>, TrainError>
    where
        T: Float,
    {
        if self.of.balance == 0.0 || pass.mesh.place().tp > 0 || pass.rows() == 0 {
            return Ok(None);
        }
        let (of, scores) = (self.sequences(pass), kept.scores.as_view());
        let factor = self.of.balance as f32 * scale * of.tokens as f32;
        let mut dscores = pass.stream.device().uninitialized(scores.len())?;
        let (score, sums, d) = (self.options().score, kept.sums.as_view(), dscores.as_view_mut());
        balance::backward(pass.stream, of, score, factor, scores, sums, d)?;
        Ok(Some(dscores))
    }

    /// Adds what a forward pass did to what is told of the step: once for each, on one of the tensor-parallel ranks, which all
    /// did the same.
    ///
    /// # Errors
    /// Memory that the host cannot address.
    pub fn tell<T: Float>(&self, pass: &Pass<'_, T>, kept: &MoeKept<T>, routed: &mut Routed) -> Result<(), TrainError> {
        let place = pass.mesh.place();
        if place.tp > 0 {
            return Ok(());
        }
        routed.add(self.index, &kept.experts.as_view().to_host()?, kept.dropped, kept.margin.smallest);
        if place.cp > 0 || self.of.balance == 0.0 {
            return Ok(());
        }
        let one = Sequences { shape: self.routing(0), sequences: 1, ..self.sequences(pass) };
        for sequence in 0..pass.batch {
            let sums = kept.sums.view(sequence * 2 * self.of.experts..(sequence + 1) * 2 * self.of.experts)?;
            // Sums that no order of the sequences changes.
            routed.add_loss(fixed_point(balance::loss(pass.stream, one, sums)? as f32));
        }
        Ok(())
    }

    fn router(&self, rows: usize) -> matmul::Shape {
        matmul::Shape { m: rows, n: self.of.experts, k: self.channels }
    }

    /// Rows of which all assignments but `dropped` have a place.
    fn rows(&self, rows: usize, dropped: usize) -> Rows {
        Rows { rows, top_k: self.of.top_k, channels: self.channels, len: rows * self.of.top_k - dropped }
    }

    /// Which assignments are within the experts' capacity of whole sequences; `None` where all are. Collective over the
    /// context-parallel ranks.
    fn kept<T>(&self, pass: &Pass<'_, T>, experts: View<'_, u32>) -> Result<Option<Buffer<u32>>, TrainError> {
        let Some(capacity) = self.of.capacity else { return Ok(None) };
        let (top_k, device, of) = (self.of.top_k, pass.stream.device(), self.sequences(pass));
        let even = top_k as f64 * of.tokens as f64 / self.of.experts as f64;
        let capacity = (capacity * even).ceil() as usize;
        let shape = self.routing(pass.batch * of.tokens);
        let within = |experts: View<'_, u32>| -> Result<Buffer<u32>, TrainError> {
            let mut keep = device.uninitialized(experts.len())?;
            dispatch::within_capacity(pass.stream, shape, pass.batch, capacity, experts, keep.as_view_mut())?;
            Ok(keep)
        };
        let Some(context) = pass.mesh.sequence() else { return Ok(Some(within(experts)?)) };
        let whole = device.upload(&context.whole(pass.batch, top_k, &experts.to_host()?)?)?;
        let keep = within(whole.as_view())?.download(pass.stream)?;
        let places = pass.mesh.places(of.tokens);
        let of_sequence = |sequence: &[u32]| -> Vec<u32> {
            places.iter().flat_map(|place| sequence[*place as usize * top_k..][..top_k].to_vec()).collect()
        };
        let mine: Vec<u32> = keep.chunks_exact((of.tokens * top_k).max(1)).flat_map(of_sequence).collect();
        Ok(Some(device.upload(&mine)?))
    }

    /// Outputs of an expert's first layer that this rank has.
    fn expanded(&self) -> usize {
        if self.activation == Activation::SwiGlu { 2 * self.hidden } else { self.hidden }
    }

    fn up<'a>(&self, exchange: &'a Exchange) -> grouped::Shape<'a> {
        grouped::Shape { counts: exchange.counts(), n: self.expanded(), k: self.channels }
    }

    fn down<'a>(&self, exchange: &'a Exchange) -> grouped::Shape<'a> {
        grouped::Shape { counts: exchange.counts(), n: self.channels, k: self.hidden }
    }

    /// Adds to `y` what the experts make of `x`, both all rows of a region. Collective over the expert-parallel ranks.
    ///
    /// # Errors
    /// Regions that do not have the layer's shape; a failed operation among the ranks.
    pub fn forward<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        x: View<'_, T>,
        y: ViewMut<'_, T>,
    ) -> Result<MoeKept<T>, TrainError> {
        let (stream, device, rows) = (pass.stream, pass.stream.device(), pass.rows());
        let (shape, all) = (self.routing(rows), rows * self.of.top_k);
        let mut logits = device.uninitialized::<T>(rows * self.of.experts)?;
        let router = pass.weights.view(self.router)?;
        matmul::forward(stream, self.router(rows), x, router, Epilogue::default(), logits.as_view_mut())?;
        let (mut scores, mut weights) = (device.uninitialized(logits.len())?, device.uninitialized(all)?);
        let mut experts = device.uninitialized(all)?;
        let (s, e, w) = (scores.as_view_mut(), experts.as_view_mut(), weights.as_view_mut());
        let bias = pass.weights.biases.of(self.index)?;
        let margin = router::forward(stream, shape, self.options(), logits.as_view(), bias, s, e, w)?;

        let sums = match self.of.balance > 0.0 {
            true => self.sums(pass, scores.as_view(), experts.as_view())?,
            false => device.zeros(0)?,
        };
        let (mut order, mut places) = (device.uninitialized(all)?, device.uninitialized(all)?);
        let mut counts = device.zeros(self.of.experts)?;
        let (c, o, p) = (counts.as_view_mut(), order.as_view_mut(), places.as_view_mut());
        let keep = self.kept(pass, experts.as_view())?;
        let keep = keep.as_ref().map(|keep| keep.as_view());
        let len = dispatch::sort(stream, shape, experts.as_view(), keep, c, o, p)?;
        let (dropped, of) = (all - len, self.rows(rows, all - len));
        let mut sorted = device.uninitialized(len * self.channels)?;
        dispatch::permute(stream, of, order.view(..len)?, None, x, sorted.as_view_mut())?;
        let exchange = Exchange::new(self.group(pass)?, &counts.as_view().to_host()?)?;
        let inside = exchange.to_experts(stream, &sorted, self.channels)?;

        let came = exchange.rows();
        let mut pre = device.uninitialized(came * self.expanded())?;
        let (mut activated, mut out) =
            (device.uninitialized(came * self.hidden)?, device.uninitialized(came * self.channels)?);
        let (up, kept, activation) = (pass.weights.view(self.up)?, Some(pre.as_view_mut()), self.activation);
        let (i, a) = (inside.as_view(), activated.as_view_mut());
        grouped::forward(stream, self.up(&exchange), i, up, activation, kept, a)?;
        let (down, a, o) = (pass.weights.view(self.down)?, activated.as_view(), out.as_view_mut());
        grouped::forward(stream, self.down(&exchange), a, down, Activation::None, None, o)?;
        let made = exchange.from_experts(stream, &out, self.channels)?;
        let (p, w) = (places.as_view(), Some(weights.as_view()));
        dispatch::combine(stream, of, p, w, made.as_view(), Write::Add, y)?;
        let rows = inside;
        Ok(MoeKept {
            scores,
            experts,
            weights,
            order,
            places,
            sums,
            margin,
            dropped,
            exchange,
            rows,
            pre,
            activated,
            made,
        })
    }

    /// Adds to `dx` the error of the input, from that of the output, `dy`, where a token's loss is scaled by `scale`.
    /// Collective over the expert-parallel ranks.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn backward_input<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        kept: &MoeKept<T>,
        (dy, scale): (View<'_, T>, f32),
        mut dx: ViewMut<'_, T>,
    ) -> Result<MoeErrors<T>, TrainError> {
        let (stream, device, rows) = (pass.stream, pass.stream.device(), pass.rows());
        let of = self.rows(rows, kept.dropped);
        let (exchange, came) = (&kept.exchange, kept.exchange.rows());
        let (places, weights) = (kept.places.as_view(), kept.weights.as_view());
        let mut dweights = device.uninitialized(rows * self.of.top_k)?;
        dispatch::backward_weights(stream, of, places, kept.made.as_view(), dy, dweights.as_view_mut())?;
        let mut sorted = device.uninitialized(of.len * self.channels)?;
        dispatch::permute(stream, of, kept.order.view(..of.len)?, Some(weights), dy, sorted.as_view_mut())?;
        let out = exchange.to_experts(stream, &sorted, self.channels)?;

        let mut dactivated = device.uninitialized(came * self.hidden)?;
        let (down, d) = (pass.weights.view(self.down)?, dactivated.as_view_mut());
        grouped::backward_input(stream, self.down(exchange), out.as_view(), down, Write::Set, d)?;
        let mut pre = device.uninitialized(came * self.expanded())?;
        let before = matmul::Shape { m: came, n: self.expanded(), k: self.channels };
        let (p, d) = (kept.pre.as_view(), dactivated.as_view());
        matmul::backward_activation(stream, before, self.activation, p, d, pre.as_view_mut())?;
        let mut inside = device.uninitialized(came * self.channels)?;
        let (up, i) = (pass.weights.view(self.up)?, inside.as_view_mut());
        grouped::backward_input(stream, self.up(exchange), pre.as_view(), up, Write::Set, i)?;
        let back = exchange.from_experts(stream, &inside, self.channels)?;
        dispatch::combine(stream, of, places, None, back.as_view(), Write::Add, dx.reborrow())?;

        let mut logits = device.uninitialized(rows * self.of.experts)?;
        let (scores, experts, d) = (kept.scores.as_view(), kept.experts.as_view(), dweights.as_view());
        let also = self.balance(pass, kept, scale)?;
        let also = also.as_ref().map(|dscores| dscores.as_view());
        router::backward(stream, self.routing(rows), self.options(), scores, experts, d, also, logits.as_view_mut())?;
        let router = pass.weights.view(self.router)?;
        matmul::backward_input(stream, self.router(rows), logits.as_view(), router, Write::Add, dx)?;
        Ok(MoeErrors { logits, pre, out })
    }

    /// Adds to the gradients of router and experts, from the input `x` and what the passes before left.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); a failed start of a reduction.
    pub fn backward_weight<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        x: View<'_, T>,
        kept: &MoeKept<T>,
        errors: &MoeErrors<T>,
        gradients: &mut Gradients,
    ) -> Result<(), TrainError> {
        let (stream, shape) = (pass.stream, self.router(pass.rows()));
        let logits = pass.of(&errors.logits, self.of.experts)?;
        matmul::backward_weight(stream, shape, x, logits, gradients.view(self.router)?)?;
        gradients.done(self.router, self.router)?;
        if pass.plan.exact {
            let (rows, counts) = self.rows_of(pass, kept)?;
            let pick = |buffer: &Buffer<T>, width: usize| pick(pass, buffer, width, &rows);
            let (inside, pre) = (pick(&kept.rows, self.channels)?, pick(&errors.pre, self.expanded())?);
            let (activated, out) = (pick(&kept.activated, self.hidden)?, pick(&errors.out, self.channels)?);
            let of = [&inside, &pre, &activated, &out].map(Buffer::as_view);
            return self.backward_experts(stream, &counts, of, gradients);
        }
        let of = [&kept.rows, &errors.pre, &kept.activated, &errors.out].map(Buffer::as_view);
        self.backward_experts(stream, kept.exchange.counts(), of, gradients)
    }

    /// Adds to the gradients of the experts, which have so many rows: of what goes in, of the error before the activation, of
    /// what comes after it, and of the error of what comes out.
    fn backward_experts<T: Float>(
        &self,
        stream: &Stream,
        counts: &[usize],
        [inside, pre, activated, out]: [View<'_, T>; 4],
        gradients: &mut Gradients,
    ) -> Result<(), TrainError> {
        let up = grouped::Shape { counts, n: self.expanded(), k: self.channels };
        grouped::backward_weight(stream, up, inside, pre, gradients.view(self.up)?)?;
        gradients.done(self.up, self.up)?;
        let down = grouped::Shape { counts, n: self.channels, k: self.hidden };
        grouped::backward_weight(stream, down, activated, out, gradients.view(self.down)?)?;
        gradients.done(self.down, self.down)
    }

    /// Which rows of the experts are of the sequences of a pass, and how many each expert has of them, where all experts are
    /// on this rank: exact sums take one sequence after the other.
    fn rows_of<T>(&self, pass: &Pass<'_, T>, kept: &MoeKept<T>) -> Result<(Vec<usize>, Vec<usize>), TrainError> {
        let (wanted, order) = (pass.skipped..pass.skipped + pass.rows(), kept.order.as_view().to_host()?);
        let (mut rows, mut counts, mut begin) = (Vec::new(), Vec::with_capacity(self.of.experts), 0);
        for count in kept.exchange.counts() {
            let before = rows.len();
            let is_wanted = |row: &usize| wanted.contains(&(order[*row] as usize / self.of.top_k));
            rows.extend((begin..begin + count).filter(is_wanted));
            counts.push(rows.len() - before);
            begin += count;
        }
        Ok((rows, counts))
    }
}

/// Some rows of a buffer, `width` elements each.
fn pick<T: Float>(pass: &Pass<'_, T>, from: &Buffer<T>, width: usize, rows: &[usize]) -> Result<Buffer<T>, TrainError> {
    let from = from.as_view().to_host()?;
    let picked: Vec<T> = rows.iter().flat_map(|row| &from[row * width..(row + 1) * width]).copied().collect();
    Ok(pass.stream.device().upload(&picked)?)
}
