//! Ring attention: each rank's keys and values pass all ranks, whose queries take in what they see of them. While a rank
//! computes with what it has, that is on its way to the next one.
//!
//! At step s rank r has the keys of rank r - s. In backward their gradients follow them a step behind, each rank adding its
//! part, and come home after the last step.

use warpweft_device::{Float, Stream, View, ViewMut};
use warpweft_kernels::attention::{self, Heads, Shape};
use warpweft_kernels::cast;

use super::columns::{self, Columns};
use super::reach::Reached;
use super::{Call, Context, Sizes};
use crate::TrainError;
use crate::memory::Entered;

/// One pass round the ring.
struct Ring<'a> {
    context: &'a Context,
    stream: &'a Stream,
    sizes: &'a Sizes<'a>,
    rank: usize,
    ranks: usize,
}

impl<'a> Ring<'a> {
    fn new(context: &'a Context, stream: &'a Stream, sizes: &'a Sizes<'a>) -> Self {
        Self { context, stream, sizes, rank: context.group.rank(), ranks: context.group.world() }
    }

    fn next(&self) -> usize {
        (self.rank + 1) % self.ranks
    }

    fn previous(&self) -> usize {
        (self.rank + self.ranks - 1) % self.ranks
    }

    /// Whose keys are here at a step.
    fn owner(&self, step: usize) -> usize {
        (self.rank + self.ranks - step) % self.ranks
    }

    /// Elements of a rank's keys and values.
    fn len(&self, owner: usize) -> usize {
        self.sizes.batch * self.context.tokens_of(owner) * 2 * self.sizes.keys()
    }

    fn shape(&self, owner: usize) -> Shape {
        let Sizes { batch, heads, kv_heads, head_size, .. } = *self.sizes;
        let (queries, keys) = (self.context.local_tokens(), self.context.tokens_of(owner));
        Shape { batch, queries, keys, heads, kv_heads, head_size }
    }

    /// What is seen of a rank's keys, and the options that then remain.
    fn mask(&self, owner: usize) -> (Option<View<'a, u32>>, attention::Options) {
        let options = self.sizes.options;
        let seen = options.causal.then(|| self.context.seen[owner].as_view());
        (seen, attention::Options { causal: false, ..options })
    }

    /// This rank's keys and values, `[B, T, 2 G D]`.
    fn own<T: Float>(&self, qkv: View<'_, T>) -> Result<Entered<T>, TrainError> {
        let mut own = self.uninitialized(self.len(self.rank))?;
        let (row, width) = (self.sizes.row(), 2 * self.sizes.keys());
        let (rows, at) = (qkv.to_host()?, Columns { row, first: self.sizes.queries() });
        own.as_view_mut().on_host(|own| {
            columns::copy((&rows[..], at), (own, Columns { row: width, first: 0 }), width);
            Ok::<_, TrainError>(())
        })?;
        Ok(own)
    }

    /// The calls of attention over a rank's keys.
    fn calls(&self, owner: usize) -> Vec<Call> {
        let (shape, documents) = (self.shape(owner), self.sizes.documents);
        if documents.is_empty() {
            return Call::whole(shape, documents);
        }
        let positions = |rank| self.context.method.cut().positions(self.context.tokens, self.ranks, rank);
        Call::parts(shape, documents, &positions(self.rank), &positions(owner))
    }

    /// What a call sees of a rank's keys, and the options that then remain.
    fn mask_of<'b>(
        &self,
        call: &'b Call,
        owner: usize,
    ) -> Result<(Option<Reached<'b, u32>>, attention::Options), TrainError>
    where
        'a: 'b,
    {
        let (seen, options) = self.mask(owner);
        match self.sizes.documents {
            [] => Ok((seen.map(Reached::Here), options)),
            _ => Ok((Some(self.context.reach(self.stream.device(), &call.seen)?), options)),
        }
    }

    fn inputs<'b, T: Float>(
        &self,
        call: &Call,
        qkv: View<'b, T>,
        here: View<'b, T>,
    ) -> Result<[Heads<'b, T>; 3], TrainError> {
        let (row, keys) = (self.sizes.row(), self.sizes.keys());
        let (rows, here) = (call.queries(qkv, row)?, call.keys(here, 2 * keys)?);
        let of = |first| Heads { rows: here, row: 2 * keys, first };
        Ok([Heads { rows, row, first: 0 }, of(0), of(keys)])
    }

    /// Has the queries take in what they see of a rank's keys.
    fn take_in<T: Float>(
        &self,
        owner: usize,
        (qkv, here): (View<'_, T>, View<'_, T>),
        mut out: ViewMut<'_, f32>,
        mut lse: ViewMut<'_, f32>,
    ) -> Result<(), TrainError> {
        for call in self.calls(owner) {
            let (seen, options) = self.mask_of(&call, owner)?;
            let (seen, inputs) = (seen.as_ref().map(Reached::as_view), self.inputs(&call, qkv, here)?);
            let out = call.queries_mut(out.reborrow(), self.sizes.queries())?;
            let lse = call.queries_mut(lse.reborrow(), self.sizes.heads)?;
            attention::forward_onto(self.stream, call.shape, options, seen, inputs, out, lse)?;
        }
        Ok(())
    }

    /// Adds the gradients that a rank's keys and values give and get; those of keys come first in `added`.
    fn give_back<T: Float>(
        &self,
        owner: usize,
        (qkv, here): (View<'_, T>, View<'_, T>),
        (y, lse, dy): (View<'_, T>, View<'_, f32>, View<'_, T>),
        mut dq: ViewMut<'_, f32>,
        added: ViewMut<'_, f32>,
    ) -> Result<(), TrainError> {
        let (queries, keys) = (self.sizes.queries(), self.sizes.keys());
        let (mut dk, mut dv) = added.split_at(self.len(owner) / 2)?;
        for call in self.calls(owner) {
            let (seen, options) = self.mask_of(&call, owner)?;
            let (seen, inputs) = (seen.as_ref().map(Reached::as_view), self.inputs(&call, qkv, here)?);
            let (y, lse) = (call.queries(y, queries)?, call.queries(lse, self.sizes.heads)?);
            let saved = (y, lse, call.queries(dy, queries)?);
            let dq = call.queries_mut(dq.reborrow(), queries)?;
            let (dk, dv) = (call.keys_mut(dk.reborrow(), keys)?, call.keys_mut(dv.reborrow(), keys)?);
            attention::backward_onto(self.stream, call.shape, options, seen, inputs, saved, dq, dk, dv)?;
        }
        Ok(())
    }

    /// Room for what comes at the next step; none after the last.
    fn room<T: Float>(&self, step: usize) -> Result<Entered<T>, TrainError> {
        self.uninitialized(if step + 1 < self.ranks { self.len(self.owner(step + 1)) } else { 0 })
    }

    fn uninitialized<T: Float>(&self, len: usize) -> Result<Entered<T>, TrainError> {
        self.context.entered(self.stream.device().uninitialized(len))
    }

    fn zeros(&self, len: usize) -> Result<Entered<f32>, TrainError> {
        self.context.entered(self.stream.device().zeros(len))
    }
}

