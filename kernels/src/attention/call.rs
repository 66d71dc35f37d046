//! One call, whatever the device, and whatever the layout of its arguments: all public calls come here.

use ndarray::{ArrayView4, ArrayViewMut4, Axis, ShapeBuilder, Slice};
use warpweft_device::{CpuPool, Float, Stream, View, ViewMut};

use super::cpu::{How, Mask, part};
use super::options::{Extra, Options, Shape};
use super::{backward, forward, gpu};
use crate::{KernelError, Write, check};

/// Heads that lie side by side in longer rows, as q, k and v do in packed ones: `[B, T, row]`, of which the elements from
/// `first` on are read.
#[derive(Clone, Copy)]
pub struct Heads<'a, T> {
    /// All rows.
    pub rows: View<'a, T>,
    /// Elements of a row.
    pub row: usize,
    /// The first element of a row that is read.
    pub first: usize,
}

impl<'a, T: Float> Heads<'a, T> {
    /// Rows that are nothing but these heads.
    pub fn whole(rows: View<'a, T>, heads: usize, head_size: usize) -> Self {
        Self { rows, row: heads.saturating_mul(head_size), first: 0 }
    }

    /// Checks rows of an argument, of which `dims` are read.
    fn check(
        self,
        stream: &Stream,
        op: &'static str,
        argument: &'static str,
        dims: [usize; 4],
    ) -> Result<(), KernelError> {
        let [batch, tokens, heads, head_size] = dims;
        let wanted = check::elements(op, argument, &[heads, head_size])?;
        if (self.first, self.row) == (0, wanted) {
            return check::region(stream, op, argument, self.rows, &dims).map(|_| ());
        }
        check::region(stream, op, argument, self.rows, &[batch, tokens, self.row])?;
        match self.first.checked_add(wanted) {
            Some(end) if end <= self.row => Ok(()),
            _ => {
                let end = self.first.saturating_add(wanted);
                let allowed = format!("at least {end}, where the {heads} heads of `{argument}` end");
                Err(KernelError::Size { op, argument: "row", given: self.row, allowed })
            }
        }
    }

    /// What was checked, on the CPU.
    fn array(self, dims: [usize; 4]) -> Result<ArrayView4<'a, T>, KernelError> {
        let [batch, tokens, heads, head_size] = dims;
        let rows = self.rows.host()?;
        if dims.contains(&0) {
            return Ok(array(&[], dims));
        }
        let (rows, strides) = (&rows[self.first..], (tokens * self.row, self.row, head_size, 1));
        let view = ArrayView4::from_shape((batch, tokens, heads, head_size).strides(strides), rows);
        Ok(view.expect("the rows were checked against the shape"))
    }
}

/// Where the gradients go.
pub(super) enum Gradients<'a, O> {
    /// dq, dk, dv.
    Apart([ViewMut<'a, O>; 3]),
    /// In the packed rows' layout.
    Packed(ViewMut<'a, O>),
}

/// What backward reads beside the inputs.
#[derive(Clone, Copy)]
pub struct Saved<'a, T> {
    /// What forward gave; with [`backward_onto`](super::backward_onto) that of all keys together, rounded to the storage.
    pub out: View<'a, T>,
    /// The LSE, likewise.
    pub lse: View<'a, f32>,
    /// The gradient of `out`.
    pub dout: View<'a, T>,
}

/// A call, checked but for its arrays.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) op: &'static str,
    pub(super) stream: &'a Stream,
    pub(super) shape: Shape,
    pub(super) options: Options,
    pub(super) extra: Extra<'a>,
    /// Query i of every sequence sees the first `seen[i]` keys.
    pub(super) seen: Option<View<'a, u32>>,
    /// Whether results join those that are there.
    pub(super) write: Write,
}

impl<'a> Call<'a> {
    pub(super) fn new(op: &'static str, stream: &'a Stream, shape: Shape, options: Options) -> Self {
        Self { op, stream, shape, options, extra: Extra::default(), seen: None, write: Write::Set }
    }

