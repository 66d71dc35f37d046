//! attention over keys in parts: parts in any number and order are the whole, however far apart their scores are.
#![forbid(unsafe_code)]

mod common;

use common::{On, U, assert_gradient, assert_within, dot, f64s, finite_differences, normal, same_bits_for_threads};
use warpweft_device::{Buffer, Float, bf16};
use warpweft_kernels::attention::{self, Heads, Options, Shape, reference};
use warpweft_kernels::cast;

const FULL: Options = Options::FULL;

/// Packed rows of a sequence whose keys are cut in parts, each with what the queries see of it.
struct Case<T> {
    shape: Shape,
    qkv: Vec<T>,
    dout: Vec<T>,
    parts: Vec<Part>,
}

struct Part {
    /// The tokens whose keys these are.
    tokens: Vec<usize>,
    seen: Vec<u32>,
}

impl<T: Float> Case<T> {
    /// The tokens in the parts `cut` says, in that order; causal over all.
    fn new((batch, tokens, heads, kv_heads, head_size): (usize, usize, usize, usize, usize), cut: &[&[usize]]) -> Self {
        let shape = Shape { batch, queries: tokens, keys: tokens, heads, kv_heads, head_size };
        let row = (heads + 2 * kv_heads) * head_size;
        let part = |part: &&[usize]| {
            let seen = |query| part.iter().filter(|&&token| token <= query).count() as u32;
            Part { tokens: part.to_vec(), seen: (0..tokens).map(seen).collect() }
        };
        let parts = cut.iter().map(part).collect();
        Self { shape, qkv: normal(batch * tokens * row, 1), dout: normal(batch * tokens * heads * head_size, 2), parts }
    }

    fn row(&self) -> usize {
        (self.shape.heads + 2 * self.shape.kv_heads) * self.shape.head_size
    }

    /// Elements `from..from + width` of the rows of some tokens.
    fn columns(&self, tokens: &[usize], (from, width): (usize, usize)) -> Vec<T> {
        let Shape { batch, queries, .. } = self.shape;
        let rows = (0..batch).flat_map(|b| tokens.iter().map(move |token| (b * queries + token) * self.row()));
        rows.flat_map(|start| self.qkv[start + from..start + from + width].to_vec()).collect()
    }

