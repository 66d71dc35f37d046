//! Cases of the embedding and of the residual sum.

use warpweft::device::{Buffer, Device, Float, Stream, bf16, f16};
use warpweft::kernels::embedding::{self, Shape};
use warpweft::kernels::philox::Philox4x32;
use warpweft::kernels::{KernelError, residual};

use super::super::case::{Arrays, Case, Size, Work, normal, values};

struct Embedding<T> {
    shape: Shape,
    ids: Buffer<u32>,
    table: Buffer<T>,
    y: Buffer<T>,
    /// The gradient, where that is what is asked for.
    gradient: Option<Buffer<f32>>,
}

impl<T: Float> Work for Embedding<T> {
    fn launch(&mut self, stream: &Stream) -> Result<(), KernelError> {
        let Self { shape, ids, table, y, gradient } = self;
        match gradient {
            None => embedding::forward(stream, *shape, ids.as_view(), table.as_view(), None, y.as_view_mut()),
            Some(gradient) => {
                embedding::backward(stream, *shape, ids.as_view(), y.as_view(), gradient.as_view_mut(), None)
            }
        }
    }

    fn outputs(&self, stream: &Stream) -> Result<Vec<f64>, KernelError> {
        match &self.gradient {
            None => values(&self.y, stream),
            Some(gradient) => values(gradient, stream),
        }
    }
}

fn embedding_case<T: Float>(tokens: usize, channels: usize, vocab: usize, backward: bool) -> Case {
    let shape = Shape { batch: 1, tokens, channels, vocab, positions: 0 };
    let make = move |device: &Device| -> Result<Box<dyn Work>, KernelError> {
        let generator = Philox4x32::new(1, 5);
        let ids: Vec<u32> = (0..tokens as u64).map(|index| generator.word(index) % vocab as u32).collect();
        let gradient = if backward { Some(device.zeros(vocab * channels)?) } else { None };
        let table = if backward { device.zeros(0)? } else { normal::<T>(device, vocab * channels, 2)? };
        let y = normal::<T>(device, tokens * channels, 3)?;
        Ok(Box::new(Embedding { shape, ids: device.upload(&ids)?, table, y, gradient }))
    };
    let way = if backward { "backward" } else { "forward" };
    let elements = tokens * channels;
    Case {
        op: "embedding",
        what: format!("{way} {tokens} x {channels} of {vocab}"),
        dtype: T::DTYPE,
        // Rows of gradients are read and written.
        bytes: (elements * if backward { size_of::<T>() + 8 } else { 2 * size_of::<T>() }) as u64,
        flops: 0,
        roundings: 0.0,
        make: Box::new(make),
    }
}

fn add<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let [bias, x, branch, out] = &mut all.stored[..] else { return Ok(()) };
    let shape = residual::Shape { rows: x.len() / bias.len(), channels: bias.len() };
    residual::forward(stream, shape, x.as_view(), branch.as_view(), Some(bias.as_view()), out.as_view_mut())
}

fn residual_case<T: Float>(rows: usize, channels: usize) -> Case {
    let elements = rows * channels;
    let make = move |device: &Device| -> Result<Box<dyn Work>, KernelError> {
        let [x, branch] = [normal(device, elements, 1)?, normal(device, elements, 2)?];
        let stored = vec![normal(device, channels, 3)?, x, branch, device.zeros(elements)?];
        Ok(Box::new(Arrays::<T> { stored, floats: Vec::new(), written: [1, 0], call: add }))
    };
    Case {
        op: "residual",
        what: format!("forward {rows} x {channels}"),
        dtype: T::DTYPE,
        bytes: (3 * elements * size_of::<T>()) as u64,
        flops: 0,
        roundings: 0.0,
        make: Box::new(make),
    }
}

fn of_type<T: Float>(size: Size) -> Vec<Case> {
    let (tokens, channels, vocab) = match size {
        Size::Small => (150, 72, 300),
        Size::Counted => (256, 1024, 1000),
        Size::Large => (32_768, 4096, 50_257),
    };
    let mut all = vec![residual_case::<T>(tokens, channels)];
    all.extend([false, true].map(|backward| embedding_case::<T>(tokens, channels, vocab, backward)));
    all
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    [of_type::<f32>(size), of_type::<bf16>(size), of_type::<f16>(size)].into_iter().flatten().collect()
}
