//! Cases of mixtures of experts: the router, and rows to experts and back.

use warpweft::device::{Buffer, DType, Device, Float, Stream, bf16, f16};
use warpweft::kernels::moe::dispatch::{self, Rows};
use warpweft::kernels::moe::router::{self, Options, Score};
use warpweft::kernels::moe::{Shape, balance};
use warpweft::kernels::philox::Philox4x32;
use warpweft::kernels::{KernelError, Write};

use super::super::case::{Case, Size, Work, normal, values};

/// The router of a batch of rows, and its gradients.
struct Router<T> {
    shape: Shape,
    options: Options,
    backward: bool,
    logits: Buffer<T>,
    scores: Buffer<f32>,
    experts: Buffer<u32>,
    weights: Buffer<f32>,
    sums: Buffer<f64>,
    dscores: Buffer<f32>,
}

impl<T: Float> Work for Router<T> {
    fn launch(&mut self, stream: &Stream) -> Result<(), KernelError> {
        let Self { shape, options, backward, logits, scores, experts, weights, sums, dscores } = self;
        if !*backward {
            let (s, e, w) = (scores.as_view_mut(), experts.as_view_mut(), weights.as_view_mut());
            router::forward(stream, *shape, *options, logits.as_view(), None, s, e, w)?;
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

fn numbers(buffer: &Buffer<u32>, stream: &Stream) -> Result<Vec<f64>, KernelError> {
    Ok(buffer.download(stream)?.into_iter().map(f64::from).collect())
}

fn router_case<T: Float>((rows, experts, top_k): (usize, usize, usize), score: Score, backward: bool) -> Case {
    let (shape, options) = (Shape { rows, experts, top_k }, Options { score, ..Options::default() });
    let make = move |device: &Device| -> Result<Box<dyn Work>, KernelError> {
        let logits = normal::<T>(device, rows * experts, 1)?;
        let (scores, weights) = (device.zeros(rows * experts)?, device.zeros(rows * top_k)?);
        let (sums, dscores) = (device.zeros(2 * experts)?, device.zeros(rows * experts)?);
        let (experts, stream) = (device.zeros(rows * top_k)?, device.stream());
        let forward = Router { shape, options, backward: false, logits, scores, experts, weights, sums, dscores };
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
    Combine,
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
            Call::Permute => dispatch::permute(stream, *of, order.as_view(), None, wide.as_view(), moved.as_view_mut()),
            Call::Combine => {
                let (p, w) = (places.as_view(), Some(weights.as_view()));
                dispatch::combine(stream, *of, p, w, moved.as_view(), Write::Set, wide.as_view_mut())
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
            Call::Permute => values(&self.moved, stream),
            Call::Combine => values(&self.wide, stream),
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
        Call::Combine => ("combine", (rows + all) * row, 0.0),
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

fn of_type<T: Float>(size: Size) -> Vec<Case> {
    let (route, sizes) = match size {
        Size::Small => ((70, 40, 3), (60, 7, 2, 136)),
        Size::Counted => ((128, 256, 8), (128, 8, 2, 1024)),
        Size::Large => ((32_768, 256, 8), (32_768, 64, 4, 4096)),
    };
    let routers = [(Score::Softmax, false), (Score::Softmax, true), (Score::Sigmoid, false), (Score::Sigmoid, true)];
    let mut all: Vec<Case> = routers.map(|(score, backward)| router_case::<T>(route, score, backward)).into();
    all.extend([Call::Permute, Call::Combine, Call::Weights].map(|call| moving_case::<T>(call, sizes)));
    all
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    let sizes = match size {
        Size::Small => (900, 300, 2, 1),
        Size::Counted => (1024, 256, 8, 1),
        Size::Large => (32_768, 256, 8, 1),
    };
    let mut all = vec![moving_case::<f32>(Call::Sort, sizes)];
    all.extend([of_type::<f32>(size), of_type::<bf16>(size), of_type::<f16>(size)].into_iter().flatten());
    all
}