    fn heads<'a>(&self, on: &'a Inputs<T>, part: usize) -> [Heads<'a, T>; 3] {
        let Shape { heads, kv_heads, head_size, .. } = self.shape;
        let width = kv_heads * head_size;
        let kv = |first| Heads { rows: on.kv[part].as_view(), row: 2 * width, first };
        let _ = heads;
        [Heads { rows: on.qkv.as_view(), row: self.row(), first: 0 }, kv(0), kv(width)]
    }

    fn upload(&self, on: &On) -> Inputs<T> {
        let Shape { heads, kv_heads, head_size, .. } = self.shape;
        let kv = |part: &Part| on.up(&self.columns(&part.tokens, (heads * head_size, 2 * kv_heads * head_size)));
        let seen = self.parts.iter().map(|part| on.up(&part.seen)).collect();
        Inputs { qkv: on.up(&self.qkv), kv: self.parts.iter().map(kv).collect(), seen }
    }

    fn part_shape(&self, part: usize) -> Shape {
        Shape { keys: self.parts[part].tokens.len(), ..self.shape }
    }

    fn forward(&self, on: &On) -> (Vec<f32>, Vec<f32>) {
        let Shape { batch, queries, heads, .. } = self.shape;
        let inputs = self.upload(on);
        let mut out = on.garbage::<f32>(self.dout.len());
        let mut lse = on.up(&vec![f32::NEG_INFINITY; batch * heads * queries]);
        for part in 0..self.parts.len() {
            let (seen, qkv) = (inputs.seen[part].as_view(), self.heads(&inputs, part));
            let (out, lse) = (out.as_view_mut(), lse.as_view_mut());
            attention::forward_onto(&on.stream, self.part_shape(part), FULL, Some(seen), qkv, out, lse).unwrap();
        }
        (on.down(&out), on.down(&lse))
    }

    /// dq, and dk and dv of each part.
    fn backward(&self, on: &On, out: &[f32], lse: &[f32]) -> (Vec<f32>, Vec<[Vec<f32>; 2]>) {
        let inputs = self.upload(on);
        let (wide, lse, dout) = (on.up(out), on.up(lse), on.up(&self.dout));
        let mut out = on.garbage::<T>(wide.len());
        cast::convert(&on.stream, wide.as_view(), out.as_view_mut()).unwrap();
        let mut dq = on.up(&vec![0.0f32; dout.len()]);
        let mut parts = Vec::new();
        for part in 0..self.parts.len() {
            let shape = self.part_shape(part);
            let zeros = vec![0.0f32; shape.batch * shape.keys * shape.kv_heads * shape.head_size];
            let (mut dk, mut dv) = (on.up(&zeros), on.up(&zeros));
            attention::backward_onto(
                &on.stream,
                shape,
                FULL,
                Some(inputs.seen[part].as_view()),
                self.heads(&inputs, part),
                (out.as_view(), lse.as_view(), dout.as_view()),
                dq.as_view_mut(),
                dk.as_view_mut(),
                dv.as_view_mut(),
            )
            .unwrap();
            parts.push([on.down(&dk), on.down(&dv)]);
        }
        (on.down(&dq), parts)
    }

    /// Elements of the rows of all tokens in f64.
    fn all(&self, columns: (usize, usize)) -> Vec<f64> {
        f64s(&self.columns(&(0..self.shape.queries).collect::<Vec<_>>(), columns))
    }

    fn check(&self) {
        let on = On::threads(2);
        let Shape { heads, kv_heads, head_size, keys, .. } = self.shape;
        let (query, kv) = (heads * head_size, kv_heads * head_size);
        let [q, k, v] = [self.all((0, query)), self.all((query, kv)), self.all((query + kv, kv))];
        let causal = Options::CAUSAL;
        let (out, lse) = reference::forward(self.shape, causal, &q, &k, &v);
        let (dq, dk, dv) = reference::backward(self.shape, causal, &q, &k, &v, &f64s(&self.dout));
        // As derived in the tests of the whole op; each part adds the roundings of out, sum and LSE, which a tile adds too.
        let largest = |x: &[f64]| x.iter().fold(0.0f64, |a, b| a.max(b.abs()));
        let (d, rows) = (head_size as f64, (keys * heads / kv_heads) as f64);
        let (scale, ends) =
            (1.0 / d.sqrt(), largest(&q).max(largest(&k)).max(largest(&v)).max(largest(&f64s(&self.dout))));
        let magnitude = scale * d * largest(&q) * largest(&k);
        let score = (d + 2.0) * U * magnitude + 2.0 * U * (magnitude + (keys as f64).ln());
        let steps = (4.0 + keys as f64 + 8.0 * (self.parts.len() as f64 + (keys as f64 / 64.0).ceil())) * U;
        let weight = 2.0 * score + steps + 2.0 * U * largest(&lse.iter().map(|x| x.max(-1e3)).collect::<Vec<_>>());
        let out_bound = (2.0 * weight + (keys as f64 + 8.0 * self.parts.len() as f64) * U) * largest(&v);
        let (given_out, given_lse) = self.forward(&on);
        assert_within("out", &given_out, &out, |_| out_bound);
        assert_within("lse", &given_lse, &lse, |i| score + weight + 2.0 * U * lse[i].abs());

        let dp = d * ends * largest(&v);
        // `out` is rounded to the storage before backward.
        let delta = d * ends * (out_bound + common::rounding::<T>(largest(&v)));
        let ds = 2.0 * dp * (weight + 2.0 * U) + 2.0 * (d + 2.0) * U * dp + delta;
        let (given_dq, parts) = self.backward(&on, &given_out, &given_lse);
        assert_within("dq", &given_dq, &dq, |_| scale * largest(&k) * (ds + 2.0 * dp * (keys as f64 + 2.0) * U));
        for (part, [given_dk, given_dv]) in self.parts.iter().zip(&parts) {
            let of = |whole: &[f64]| -> Vec<f64> {
                let rows = (0..self.shape.batch).flat_map(|b| part.tokens.iter().map(move |t| (b * keys + t) * kv));
                rows.flat_map(|start| whole[start..start + kv].to_vec()).collect()
            };
            assert_within("dk", given_dk, &of(&dk), |_| {
                scale * largest(&q) * rows * (ds + 2.0 * dp * (rows + 2.0) * U)
            });
            assert_within("dv", given_dv, &of(&dv), |_| rows * ends * (weight + (rows + 1.0) * U));
        }
    }
}

