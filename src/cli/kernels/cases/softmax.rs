//! Cases of softmax.

use std::marker::PhantomData;

use warpweft::device::{Buffer, Device, Float, Stream, bf16, f16};
use warpweft::kernels::softmax::{self, MaskShape, Options, Shape};
use warpweft::kernels::{KernelError, Write};

use super::super::case::{Case, Size, Work, normal, values};

struct Rows<T> {
    shape: Shape,
    options: Options,
    x: Buffer<T>,
    dy: Option<Buffer<T>>,
    mask: Option<(MaskShape, Buffer<u8>)>,
    y: Buffer<T>,
}

impl<T: Float> Work for Rows<T> {
    fn launch(&mut self, stream: &Stream) -> Result<(), KernelError> {
        let Self { shape, options, x, dy, mask, y } = self;
        match (dy, mask) {
            (None, None) => softmax::forward(stream, *shape, *options, x.as_view(), y.as_view_mut()),
            (None, Some((mask, hidden))) => {
                let (hidden, x) = (hidden.as_view(), x.as_view());
                softmax::forward_masked(stream, *shape, *options, *mask, hidden, x, y.as_view_mut())
            }
            (Some(dy), _) => {
                softmax::backward(stream, *shape, *options, dy.as_view(), x.as_view(), Write::Set, y.as_view_mut())
            }
        }
    }

    fn outputs(&self, stream: &Stream) -> Result<Vec<f64>, KernelError> {
        values(&self.y, stream)
    }
}

/// What a case does beside the plain forward pass.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Forward,
    /// Under a given mask that hides every third element, or so.
    Masked(MaskShape),
    Backward,
}

fn case<T: Float>(shape: Shape, options: Options, way: Way) -> Case {
    let elements = shape.rows * shape.columns;
    let hidden = match way {
        Way::Masked(mask) => elements / mask.heads,
        _ => 0,
    };
    let make = move |device: &Device| -> Result<Box<dyn Work>, KernelError> {
        let dy = if way == Way::Backward { Some(normal::<T>(device, elements, 2)?) } else { None };
        let (x, y) = (normal::<T>(device, elements, 1)?, device.zeros(elements)?);
        let mask = match way {
            Way::Masked(mask) => {
                let bytes: Vec<u8> = (0..hidden).map(|i| u8::from(i * i % 7 < 2)).collect();
                Some((mask, device.upload(&bytes)?))
            }
            _ => None,
        };
        Ok(Box::new(Rows { shape, options, x, dy, mask, y }))
    };
    let Shape { rows, columns } = shape;
    let causal = if options.causal.is_some() { " causal" } else { "" };
    let (name, masked, arrays) = match way {
        Way::Forward => ("forward", "", 2),
        Way::Masked(_) => ("forward", " masked", 2),
        Way::Backward => ("backward", "", 3),
    };
    Case {
        op: "softmax",
        what: format!("{name} {rows} x {columns}{causal}{masked}"),
        dtype: T::DTYPE,
        bytes: (elements * size_of::<T>() * arrays + hidden) as u64,
        flops: 0,
        // The sums of two devices run in other orders.
        roundings: 2.0 + if size_of::<T>() == 4 { columns as f64 / 8.0 } else { 0.0 },
        make: Box::new(make),
    }
}

fn of_type<T: Float>(size: Size, _: PhantomData<T>) -> Vec<Case> {
    let (plain, causal) = (Options::default(), Options { scale: 0.125, causal: Some(16) });
    let shapes = match size {
        Size::Small { .. } => vec![(64, 128, plain), (48, 1024, causal), (3, 8192, plain)],
        Size::Counted { .. } => vec![(64, 1024, plain), (48, 1024, causal)],
        Size::Large => vec![(32_768, 1024, plain), (4096, 32_768, plain)],
    };
    let mask = MaskShape { heads: 2, queries: 4 };
    let ways = |(rows, columns, options): (usize, usize, Options)| {
        let masked = rows.is_multiple_of(8).then_some(Way::Masked(mask));
        let ways = [Way::Forward, Way::Backward].into_iter().chain(masked);
        ways.map(move |way| case::<T>(Shape { rows, columns }, options, way))
    };
    let mut all: Vec<Case> = shapes.into_iter().flat_map(ways).collect();
    if size.is_small() {
        all.extend([(8, 100, plain), (3, 5003, plain)].into_iter().flat_map(ways).map(Case::edge));
    }
    all
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    let mut all = of_type(size, PhantomData::<f32>);
    all.extend(of_type(size, PhantomData::<bf16>));
    all.extend(of_type(size, PhantomData::<f16>));
    all
}