pub(super) fn forward<T: Float>(
    context: &Context,
    stream: &Stream,
    sizes: &Sizes<'_>,
    qkv: View<'_, T>,
    y: ViewMut<'_, T>,
    mut lse: ViewMut<'_, f32>,
) -> Result<(), TrainError> {
    let ring = Ring::new(context, stream, sizes);
    lse.reborrow().fill(stream, f32::NEG_INFINITY)?;
    let mut out = ring.zeros(y.len())?;
    let mut here = ring.own(qkv)?;
    for step in 0..ring.ranks {
        let owner = ring.owner(step);
        let mut next = ring.room(step)?;
        let computed = context.group.scope(|scope| {
            if step + 1 < ring.ranks {
                scope.sendrecv(&*here, ring.next(), &mut *next, ring.previous());
            }
            ring.take_in(owner, (qkv, here.as_view()), out.as_view_mut(), lse.reborrow())
        })?;
        computed?;
        here = next;
    }
    Ok(cast::convert(stream, out.as_view(), y)?)
}

pub(super) fn backward<T: Float>(
    context: &Context,
    stream: &Stream,
    sizes: &Sizes<'_>,
    (qkv, y, lse): (View<'_, T>, View<'_, T>, View<'_, f32>),
    dy: View<'_, T>,
    dqkv: ViewMut<'_, T>,
) -> Result<(), TrainError> {
    let ring = Ring::new(context, stream, sizes);
    let mut dq = ring.zeros(y.len())?;
    let mut here = ring.own(qkv)?;
    // The gradients that this rank added to last: dk, then dv.
    let mut behind = ring.zeros(0)?;
    for step in 0..ring.ranks {
        let owner = ring.owner(step);
        let mut next = ring.room(step)?;
        let mut added = ring.zeros(ring.len(owner))?;
        let mut arriving = ring.uninitialized::<f32>(if step > 0 { ring.len(owner) } else { 0 })?;
        let computed = context.group.scope(|scope| {
            if step + 1 < ring.ranks {
                scope.sendrecv(&*here, ring.next(), &mut *next, ring.previous());
            }
            if step > 0 {
                scope.sendrecv(&*behind, ring.next(), &mut *arriving, ring.previous());
            }
            ring.give_back(owner, (qkv, here.as_view()), (y, lse, dy), dq.as_view_mut(), added.as_view_mut())
        })?;
        computed?;
        if step > 0 {
            let (arrived, all) = (arriving.as_view().to_host()?, Columns { row: 1, first: 0 });
            added.as_view_mut().on_host(|added| {
                columns::add((&arrived[..], all), (added, all), 1);
                Ok::<_, TrainError>(())
            })?;
        }
        (here, behind) = (next, added);
    }
    if ring.ranks > 1 {
        let mut home = ring.uninitialized(ring.len(ring.rank))?;
        context.group.sendrecv(&*behind, ring.next(), &mut *home, ring.previous())?;
        behind = home;
    }
    let (row, queries, keys) = (sizes.row(), sizes.queries(), sizes.keys());
    let (dq, behind) = (dq.as_view().to_host()?, behind.as_view().to_host()?);
    let (dk, dv) = behind.split_at(behind.len() / 2);
    dqkv.on_host(|to| {
        for (from, width, first) in [(&dq[..], queries, 0), (dk, keys, queries), (dv, keys, queries + keys)] {
            columns::copy((from, Columns { row: width, first: 0 }), (&mut *to, Columns { row, first }), width);
        }
        Ok(())
    })
}
