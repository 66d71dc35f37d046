//! Cases of what follows a matrix product: in its epilogue, in that of its gradient, and by itself.

use warpweft::device::{Device, Float, Stream, bf16, f16};
use warpweft::kernels::Write;
use warpweft::kernels::matmul::{self, Activation, Epilogue, Shape, Through};

use super::super::case::{Arrays, Case, Size, integers, normal};
use super::matmul::activation_name;

/// One rounding of what two devices may have summed in another order.
fn roundings<T>(length: usize) -> f64 {
    2.0 + if size_of::<T>() == 4 { length as f64 / 4.0 } else { 0.0 }
}

/// Columns that `columns` are before an activation.
fn before(activation: Activation, columns: usize) -> usize {
    if activation == Activation::SwiGlu { 2 * columns } else { columns }
}

/// A scaled product with a bias, an activation, whose argument is kept, and a residual.
fn forward<T: Float>(shape: Shape, activation: Activation) -> Case {
    let Shape { m, n, k } = shape;
    let outputs = activation.outputs(n);
    let call = move |stream: &Stream, all: &mut Arrays<T>| {
        let [x, w, bias, residual, pre, y] = &mut all.stored[..] else { return Ok(()) };
        let pre = (activation != Activation::None).then(|| pre.as_view_mut());
        let (bias, residual) = (Some(bias.as_view()), Some(residual.as_view()));
        let epilogue = Epilogue { scale: 0.5, bias, activation, pre, residual };
        matmul::forward(stream, shape, x.as_view(), w.as_view(), epilogue, y.as_view_mut())
    };
    let arrays = move |device: &Device| {
        let mut stored = vec![normal(device, m * k, 1)?, normal(device, n * k, 2)?, normal(device, n, 3)?];
        stored.extend([normal(device, m * outputs, 4)?, device.zeros(m * n)?, device.zeros(m * outputs)?]);
        Ok(Arrays { stored, written: [2, 0, 0, 0], ..Arrays::of(call) })
    };
    let elements = m * k + n * k + m * (n + 2 * outputs);
    Case {
        bytes: (elements * size_of::<T>()) as u64,
        flops: 2 * (m * n * k) as u64,
        roundings: roundings::<T>(k),
        ..Case::new("matmul", format!("{}, scale, bias, residual {m} x {n} x {k}", activation_name(activation)), arrays)
    }
}

/// The gradient of a layer's input and of the activation that it came out of; with `db` its sums too, of whole numbers.
fn through<T: Float>(shape: Shape, activation: Activation, db: bool) -> Case {
    let Shape { m, n, k } = shape;
    let columns = before(activation, k);
    let call = move |stream: &Stream, all: &mut Arrays<T>| {
        let ([dy, w, pre, dx], [sums]) = (&mut all.stored[..], &mut all.floats[..]) else { return Ok(()) };
        let pre = (activation != Activation::None).then(|| pre.as_view());
        let through = Through { scale: 0.5, activation, pre, db: db.then(|| sums.as_view_mut()) };
        matmul::backward_input_through(stream, shape, dy.as_view(), w.as_view(), through, Write::Set, dx.as_view_mut())
    };
    let arrays = move |device: &Device| {
        let numbers = if db { integers::<T> } else { normal::<T> };
        let mut stored = vec![numbers(device, m * n, 1)?, numbers(device, n * k, 2)?, numbers(device, m * columns, 3)?];
        stored.push(device.zeros(m * columns)?);
        let floats = vec![device.zeros(columns)?];
        Ok(Arrays { stored, floats, written: [1, 1, 0, 0], ..Arrays::of(call) })
    };
    let what = if db { "backward_input and sums" } else { "backward_input" };
    let of = activation_name(activation).trim_start_matches("forward with ").trim_start_matches("forward");
    Case {
        bytes: ((m * n + n * k + 2 * m * columns) * size_of::<T>()) as u64,
        flops: 2 * (m * n * k) as u64,
        roundings: if db { 0.0 } else { roundings::<T>(n) },
        ..Case::new("matmul", format!("{what} through {of} {m} x {n} x {k}"), arrays)
    }
}

