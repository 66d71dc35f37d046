//! Cases of LayerNorm and RMSNorm.

use warpweft::device::{Device, Float, Stream, bf16, f16};
use warpweft::kernels::{KernelError, Write, layernorm, rmsnorm};

use super::super::case::{Arrays, Case, Function, Size, normal};

const EPS: f32 = 1e-5;

/// A case whose arrays of the storage type are w and b and then rows.
fn case<T: Float>(
    op: &'static str,
    way: &'static str,
    [rows, channels]: [usize; 2],
    moved: usize,
    call: Function<T>,
) -> Case {
    let elements = rows * channels;
    let backward_weight = way == "backward_weight";
    // The sum is written too, before what is made of it.
    let results = if way == "forward_residual" { 2 } else { 1 };
    let arrays = move |device: &Device| {
        let mut stored = vec![normal(device, channels, 3)?, normal(device, channels, 4)?];
        stored.extend([normal(device, elements, 1)?, normal(device, elements, 2)?]);
        for _ in 0..results {
            stored.push(device.zeros(elements)?);
        }
        let mut floats = vec![device.zeros(rows)?, device.upload(&vec![0.75f32; rows])?];
        if backward_weight {
            floats.extend([device.zeros(channels)?, device.zeros(channels)?]);
        }
        let written = if backward_weight { [0, 2, 0, 0] } else { [results, 0, 0, 0] };
        Ok(Arrays { stored, floats, written, ..Arrays::of(call) })
    };
    Case {
        bytes: (moved * elements * size_of::<T>()) as u64,
        // The sums of two devices run in other orders.
        roundings: 2.0 + if size_of::<T>() == 4 || backward_weight { (rows + channels) as f64 / 8.0 } else { 0.0 },
        ..Case::new(op, format!("{way} {rows} x {channels}"), arrays)
    }
}

/// The sizes of an array of rows and of a vector.
fn sizes<T: Float>(all: &Arrays<T>) -> [usize; 2] {
    [all.floats[0].len(), all.stored[0].len()]
}

fn layernorm_forward<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let [rows, channels] = sizes(all);
    let ([w, b, x, _, y], [mean, rstd]) = (&mut all.stored[..], &mut all.floats[..]) else { return Ok(()) };
    let (shape, saved) = (layernorm::Shape { rows, channels }, (mean.as_view_mut(), rstd.as_view_mut()));
    let (x, w, b) = (x.as_view(), w.as_view(), b.as_view());
    layernorm::forward(stream, shape, EPS, x, w, b, y.as_view_mut(), saved.0, saved.1)
}

fn layernorm_forward_residual<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let [rows, channels] = sizes(all);
    let ([w, b, x, branch, sum, y], [mean, rstd]) = (&mut all.stored[..], &mut all.floats[..]) else { return Ok(()) };
    let (shape, saved) = (layernorm::Shape { rows, channels }, (mean.as_view_mut(), rstd.as_view_mut()));
    let (x, branch, w, b) = (x.as_view(), branch.as_view(), w.as_view(), b.as_view());
    let (sum, y) = (sum.as_view_mut(), y.as_view_mut());
    layernorm::forward_residual(stream, shape, EPS, x, branch, w, b, sum, y, saved.0, saved.1)
}

fn layernorm_backward_input<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let [rows, channels] = sizes(all);
    let ([w, _, x, dy, dx], [mean, rstd]) = (&mut all.stored[..], &mut all.floats[..]) else { return Ok(()) };
    let (shape, mean, rstd) = (layernorm::Shape { rows, channels }, mean.as_view(), rstd.as_view());
    let (x, dy, w) = (x.as_view(), dy.as_view(), w.as_view());
    layernorm::backward_input(stream, shape, dy, x, w, mean, rstd, Write::Set, dx.as_view_mut())
}

fn layernorm_backward_weight<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let [rows, channels] = sizes(all);
    let ([_, _, x, dy, _], [mean, rstd, dw, db]) = (&mut all.stored[..], &mut all.floats[..]) else { return Ok(()) };
    let (shape, mean, rstd) = (layernorm::Shape { rows, channels }, mean.as_view(), rstd.as_view());
    let (dw, db) = (dw.as_view_mut(), db.as_view_mut());
    layernorm::backward_weight(stream, shape, dy.as_view(), x.as_view(), mean, rstd, dw, db)
}

fn rmsnorm_forward<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let [rows, channels] = sizes(all);
    let ([w, _, x, _, y], [_, rstd]) = (&mut all.stored[..], &mut all.floats[..]) else { return Ok(()) };
    let shape = rmsnorm::Shape { rows, channels };
    rmsnorm::forward(stream, shape, EPS, x.as_view(), w.as_view(), y.as_view_mut(), rstd.as_view_mut())
}

fn rmsnorm_forward_residual<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let [rows, channels] = sizes(all);
    let ([w, _, x, branch, sum, y], [_, rstd]) = (&mut all.stored[..], &mut all.floats[..]) else { return Ok(()) };
    let (shape, x, branch, w) = (rmsnorm::Shape { rows, channels }, x.as_view(), branch.as_view(), w.as_view());
    let (sum, y) = (sum.as_view_mut(), y.as_view_mut());
    rmsnorm::forward_residual(stream, shape, EPS, x, branch, w, sum, y, rstd.as_view_mut())
}

fn rmsnorm_backward_input<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let [rows, channels] = sizes(all);
    let ([w, _, x, dy, dx], [_, rstd]) = (&mut all.stored[..], &mut all.floats[..]) else { return Ok(()) };
    let (shape, dx, rstd) = (rmsnorm::Shape { rows, channels }, dx.as_view_mut(), rstd.as_view());
    rmsnorm::backward_input(stream, shape, dy.as_view(), x.as_view(), w.as_view(), rstd, Write::Set, dx)
}

fn rmsnorm_backward_weight<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let [rows, channels] = sizes(all);
    let ([_, _, x, dy, _], [_, rstd, dw, _]) = (&mut all.stored[..], &mut all.floats[..]) else { return Ok(()) };
    let shape = rmsnorm::Shape { rows, channels };
    rmsnorm::backward_weight(stream, shape, dy.as_view(), x.as_view(), rstd.as_view(), dw.as_view_mut())
}

fn of_type<T: Float>(size: Size) -> Vec<Case> {
    let all = |sizes: [usize; 2]| {
        [
            case::<T>("layernorm", "forward", sizes, 2, layernorm_forward),
            case::<T>("layernorm", "forward_residual", sizes, 4, layernorm_forward_residual),
            case::<T>("layernorm", "backward_input", sizes, 3, layernorm_backward_input),
            case::<T>("layernorm", "backward_weight", sizes, 2, layernorm_backward_weight),
            case::<T>("rmsnorm", "forward", sizes, 2, rmsnorm_forward),
            case::<T>("rmsnorm", "forward_residual", sizes, 4, rmsnorm_forward_residual),
            case::<T>("rmsnorm", "backward_input", sizes, 3, rmsnorm_backward_input),
            case::<T>("rmsnorm", "backward_weight", sizes, 2, rmsnorm_backward_weight),
        ]
    };
    if !size.is_small() {
        return all(if size.is_counted() { [256, 1024] } else { [32_768, 4096] }).into();
    }
    all([150, 512]).into_iter().chain(all([5, 100]).map(Case::edge)).collect()
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    [of_type::<f32>(size), of_type::<bf16>(size), of_type::<f16>(size)].into_iter().flatten().collect()
}
