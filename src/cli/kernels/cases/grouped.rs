//! Cases of the products of experts: rows in groups, each with a weight of its own.

use warpweft::device::{Device, Float, Stream, bf16, f16};
use warpweft::kernels::Write;
use warpweft::kernels::matmul::Activation;
use warpweft::kernels::moe::grouped::{self, Shape};

use super::super::case::{Arrays, Case, Size, normal};
use super::matmul::activation_name;

#[derive(Clone, Copy)]
enum Call {
    Forward(Activation),
    Input,
    Weight,
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
            Call::Input => stored.extend([dy?, w()?, device.zeros(rows * k)?]),
            Call::Weight => {
                stored.extend([x?, dy?]);
                floats.push(device.zeros(experts * n * k)?);
            }
        }
        let written = match call {
            Call::Forward(_) => [2, 0, 0, 0],
            Call::Input => [1, 0, 0, 0],
            Call::Weight => [0, 1, 0, 0],
        };
        Ok(Arrays { stored, floats, written, ..Arrays::of(run) })
    };
    let (length, name) = match call {
        Call::Forward(activation) => (k, activation_name(activation)),
        Call::Input => (n, "backward_input"),
        Call::Weight => (counts.iter().copied().max().unwrap_or(0), "backward_weight"),
    };
    let weights = experts * n * k * if matches!(call, Call::Weight) { 8 } else { size_of::<T>() };
    Case {
        bytes: (rows * (n + k) * size_of::<T>() + weights) as u64,
        flops: 2 * (rows * n * k) as u64,
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
    let calls = [Call::Forward(Activation::None), Call::Forward(Activation::SwiGlu), Call::Input, Call::Weight];
    calls.map(|call| case::<T>(counts, sizes, call)).into()
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    [of_type::<f32>(size), of_type::<bf16>(size), of_type::<f16>(size)].into_iter().flatten().collect()
}