/// An activation by itself, or its gradient.
fn alone<T: Float>((m, n): (usize, usize), activation: Activation, backward: bool) -> Case {
    let (shape, outputs) = (Shape { m, n, k: 0 }, activation.outputs(n));
    let call = move |stream: &Stream, all: &mut Arrays<T>| match &mut all.stored[..] {
        [pre, y] => matmul::activate(stream, shape, activation, pre.as_view(), y.as_view_mut()),
        [pre, dy, dpre] => {
            matmul::backward_activation(stream, shape, activation, pre.as_view(), dy.as_view(), dpre.as_view_mut())
        }
        _ => Ok(()),
    };
    let arrays = move |device: &Device| {
        let mut stored = vec![normal(device, m * n, 1)?];
        if backward {
            stored.push(normal(device, m * outputs, 2)?);
        }
        stored.push(device.zeros(m * if backward { n } else { outputs })?);
        Ok(Arrays { stored, written: [1, 0, 0, 0], ..Arrays::of(call) })
    };
    let way = if backward { "backward_activation" } else { "activate" };
    let of = activation_name(activation).trim_start_matches("forward with ");
    let elements = m * (n + outputs + if backward { n } else { 0 });
    Case {
        bytes: (elements * size_of::<T>()) as u64,
        // Exponentials and error functions of two devices differ in their last places.
        roundings: if size_of::<T>() == 4 { 16.0 } else { 2.0 },
        ..Case::new("matmul", format!("{way} {of} {m} x {n}"), arrays)
    }
}

fn bias<T: Float>(m: usize, n: usize) -> Case {
    let call = move |stream: &Stream, all: &mut Arrays<T>| {
        let shape = Shape { m, n, k: 0 };
        matmul::backward_bias(stream, shape, all.stored[0].as_view(), all.floats[0].as_view_mut())
    };
    let arrays = move |device: &Device| {
        let (stored, floats) = (vec![integers::<T>(device, m * n, 1)?], vec![device.zeros(n)?]);
        Ok(Arrays { stored, floats, written: [0, 1, 0, 0], ..Arrays::of(call) })
    };
    Case {
        bytes: (m * n * size_of::<T>() + 8 * n) as u64,
        ..Case::new("matmul", format!("backward_bias {m} x {n}"), arrays)
    }
}

fn of_type<T: Float>(size: Size) -> Vec<Case> {
    use Activation::{GeluErf, GeluTanh, None, Relu, SwiGlu};
    if size == Size::Large {
        let shape = Shape { m: 8192, n: 4096, k: 4096 };
        let (rows, columns) = (32_768, 4096);
        let mut all = vec![forward::<T>(shape, GeluTanh), through::<T>(shape, GeluTanh, true)];
        all.extend([false, true].map(|backward| alone::<T>((rows, 2 * columns), SwiGlu, backward)));
        all.push(bias::<T>(rows, columns));
        return all;
    }
    let shape = Shape { m: 136, n: 48, k: 72 };
    let mut all: Vec<Case> = [None, GeluTanh, SwiGlu].map(|activation| forward::<T>(shape, activation)).into();
    all.extend([None, GeluTanh, GeluErf, Relu, SwiGlu].map(|activation| through::<T>(shape, activation, false)));
    all.extend([None, Relu].map(|activation| through::<T>(shape, activation, true)));
    for activation in [GeluTanh, GeluErf, Relu, SwiGlu] {
        all.extend([false, true].map(|backward| alone::<T>((32, 512), activation, backward)));
    }
    all.push(bias::<T>(150, 512));
    all.extend([alone::<T>((3, 75), GeluErf, true).edge(), bias::<T>(9, 75).edge()]);
    all
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    [of_type::<f32>(size), of_type::<bf16>(size), of_type::<f16>(size)].into_iter().flatten().collect()
}
