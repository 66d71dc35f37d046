//! Tokens for heads: an exchange after which each rank has all tokens of its heads, plain attention, an exchange back.
//!
//! Where there are fewer key/value heads than ranks, several ranks get the same one, and their gradients of it are summed
//! in rank order where its tokens are. Backward exchanges the packed rows again, so that nothing but the LSE is kept.

use warpweft_device::{Float, Stream, View, ViewMut};
use warpweft_kernels::attention::{self, Heads, Shape};

use super::columns::{self, Columns};
use super::{Call, Context, Sizes};
use crate::TrainError;
use crate::memory::Held;
use crate::parallel::share;

/// The heads of one rank.
#[derive(Clone, Copy)]
pub(super) struct Part {
    heads: usize,
    kv_heads: usize,
    head_size: usize,
}

impl Part {
    pub(super) fn of(sizes: &Sizes<'_>, cp: usize) -> Self {
        Self { heads: sizes.heads / cp, kv_heads: (sizes.kv_heads / cp).max(1), head_size: sizes.head_size }
    }

    /// Elements of its packed row.
    pub(super) fn row(self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_size
    }

    pub(super) fn queries(self) -> usize {
        self.heads * self.head_size
    }

    fn keys(self) -> usize {
        self.kv_heads * self.head_size
    }
}

/// Where a rank's columns lie in a row: the first, and how many.
type Strip = (usize, usize);

/// One exchange's circumstances.
struct Exchange<'a> {
    context: &'a Context,
    sizes: &'a Sizes<'a>,
    part: Part,
    ranks: usize,
}

impl<'a> Exchange<'a> {
    fn new(context: &'a Context, sizes: &'a Sizes<'a>) -> Self {
        let ranks = context.group.world();
        Self { context, sizes, part: Part::of(sizes, ranks), ranks }
    }

    fn shape(&self) -> Shape {
        let (tokens, Part { heads, kv_heads, head_size }) = (self.context.tokens, self.part);
        Shape { batch: self.sizes.batch, queries: tokens, keys: tokens, heads, kv_heads, head_size }
    }

    /// The calls of attention over whole sequences.
    fn calls(&self) -> Vec<Call> {
        Call::whole(self.shape(), self.sizes.documents)
    }

    /// The columns of rows of queries that are a rank's.
    fn queries(&self, rank: usize) -> Vec<Strip> {
        let width = self.part.queries();
        vec![(rank * width, width)]
    }

    /// The columns of packed rows that are a rank's: queries, keys, values.
    fn packed(&self, rank: usize) -> Vec<Strip> {
        let (whole, width) = (self.sizes.keys(), self.part.keys());
        let first = self.sizes.queries() + rank * self.sizes.kv_heads / self.ranks * self.sizes.head_size;
        let mut columns = self.queries(rank);
        columns.extend([(first, width), (first + whole, width)]);
        columns
    }

    /// Rows `[B, T, width]` of all tokens from rows of this rank's, `columns` of which each rank gets.
    fn to_heads<T: Float>(
        &self,
        rows: &[T],
        row: usize,
        columns: impl Fn(usize) -> Vec<Strip>,
        width: usize,
    ) -> Result<(Vec<T>, Held), TrainError> {
        let (batch, tokens) = (self.sizes.batch, self.context.tokens);
        let each = batch * self.context.local_tokens() * width;
        let (mut sent, _sent) = self.zeros(self.ranks * each);
        for rank in 0..self.ranks {
            let (to, mut into) = (&mut sent[rank * each..][..each], 0);
            for (first, columns) in columns(rank) {
                let from = (rows, Columns { row, first });
                columns::copy(from, (&mut *to, Columns { row: width, first: into }), columns);
                into += columns;
            }
        }
        let counts: Vec<usize> = (0..self.ranks).map(|rank| batch * self.context.tokens_of(rank) * width).collect();
        let (mut received, held) = self.zeros(batch * tokens * width);
        self.context.group.all_to_all_v(&sent, &vec![each; self.ranks], &mut received, &counts)?;
        // By rank, then by sequence: as it must be where there is one of either.
        if self.ranks == 1 || batch == 1 {
            return Ok((received, held));
        }
        // What was sent is as long, but for uneven parts.
        let mut whole = sent;
        whole.resize(received.len(), T::from_f32(0.0));
        let mut rest = &received[..];
        for rank in 0..self.ranks {
            let tokens_there = share(tokens, self.ranks, rank);
            for sequence in 0..batch {
                let (from, after) = rest.split_at(tokens_there.len() * width);
                whole[(sequence * tokens + tokens_there.start) * width..][..from.len()].copy_from_slice(from);
                rest = after;
            }
        }
        Ok((whole, held))
    }

