//! Calls of the ops that go through rows.

use warpweft_device::Float;
use warpweft_kernels::residual::{self, Dropout};
use warpweft_kernels::{Write, cross_entropy, embedding, layernorm, rmsnorm, rope, softmax, transpose};

use super::common::calls::Call;
use super::{C, Done, R};

pub(super) fn softmax_forward<T: Float>(c: &Call<'_>) -> Done {
    let (x, mut y) = (c.input::<T>("x", R * C), c.output::<T>("y", R * C));
    let shape = softmax::Shape { rows: R, columns: C };
    let done = softmax::forward(&c.on.stream, shape, softmax::Options::default(), x.as_view(), y.as_view_mut());
    c.untouched(&[&y]);
    done
}

pub(super) fn softmax_masked<T: Float>(c: &Call<'_>) -> Done {
    let (hidden, x, mut y) = (c.input::<u8>("hidden", R * C), c.input::<T>("x", R * C), c.output::<T>("y", R * C));
    let (shape, mask) = (softmax::Shape { rows: R, columns: C }, softmax::MaskShape { heads: 1, queries: R });
    let (hidden, x, out) = (hidden.as_view(), x.as_view(), y.as_view_mut());
    let done = softmax::forward_masked(&c.on.stream, shape, softmax::Options::default(), mask, hidden, x, out);
    c.untouched(&[&y]);
    done
}

pub(super) fn softmax_backward<T: Float>(c: &Call<'_>) -> Done {
    let (dy, y, mut dx) = (c.input::<T>("dy", R * C), c.input::<T>("y", R * C), c.output::<T>("dx", R * C));
    let (shape, options) = (softmax::Shape { rows: R, columns: C }, softmax::Options::default());
    let (dy, y, out) = (dy.as_view(), y.as_view(), dx.as_view_mut());
    let done = softmax::backward(&c.on.stream, shape, options, dy, y, Write::Set, out);
    c.untouched(&[&dx]);
    done
}

const EPS: f32 = 1e-5;

pub(super) fn layernorm_forward<T: Float>(c: &Call<'_>) -> Done {
    let (x, branch) = (c.input::<T>("x", R * C), c.input::<T>("branch", R * C));
    let (w, b) = (c.input::<T>("w", C), c.input::<T>("b", C));
    let (mut sum, mut y) = (c.output::<T>("sum", R * C), c.output::<T>("y", R * C));
    let (mut mean, mut rstd) = (c.output::<f32>("mean", R), c.output::<f32>("rstd", R));
    let (shape, stream) = (layernorm::Shape { rows: R, channels: C }, &c.on.stream);
    let (x, branch, w, b) = (x.as_view(), branch.as_view(), w.as_view(), b.as_view());
    let (of_y, m, r) = (y.as_view_mut(), mean.as_view_mut(), rstd.as_view_mut());
    let done = layernorm::forward_residual(stream, shape, EPS, x, branch, w, b, sum.as_view_mut(), of_y, m, r);
    c.untouched(&[&sum, &y]);
    c.untouched(&[&mean, &rstd]);
    done
}

pub(super) fn layernorm_alone<T: Float>(c: &Call<'_>) -> Done {
    let (x, w, b) = (c.input::<T>("x", R * C), c.input::<T>("w", C), c.input::<T>("b", C));
    let mut y = c.output::<T>("y", R * C);
    let (mut mean, mut rstd) = (c.output::<f32>("mean", R), c.output::<f32>("rstd", R));
    let (shape, stream) = (layernorm::Shape { rows: R, channels: C }, &c.on.stream);
    let (x, w, b, out) = (x.as_view(), w.as_view(), b.as_view(), (mean.as_view_mut(), rstd.as_view_mut()));
    let done = layernorm::forward(stream, shape, EPS, x, w, b, y.as_view_mut(), out.0, out.1);
    c.untouched(&[&y]);
    c.untouched(&[&mean, &rstd]);
    done
}

