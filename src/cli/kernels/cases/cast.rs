//! Cases of conversion.

use warpweft::device::{Device, Float, Stream, bf16, f16};
use warpweft::kernels::{KernelError, cast};

use super::super::case::{Arrays, Case, Size, Work, normal};

fn narrow<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    cast::convert(stream, all.floats[0].as_view(), all.stored[0].as_view_mut())
}

fn case<T: Float>(elements: usize) -> Case {
    let make = move |device: &Device| -> Result<Box<dyn Work>, KernelError> {
        let (stored, floats) = (vec![device.zeros::<T>(elements)?], vec![normal(device, elements, 1)?]);
        Ok(Box::new(Arrays { stored, floats, written: [1, 0], call: narrow }))
    };
    Case {
        op: "cast",
        what: format!("from f32 {elements}"),
        dtype: T::DTYPE,
        bytes: (elements * (size_of::<T>() + 4)) as u64,
        flops: 0,
        roundings: 0.0,
        make: Box::new(make),
    }
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    let elements = match size {
        Size::Small => 20_001,
        Size::Counted => 1 << 16,
        Size::Large => 1 << 27,
    };
    vec![case::<bf16>(elements), case::<f16>(elements)]
}
