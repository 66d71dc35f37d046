//! Cases of the products of experts: rows in groups, each with a weight of its own.

use warpweft::device::{Device, Float, Stream, bf16, f16};
use warpweft::kernels::Write;
use warpweft::kernels::matmul::{Activation, Epilogue, Through};
use warpweft::kernels::moe::grouped::{self, Shape};

use super::super::case::{Arrays, Case, Size, normal};
use super::matmul::activation_name;

#[derive(Clone, Copy)]
enum Call {
    Forward(Activation),
    /// With a bias for each expert, a scale and a residual.
    With,
    Input,
    /// Through an activation, with its bias's gradient.
    Through,
    Weight,
    Bias,
}

fn case<T: Float>(counts: &'static [usize], [n, k]: [usize; 2], call: Call) -> Case {
    let (rows, experts) = (counts.iter().sum::<usize>(), counts.len());
    let shape = Shape { counts, n, k };
    let run = move |stream: &Stream, all: &mut Arrays<T>| match (call, &mut all.stored[..]) {
        (Call::Forward(activation), [x, w, pre, y]) => {
            let pre = (activation != Activation::None).then(|| pre.as_view_mut());
            grouped::forward(stream, shape, x.as_view(), w.as_view(), activation, pre, y.as_view_mut())
        }
        (Call::Input, [dy, w, dx]) => {
            grouped::backward_input(stream, shape, dy.as_view(), w.as_view(), Write::Set, dx.as_view_mut())
        }
        (Call::With, [x, w, bias, residual, y]) => {
            let (bias, residual) = (Some(bias.as_view()), Some(residual.as_view()));
            let epilogue = Epilogue { scale: 0.5, bias, activation: Activation::Relu, residual, pre: None };
            grouped::forward_with(stream, shape, x.as_view(), w.as_view(), epilogue, y.as_view_mut())
        }
        (Call::Through, [dy, w, pre, dx]) => {
            let (pre, db) = (Some(pre.as_view()), Some(all.floats[0].as_view_mut()));
            let through = Through { scale: 0.5, activation: Activation::Relu, pre, db };
            let (dy, w) = (dy.as_view(), w.as_view());
            grouped::backward_input_through(stream, shape, dy, w, through, Write::Set, dx.as_view_mut())
        }
        (Call::Bias, [dy]) => grouped::backward_bias(stream, shape, dy.as_view(), all.floats[0].as_view_mut()),
        (_, [x, dy]) => grouped::backward_weight(stream, shape, x.as_view(), dy.as_view(), all.floats[0].as_view_mut()),
        _ => Ok(()),
    };
    let arrays = move |device: &Device| {
        let (x, dy) = (normal(device, rows * k, 1), normal(device, rows * n, 2));
        let w = || normal(device, experts * n * k, 3);
        let (mut stored, mut floats) = (Vec::new(), Vec::new());
        match call {
            Call::Forward(activation) => {
                let pre = if activation == Activation::None { 0 } else { rows * n };
                stored.extend([x?, w()?, device.zeros(pre)?, device.zeros(rows * activation.outputs(n))?]);
            }
            Call::With => {
                let (bias, residual) = (normal(device, experts * n, 4)?, dy?);
                stored.extend([x?, w()?, bias, residual, device.zeros(rows * n)?]);
            }
            Call::Input => stored.extend([dy?, w()?, device.zeros(rows * k)?]),
            Call::Through => {
                stored.extend([dy?, w()?, x?, device.zeros(rows * k)?]);
                floats.push(device.zeros(experts * k)?);
            }
            Call::Bias => {
                stored.push(dy?);
                floats.push(device.zeros(experts * n)?);
            }
            Call::Weight => {
                stored.extend([x?, dy?]);
                floats.push(device.zeros(experts * n * k)?);
            }
        }
        let written = match call {
            Call::Forward(_) => [2, 0, 0, 0],
            Call::With | Call::Input => [1, 0, 0, 0],
            Call::Through => [1, 1, 0, 0],
            Call::Weight | Call::Bias => [0, 1, 0, 0],
        };
        Ok(Arrays { stored, floats, written, ..Arrays::of(run) })
    };
    let (length, name) = match call {
        Call::Forward(activation) => (k, activation_name(activation)),
        Call::With => (k, "forward with bias and residual"),
        Call::Input => (n, "backward_input"),
        Call::Through => (n, "backward_input through relu"),
        Call::Bias => (counts.iter().copied().max().unwrap_or(0), "backward_bias"),
        Call::Weight => (counts.iter().copied().max().unwrap_or(0), "backward_weight"),
    };
    let element = size_of::<T>();
    let weights = match call {
        Call::Weight => experts * n * k * 8,
        Call::With => (experts * n * (k + 1) + rows * n) * element,
        // The argument, and what is written once more to be summed.
        Call::Through => (experts * n * k + 2 * rows * k) * element + experts * k * 8,
        _ => experts * n * k * element,
    };
    let (bytes, flops) = match call {
        Call::Bias => (rows * n * element + experts * n * 8, 0),
        _ => (rows * (n + k) * element + weights, 2 * rows * n * k),
    };
    Case {
        bytes: bytes as u64,
        flops: flops as u64,
        // As of one product.
        roundings: 2.0 + if size_of::<T>() == 4 { length as f64 / 4.0 } else { 0.0 },
        ..Case::new("matmul", format!("{name} of {experts} experts {rows} x {n} x {k}"), arrays)
    }
}

fn of_type<T: Float>(size: Size) -> Vec<Case> {
    let (counts, sizes): (&[usize], _) = match size {
        Size::Small { .. } | Size::Counted { .. } => (&[40, 0, 70, 3], [48, 136]),
        Size::Large => (&[1024; 8], [4096, 4096]),
    };
    let forward = [Call::Forward(Activation::None), Call::Forward(Activation::SwiGlu), Call::With];
    let calls = forward.into_iter().chain([Call::Input, Call::Through, Call::Weight, Call::Bias]);
    calls.map(|call| case::<T>(counts, sizes, call)).collect()
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    [of_type::<f32>(size), of_type::<bf16>(size), of_type::<f16>(size)].into_iter().flatten().collect()
}
