//! How the weights stand in a checkpoint: by Hugging Face's names, cut and turned as its models have them, so that the
//! weights of a run can be loaded there and the other way round.
//!
//! GPT-2's linear layers are `Conv1D` there, which holds `[inputs, outputs]`; Llama's packed rows are layers of their own.

use std::ops::Range;

use warpweft_device::{Element, Float};

use crate::TrainError;
use crate::checkpoint::{Tensor, Tensors};
use crate::model::parameters::Parameters;
use crate::model::shape::{Architecture, ModelShape};
use crate::model::table::{Parameter, Table};

/// One tensor of a checkpoint: some rows of a parameter, perhaps turned.
struct Stored {
    name: String,
    shape: Vec<usize>,
    rows: Range<usize>,
    turned: bool,
}

impl Stored {
    /// What a parameter is in a checkpoint.
    fn of(model: &ModelShape, parameter: &Parameter) -> Vec<Self> {
        let [rows, columns] = [parameter.shape[0], parameter.shape.get(1).copied().unwrap_or(1)];
        let turned = model.architecture == Architecture::Gpt2
            && parameter.decays()
            && [".c_attn.", ".c_proj.", ".c_fc."].iter().any(|layer| parameter.name.contains(layer));
        let shape = if turned { vec![columns, rows] } else { parameter.shape.clone() };
        let (queries, values) = (model.heads * model.head_size(), model.kv_heads * model.head_size());
        let parts = |packed: &str, parts: &[(&str, usize)]| {
            let mut end = 0;
            let stored = parts.iter().map(|(part, rows)| {
                let name = parameter.name.replace(packed, part);
                end += rows;
                Self { name, shape: vec![*rows, columns], rows: end - rows..end, turned: false }
            });
            stored.collect()
        };
        if parameter.name.contains("qkv_proj") {
            parts("qkv_proj", &[("q_proj", queries), ("k_proj", values), ("v_proj", values)])
        } else if parameter.name.contains("gate_up_proj") {
            parts("gate_up_proj", &[("gate_proj", model.hidden), ("up_proj", model.hidden)])
        } else {
            vec![Self { name: parameter.name.clone(), shape, rows: 0..rows, turned }]
        }
    }
}

/// The weights as tensors of a checkpoint.
///
/// # Errors
/// Weights that are not in host memory.
pub fn to_tensors<T: Float>(
    model: &ModelShape,
    table: &Table,
    parameters: &Parameters<T>,
) -> Result<Vec<Tensor>, TrainError> {
    let mut tensors = Vec::new();
    for (id, parameter) in table.iter() {
        let values = parameters.view(id)?.host()?;
        let width = values.len() / parameter.shape[0];
        for Stored { name, shape, rows, turned } in Stored::of(model, parameter) {
            let part = &values[rows.start * width..rows.end * width];
            let turn = turned.then(|| transpose(part, width));
            tensors.push(Tensor::new(name, &shape, turn.as_deref().unwrap_or(part)));
        }
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
    parameters: &mut Parameters<T>,
) -> Result<(), TrainError> {
    let mut names = Vec::new();
    for (id, parameter) in table.iter() {
        let values = parameters.view_mut(id)?.host()?;
        let width = values.len() / parameter.shape[0];
        for Stored { name, shape, rows, turned } in Stored::of(model, parameter) {
            let part = &mut values[rows.start * width..rows.end * width];
            tensors.read(&name, &shape, part)?;
            if turned {
                let turn = transpose(part, rows.len());
                part.copy_from_slice(&turn);
            }
            names.push(name);
        }
    }
    Ok(tensors.expect_only(names.iter().map(String::as_str))?)
}

/// The transpose of rows of `width` elements.
fn transpose<T: Element>(values: &[T], width: usize) -> Vec<T> {
    (0..width).flat_map(|column| values.iter().skip(column).step_by(width).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;

    fn names(shape: ModelShape) -> Vec<(String, Vec<usize>)> {
        let model = Model::new(shape).expect("sizes that fit");
        let stored = model.table().parameters().iter().flat_map(|parameter| Stored::of(&shape, parameter));
        stored.map(|stored| (stored.name, stored.shape)).collect()
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
