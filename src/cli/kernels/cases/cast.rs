//! Cases of conversion, of every type to every type, and of a fill.

use warpweft::device::{Buffer, Device, Float, Stream, bf16, f16};
use warpweft::kernels::{KernelError, cast};

use super::super::case::{Arrays, Case, Size, Work, normal, values};

struct Conversion<A, B> {
    from: Buffer<A>,
    to: Buffer<B>,
}

impl<A: Float, B: Float> Work for Conversion<A, B> {
    fn launch(&mut self, stream: &Stream) -> Result<(), KernelError> {
        cast::convert(stream, self.from.as_view(), self.to.as_view_mut())
    }

    fn outputs(&self, stream: &Stream) -> Result<Vec<f64>, KernelError> {
        values(&self.to, stream)
    }
}

fn case<A: Float, B: Float>(elements: usize) -> Case {
    let make = move |device: &Device| -> Result<Box<dyn Work>, KernelError> {
        Ok(Box::new(Conversion::<A, B> { from: normal(device, elements, 1)?, to: device.zeros(elements)? }))
    };
    Case {
        op: "cast",
        what: format!("from {} {elements}", A::DTYPE),
        dtype: B::DTYPE,
        bytes: (elements * (size_of::<A>() + size_of::<B>())) as u64,
        flops: 0,
        roundings: 0.0,
        make: Box::new(make),
    }
}

fn to<B: Float>(elements: usize) -> [Case; 3] {
    [case::<f32, B>(elements), case::<bf16, B>(elements), case::<f16, B>(elements)]
}

fn fill<T: Float>(elements: usize) -> Case {
    let call = |stream: &Stream, all: &mut Arrays<T>| -> Result<(), KernelError> {
        Ok(all.stored[0].as_view_mut().fill(stream, T::from_f64(0.75))?)
    };
    let arrays = move |device: &Device| {
        Ok(Arrays { stored: vec![device.zeros(elements)?], written: [1, 0, 0, 0], ..Arrays::of(call) })
    };
    Case { bytes: (elements * size_of::<T>()) as u64, ..Case::new::<T>("fill", format!("of {elements}"), arrays) }
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    let elements = match size {
        Size::Small { .. } => 20_480,
        Size::Counted { .. } => 1 << 16,
        Size::Large => 1 << 27,
    };
    if size.is_counted() {
        return vec![case::<f32, bf16>(elements), case::<f32, f16>(elements)];
    }
    let mut all: Vec<Case> =
        [to::<f32>(elements), to::<bf16>(elements), to::<f16>(elements)].into_iter().flatten().collect();
    all.extend([fill::<f32>(elements), fill::<bf16>(elements), fill::<f16>(elements)]);
    if size.is_small() {
        all.extend([case::<f32, bf16>(2_001).edge(), case::<bf16, f32>(2_001).edge()]);
    }
    all
}
