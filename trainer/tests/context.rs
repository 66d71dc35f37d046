//! Context parallelism is attention: every cut of the tokens over threads as ranks gives what one rank gives, within what
//! f32 leaves of it, and sends the bytes that the formulas say.
#![forbid(unsafe_code)]

mod common;

use std::sync::Arc;

use common::ranks;
use warpweft_comm::Communicator;
use warpweft_device::{Device, Float, bf16};
use warpweft_kernels::attention::{self, Options, Shape, reference};
use warpweft_kernels::philox::Philox4x32;
use warpweft_trainer::parallel::context::{Context, Method, Sizes};

const CAUSAL: Options = Options::CAUSAL;
const FULL: Options = Options::FULL;

/// Packed rows of whole sequences and the error of their outputs.
struct Case<T> {
    sizes: Sizes<'static>,
    tokens: usize,
    qkv: Vec<T>,
    dy: Vec<T>,
}

/// Outputs and the error of the packed rows.
struct Result<T> {
    y: Vec<T>,
    dqkv: Vec<T>,
}

fn normal<T: Float>(len: usize, seed: u64) -> Vec<T> {
    let generator = Philox4x32::new(seed, 0);
    (0..len as u64).map(|i| T::from_f64(generator.normal(i))).collect()
}

impl<T: Float> Case<T> {
    fn new(batch: usize, tokens: usize, (heads, kv_heads): (usize, usize), head_size: usize, options: Options) -> Self {
        let sizes = Sizes { batch, heads, kv_heads, head_size, options, documents: &[] };
        let row = (heads + 2 * kv_heads) * head_size;
        Self { sizes, tokens, qkv: normal(batch * tokens * row, 1), dy: normal(batch * tokens * heads * head_size, 2) }
    }

    /// Scores as far apart as `spread` standard deviations.
    fn with_scores(mut self, spread: f64) -> Self {
        let (row, queries) =
            (self.qkv.len() / (self.sizes.batch * self.tokens), self.sizes.heads * self.sizes.head_size);
        for row in self.qkv.chunks_exact_mut(row) {
            for q in &mut row[..queries] {
                *q = T::from_f64(spread * q.to_f64());
            }
        }
        self
    }

    fn shape(&self) -> Shape {
        let (tokens, Sizes { batch, heads, kv_heads, head_size, .. }) = (self.tokens, self.sizes);
        Shape { batch, queries: tokens, keys: tokens, heads, kv_heads, head_size }
    }

    fn reference(&self) -> Result<f64> {
        let Sizes { heads, kv_heads, head_size, options, .. } = self.sizes;
        let (queries, keys) = (heads * head_size, kv_heads * head_size);
        let row = queries + 2 * keys;
        let of = |first: usize, width: usize| -> Vec<f64> {
            self.qkv.chunks_exact(row).flat_map(|row| row[first..first + width].to_vec()).map(|x| x.to_f64()).collect()
        };
        let [q, k, v] = [of(0, queries), of(queries, keys), of(queries + keys, keys)];
        let (y, _) = reference::forward(self.shape(), options, &q, &k, &v);
        let dy: Vec<f64> = self.dy.iter().map(|x| x.to_f64()).collect();
        let (dq, dk, dv) = reference::backward(self.shape(), options, &q, &k, &v, &dy);
        let rows = dq.chunks_exact(queries).zip(dk.chunks_exact(keys)).zip(dv.chunks_exact(keys));
        let dqkv = rows.flat_map(|((dq, dk), dv)| [dq, dk, dv].concat()).collect();
        Result { y, dqkv }
    }

    /// The plain op.
    fn alone(&self) -> Result<T> {
        let device = Device::cpu_with_threads(1).unwrap();
        let stream = device.stream();
        let (qkv, dy) = (device.upload(&self.qkv).unwrap(), device.upload(&self.dy).unwrap());
        let mut y = device.zeros(self.dy.len()).unwrap();
        let mut lse = device.zeros(self.sizes.batch * self.sizes.heads * self.tokens).unwrap();
        let mut dqkv = device.zeros(self.qkv.len()).unwrap();
        let (shape, options) = (self.shape(), self.sizes.options);
        attention::forward_packed(&stream, shape, options, qkv.as_view(), y.as_view_mut(), lse.as_view_mut()).unwrap();
        let saved = (y.as_view(), lse.as_view(), dy.as_view());
        attention::backward_packed(
            &stream,
            shape,
            options,
            qkv.as_view(),
            saved.0,
            saved.1,
            saved.2,
            dqkv.as_view_mut(),
        )
        .unwrap();
        Result { y: y.download(&stream).unwrap(), dqkv: dqkv.download(&stream).unwrap() }
    }

    /// The rows of a rank's tokens.
    fn rows(&self, whole: &[T], positions: &[u32]) -> Vec<T> {
        let row = whole.len() / (self.sizes.batch * self.tokens).max(1);
        let of = |sequence: usize| positions.iter().map(move |token| (sequence * self.tokens + *token as usize) * row);
        (0..self.sizes.batch).flat_map(of).flat_map(|start| whole[start..start + row].to_vec()).collect()
    }

