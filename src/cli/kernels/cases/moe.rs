//! Cases of mixtures of experts: the router, and rows to experts and back.

use warpweft::device::{Buffer, DType, Device, Float, Stream, bf16, f16};
use warpweft::kernels::moe::dispatch::{self, Rows};
use warpweft::kernels::moe::router::{self, Options, Score};
use warpweft::kernels::moe::{Shape, balance};
use warpweft::kernels::philox::Philox4x32;
use warpweft::kernels::{KernelError, Write};

use super::super::case::{Arrays, Case, Size, Work, indices, normal, numbers, positive, values};

/// The router of a batch of rows, and its gradients.
struct Router<T> {
    shape: Shape,
    options: Options,
    backward: bool,
    logits: Buffer<T>,
    /// Added for the choice, where there is one.
    bias: Option<Buffer<f32>>,
    scores: Buffer<f32>,
    experts: Buffer<u32>,
    weights: Buffer<f32>,
    sums: Buffer<f64>,
    dscores: Buffer<f32>,
}

impl<T: Float> Work for Router<T> {
    fn launch(&mut self, stream: &Stream) -> Result<(), KernelError> {
        let Self { shape, options, backward, logits, bias, scores, experts, weights, sums, dscores } = self;
        if !*backward {
            let (s, e, w) = (scores.as_view_mut(), experts.as_view_mut(), weights.as_view_mut());
            let bias = bias.as_ref().map(Buffer::as_view);
            router::forward(stream, *shape, *options, logits.as_view(), bias, s, e, w)?;
            return Ok(());
        }
        let of = balance::Sequences { shape: *shape, sequences: 1, tokens: shape.rows };
        let (s, e) = (scores.as_view(), experts.as_view());
        balance::sums(stream, of, options.score, s, e, sums.as_view_mut())?;
        balance::backward(stream, of, options.score, 0.01, s, sums.as_view(), dscores.as_view_mut())?;
        let d = Some(dscores.as_view());
        router::backward(stream, *shape, *options, s, e, weights.as_view(), d, logits.as_view_mut())
    }

    fn outputs(&self, stream: &Stream) -> Result<Vec<f64>, KernelError> {
        let mut all = values(&self.scores, stream)?;
        all.extend(numbers(&self.experts, stream)?);
        all.extend(values(&self.weights, stream)?);
        if self.backward {
            all.extend(values(&self.logits, stream)?);
        }
        Ok(all)
    }
}

fn router_case<T: Float>(
    (rows, experts, top_k): (usize, usize, usize),
    (score, biased): (Score, bool),
    backward: bool,
) -> Case {
    let (shape, options) = (Shape { rows, experts, top_k }, Options { score, ..Options::default() });
    let make = move |device: &Device| -> Result<Box<dyn Work>, KernelError> {
        let logits = normal::<T>(device, rows * experts, 1)?;
        let bias = if biased { Some(normal(device, experts, 2)?) } else { None };
        let (scores, weights) = (device.zeros(rows * experts)?, device.zeros(rows * top_k)?);
        let (sums, dscores) = (device.zeros(2 * experts)?, device.zeros(rows * experts)?);
        let (experts, stream) = (device.zeros(rows * top_k)?, device.stream());
        let forward = Router { shape, options, backward: false, logits, bias, scores, experts, weights, sums, dscores };
        let mut work = forward;
        if backward {
            work.launch(&stream)?;
            work.backward = true;
        }
        Ok(Box::new(work))
    };
    let name = if score == Score::Sigmoid { "sigmoid" } else { "softmax" };
    let way = if backward { "balance and backward" } else { "forward" };
    let read_twice = if backward { 3 * size_of::<f32>() } else { 0 };
    Case {
        op: "moe_router",
        what: format!("{way} {rows} x {experts}, {top_k} each, {name}"),
        dtype: T::DTYPE,
        bytes: (rows * experts * (size_of::<T>() + size_of::<f32>() + read_twice) + rows * top_k * 8) as u64,
        flops: 0,
        // Where an f64 decides a rounding.
        roundings: 2.0,
        make: Box::new(make),
    }
}

#[derive(Clone, Copy)]
enum Call {
    Sort,
    Permute,
    /// The gradient of `Combine`.
    PermuteWeighted,
    Combine,
    /// The gradient of `Permute`.
    CombineUnweighted,
    Weights,
}

/// Rows of a batch, and those of experts.
struct Moving<T> {
    call: Call,
    shape: Shape,
    of: Rows,
    experts: Buffer<u32>,
    counts: Buffer<u32>,
    order: Buffer<u32>,
    places: Buffer<u32>,
    weights: Buffer<f32>,
    wide: Buffer<T>,
    moved: Buffer<T>,
}

