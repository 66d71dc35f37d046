//! Cases of softmax.

use std::marker::PhantomData;

use warpweft::device::{Buffer, Device, Float, Stream, bf16, f16};
use warpweft::kernels::softmax::{self, Options, Shape};
use warpweft::kernels::{KernelError, Write};

use super::super::case::{Case, Size, Work, normal, values};

struct Rows<T> {
    shape: Shape,
    options: Options,
    x: Buffer<T>,
    dy: Option<Buffer<T>>,
    y: Buffer<T>,
}

impl<T: Float> Work for Rows<T> {
    fn launch(&mut self, stream: &Stream) -> Result<(), KernelError> {
        let Self { shape, options, x, dy, y } = self;
        match dy {
            None => softmax::forward(stream, *shape, *options, x.as_view(), y.as_view_mut()),
            Some(dy) => {
                softmax::backward(stream, *shape, *options, dy.as_view(), x.as_view(), Write::Set, y.as_view_mut())
            }
        }
    }

    fn outputs(&self, stream: &Stream) -> Result<Vec<f64>, KernelError> {
        values(&self.y, stream)
    }
}

fn case<T: Float>(shape: Shape, options: Options, backward: bool) -> Case {
    let elements = shape.rows * shape.columns;
    let make = move |device: &Device| -> Result<Box<dyn Work>, KernelError> {
        let dy = if backward { Some(normal::<T>(device, elements, 2)?) } else { None };
        let (x, y) = (normal::<T>(device, elements, 1)?, device.zeros(elements)?);
        Ok(Box::new(Rows { shape, options, x, dy, y }))
    };
    let (Shape { rows, columns }, way) = (shape, if backward { "backward" } else { "forward" });
    let causal = if options.causal.is_some() { " causal" } else { "" };
    Case {
        op: "softmax",
        what: format!("{way} {rows} x {columns}{causal}"),
        dtype: T::DTYPE,
        bytes: (elements * size_of::<T>()) as u64 * if backward { 3 } else { 2 },
        flops: 0,
        // The sums of two devices run in other orders.
        roundings: 2.0 + if size_of::<T>() == 4 { columns as f64 / 8.0 } else { 0.0 },
        make: Box::new(make),
    }
}

fn of_type<T: Float>(size: Size, _: PhantomData<T>) -> Vec<Case> {
    let (plain, causal) = (Options::default(), Options { scale: 0.125, causal: Some(16) });
    let shapes = match size {
        Size::Small => vec![(64, 100, plain), (48, 1024, causal), (3, 5003, plain)],
        Size::Counted => vec![(64, 1024, plain), (48, 1024, causal)],
        Size::Large => vec![(32_768, 1024, plain), (4096, 32_768, plain)],
    };
    let both = shapes.into_iter().flat_map(|(rows, columns, options)| {
        [false, true].map(|backward| case::<T>(Shape { rows, columns }, options, backward))
    });
    both.collect()
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    let mut all = of_type(size, PhantomData::<f32>);
    all.extend(of_type(size, PhantomData::<bf16>));
    all.extend(of_type(size, PhantomData::<f16>));
    all
}