    /// From rows `[B, T, width]` of all tokens, what each rank has of this rank's tokens: rows of them, by rank.
    fn to_tokens<T: Float>(&self, whole: &[T], width: usize) -> Result<(Vec<T>, Held), TrainError> {
        let (batch, tokens) = (self.sizes.batch, self.context.tokens);
        let _sent = self.context.hold::<T>(whole.len());
        let mut sent = Vec::with_capacity(whole.len());
        for rank in 0..self.ranks {
            let there = share(tokens, self.ranks, rank);
            for sequence in 0..batch {
                let rows = sequence * tokens + there.start..sequence * tokens + there.end;
                sent.extend_from_slice(&whole[rows.start * width..rows.end * width]);
            }
        }
        let counts: Vec<usize> = (0..self.ranks).map(|rank| batch * self.context.tokens_of(rank) * width).collect();
        let each = batch * self.context.local_tokens() * width;
        let (mut received, held) = self.zeros(self.ranks * each);
        self.context.group.all_to_all_v(&sent, &counts, &mut received, &vec![each; self.ranks])?;
        Ok((received, held))
    }

    /// Zeros, and their entry in the account.
    fn zeros<T: Float>(&self, len: usize) -> (Vec<T>, Held) {
        (vec![T::from_f32(0.0); len], self.context.hold::<T>(len))
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
    let exchange = Exchange::new(context, sizes);
    let (part, device) = (exchange.part, stream.device());
    let (rows, _rows) = exchange.to_heads(&qkv.to_host()?, sizes.row(), |rank| exchange.packed(rank), part.row())?;
    let rows = context.reach(device, &rows)?;
    let mut out = context.entered(device.zeros::<T>(sizes.batch * context.tokens * part.queries()))?;
    for call in exchange.calls() {
        let out = call.queries_mut(out.as_view_mut(), part.queries())?;
        let (rows, lse) = (call.queries(rows.as_view(), part.row())?, call.queries_mut(lse.reborrow(), part.heads)?);
        attention::forward_packed(stream, call.shape, sizes.options, rows, out, lse)?;
    }
    let (received, _received) = exchange.to_tokens(&out.as_view().to_host()?, part.queries())?;
    let row = sizes.queries();
    y.on_host(|to| {
        let each = to.len() / exchange.ranks;
        for rank in 0..exchange.ranks {
            let from = (&received[rank * each..][..each], Columns { row: part.queries(), first: 0 });
            columns::copy(from, (&mut *to, Columns { row, first: rank * part.queries() }), part.queries());
        }
        Ok(())
    })
}

pub(super) fn backward<T: Float>(
    context: &Context,
    stream: &Stream,
    sizes: &Sizes<'_>,
    (qkv, y, lse): (View<'_, T>, View<'_, T>, View<'_, f32>),
    dy: View<'_, T>,
    dqkv: ViewMut<'_, T>,
) -> Result<(), TrainError> {
    let exchange = Exchange::new(context, sizes);
    let (part, device) = (exchange.part, stream.device());
    let (row, keys, queries) = (part.row(), part.keys(), part.queries());
    let (rows, _rows) = exchange.to_heads(&qkv.to_host()?, sizes.row(), |rank| exchange.packed(rank), row)?;
    let of_queries = |rows: View<'_, T>| {
        exchange.to_heads(&rows.to_host()?, sizes.queries(), |rank| exchange.queries(rank), queries)
    };
    let ((out, _out), (dout, _dout)) = (of_queries(y)?, of_queries(dy)?);
    let (rows, out, dout) =
        (context.reach(device, &rows)?, context.reach(device, &out)?, context.reach(device, &dout)?);
    let tokens = sizes.batch * context.tokens;
    let zeros = |len| context.entered(device.zeros::<f32>(len));
    let (mut dq, mut dk, mut dv) = (zeros(tokens * queries)?, zeros(tokens * keys)?, zeros(tokens * keys)?);
    for call in exchange.calls() {
        let rows = call.queries(rows.as_view(), row)?;
        let of = |first| Heads { rows, row, first };
        let inputs = [of(0), of(queries), of(queries + keys)];
        let (out, dout) = (call.queries(out.as_view(), queries)?, call.queries(dout.as_view(), queries)?);
        let saved = (out, call.queries(lse, part.heads)?, dout);
        let dqs = call.queries_mut(dq.as_view_mut(), queries)?;
        let (dks, dvs) = (call.keys_mut(dk.as_view_mut(), keys)?, call.keys_mut(dv.as_view_mut(), keys)?);
        attention::backward_onto(stream, call.shape, sizes.options, None, inputs, saved, dqs, dks, dvs)?;
    }

    let (mut gradients, _gradients) = exchange.zeros::<f32>(tokens * row);
    for (from, width, first) in [(&dq, queries, 0), (&dk, keys, queries), (&dv, keys, queries + keys)] {
        let (from, at) = (from.as_view().to_host()?, Columns { row: width, first: 0 });
        columns::copy((&from[..], at), (&mut gradients[..], Columns { row, first }), width);
    }
    let (received, _received) = exchange.to_tokens(&gradients, row)?;
    let each = received.len() / exchange.ranks;
    let (mut sums, _sums) = exchange.zeros::<f32>(dqkv.len());
    for rank in 0..exchange.ranks {
        let (from, mut first) = (&received[rank * each..][..each], 0);
        for (into, width) in exchange.packed(rank) {
            let to = (&mut sums[..], Columns { row: sizes.row(), first: into });
            columns::add((from, Columns { row, first }), to, width);
            first += width;
        }
    }
    let all = Columns { row: 1, first: 0 };
    dqkv.on_host(|to| {
        columns::copy((&sums[..], all), (to, all), 1);
        Ok(())
    })
}