impl<T: Float> Work for Moving<T> {
    fn launch(&mut self, stream: &Stream) -> Result<(), KernelError> {
        let Self { call, shape, of, experts, counts, order, places, weights, wide, moved } = self;
        match call {
            Call::Sort => {
                let (c, o, p) = (counts.as_view_mut(), order.as_view_mut(), places.as_view_mut());
                dispatch::sort(stream, *shape, experts.as_view(), None, c, o, p)?;
                Ok(())
            }
            Call::Permute | Call::PermuteWeighted => {
                let weights = matches!(call, Call::PermuteWeighted).then(|| weights.as_view());
                dispatch::permute(stream, *of, order.as_view(), weights, wide.as_view(), moved.as_view_mut())
            }
            Call::Combine => {
                let (p, w) = (places.as_view(), Some(weights.as_view()));
                dispatch::combine(stream, *of, p, w, moved.as_view(), Write::Set, wide.as_view_mut())
            }
            Call::CombineUnweighted => {
                dispatch::combine(stream, *of, places.as_view(), None, moved.as_view(), Write::Add, wide.as_view_mut())
            }
            Call::Weights => {
                let (p, x, dy) = (places.as_view(), moved.as_view(), wide.as_view());
                dispatch::backward_weights(stream, *of, p, x, dy, weights.as_view_mut())
            }
        }
    }

