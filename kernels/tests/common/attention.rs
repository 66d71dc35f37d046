//! Cases of attention with every switch, run on any device and by the f64 reference.

use warpweft_device::Float;
use warpweft_kernels::attention::{self, Extra, Heads, Options, Saved, Shape, Starts, reference};

use super::{On, f64s, normal};

/// Inputs and the output's gradient.
#[derive(Clone)]
pub(crate) struct Case<T> {
    pub(crate) shape: Shape,
    pub(crate) options: Options,
    pub(crate) slopes: Option<Vec<f32>>,
    /// Where sequences begin: queries, keys.
    pub(crate) starts: Option<[Vec<u32>; 2]>,
    pub(crate) q: Vec<T>,
    pub(crate) k: Vec<T>,
    pub(crate) v: Vec<T>,
    pub(crate) dout: Vec<T>,
    /// Rows of NaN behind each of them; without any, the array ends where the device's own red zone begins.
    pub(crate) behind: usize,
}

#[derive(Clone)]
pub(crate) struct Output<T> {
    pub(crate) out: Vec<T>,
    pub(crate) lse: Vec<f32>,
}

/// dq, dk, dv.
pub(crate) type Gradients<T> = [Vec<T>; 3];

pub(crate) fn shape(
    batch: usize,
    (queries, keys): (usize, usize),
    (heads, kv_heads): (usize, usize),
    head_size: usize,
) -> Shape {
    Shape { batch, queries, keys, heads, kv_heads, head_size }
}

/// The starts of lengths one behind the other.
fn starts(lengths: impl Iterator<Item = usize>) -> Vec<u32> {
    let ends = lengths.scan(0, |end, length| {
        *end += length as u32;
        Some(*end)
    });
    [0].into_iter().chain(ends).collect()
}

impl<T: Float> Case<T> {
    pub(crate) fn new(shape: Shape, options: Options) -> Self {
        Self::of(shape, options, [shape.batch * shape.queries, shape.batch * shape.keys])
    }

    fn of(shape: Shape, options: Options, [queries, keys]: [usize; 2]) -> Self {
        let (q, kv) = (queries * shape.heads * shape.head_size, keys * shape.kv_heads * shape.head_size);
        let [q, k, v, dout] = [(q, 1), (kv, 2), (kv, 3), (q, 4)].map(|(len, seed)| normal(len, seed));
        Self { shape, options, slopes: None, starts: None, q, k, v, dout, behind: 256 }
    }

    /// Sequences of these lengths of queries and keys, without padding.
    pub(crate) fn of_lengths(
        lengths: &[(usize, usize)],
        heads: (usize, usize),
        head_size: usize,
        options: Options,
    ) -> Self {
        let longest = |of: &dyn Fn(&(usize, usize)) -> usize| lengths.iter().map(of).max().unwrap_or(0);
        let shape = shape(lengths.len(), (longest(&|l| l.0), longest(&|l| l.1)), heads, head_size);
        let starts = [starts(lengths.iter().map(|l| l.0)), starts(lengths.iter().map(|l| l.1))];
        let all = [0, 1].map(|of| *starts[of].last().unwrap() as usize);
        Self { starts: Some(starts), ..Self::of(shape, options, all) }
    }

    /// With ALiBi: other slopes than those of a power of two, so that they round.
    pub(crate) fn alibi(mut self) -> Self {
        self.slopes = Some((0..self.shape.heads).map(|head| 0.3 / (head as f32 + 1.0)).collect());
        self
    }

    /// Rows of queries and keys.
    pub(crate) fn rows(&self) -> [usize; 2] {
        let Shape { heads, kv_heads, head_size, .. } = self.shape;
        [self.q.len() / (heads * head_size), self.k.len() / (kv_heads * head_size)]
    }

    fn with_behind(&self, x: &[T]) -> Vec<T> {
        let behind = self.behind * self.shape.heads * self.shape.head_size;
        [x, &vec![T::from_f32(f32::NAN); behind]].concat()
    }