    /// One rank's part, what it sent in forward and in backward, and its positions.
    fn rank(&self, comm: Communicator, method: Method) -> (Result<T>, [u64; 2], Vec<u32>) {
        let device = Device::cpu_with_threads(1).unwrap();
        let stream = device.stream();
        let comm = Arc::new(comm);
        let context = Context::new(&device, comm.clone(), method, self.tokens).unwrap();
        let positions = context.positions();
        let garbage = T::from_f32(f32::NAN);
        let [qkv, dy] = [&self.qkv, &self.dy].map(|whole| device.upload(&self.rows(whole, &positions)).unwrap());
        let (mut y, mut dqkv) =
            (device.upload(&vec![garbage; dy.len()]).unwrap(), device.upload(&vec![garbage; qkv.len()]).unwrap());
        let mut lse = device.zeros(context.lse_len(self.sizes.batch, self.sizes.heads)).unwrap();
        let before = comm.sent_bytes();
        context.forward(&stream, &self.sizes, qkv.as_view(), y.as_view_mut(), lse.as_view_mut()).unwrap();
        let between = comm.sent_bytes();
        let saved = (qkv.as_view(), y.as_view(), lse.as_view());
        context.backward(&stream, &self.sizes, saved, dy.as_view(), dqkv.as_view_mut()).unwrap();
        let sent = [between - before, comm.sent_bytes() - between];
        (Result { y: y.download(&stream).unwrap(), dqkv: dqkv.download(&stream).unwrap() }, sent, positions)
    }

    /// The whole from all ranks' parts, and the bytes that they sent.
    fn apart(&self, cp: usize, method: Method) -> (Result<T>, [u64; 2]) {
        let nothing = T::from_f32(f32::NAN);
        let mut whole = Result { y: vec![nothing; self.dy.len()], dqkv: vec![nothing; self.qkv.len()] };
        let mut bytes = [0; 2];
        for (part, sent, positions) in ranks(cp, |comm| self.rank(comm, method)) {
            bytes = [bytes[0] + sent[0], bytes[1] + sent[1]];
            for (part, whole) in [(part.y, &mut whole.y), (part.dqkv, &mut whole.dqkv)] {
                let row = whole.len() / (self.sizes.batch * self.tokens).max(1);
                let places = (0..self.sizes.batch)
                    .flat_map(|sequence| positions.iter().map(move |token| sequence * self.tokens + *token as usize));
                for (place, values) in places.zip(part.chunks_exact(row)) {
                    whole[place * row..][..row].copy_from_slice(values);
                }
            }
        }
        (whole, bytes)
    }

    /// The error of `apart` is at most three times that of the plain op (each rank sums in an order of its own), and two
    /// roundings of the largest element beside it, where the plain op happens to be exact.
    fn check(&self, cp: usize, method: Method) {
        let (exact, alone) = (self.reference(), self.alone());
        let (apart, _) = self.apart(cp, method);
        let unit = if size_of::<T>() == 4 { 2f64.powi(-24) } else { 2f64.powi(-8) };
        let named = [("y", apart.y, alone.y, exact.y), ("dqkv", apart.dqkv, alone.dqkv, exact.dqkv)];
        for (name, apart, alone, exact) in named {
            let what = format!("{name}, cp {cp}, {method:?}, {:?}, {} tokens", self.sizes, self.tokens);
            let largest = exact.iter().fold(0.0f64, |a, b| a.max(b.abs()));
            let error = |given: &[T]| {
                given
                    .iter()
                    .zip(&exact)
                    .map(|(a, b)| (a.to_f64() - b).abs())
                    .fold(0.0, |a: f64, b| if b > a || b.is_nan() { b } else { a })
            };
            let allowed = 3.0 * error(&alone) + 2.0 * unit * largest;
            let found = error(&apart);
            assert!(found <= allowed, "{what}: off by {found:e}, allowed {allowed:e}");
        }
    }
}

#[test]
fn the_ring_is_attention_for_any_cut() {
    for cp in [1, 2, 3, 4] {
        for tokens in [1, 5, 24, 67] {
            Case::<f32>::new(2, tokens, (4, 2), 8, CAUSAL).check(cp, Method::Ring);
        }
        Case::<f32>::new(1, 150, (2, 1), 16, CAUSAL).check(cp, Method::Ring);
        Case::<f32>::new(2, 23, (3, 3), 8, FULL).check(cp, Method::Ring);
        Case::<bf16>::new(2, 33, (4, 1), 8, CAUSAL).check(cp, Method::Ring);
    }
}

