//! Cases of the matrix products. What may follow them: `epilogues.rs`.

use std::marker::PhantomData;

use warpweft::device::{Buffer, Device, Float, Stream, bf16, f16};
use warpweft::kernels::matmul::{self, Activation, Epilogue, Shape};
use warpweft::kernels::{KernelError, Write};

use super::super::case::{Case, Size, Work, normal, values};

#[derive(Clone, Copy)]
enum Call {
    Forward(Activation),
    Input,
    Weight,
}

struct Layer<T> {
    call: Call,
    shape: Shape,
    /// x and w, dy and w, or x and dy.
    operands: [Buffer<T>; 2],
    bias: Buffer<T>,
    y: Buffer<T>,
    dw: Buffer<f32>,
}

impl<T: Float> Work for Layer<T> {
    fn launch(&mut self, stream: &Stream) -> Result<(), KernelError> {
        let Self { call, shape, operands: [a, b], bias, y, dw } = self;
        let (a, b) = (a.as_view(), b.as_view());
        match *call {
            Call::Forward(Activation::None) => {
                matmul::forward(stream, *shape, a, b, Epilogue::default(), y.as_view_mut())
            }
            Call::Forward(activation) => {
                let epilogue = Epilogue { bias: Some(bias.as_view()), activation, ..Epilogue::default() };
                matmul::forward(stream, *shape, a, b, epilogue, y.as_view_mut())
            }
            Call::Input => matmul::backward_input(stream, *shape, a, b, Write::Set, y.as_view_mut()),
            Call::Weight => matmul::backward_weight(stream, *shape, a, b, dw.as_view_mut()),
        }
    }

    fn outputs(&self, stream: &Stream) -> Result<Vec<f64>, KernelError> {
        if matches!(self.call, Call::Weight) { values(&self.dw, stream) } else { values(&self.y, stream) }
    }
}

fn case<T: Float>(shape: Shape, call: Call) -> Case {
    let Shape { m, n, k } = shape;
    let (a, b, y, dw, length, name) = match call {
        Call::Forward(Activation::None) => (m * k, n * k, m * n, 0, k, "forward"),
        Call::Forward(activation) => (m * k, n * k, m * activation.outputs(n), 0, k, activation_name(activation)),
        Call::Input => (m * n, n * k, m * k, 0, n, "backward_input"),
        Call::Weight => (m * k, m * n, 0, n * k, m, "backward_weight"),
    };
    let make = move |device: &Device| -> Result<Box<dyn Work>, KernelError> {
        let operands = [normal::<T>(device, a, 1)?, normal::<T>(device, b, 2)?];
        let (bias, y, dw) = (normal::<T>(device, n, 3)?, device.zeros(y)?, device.zeros(dw)?);
        Ok(Box::new(Layer { call, shape, operands, bias, y, dw }))
    };
    Case {
        op: "matmul",
        what: format!("{name} {m} x {n} x {k}"),
        dtype: T::DTYPE,
        bytes: ((a + b + y) * size_of::<T>() + dw * 2 * size_of::<f32>()) as u64,
        flops: 2 * (m * n * k) as u64,
        // Sums in another order, or cut off by tensor cores.
        roundings: 2.0 + if size_of::<T>() == 4 { length as f64 / 4.0 } else { 0.0 },
        make: Box::new(make),
    }
}

pub(super) fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::None => "forward",
        Activation::GeluTanh => "forward with gelu_tanh",
        Activation::GeluErf => "forward with gelu_erf",
        Activation::Relu => "forward with relu",
        Activation::SwiGlu => "forward with swiglu",
    }
}

/// The shape of a product whose result has two rows of tiles and enough in each that a device takes the largest ones.
fn of_large_tiles(multiprocessors: usize, call: Call) -> Shape {
    const TILE: usize = 128;
    // The last tiles are cut off.
    let (rows, columns, sum) = (TILE * multiprocessors.div_ceil(2).max(2) - 5, 2 * TILE - 8, 64);
    match call {
        Call::Forward(_) => Shape { m: rows, n: columns, k: sum },
        Call::Input => Shape { m: rows, n: sum, k: columns },
        Call::Weight => Shape { m: sum, n: rows - 3, k: columns },
    }
}

fn of_type<T: Float>(size: Size, _: PhantomData<T>) -> Vec<Case> {
    let shape = |(m, n, k)| Shape { m, n, k };
    let calls = [Call::Forward(Activation::None), Call::Input, Call::Weight];
    let (Size::Small { multiprocessors } | Size::Counted { multiprocessors }) = size else {
        let square = |call: Call| [8192, 4096].map(|size| case::<T>(shape((size, size, size)), call));
        return calls.into_iter().flat_map(square).collect();
    };
    let activations = [Activation::GeluTanh, Activation::GeluErf, Activation::Relu, Activation::SwiGlu];
    let mut all: Vec<Case> =
        activations.map(|activation| case::<T>(shape((70, 48, 136)), Call::Forward(activation))).into();
    all.extend(calls.map(|call| case::<T>(of_large_tiles(multiprocessors, call), call)));
    all.extend(calls.map(|call| case::<T>(shape((136, 72, 264)), call)));
    for sizes in [(65, 34, 77), (1, 239, 40)] {
        all.extend(calls.map(|call| case::<T>(shape(sizes), call).edge()));
    }
    all
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    let mut all = of_type(size, PhantomData::<f32>);
    all.extend(of_type(size, PhantomData::<bf16>));
    all.extend(of_type(size, PhantomData::<f16>));
    all
}