    fn on<R>(&self, on: &On, work: impl FnOnce(Extra<'_>, [Heads<'_, T>; 3]) -> R) -> R {
        let Shape { heads, kv_heads, head_size, .. } = self.shape;
        let slopes = self.slopes.as_ref().map(|slopes| on.up(slopes));
        let starts = self.starts.as_ref().map(|starts| starts.each_ref().map(|starts| on.up(starts)));
        let extra = Extra {
            slopes: slopes.as_ref().map(|slopes| slopes.as_view()),
            starts: starts.as_ref().map(|[q, k]| Starts { queries: q.as_view(), keys: k.as_view() }),
        };
        let up = |x: &Vec<T>| on.up(&self.with_behind(x));
        let [q, k, v] = [&self.q, &self.k, &self.v].map(up);
        let kv = |rows| Heads::whole(rows, kv_heads, head_size);
        let [q, k, v] = [q.view(..self.q.len()), k.view(..self.k.len()), v.view(..self.v.len())].map(Result::unwrap);
        work(extra, [Heads::whole(q, heads, head_size), kv(k), kv(v)])
    }

    pub(crate) fn forward(&self, on: &On) -> Output<T> {
        let (mut out, mut lse) = (on.garbage(self.q.len()), on.garbage(self.rows()[0] * self.shape.heads));
        self.on(on, |extra, inputs| {
            let (out, lse) = (out.as_view_mut(), lse.as_view_mut());
            attention::forward_with(&on.stream, self.shape, self.options, extra, inputs, out, lse).unwrap();
        });
        Output { out: on.down(&out), lse: on.down(&lse) }
    }

    pub(crate) fn backward(&self, on: &On, saved: &Output<T>) -> Gradients<T> {
        let mut gradients = [&self.q, &self.k, &self.v].map(|x| on.garbage::<T>(x.len()));
        let (out, lse, dout) = (on.up(&saved.out), on.up(&saved.lse), on.up(&self.with_behind(&self.dout)));
        let dout = dout.view(..self.dout.len()).unwrap();
        let saved = Saved { out: out.as_view(), lse: lse.as_view(), dout };
        self.on(on, |extra, inputs| {
            let gradients = gradients.each_mut().map(|gradient| gradient.as_view_mut());
            attention::backward_with(&on.stream, self.shape, self.options, extra, inputs, saved, gradients).unwrap();
        });
        gradients.map(|gradient| on.down(&gradient))
    }

    /// The sequences one by one, or all that have equal lengths: each with the index of the first, and its rows.
    pub(crate) fn sequences(&self) -> Vec<(usize, Self)> {
        let Some([q, k]) = &self.starts else { return vec![(0, self.clone())] };
        let Shape { heads, kv_heads, head_size, .. } = self.shape;
        let one = |(sequence, (q, k)): (usize, (&[u32], &[u32]))| {
            let part = |x: &[T], starts: &[u32], heads: usize| {
                x[starts[0] as usize * heads * head_size..starts[1] as usize * heads * head_size].to_vec()
            };
            let shape = Shape { batch: 1, queries: (q[1] - q[0]) as usize, keys: (k[1] - k[0]) as usize, ..self.shape };
            let case = Self {
                shape,
                options: self.options,
                slopes: self.slopes.clone(),
                starts: None,
                q: part(&self.q, q, heads),
                k: part(&self.k, k, kv_heads),
                v: part(&self.v, k, kv_heads),
                dout: part(&self.dout, q, heads),
                behind: self.behind,
            };
            (sequence, case)
        };
        q.windows(2).zip(k.windows(2)).enumerate().map(one).collect()
    }

    fn problem(&self, sequence: usize, round: Option<fn(f64) -> f64>) -> reference::Problem<'_> {
        let slopes = self.slopes.as_deref();
        reference::Problem { slopes, sequence, round, ..reference::Problem::new(self.shape, self.options) }
    }

    /// out and LSE in f64, exact or with the kernels' roundings.
    pub(crate) fn reference(&self, round: Option<fn(f64) -> f64>) -> (Vec<f64>, Vec<f64>) {
        let (mut out, mut lses) = (Vec::new(), Vec::new());
        for (sequence, case) in self.sequences() {
            let (part, lse) = case.problem(sequence, round).forward(&f64s(&case.q), &f64s(&case.k), &f64s(&case.v));
            out.extend(part);
            lses.push((case.shape.queries, lse));
        }
        if self.starts.is_none() {
            return (out, lses.remove(0).1);
        }
        // [H, all queries].
        let head = |head: usize| {
            lses.iter().flat_map(move |(queries, lse)| lse[head * queries..(head + 1) * queries].iter().copied())
        };
        (out, (0..self.shape.heads).flat_map(head).collect())
    }

    /// The gradients in f64.
    pub(crate) fn reference_gradients(&self, round: Option<fn(f64) -> f64>) -> [Vec<f64>; 3] {
        let mut all = [const { Vec::new() }; 3];
        for (sequence, case) in self.sequences() {
            let [q, k, v, dout] = [&case.q, &case.k, &case.v, &case.dout].map(|x| f64s(x));
            let (dq, dk, dv) = case.problem(sequence, round).backward(&q, &k, &v, &dout);
            all.iter_mut().zip([dq, dk, dv]).for_each(|(all, part)| all.extend(part));
        }
        all
    }
}

/// The largest absolute value.
pub(crate) fn largest<T: Float>(values: &[T]) -> f64 {
    values.iter().map(|x| x.to_f64().abs()).fold(0.0, f64::max)
}
