//! How the weights stand in a checkpoint: by Hugging Face's names, cut and turned as its models have them, so that the
//! weights of a run can be loaded there and the other way round.
//!
//! GPT-2's linear layers are `Conv1D` there, which holds `[inputs, outputs]`; Llama's packed rows are layers of their own.

use std::ops::Range;

use warpweft_device::{Element, Float};

use crate::TrainError;
use crate::checkpoint::{Tensor, Tensors};
use crate::model::shape::{Architecture, ModelShape};
use crate::model::table::{Table, TensorId};
use crate::parallel::weights::Weights;

/// One tensor of a checkpoint: rows of parameters one after the other, perhaps turned.
struct Stored {
    name: String,
    shape: Vec<usize>,
    parts: Vec<(TensorId, Range<usize>)>,
    turned: bool,
}

impl Stored {
    /// What the parameters of a model are in a checkpoint.
    fn all(model: &ModelShape, table: &Table) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for (id, parameter) in table.iter() {
            let rows = parameter.shape()[0];
            let split = |packed: &str, parts: &[(&str, usize)]| -> Vec<Self> {
                let mut end = 0;
                let part = |&(part, rows): &(&str, usize)| {
                    end += rows;
                    let shape = [&[rows], &parameter.shape()[1..]].concat();
                    let name = parameter.name().replace(packed, part);
                    Self { name, shape, parts: vec![(id, end - rows..end)], turned: false }
                };
                parts.iter().map(part).collect()
            };
            let values = model.kv_heads * model.head_size();
            let name = parameter.name();
            if name.contains("qkv_proj.q") {
                all.extend(split("qkv_proj.q", &[("q_proj", rows)]));
            } else if name.contains("qkv_proj.kv") {
                all.extend(split("qkv_proj.kv", &[("k_proj", values), ("v_proj", values)]));
            } else if name.contains("gate_up_proj") {
                all.extend(split("gate_up_proj", &[("gate_proj", model.hidden), ("up_proj", model.hidden)]));
            } else if name.contains("c_attn.kv")
                && let Some(packed) = all.iter_mut().rfind(|stored| stored.name == name.replace(".kv.", "."))
            {
                packed.parts.push((id, 0..rows));
                let along = if packed.turned { 1 } else { 0 };
                packed.shape[along] += rows;
            } else {
                let name = name.replace("c_attn.q.", "c_attn.");
                let turned = model.architecture == Architecture::Gpt2
                    && parameter.decays()
                    && [".c_attn.", ".c_proj.", ".c_fc."].iter().any(|layer| name.contains(layer));
                let mut shape = parameter.shape().to_vec();
                if turned {
                    shape.reverse();
                }
                all.push(Self { name, shape, parts: vec![(id, 0..rows)], turned });
            }
        }
        all
    }

    /// Elements of a row of its parameters.
    fn width(&self, table: &Table) -> usize {
        table.get(self.parts[0].0).shape()[1..].iter().product()
    }
}

/// The weights as tensors of a checkpoint.
///
/// # Errors
/// Weights that are not in host memory.
pub fn to_tensors<T: Float>(
    model: &ModelShape,
    table: &Table,
    weights: &Weights<T>,
) -> Result<Vec<Tensor>, TrainError> {
    let mut tensors = Vec::new();
    for stored in Stored::all(model, table) {
        let width = stored.width(table);
        let mut values = Vec::new();
        for (id, rows) in &stored.parts {
            values.extend_from_slice(&weights.view(*id)?.host()?[rows.start * width..rows.end * width]);
        }
        let turn = stored.turned.then(|| transpose(&values, width));
        tensors.push(Tensor::new(stored.name, &stored.shape, turn.as_deref().unwrap_or(&values)));
    }
    Ok(tensors)
}

/// Sets the weights from tensors of a checkpoint.
///
/// # Errors
/// A tensor that is missing, of another shape or type, or none of this model's.
pub fn from_tensors<T: Float>(
    model: &ModelShape,
    table: &Table,
    tensors: &Tensors,
    weights: &mut Weights<T>,
) -> Result<(), TrainError> {
    let all = Stored::all(model, table);
    for stored in &all {
        let width = stored.width(table);
        let mut values = vec![T::ZERO; stored.shape.iter().product()];
        tensors.read(&stored.name, &stored.shape, &mut values)?;
        if stored.turned {
            values = transpose(&values, values.len() / width);
        }
        let mut rest = &values[..];
        for (id, rows) in &stored.parts {
            let (part, after) = rest.split_at(rows.len() * width);
            weights.view_mut(*id)?.host()?[rows.start * width..rows.end * width].copy_from_slice(part);
            rest = after;
        }
    }
    Ok(tensors.expect_only(all.iter().map(|stored| stored.name.as_str()))?)
}

/// The transpose of rows of `width` elements.
fn transpose<T: Element>(values: &[T], width: usize) -> Vec<T> {
    (0..width).flat_map(|column| values.iter().skip(column).step_by(width).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Model, Spread};

    fn names(shape: ModelShape) -> Vec<(String, Vec<usize>)> {
        let model = Model::new(shape, Spread::alone(&shape)).expect("sizes that fit");
        Stored::all(&shape, model.table()).into_iter().map(|stored| (stored.name, stored.shape)).collect()
    }

    #[test]
    fn names_and_shapes_are_those_of_hugging_face() {
        let gpt2 = names(ModelShape::gpt2(1, 8, 2, 4, 11));
        let has = |names: &[(String, Vec<usize>)], name: &str, shape: &[usize]| {
            assert!(names.contains(&(name.to_owned(), shape.to_vec())), "{name} {shape:?} in {names:?}");
        };
        has(&gpt2, "transformer.wte.weight", &[11, 8]);
        has(&gpt2, "transformer.wpe.weight", &[4, 8]);
        has(&gpt2, "transformer.h.0.attn.c_attn.weight", &[8, 24]);
        has(&gpt2, "transformer.h.0.attn.c_attn.bias", &[24]);
        has(&gpt2, "transformer.h.0.mlp.c_fc.weight", &[8, 32]);
        has(&gpt2, "transformer.h.0.mlp.c_proj.weight", &[32, 8]);
        has(&gpt2, "transformer.ln_f.bias", &[8]);
        let llama = names(ModelShape::llama(1, 8, 2, 1, 4, 11));
        has(&llama, "model.embed_tokens.weight", &[11, 8]);
        has(&llama, "model.layers.0.self_attn.q_proj.weight", &[8, 8]);
        has(&llama, "model.layers.0.self_attn.v_proj.weight", &[4, 8]);
        has(&llama, "model.layers.0.mlp.gate_proj.weight", &[64, 8]);
        has(&llama, "model.layers.0.mlp.up_proj.weight", &[64, 8]);
        has(&llama, "model.layers.0.mlp.down_proj.weight", &[8, 64]);
        has(&llama, "model.norm.weight", &[8]);
    }

    #[test]
    fn turned_twice_is_the_same() {
        let values: Vec<f32> = (0..6).map(|i| i as f32).collect();
        assert_eq!(transpose(&values, 3), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(transpose(&transpose(&values, 3), 2), values);
    }
}