    /// What q and k have, given the rows of both: one row of sequences where they have starts.
    fn dims<T: Float>(&self, q: Heads<'_, T>, k: Heads<'_, T>) -> [[usize; 4]; 2] {
        if self.extra.starts.is_none() {
            return [self.shape.q(), self.shape.kv()];
        }
        let tokens = |heads: Heads<'_, T>| heads.rows.len() / heads.row.max(1);
        let Shape { heads, kv_heads, head_size, .. } = self.shape;
        [[1, tokens(q), heads, head_size], [1, tokens(k), kv_heads, head_size]]
    }

    fn check<T: Float>(&self, [q, k, v]: [Heads<'_, T>; 3]) -> Result<[[usize; 4]; 2], KernelError> {
        let Self { op, stream, shape, options, extra, seen, .. } = *self;
        shape.check(op)?;
        options.check(op)?;
        let [queries, keys] = self.dims(q, k);
        q.check(stream, op, "q", queries)?;
        k.check(stream, op, "k", keys)?;
        v.check(stream, op, "v", keys)?;
        if let Some(slopes) = extra.slopes {
            check::region(stream, op, "slopes", slopes, &[shape.heads])?;
        }
        if let Some(starts) = extra.starts {
            let expected = check::elements(op, "starts", &[shape.batch.saturating_add(1)])?;
            check::region(stream, op, "starts.queries", starts.queries, &[expected])?;
            check::region(stream, op, "starts.keys", starts.keys, &[expected])?;
        }
        if let Some(seen) = seen {
            check::region(stream, op, "seen", seen, &[shape.queries])?;
        }
        Ok([queries, keys])
    }

    pub(super) fn forward<T: Float, O: Float>(
        &self,
        inputs: [Heads<'_, T>; 3],
        out: ViewMut<'_, O>,
        lse: ViewMut<'_, f32>,
    ) -> Result<(), KernelError> {
        let Self { op, stream, shape, .. } = *self;
        let [queries, keys] = self.check(inputs)?;
        let out = check::region_mut(stream, op, "out", out, &queries)?;
        let lse = check::region_mut(stream, op, "lse", lse, &[queries[0], shape.heads, queries[1]])?;
        let Ok(pool) = stream.device().cpu_pool() else {
            return gpu::forward(self, [queries[1], keys[1]], inputs, out, lse);
        };
        let [q, k, v] = inputs;
        let arrays = [q.array(queries)?, k.array(keys)?, v.array(keys)?];
        let (mut out, lse) = (array_mut(out.host()?, queries), lse.host()?);
        self.sequences(queries[1], keys[1])?.iter().try_for_each(|of| {
            let (arrays, out) = (of.inputs(arrays), of.rows_mut(out.view_mut(), 0));
            let mut lses = of.lse(lse);
            forward::run(pool, of.how, arrays, self.write, out, &mut lses);
            of.put_lse(lse, &lses);
            Ok(())
        })
    }

    pub(super) fn backward<T: Float, O: Float>(
        &self,
        inputs: [Heads<'_, T>; 3],
        saved: Saved<'_, T>,
        gradients: Gradients<'_, O>,
    ) -> Result<(), KernelError> {
        let Self { op, stream, shape, .. } = *self;
        let [queries, keys] = self.check(inputs)?;
        let out = check::region(stream, op, "out", saved.out, &queries)?;
        let lse = check::region(stream, op, "lse", saved.lse, &[queries[0], shape.heads, queries[1]])?;
        let dout = check::region(stream, op, "dout", saved.dout, &queries)?;
        let gradients = match gradients {
            Gradients::Apart([dq, dk, dv]) => Gradients::Apart([
                check::region_mut(stream, op, "dq", dq, &queries)?,
                check::region_mut(stream, op, "dk", dk, &keys)?,
                check::region_mut(stream, op, "dv", dv, &keys)?,
            ]),
            packed => packed,
        };
        let saved = Saved { out, lse, dout };
        let Ok(pool) = stream.device().cpu_pool() else {
            return gpu::backward(self, [queries[1], keys[1]], inputs, saved, gradients);
        };
        self.backward_on_cpu(pool, [queries, keys], inputs, saved, gradients)
    }

    fn backward_on_cpu<T: Float, O: Float>(
        &self,
        pool: &CpuPool,
        [queries, keys]: [[usize; 4]; 2],
        [q, k, v]: [Heads<'_, T>; 3],
        saved: Saved<'_, T>,
        gradients: Gradients<'_, O>,
    ) -> Result<(), KernelError> {
        let arrays = [q.array(queries)?, k.array(keys)?, v.array(keys)?];
        let lse = saved.lse.host()?;
        let saved = [array(saved.out.host()?, queries), array(saved.dout.host()?, queries)];
        let [mut dq, mut dk, mut dv] = match gradients {
            Gradients::Apart([dq, dk, dv]) => {
                [array_mut(dq.host()?, queries), array_mut(dk.host()?, keys), array_mut(dv.host()?, keys)]
            }
            Gradients::Packed(rows) => {
                let Shape { batch, queries, heads, kv_heads, head_size, .. } = self.shape;
                let rows = array_mut(rows.host()?, [batch, queries, heads + 2 * kv_heads, head_size]);
                let (dq, rest) = rows.split_at(Axis(2), heads);
                let (dk, dv) = rest.split_at(Axis(2), kv_heads);
                [dq, dk, dv]
            }
        };
        for of in self.sequences(queries[1], keys[1])? {
            let lse = of.lse(lse);
            let [out, dout] = saved.map(|rows| of.rows(rows, 0));
            let saved = backward::Saved { out, lse: &lse, dout };
            let gradients =
                [of.rows_mut(dq.view_mut(), 0), of.rows_mut(dk.view_mut(), 1), of.rows_mut(dv.view_mut(), 1)];
            backward::run(pool, of.how, of.inputs(arrays), saved, self.write, gradients);
        }
        Ok(())
    }

    /// What the CPU computes at a time: all sequences of equal lengths, or each one that has starts.
    fn sequences(&self, queries: usize, keys: usize) -> Result<Vec<Sequences<'a>>, KernelError> {
        let Self { op, shape, options, extra, .. } = *self;
        let seen = self.seen.map(View::host).transpose()?;
        if let Some(seen) = seen {
            check_seen(op, seen, shape.keys)?;
        }
        let how = |shape: Shape, sequence| -> Result<How<'a>, KernelError> {
            Ok(How {
                shape,
                mask: Mask::new(shape, options.window(), seen),
                scale: options.scale(shape.head_size),
                softcap: options.softcap,
                slopes: extra.slopes.map(View::host).transpose()?,
                dropout: options.dropout.filter(|dropout| dropout.threshold() > 0),
                sequence,
            })
        };
        let Some(starts) = extra.starts else {
            return Ok(vec![Sequences { how: how(shape, 0)?, all: queries, begin: None }]);
        };
        let (q, k) = (starts.queries.host()?, starts.keys.host()?);
        check_starts(op, "starts.queries", q, queries, shape.queries)?;
        check_starts(op, "starts.keys", k, keys, shape.keys)?;
        let one = |(sequence, (q, k)): (usize, (&[u32], &[u32]))| {
            let shape = Shape { batch: 1, queries: (q[1] - q[0]) as usize, keys: (k[1] - k[0]) as usize, ..shape };
            Ok(Sequences { how: how(shape, sequence)?, all: queries, begin: Some([q[0] as usize, k[0] as usize]) })
        };
        q.windows(2).zip(k.windows(2)).enumerate().map(one).collect()
    }
}

/// Sequences that one run of the CPU's path takes.
struct Sequences<'a> {
    how: How<'a>,
    /// Rows of queries in all.
    all: usize,
    /// The first query and key, where it is one sequence among others.
    begin: Option<[usize; 2]>,
}

impl Sequences<'_> {
    fn rows<'b, T>(&self, rows: ArrayView4<'b, T>, of: usize) -> ArrayView4<'b, T> {
        let len = [self.how.shape.queries, self.how.shape.keys][of];
        self.begin.map_or(rows, |begin| part(rows, Axis(1), begin[of]..begin[of] + len))
    }

    fn rows_mut<'b, T>(&self, mut rows: ArrayViewMut4<'b, T>, of: usize) -> ArrayViewMut4<'b, T> {
        if let Some(begin) = self.begin {
            let len = [self.how.shape.queries, self.how.shape.keys][of];
            rows.slice_axis_inplace(Axis(1), Slice::from(begin[of]..begin[of] + len));
        }
        rows
    }

    fn inputs<'b, T>(&self, [q, k, v]: [ArrayView4<'b, T>; 3]) -> [ArrayView4<'b, T>; 3] {
        [self.rows(q, 0), self.rows(k, 1), self.rows(v, 1)]
    }

    /// The sequence's part of each head's LSEs.
    fn parts(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let (begin, len) = (self.begin.map_or(0, |begin| begin[0]), self.how.shape.queries);
        (0..self.how.shape.heads).map(move |head| head * self.all + begin..head * self.all + begin + len)
    }

    fn lse(&self, lse: &[f32]) -> Vec<f32> {
        match self.begin {
            Some(_) => self.parts().flat_map(|part| lse[part].iter().copied()).collect(),
            None => lse.to_vec(),
        }
    }

    fn put_lse(&self, lse: &mut [f32], from: &[f32]) {
        if self.begin.is_none() {
            return lse.copy_from_slice(from);
        }
        for (part, from) in self.parts().zip(from.chunks(self.how.shape.queries.max(1))) {
            lse[part].copy_from_slice(from);
        }
    }
}