struct Inputs<T: warpweft_device::Element> {
    qkv: Buffer<T>,
    kv: Vec<Buffer<T>>,
    seen: Vec<Buffer<u32>>,
}

/// Every third token, from `first` on.
fn thirds(tokens: usize, first: usize) -> Vec<usize> {
    (first..tokens).step_by(3).collect()
}

#[test]
fn parts_in_any_number_and_order_are_the_whole() {
    for (tokens, heads, kv_heads, head_size) in [(7, 2, 1, 8), (70, 4, 2, 16), (150, 2, 2, 24)] {
        let shape = (2, tokens, heads, kv_heads, head_size);
        let all: Vec<usize> = (0..tokens).collect();
        let (left, right) = all.split_at(tokens / 3);
        let thirds: Vec<_> = [2, 0, 1].map(|first| thirds(tokens, first)).into();
        Case::<f32>::new(shape, &[&all]).check();
        Case::<f32>::new(shape, &[left, right]).check();
        Case::<f32>::new(shape, &[right, &[], left]).check();
        Case::<f32>::new(shape, &thirds.iter().map(Vec::as_slice).collect::<Vec<_>>()).check();
        Case::<bf16>::new(shape, &[right, left]).check();
    }
}

#[test]
fn scores_of_parts_that_are_200_apart_neither_overflow_nor_vanish() {
    // One key/value head of one element; key j has the score q k_j, and q = 1.
    let shape = Shape { batch: 1, queries: 2, keys: 1, heads: 1, kv_heads: 1, head_size: 1 };
    let on = On::threads(1);
    for scores in
        [[0.0, 200.0], [200.0, 0.0], [-200.0, 200.0], [3e4, -3e4], [f32::NEG_INFINITY, 5.0], [5.0, f32::NEG_INFINITY]]
    {
        let q = on.up(&[1.0f32, 1.0]);
        let (mut out, mut lse) = (on.garbage::<f32>(2), on.up(&[f32::NEG_INFINITY; 2]));
        // The second query sees both keys, the first one only the first.
        for (key, seen) in [[1u32, 1], [0, 1]].iter().enumerate() {
            let (k, v, seen) = (on.up(&[scores[key]]), on.up(&[key as f32 + 1.0]), on.up(seen));
            let qkv = [&q, &k, &v].map(|x| Heads { rows: x.as_view(), row: 1, first: 0 });
            let (out, lse) = (out.as_view_mut(), lse.as_view_mut());
            attention::forward_onto(&on.stream, shape, FULL, Some(seen.as_view()), qkv, out, lse).unwrap();
        }
        let (out, lse) = (on.down(&out), on.down(&lse));
        let highest = scores[0].max(scores[1]);
        assert_eq!(lse, [scores[0], highest], "{scores:?}");
        let winner = if scores[0] > scores[1] { 1.0 } else { 2.0 };
        assert_eq!(out, [if scores[0].is_finite() { 1.0 } else { 0.0 }, winner], "{scores:?}");
    }
}

#[test]
fn what_is_not_seen_is_not_read_and_rows_without_keys_stay_nothing() {
    let on = On::threads(2);
    let shape = Shape { batch: 1, queries: 3, keys: 2, heads: 1, kv_heads: 1, head_size: 4 };
    let q = on.up(&normal::<f32>(12, 1));
    let mut keys = normal::<f32>(8, 2);
    keys[4..].fill(f32::NAN);
    let k = on.up(&keys);
    let seen = on.up(&[0u32, 1, 1]);
    let all = |rows| Heads { rows, row: 4, first: 0 };
    let (mut out, mut lse) = (on.garbage::<f32>(12), on.up(&[f32::NEG_INFINITY; 3]));
    let qkv = [all(q.as_view()), all(k.as_view()), all(k.as_view())];
    attention::forward_onto(&on.stream, shape, FULL, Some(seen.as_view()), qkv, out.as_view_mut(), lse.as_view_mut())
        .unwrap();
    let (given, given_lse) = (on.down(&out), on.down(&lse));
    assert_eq!(given_lse[0], f32::NEG_INFINITY);
    assert_eq!(given[..4], [0.0; 4], "a row that has seen nothing is zero");
    assert_eq!(given[4..], [&keys[..4], &keys[..4]].concat());
    assert!(given_lse[1..].iter().all(|lse| lse.is_finite()));

    let rounded = on.up(&given);
    let dout = on.up(&normal::<f32>(12, 3));
    let zeros = |len| on.up(&vec![0.0f32; len]);
    let (mut dq, mut dk, mut dv) = (zeros(12), zeros(8), zeros(8));
    attention::backward_onto(
        &on.stream,
        shape,
        FULL,
        Some(seen.as_view()),
        qkv,
        (rounded.as_view(), lse.as_view(), dout.as_view()),
        dq.as_view_mut(),
        dk.as_view_mut(),
        dv.as_view_mut(),
    )
    .unwrap();
    assert_eq!(on.down(&dq)[..4], [0.0; 4]);
    for gradient in [on.down(&dk), on.down(&dv)] {
        assert_eq!(gradient[4..], [0.0; 4], "a key that nobody sees gets nothing");
    }
}