pub(super) fn layernorm_backward_input<T: Float>(c: &Call<'_>) -> Done {
    let (dy, x, w) = (c.input::<T>("dy", R * C), c.input::<T>("x", R * C), c.input::<T>("w", C));
    let (mean, rstd, mut dx) = (c.input::<f32>("mean", R), c.input::<f32>("rstd", R), c.output::<T>("dx", R * C));
    let (shape, stream) = (layernorm::Shape { rows: R, channels: C }, &c.on.stream);
    let (dy, x, w, m, r) = (dy.as_view(), x.as_view(), w.as_view(), mean.as_view(), rstd.as_view());
    let done = layernorm::backward_input(stream, shape, dy, x, w, m, r, Write::Set, dx.as_view_mut());
    c.untouched(&[&dx]);
    done
}

pub(super) fn layernorm_backward_weight<T: Float>(c: &Call<'_>) -> Done {
    let (dy, x) = (c.input::<T>("dy", R * C), c.input::<T>("x", R * C));
    let (mean, rstd) = (c.input::<f32>("mean", R), c.input::<f32>("rstd", R));
    let (mut dw, mut db) = (c.output::<f32>("dw", C), c.output::<f32>("db", C));
    let (shape, stream) = (layernorm::Shape { rows: R, channels: C }, &c.on.stream);
    let (dy, x, m, r) = (dy.as_view(), x.as_view(), mean.as_view(), rstd.as_view());
    let done = layernorm::backward_weight(stream, shape, dy, x, m, r, dw.as_view_mut(), db.as_view_mut());
    c.untouched(&[&dw, &db]);
    done
}

pub(super) fn rmsnorm_forward<T: Float>(c: &Call<'_>) -> Done {
    let (x, branch, w) = (c.input::<T>("x", R * C), c.input::<T>("branch", R * C), c.input::<T>("w", C));
    let (mut sum, mut y) = (c.output::<T>("sum", R * C), c.output::<T>("y", R * C));
    let mut rstd = c.output::<f32>("rstd", R);
    let (shape, stream) = (rmsnorm::Shape { rows: R, channels: C }, &c.on.stream);
    let (x, branch, w) = (x.as_view(), branch.as_view(), w.as_view());
    let (s, of_y, r) = (sum.as_view_mut(), y.as_view_mut(), rstd.as_view_mut());
    let done = rmsnorm::forward_residual(stream, shape, EPS, x, branch, w, s, of_y, r);
    c.untouched(&[&sum, &y]);
    c.untouched(&[&rstd]);
    done
}

pub(super) fn rmsnorm_alone<T: Float>(c: &Call<'_>) -> Done {
    let (x, w) = (c.input::<T>("x", R * C), c.input::<T>("w", C));
    let (mut y, mut rstd) = (c.output::<T>("y", R * C), c.output::<f32>("rstd", R));
    let (shape, stream) = (rmsnorm::Shape { rows: R, channels: C }, &c.on.stream);
    let done = rmsnorm::forward(stream, shape, EPS, x.as_view(), w.as_view(), y.as_view_mut(), rstd.as_view_mut());
    c.untouched(&[&y]);
    c.untouched(&[&rstd]);
    done
}

pub(super) fn rmsnorm_backward_input<T: Float>(c: &Call<'_>) -> Done {
    let (dy, x, w) = (c.input::<T>("dy", R * C), c.input::<T>("x", R * C), c.input::<T>("w", C));
    let (rstd, mut dx) = (c.input::<f32>("rstd", R), c.output::<T>("dx", R * C));
    let (shape, stream) = (rmsnorm::Shape { rows: R, channels: C }, &c.on.stream);
    let (dy, x, w, rstd) = (dy.as_view(), x.as_view(), w.as_view(), rstd.as_view());
    let done = rmsnorm::backward_input(stream, shape, dy, x, w, rstd, Write::Set, dx.as_view_mut());
    c.untouched(&[&dx]);
    done
}