    fn outputs(&self, stream: &Stream) -> Result<Vec<f64>, KernelError> {
        match self.call {
            Call::Sort => {
                let all = [&self.counts, &self.order, &self.places].map(|buffer| numbers(buffer, stream));
                Ok(all.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
            }
            Call::Permute | Call::PermuteWeighted => values(&self.moved, stream),
            Call::Combine | Call::CombineUnweighted => values(&self.wide, stream),
            Call::Weights => values(&self.weights, stream),
        }
    }
}

fn moving_case<T: Float>(call: Call, (rows, experts, top_k, channels): (usize, usize, usize, usize)) -> Case {
    let (all, shape) = (rows * top_k, Shape { rows, experts, top_k });
    let of = Rows { rows, top_k, channels, len: all };
    let make = move |device: &Device| -> Result<Box<dyn Work>, KernelError> {
        let generator = Philox4x32::new(1, 5);
        // The experts of a row are neighbours, so that none is there twice.
        let first = |row: usize| generator.word(row as u64) as usize % experts;
        let chosen: Vec<u32> =
            (0..all).map(|place| ((first(place / top_k) + place % top_k) % experts) as u32).collect();
        let (wide, moved) = (normal(device, rows * channels, 1)?, normal(device, all * channels, 2)?);
        let (experts_of, counts) = (device.upload(&chosen)?, device.zeros(experts)?);
        let (order, places) = (device.zeros(all)?, device.zeros(all)?);
        let weights = normal(device, all, 3)?;
        let mut work = Moving::<T> {
            call: Call::Sort,
            shape,
            of,
            experts: experts_of,
            counts,
            order,
            places,
            weights,
            wide,
            moved,
        };
        work.launch(&device.stream())?;
        work.call = call;
        Ok(Box::new(work))
    };
    let row = channels * size_of::<T>();
    // Gradients of weights are f32 whatever the rows are.
    let (stored, dtype) =
        if matches!(call, Call::Weights) { (format!(" {}", T::DTYPE), DType::F32) } else { (String::new(), T::DTYPE) };
    let (name, bytes, roundings) = match call {
        Call::Sort => ("sort", 12 * all, 0.0),
        Call::Permute => ("permute", (rows + all) * row, 0.0),
        Call::PermuteWeighted => ("permute, weighted,", (rows + all) * row, 0.0),
        Call::Combine => ("combine", (rows + all) * row, 0.0),
        Call::CombineUnweighted => ("combine, unweighted, added,", (2 * rows + all) * row, 0.0),
        // Sums of f32 in another order.
        Call::Weights => ("backward_weights", (rows + all) * row, channels as f64),
    };
    Case {
        op: "moe_dispatch",
        what: format!("{name} {rows} x {channels}{stored} to {top_k} of {experts}"),
        dtype,
        bytes: bytes as u64,
        flops: 0,
        roundings,
        make: Box::new(make),
    }
}

/// Which of a sequence's assignments fit, and those sorted.
fn capacity(rows: usize, experts: usize, top_k: usize) -> Case {
    let (shape, all) = (Shape { rows, experts, top_k }, rows * top_k);
    let call = move |stream: &Stream, arrays: &mut Arrays<f32>| -> Result<(), KernelError> {
        let [experts, keep, counts, order, places] = &mut arrays.indices[..] else { return Ok(()) };
        let most = all / 2 / shape.experts;
        dispatch::within_capacity(stream, shape, 2, most, experts.as_view(), keep.as_view_mut())?;
        let (counts, order, places) = (counts.as_view_mut(), order.as_view_mut(), places.as_view_mut());
        dispatch::sort(stream, shape, experts.as_view(), Some(keep.as_view()), counts, order, places).map(|_| ())
    };
    let arrays = move |device: &Device| {
        let mut numbers = vec![indices(device, all, experts)?, device.zeros(all)?, device.zeros(experts)?];
        numbers.extend([device.zeros(all)?, device.zeros(all)?]);
        Ok(Arrays { indices: numbers, written: [0, 0, 0, 4], ..Arrays::of(call) })
    };
    let what = format!("sort within the capacity of two sequences {rows} to {top_k} of {experts}");
    Case { bytes: (20 * all) as u64, ..Case::new("moe_dispatch", what, arrays) }
}

/// The auxiliary loss, of which the host makes the last sum.
fn loss(rows: usize, experts: usize) -> Case {
    let shape = Shape { rows, experts, top_k: 2 };
    let call = move |stream: &Stream, all: &mut Arrays<f32>| -> Result<(), KernelError> {
        let [sums, loss] = &mut all.doubles[..] else { return Ok(()) };
        let of = balance::Sequences { shape, sequences: 2, tokens: rows / 2 };
        let (scores, experts) = (all.floats[0].as_view(), all.indices[0].as_view());
        balance::sums(stream, of, Score::Sigmoid, scores, experts, sums.as_view_mut())?;
        let sum = balance::loss(stream, of, sums.as_view())?;
        Ok(loss.as_view_mut().fill(stream, sum)?)
    };
    let arrays = move |device: &Device| {
        let (floats, indices) = (vec![positive(device, rows * experts, 1)?], vec![indices(device, rows * 2, experts)?]);
        let doubles = vec![device.zeros(4 * experts)?, device.zeros(1)?];
        Ok(Arrays { floats, doubles, indices, written: [0, 0, 2, 0], ..Arrays::of(call) })
    };
    let bytes = (4 * rows * experts) as u64;
    // Where the sums of two devices run in other orders.
    Case { bytes, roundings: 1.0, ..Case::new("moe_router", format!("balance loss {rows} x {experts}"), arrays) }
}

fn move_bias(experts: usize) -> Case {
    let call = |stream: &Stream, all: &mut Arrays<f32>| {
        balance::move_bias(stream, 1e-3, all.doubles[0].as_view(), all.floats[0].as_view_mut())
    };
    let arrays = move |device: &Device| {
        let counts: Vec<f64> = (0..experts).map(|expert| (expert * 7 % 31) as f64).collect();
        let (floats, doubles) = (vec![normal(device, experts, 1)?], vec![device.upload(&counts)?]);
        Ok(Arrays { floats, doubles, written: [0, 1, 0, 0], ..Arrays::of(call) })
    };
    Case { bytes: (16 * experts) as u64, ..Case::new("moe_router", format!("move_bias {experts}"), arrays) }
}

fn of_type<T: Float>(size: Size) -> Vec<Case> {
    let (route, sizes) = match size {
        Size::Small { .. } => ((64, 256, 8), (64, 8, 2, 512)),
        Size::Counted { .. } => ((128, 256, 8), (128, 8, 2, 1024)),
        Size::Large => ((32_768, 256, 8), (32_768, 64, 4, 4096)),
    };
    let routers = [Score::Softmax, Score::Sigmoid].into_iter().flat_map(|score| [(score, false), (score, true)]);
    let biased = |score| score == Score::Sigmoid && size.is_small();
    let router = |(score, backward)| router_case::<T>(route, (score, biased(score)), backward);
    let mut all: Vec<Case> = routers.map(router).collect();
    let calls = [Call::Permute, Call::PermuteWeighted, Call::Combine, Call::CombineUnweighted, Call::Weights];
    all.extend(calls.map(|call| moving_case::<T>(call, sizes)));
    if size.is_counted() {
        // The gradients of permute and of combine move what combine and permute do.
        all.retain(|case| !case.what.contains("weighted,"));
    }
    if size.is_small() {
        all.push(router_case::<T>((21, 45, 3), (Score::Sigmoid, true), true).edge());
        let odd = [Call::Permute, Call::Combine, Call::Weights].map(|call| moving_case::<T>(call, (21, 7, 2, 75)));
        all.extend(odd.map(Case::edge));
    }
    all
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    let (rows, experts, top_k) = match size {
        Size::Small { .. } => (900, 300, 2),
        Size::Counted { .. } => (1024, 256, 8),
        Size::Large => (32_768, 256, 8),
    };
    let mut all = vec![moving_case::<f32>(Call::Sort, (rows, experts, top_k, 1))];
    if !size.is_counted() {
        all.extend([capacity(rows, experts, top_k), loss(rows, experts), move_bias(experts)]);
    }
    all.extend([of_type::<f32>(size), of_type::<bf16>(size), of_type::<f16>(size)].into_iter().flatten());
    all
}