fn array<T>(data: &[T], dims: [usize; 4]) -> ArrayView4<'_, T> {
    ArrayView4::from_shape(dims, data).expect("the length was checked against the shape")
}

fn array_mut<T>(data: &mut [T], dims: [usize; 4]) -> ArrayViewMut4<'_, T> {
    ArrayViewMut4::from_shape(dims, data).expect("the length was checked against the shape")
}

/// Numbers of keys that do not fall and are no more than there are.
fn check_seen(op: &'static str, seen: &[u32], keys: usize) -> Result<(), KernelError> {
    let fall = seen.windows(2).find(|pair| pair[0] > pair[1]).map(|pair| pair[1]);
    if let Some(given) = fall {
        let allowed = "no less than the entry before it".to_owned();
        return Err(KernelError::Size { op, argument: "seen", given: given as usize, allowed });
    }
    match seen.last() {
        Some(&last) if last as usize > keys => {
            let allowed = format!("at most {keys}, the keys there are");
            Err(KernelError::Size { op, argument: "seen", given: last as usize, allowed })
        }
        _ => Ok(()),
    }
}

/// Starts that do not fall, are inside the rows and are no further apart than the longest sequence.
fn check_starts(
    op: &'static str,
    argument: &'static str,
    starts: &[u32],
    all: usize,
    longest: usize,
) -> Result<(), KernelError> {
    let wrong = starts
        .windows(2)
        .find(|pair| pair[1] < pair[0] || pair[1] as usize > all || (pair[1] - pair[0]) as usize > longest);
    match wrong {
        Some(pair) => {
            let most = all.min(longest.saturating_add(pair[0] as usize));
            let allowed = format!("from {} to {most}, behind a start of {}", pair[0], pair[0]);
            Err(KernelError::Size { op, argument, given: pair[1] as usize, allowed })
        }
        None => Ok(()),
    }
}