#[test]
fn tokens_for_heads_is_attention_for_any_cut() {
    for cp in [1, 2, 3, 4] {
        for tokens in [1, 5, 24, 67] {
            Case::<f32>::new(2, tokens, (12, 12), 8, CAUSAL).check(cp, Method::Ulysses);
        }
        // One key/value head for all ranks, and fewer than ranks.
        Case::<f32>::new(2, 37, (12, 1), 8, CAUSAL).check(cp, Method::Ulysses);
        Case::<bf16>::new(2, 33, (12, 1), 8, CAUSAL).check(cp, Method::Ulysses);
        Case::<f32>::new(2, 23, (12, 12), 8, FULL).check(cp, Method::Ulysses);
    }
    Case::<f32>::new(3, 29, (8, 2), 8, CAUSAL).check(4, Method::Ulysses);
    Case::<f32>::new(3, 29, (8, 4), 8, CAUSAL).check(2, Method::Ulysses);
}

#[test]
fn parts_whose_scores_are_hundreds_apart_merge() {
    for cp in [2, 3, 4] {
        let case = Case::<f32>::new(1, 40, (2, 1), 8, CAUSAL).with_scores(200.0);
        case.check(cp, Method::Ring);
        let (apart, _) = case.apart(cp, Method::Ring);
        assert!(apart.y.iter().chain(&apart.dqkv).all(|x| x.is_finite()));
    }
}

#[test]
fn the_bytes_are_those_of_the_formulas() {
    for (cp, batch, tokens) in [(1, 2, 24), (2, 2, 24), (3, 1, 24), (4, 3, 24), (3, 2, 17), (4, 1, 3)] {
        let case = Case::<f32>::new(batch, tokens, (12, 12), 8, CAUSAL);
        let (row, output) = (3 * 12 * 8, 12 * 8);
        for method in [Method::Ring, Method::Ulysses] {
            let (_, [forward, backward]) = case.apart(cp, method);
            let all = (batch * tokens * 4) as u64;
            let (others, cp) = (cp as u64 - 1, cp as u64);
            // Ring: everybody's keys and values pass all others; in backward their gradients go the whole way round.
            let (there, and_back) = match method {
                Method::Ring => (others * all * 2 * output, (others + if cp > 1 { cp } else { 0 }) * all * 2 * output),
                // All but one rank's share of the rows leave.
                Method::Ulysses => (others * all * (row + output) / cp, others * all * (row + 2 * output + row) / cp),
            };
            assert_eq!([forward, backward], [there, and_back], "{method:?} over {cp}");
        }
    }
    for (method, kv_heads) in [(Method::Ring, 1), (Method::Ulysses, 1), (Method::Ring, 2), (Method::Ulysses, 2)] {
        let case = Case::<bf16>::new(2, 19, (4, kv_heads), 8, CAUSAL);
        let predicted = ranks(4, |comm| {
            let context = Context::new(&Device::cpu_with_threads(1).unwrap(), Arc::new(comm), method, 19).unwrap();
            context.sent_bytes(&case.sizes, 2)
        });
        assert_eq!(case.apart(4, method).1, predicted[0], "{method:?} with {kv_heads} key/value heads");
    }
}

#[test]
fn the_same_bits_every_time() {
    for method in [Method::Ring, Method::Ulysses] {
        let case = Case::<f32>::new(2, 31, (6, 3), 8, CAUSAL);
        let (first, _) = case.apart(3, method);
        let (again, _) = case.apart(3, method);
        assert_eq!(first.y, again.y);
        assert_eq!(first.dqkv, again.dqkv);
    }
}

#[test]
fn no_sequence_and_no_token_are_ordinary() {
    for method in [Method::Ring, Method::Ulysses] {
        for (batch, tokens) in [(0, 9), (2, 0)] {
            let case = Case::<f32>::new(batch, tokens, (4, 4), 8, CAUSAL);
            for (part, sent, _) in ranks(2, |comm| case.rank(comm, method)) {
                assert!(part.y.is_empty() && part.dqkv.is_empty());
                assert_eq!(sent, [0, 0]);
            }
        }
    }
}

#[test]
fn heads_that_cannot_be_shared_are_refused_with_the_numbers() {
    let refusal = |cp, heads, kv_heads| Context::check(Method::Ulysses, cp, heads, kv_heads).unwrap_err().to_string();
    assert!(refusal(5, 24, 24).starts_with("24 query heads do not divide by 5 context-parallel ranks"));
    assert!(refusal(3, 6, 2).starts_with("2 key/value heads and 3 context-parallel ranks"));
    Context::check(Method::Ring, 5, 24, 1).unwrap();
    let refused = ranks(2, |comm| {
        let device = Device::cpu_with_threads(1).unwrap();
        let context = Context::new(&device, Arc::new(comm), Method::Ulysses, 4).unwrap();
        let sizes = Case::<f32>::new(1, 4, (3, 3), 8, CAUSAL).sizes;
        let (qkv, mut y) = (device.zeros::<f32>(2 * 72).unwrap(), device.zeros::<f32>(2 * 24).unwrap());
        let mut lse = device.zeros(6).unwrap();
        context.forward(&device.stream(), &sizes, qkv.as_view(), y.as_view_mut(), lse.as_view_mut()).unwrap_err()
    });
    assert_eq!(refused[0].exit_status(), 2);
}
