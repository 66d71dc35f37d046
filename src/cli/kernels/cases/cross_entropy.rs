//! Cases of cross-entropy.

use warpweft::device::{Buffer, Device, Float, Stream, bf16, f16};
use warpweft::kernels::KernelError;
use warpweft::kernels::cross_entropy::{self, Shape};
use warpweft::kernels::philox::Philox4x32;

use super::super::case::{Case, Size, Work, normal, values};

struct Losses<T> {
    shape: Shape,
    logits: Buffer<T>,
    targets: Buffer<u32>,
    losses: Buffer<f32>,
    lse: Buffer<f32>,
    backward: bool,
}

impl<T: Float> Work for Losses<T> {
    fn launch(&mut self, stream: &Stream) -> Result<(), KernelError> {
        let Self { shape, logits, targets, losses, lse, backward } = self;
        let targets = targets.as_view();
        if *backward {
            let lse = lse.as_view();
            return cross_entropy::backward(stream, *shape, logits.as_view_mut(), targets, None, lse, 1.0);
        }
        let out = (losses.as_view_mut(), lse.as_view_mut());
        cross_entropy::forward(stream, *shape, logits.as_view(), targets, None, out.0, out.1).map(|_| ())
    }

    fn outputs(&self, stream: &Stream) -> Result<Vec<f64>, KernelError> {
        if self.backward { values(&self.logits, stream) } else { values(&self.losses, stream) }
    }
}

fn case<T: Float>(rows: usize, vocab: usize, backward: bool) -> Case {
    let make = move |device: &Device| -> Result<Box<dyn Work>, KernelError> {
        let generator = Philox4x32::new(1, 5);
        let targets: Vec<u32> = (0..rows as u64).map(|index| generator.word(index) % vocab as u32).collect();
        Ok(Box::new(Losses {
            shape: Shape { rows, vocab },
            logits: normal::<T>(device, rows * vocab, 1)?,
            targets: device.upload(&targets)?,
            losses: device.zeros(rows)?,
            // About that of normal logits.
            lse: device.upload(&vec![(vocab as f32).ln() + 0.5; rows])?,
            backward,
        }))
    };
    let way = if backward { "backward" } else { "forward" };
    Case {
        op: "cross_entropy",
        what: format!("{way} {rows} x {vocab}"),
        dtype: T::DTYPE,
        bytes: (rows * vocab * size_of::<T>()) as u64 * if backward { 2 } else { 1 },
        flops: 0,
        // Losses are f32 whatever the storage; the sums of two devices run in other orders.
        roundings: 16.0 + if size_of::<T>() == 4 { vocab as f64 / 8.0 } else { 0.0 },
        make: Box::new(make),
    }
}

fn of_type<T: Float>(size: Size) -> Vec<Case> {
    let shapes = match size {
        Size::Small => vec![(9, 300), (4, 5003)],
        Size::Counted => vec![(16, 16_384)],
        Size::Large => vec![(8192, 50_304)],
    };
    shapes
        .into_iter()
        .flat_map(|(rows, vocab)| [false, true].map(|backward| case::<T>(rows, vocab, backward)))
        .collect()
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    [of_type::<f32>(size), of_type::<bf16>(size), of_type::<f16>(size)].into_iter().flatten().collect()
}