#[test]
fn the_references_gradients_of_what_is_seen_are_the_finite_differences() {
    let shape = Shape { batch: 2, queries: 4, keys: 5, heads: 2, kv_heads: 1, head_size: 3 };
    let seen = |query: usize| 0..[0, 2, 2, 5][query];
    let problem = reference::Problem { seen: Some(&seen), ..reference::Problem::new(shape, FULL) };
    let [q, k, v, dout] = [(48, 1), (30, 2), (30, 3), (48, 4)].map(|(len, seed)| f64s(&normal::<f32>(len, seed)));
    let loss = |q: &[f64], k: &[f64], v: &[f64]| dot(&problem.forward(q, k, v).0, &dout);
    let (dq, dk, dv) = problem.backward(&q, &k, &v, &dout);
    assert_gradient("dq", &dq, &finite_differences(&q, |q| loss(q, &k, &v)));
    assert_gradient("dk", &dk, &finite_differences(&k, |k| loss(&q, k, &v)));
    assert_gradient("dv", &dv, &finite_differences(&v, |v| loss(&q, &k, v)));
}

#[test]
fn threads_change_no_bit() {
    let case = Case::<f32>::new((2, 130, 4, 2, 16), &[&thirds(130, 1), &thirds(130, 0), &thirds(130, 2)]);
    same_bits_for_threads(|on| {
        let (out, lse) = case.forward(on);
        let (dq, parts) = case.backward(on, &out, &lse);
        [out, lse, dq].into_iter().chain(parts.into_iter().flatten()).flatten().collect::<Vec<f32>>()
    });
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    let on = On::threads(1);
    let shape = Shape { batch: 1, queries: 2, keys: 3, heads: 2, kv_heads: 1, head_size: 4 };
    let attempt = |options: Options, seen: Option<&[u32]>, (row, first): (usize, usize), len: usize| {
        let (q, kv) = (on.up(&[0.0f32; 16]), on.up(&vec![0.0f32; len]));
        let seen = seen.map(|seen| on.up(seen));
        let (mut out, mut lse) = (on.up(&[7.0f32; 16]), on.up(&[7.0f32; 4]));
        let k = Heads { rows: kv.as_view(), row, first };
        let qkv = [Heads { rows: q.as_view(), row: 8, first: 0 }, k, k];
        let seen = seen.as_ref().map(Buffer::as_view);
        let error =
            attention::forward_onto(&on.stream, shape, options, seen, qkv, out.as_view_mut(), lse.as_view_mut());
        assert!(on.down(&out).iter().chain(&on.down(&lse)).all(|&x| x == 7.0));
        error.unwrap_err().to_string()
    };
    let op = "attention::forward_onto: ";
    assert_eq!(attempt(FULL, None, (8, 0), 23), format!("{op}`k` has 23 elements; its shape 1 x 3 x 8 needs 24"));
    let ends = "`row` is 8; it must be at least 9, where the 1 heads of `k` end";
    assert_eq!(attempt(FULL, None, (8, 5), 24), format!("{op}{ends}"));
    assert!(attempt(FULL, None, (8, usize::MAX), 24).contains("`row` is 8"));
    assert!(attempt(FULL, Some(&[1]), (8, 0), 24).contains("`seen` has 1 elements"));
    assert!(attempt(FULL, Some(&[2, 1]), (8, 0), 24).contains("`seen` is 1; it must be no less than the entry before"));
    assert!(attempt(FULL, Some(&[2, 4]), (8, 0), 24).contains("`seen` is 4; it must be at most 3"));
    let causal = Options::CAUSAL;
    assert!(attempt(causal, Some(&[2, 3]), (8, 0), 24).contains("`causal` says what `seen` says already"));
}
