//! Model FLOPs, and how many of them this machine could do: what MFU is a fraction of.

use std::time::{Duration, Instant};

use warpweft_device::{DeviceKind, Stream};
use warpweft_kernels::matmul::{self, Epilogue};

use crate::TrainError;
use crate::model::{Model, ModelShape, MoeShape};

/// FLOPs of a training step per token of a sequence of `tokens`: 6N + 12 L T C, N being the parameters without the
/// embedding tables (a tied output projection is one), attention counted without its causal half (Chowdhery et al.
/// 2022, appendix B). Of experts, N has those that a token goes to.
pub fn per_token(model: &Model, tokens: usize) -> f64 {
    let ModelShape { layers, channels, .. } = *model.shape();
    let embeddings: usize = model.embedding_tables().map(|id| model.table().get(id).elements()).sum();
    let parameters = model.table().elements() - embeddings - idle(model);
    6.0 * parameters as f64 + 12.0 * layers as f64 * tokens as f64 * channels as f64
}

/// Parameters of the experts that a token does not go to.
fn idle(model: &Model) -> usize {
    let Some(MoeShape { experts, top_k, .. }) = model.shape().moe else { return 0 };
    let of_experts = model.table().parameters().iter().filter(|parameter| parameter.is_of_experts());
    of_experts.map(|parameter| parameter.elements() / experts * (experts - top_k)).sum()
}

/// FLOPs a second of this device's own f32 matrix product: the best of a few of 1024 x 512 x 512, which fit its caches.
/// Takes about a tenth of a second. None of a GPU in software, whose time says nothing of a GPU's.
///
/// # Errors
/// No memory for the operands.
pub fn ceiling(stream: &Stream) -> Result<Option<f64>, TrainError> {
    let device = stream.device();
    if device.kind() == DeviceKind::Software {
        return Ok(None);
    }
    let shape = matmul::Shape { m: 1024, n: 512, k: 512 };
    let x = device.upload(&vec![0.5f32; shape.m * shape.k])?;
    let w = device.upload(&vec![0.25f32; shape.n * shape.k])?;
    let mut y = device.zeros::<f32>(shape.m * shape.n)?;
    let mut best = Duration::MAX;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(100) {
        let begun = Instant::now();
        matmul::forward(stream, shape, x.as_view(), w.as_view(), Epilogue::default(), y.as_view_mut())?;
        stream.synchronize()?;
        best = best.min(begun.elapsed());
    }
    Ok(Some(2.0 * (shape.m * shape.n * shape.k) as f64 / best.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Spread;

    #[test]
    fn the_count_is_that_of_the_formula() -> Result<(), TrainError> {
        let shape = ModelShape::gpt2(2, 16, 2, 8, 11);
        let model = Model::new(shape, Spread::alone(&shape))?;
        // Per block 12 C² weights and 13 C biases and norm weights; the last norm has 2 C.
        let parameters = 2 * (12 * 16 * 16 + 13 * 16) + 2 * 16;
        assert_eq!(per_token(&model, 8), (6 * parameters + 12 * 2 * 8 * 16) as f64);
        Ok(())
    }

    #[test]
    fn experts_count_for_the_tokens_that_go_to_them() -> Result<(), TrainError> {
        let dense = ModelShape { hidden: 24, ..ModelShape::llama(2, 16, 2, 2, 8, 11) };
        let moe = ModelShape { moe: Some(MoeShape::new(8, 2, 10)), ..dense };
        let [dense, moe] = [dense, moe].map(|shape| Model::new(shape, Spread::alone(&shape)));
        let more = per_token(&moe?, 8) - per_token(&dense?, 8);
        // Per block a router of 8 x 16, and of each of two experts 3 matrices of 10 x 16.
        assert_eq!(more, (6 * 2 * (8 * 16 + 2 * 3 * 10 * 16)) as f64);
        Ok(())
    }
}