pub(super) fn rmsnorm_backward_weight<T: Float>(c: &Call<'_>) -> Done {
    let (dy, x) = (c.input::<T>("dy", R * C), c.input::<T>("x", R * C));
    let (rstd, mut dw) = (c.input::<f32>("rstd", R), c.output::<f32>("dw", C));
    let (shape, stream) = (rmsnorm::Shape { rows: R, channels: C }, &c.on.stream);
    let (dy, x, rstd) = (dy.as_view(), x.as_view(), rstd.as_view());
    let done = rmsnorm::backward_weight(stream, shape, dy, x, rstd, dw.as_view_mut());
    c.untouched(&[&dw]);
    done
}

const DROPOUT: Dropout = Dropout { probability: 0.5, seed: 1, sequence: 2, first: 0 };

pub(super) fn residual_forward<T: Float>(c: &Call<'_>) -> Done {
    let (x, branch, bias) = (c.input::<T>("x", R * C), c.input::<T>("branch", R * C), c.input::<T>("bias", C));
    let (mut out, shape) = (c.output::<T>("out", R * C), residual::Shape { rows: R, channels: C });
    let (x, branch, bias) = (x.as_view(), branch.as_view(), Some(bias.as_view()));
    let done = residual::forward(&c.on.stream, shape, x, branch, bias, out.as_view_mut());
    c.untouched(&[&out]);
    done
}

pub(super) fn residual_dropout<T: Float>(c: &Call<'_>) -> Done {
    let (x, branch, bias) = (c.input::<T>("x", R * C), c.input::<T>("branch", R * C), c.input::<T>("bias", C));
    let (mut out, shape) = (c.output::<T>("out", R * C), residual::Shape { rows: R, channels: C });
    let (x, branch, bias) = (x.as_view(), branch.as_view(), Some(bias.as_view()));
    let done = residual::forward_dropout(&c.on.stream, shape, DROPOUT, x, branch, bias, out.as_view_mut());
    c.untouched(&[&out]);
    done
}

pub(super) fn residual_backward<T: Float>(c: &Call<'_>) -> Done {
    let (dout, mut dbranch) = (c.input::<T>("dout", R * C), c.output::<T>("dbranch", R * C));
    let shape = residual::Shape { rows: R, channels: C };
    let done = residual::backward_dropout(&c.on.stream, shape, DROPOUT, dout.as_view(), dbranch.as_view_mut());
    c.untouched(&[&dbranch]);
    done
}

pub(super) fn transposed<T: Float>(c: &Call<'_>) -> Done {
    let (x, mut y) = (c.input::<T>("x", R * C), c.output::<T>("y", R * C));
    let shape = transpose::Shape { batch: 1, rows: R, columns: C };
    let done = transpose::transpose(&c.on.stream, shape, x.as_view(), y.as_view_mut());
    c.untouched(&[&y]);
    done
}

pub(super) fn rope_forward<T: Float>(c: &Call<'_>) -> Done {
    let (positions, mut x) = (c.input::<u32>("positions", R), c.output::<T>("x", R * C));
    let shape = rope::Shape { batch: 1, tokens: R, heads: 1, head_size: 4, row_stride: C };
    let positions = Some(positions.as_view());
    let done = rope::forward(&c.on.stream, shape, rope::Options::default(), positions, x.as_view_mut());
    c.untouched(&[&x]);
    done
}

const EMBEDDING: embedding::Shape = embedding::Shape { batch: 1, tokens: R, channels: C, vocab: 5, positions: R };
const EMBEDDING_SHARD: embedding::Shard = embedding::Shard { first: 0, vocab: 6 };

pub(super) fn embedding_forward<T: Float>(c: &Call<'_>) -> Done {
    let (ids, table) = (c.input::<u32>("ids", R), c.input::<T>("table", 5 * C));
    let (positions, mut y) = (c.input::<T>("position_table", R * C), c.output::<T>("y", R * C));
    let (ids, table, at) = (ids.as_view(), table.as_view(), Some(positions.as_view()));
    let done = embedding::forward(&c.on.stream, EMBEDDING, ids, table, at, y.as_view_mut());
    c.untouched(&[&y]);
    done
}

pub(super) fn embedding_forward_shard<T: Float>(c: &Call<'_>) -> Done {
    let (ids, table, mut y) = (c.input::<u32>("ids", R), c.input::<T>("table", 5 * C), c.output::<T>("y", R * C));
    let (stream, ids, table) = (&c.on.stream, ids.as_view(), table.as_view());
    let done = embedding::forward_shard(stream, EMBEDDING, EMBEDDING_SHARD, ids, table, Write::Set, y.as_view_mut());
    c.untouched(&[&y]);
    done
}

pub(super) fn embedding_backward<T: Float>(c: &Call<'_>) -> Done {
    let (ids, dy) = (c.input::<u32>("ids", R), c.input::<T>("dy", R * C));
    let (mut dtable, mut dpositions) = (c.output::<f32>("dtable", 5 * C), c.output::<f32>("dpositions", R * C));
    let (ids, dy, out) = (ids.as_view(), dy.as_view(), Some(dpositions.as_view_mut()));
    let done = embedding::backward(&c.on.stream, EMBEDDING, ids, dy, dtable.as_view_mut(), out);
    c.untouched(&[&dtable, &dpositions]);
    done
}

pub(super) fn embedding_backward_shard<T: Float>(c: &Call<'_>) -> Done {
    let (ids, dy, mut dtable) = (c.input::<u32>("ids", R), c.input::<T>("dy", R * C), c.output::<f32>("dtable", 5 * C));
    let (stream, ids, dy) = (&c.on.stream, ids.as_view(), dy.as_view());
    let done = embedding::backward_shard(stream, EMBEDDING, EMBEDDING_SHARD, ids, dy, dtable.as_view_mut());
    c.untouched(&[&dtable]);
    done
}

const LOSS: cross_entropy::Shape = cross_entropy::Shape { rows: R, vocab: C };
const CLASSES: cross_entropy::Shard = cross_entropy::Shard { first: 0, vocab: C };

pub(super) fn cross_entropy_forward<T: Float>(c: &Call<'_>) -> Done {
    let (logits, targets) = (c.input::<T>("logits", R * C), c.input::<u32>("targets", R));
    let (mut losses, mut lse) = (c.output::<f32>("losses", R), c.output::<f32>("lse", R));
    let (logits, targets, out) = (logits.as_view(), targets.as_view(), (losses.as_view_mut(), lse.as_view_mut()));
    let done = cross_entropy::forward(&c.on.stream, LOSS, logits, targets, None, out.0, out.1);
    c.untouched(&[&losses, &lse]);
    done.map(drop)
}

pub(super) fn cross_entropy_backward<T: Float>(c: &Call<'_>) -> Done {
    let (mut logits, targets) = (c.output::<T>("logits", R * C), c.input::<u32>("targets", R));
    let lse = c.input::<f32>("lse", R);
    let (targets, lse) = (targets.as_view(), lse.as_view());
    let done = cross_entropy::backward(&c.on.stream, LOSS, logits.as_view_mut(), targets, None, lse, 1.0);
    c.untouched(&[&logits]);
    done
}

pub(super) fn cross_entropy_forward_shard<T: Float>(c: &Call<'_>) -> Done {
    let (logits, targets) = (c.input::<T>("logits", R * C), c.input::<u32>("targets", R));
    let mut parts = c.output::<f64>("parts", 3 * R);
    let (logits, targets, out) = (logits.as_view(), targets.as_view(), parts.as_view_mut());
    let done = cross_entropy::forward_shard(&c.on.stream, LOSS, CLASSES, logits, targets, None, out);
    c.untouched(&[&parts]);
    done
}

pub(super) fn cross_entropy_backward_shard<T: Float>(c: &Call<'_>) -> Done {
    let (mut logits, targets) = (c.output::<T>("logits", R * C), c.input::<u32>("targets", R));
    let normaliser = c.input::<f64>("normaliser", 2 * R);
    let (stream, targets, n) = (&c.on.stream, targets.as_view(), normaliser.as_view());
    let done = cross_entropy::backward_shard(stream, LOSS, CLASSES, logits.as_view_mut(), targets, None, n, 1.0);
    c.untouched(&[&logits]);
    done
}
