//! How the weights stand in a checkpoint: by Hugging Face's names, cut and turned as its models have them, so that the
//! weights of a run can be loaded there and the other way round.
//!
//! GPT-2's linear layers are `Conv1D` there, which holds `[inputs, outputs]`; Llama's packed rows are layers of their own.
//! The order of rotary positions is the one of those models too: channel i of a head turns with channel i + D/2.

use std::ops::Range;

use warpweft_device::{Element, Float, Stream};

use crate::TrainError;
use crate::checkpoint::{Checkpoint, Foreign, Held, Piece, Pieces, Rows, Whole};
use crate::model::shape::Architecture;
use crate::model::table::{Parameter, Table, Unit};
use crate::model::{Biases, Model, TensorId};
use crate::optimizer::{KINDS, Optimizer};
use crate::parallel::plan::Plan;
use crate::parallel::weights::Weights;
use crate::parallel::zero::overlap;

/// Some rows of a parameter.
fn rows_of(parameter: &Parameter, rows: Range<usize>) -> Rows {
    Rows { parameter: parameter.name().into(), shape: parameter.shape().to_vec(), rows }
}

/// The layers of their own that Hugging Face has for the rows of one parameter.
fn split(parameter: &Parameter, packed: &str, parts: &[(&str, usize)]) -> Vec<Whole> {
    let mut end = 0;
    let part = |&(part, rows): &(&str, usize)| {
        end += rows;
        let shape = [&[rows], &parameter.shape()[1..]].concat();
        let name = parameter.name().replace(packed, part);
        Whole { name, shape, parts: vec![rows_of(parameter, end - rows..end)], turned: false }
    };
    parts.iter().map(part).collect()
}

/// What the parameters of a model are in the weights' file.
pub fn wholes(model: &Model) -> Vec<Whole> {
    let shape = model.shape();
    let mut all: Vec<Whole> = Vec::new();
    // A shared expert of no width is no tensor there.
    for parameter in model.table().parameters().iter().filter(|parameter| parameter.elements() > 0) {
        let rows = parameter.shape()[0];
        let values = shape.kv_heads * shape.head_size();
        let name = parameter.name();
        if name.contains("qkv_proj.q") {
            all.extend(split(parameter, "qkv_proj.q", &[("q_proj", rows)]));
        } else if name.contains("qkv_proj.kv") {
            all.extend(split(parameter, "qkv_proj.kv", &[("k_proj", values), ("v_proj", values)]));
        } else if name.contains("gate_up_proj") && parameter.shape().len() < 3 {
            let parts = [("gate_proj", shape.hidden), ("up_proj", shape.hidden)];
            all.extend(split(parameter, "gate_up_proj", &parts));
        } else if name.contains("c_attn.kv")
            && let Some(packed) = all.iter_mut().rfind(|stored| stored.name == name.replace(".kv.", "."))
        {
            packed.parts.push(rows_of(parameter, 0..rows));
            let along = if packed.turned { 1 } else { 0 };
            packed.shape[along] += rows;
        } else {
            let name = name.replace("c_attn.q.", "c_attn.");
            let turned = shape.architecture == Architecture::Gpt2
                && parameter.shape().len() == 2
                && [".c_attn.", ".c_proj.", ".c_fc."].iter().any(|layer| name.contains(layer));
            let mut shape = parameter.shape().to_vec();
            if turned {
                shape.reverse();
            }
            all.push(Whole { name, shape, parts: vec![rows_of(parameter, 0..rows)], turned });
        }
    }
    all.extend(biases(model).map(|name| Whole::plain(&name, &[shape.moe.map_or(0, |moe| moe.experts)])));
    all
}

/// The end of the name of a router, and that of its biases as DeepSeek's models have them.
const ROUTER: [&str; 2] = [".gate.weight", ".gate.e_score_correction_bias"];

/// The names of the biases of all routers, block after block, where there are some.
fn biases(model: &Model) -> impl Iterator<Item = String> + '_ {
    let there = model.shape().moe.is_some_and(|moe| moe.bias_rate > 0.0);
    let names = model.table().parameters().iter().map(Parameter::name);
    names.filter(move |name| there && name.ends_with(ROUTER[0])).map(|name| name.replace(ROUTER[0], ROUTER[1]))
}

/// The biases of all routers, which every rank has.
///
/// # Errors
/// Biases that are not in host memory.
pub(crate) fn save_biases(model: &Model, values: &Biases) -> Result<Vec<Piece>, TrainError> {
    let values = values.values()?.chunks(values.experts().max(1));
    Ok(biases(model).zip(values).map(|(name, values)| Piece::new(name, Held::whole(&[values.len()]), values)).collect())
}

/// Sets them from what stands in a file.
fn read_biases(model: &Model, pieces: &Pieces<'_>, into: &mut Biases) -> Result<(), TrainError> {
    let experts = into.experts().max(1);
    for (name, values) in biases(model).zip(into.values_mut()?.chunks_mut(experts)) {
        pieces.read_f32(&name, &Held::whole(&[values.len()]), values)?;
    }
    Ok(())
}

/// What a part of a unit holds of each of its parameters: which elements, and where in the part.
fn held<'a>(
    table: &'a Table,
    unit: &Unit,
    mine: &'a Range<usize>,
) -> impl Iterator<Item = (TensorId, Held, Range<usize>)> + use<'a> {
    unit.ids().filter_map(move |id| {
        let parameter = table.get(id);
        let (in_part, in_parameter) = overlap(mine, &parameter.range())?;
        let (shape, portion) = (parameter.shape().to_vec(), parameter.entry.portion.clone());
        Some((id, Held { shape, portion, part: in_parameter }, in_part))
    })
}

/// What this rank writes of a model: the pieces of weights, and those of the optimizer's state. Of ranks that hold the same
/// elements, the first has them.
///
/// # Errors
/// State that is not in host memory, or weights on their way.
pub(crate) fn save<T: Float>(
    table: &Table,
    plan: &Plan,
    weights: &Weights<T>,
    optimizer: &Optimizer,
) -> Result<(Vec<Piece>, Vec<Piece>), TrainError> {
    let (mut of_weights, mut of_optimizer) = (Vec::new(), Vec::new());
    for (id, unit) in table.units_here() {
        let mine = optimizer.mine(id)?;
        let values = weights.part(id)?;
        let values = values.host()?;
        for (id, held, at) in held(table, unit, &mine).filter(|(id, ..)| plan.parameters[id.0].counted) {
            of_weights.push(Piece::new(table.get(id).name(), held, &values[at]));
        }
        for (kind, values) in optimizer.parts(id)? {
            let values = values.host()?;
            for (id, held, at) in held(table, unit, &mine).filter(|(id, ..)| plan.parameters[id.0].counted) {
                of_optimizer.push(Piece::new(format!("{kind}.{}", table.get(id).name()), held, &values[at]));
            }
        }
    }
    Ok((of_weights, of_optimizer))
}

/// Reads what this rank holds of a unit.
fn read<T: Element>(
    pieces: &Pieces<'_>,
    table: &Table,
    (unit, mine): (&Unit, &Range<usize>),
    prefix: &str,
) -> Result<Vec<T>, TrainError> {
    let mut values = vec![T::zeroed(); mine.len()];
    for (id, held, at) in held(table, unit, mine) {
        pieces.read(&format!("{prefix}{}", table.get(id).name()), &held, &mut values[at])?;
    }
    Ok(values)
}

/// Sets weights and state from a checkpoint of any layout.
///
/// # Errors
/// A tensor that is missing, of another shape or type, or none of this model's.
pub(crate) fn restore<T: Float>(
    model: &Model,
    stream: &Stream,
    checkpoint: &Checkpoint,
    weights: &mut Weights<T>,
    optimizer: &mut Optimizer,
) -> Result<(), TrainError> {
    let (table, wholes) = (model.table(), wholes(model));
    let (stored, state) = (checkpoint.weights(&wholes)?, checkpoint.optimizer()?);
    let kinds = KINDS.into_iter().filter(|kind| optimizer.has(*kind)).map(|kind| kind.name());
    let names = kinds.flat_map(|kind| table.parameters().iter().map(move |p| format!("{kind}.{}", p.name())));
    state.expect_only(names.collect::<Vec<_>>().iter().map(String::as_str))?;
    read_biases(model, &stored, &mut weights.biases)?;
    weights.settle()?;
    for (id, unit) in table.units_here() {
        let mine = optimizer.mine(id)?;
        weights.part_mut(id)?.copy_from_host(stream, &read::<T>(&stored, table, (unit, &mine), "")?)?;
        for (kind, into) in optimizer.parts_mut(id)? {
            into.copy_from_host(stream, &read::<f32>(&state, table, (unit, &mine), &format!("{kind}."))?)?;
        }
        weights.updated(id)?;
    }
    Ok(())
}

/// Sets the weights from a file of another program's; the optimizer's state stays as it is, but for master weights. Gives
/// what a user should know of how they were found.
///
/// # Errors
/// A tensor that is missing, of another shape, or none of this model's.
pub(crate) fn take<T: Float>(
    model: &Model,
    stream: &Stream,
    file: &Foreign,
    weights: &mut Weights<T>,
    optimizer: &mut Optimizer,
) -> Result<Vec<String>, TrainError> {
    let (table, wholes) = (model.table(), wholes(model));
    let (pieces, notes) = file.weights(&wholes)?;
    read_biases(model, &pieces, &mut weights.biases)?;
    weights.settle()?;
    for (id, unit) in table.units_here() {
        let mine = optimizer.mine(id)?;
        let mut values = vec![0.0f32; mine.len()];
        for (id, held, at) in held(table, unit, &mine) {
            pieces.read_f32(table.get(id).name(), &held, &mut values[at])?;
        }
        let rounded: Vec<T> = values.iter().map(|value| T::from_f32(*value)).collect();
        weights.part_mut(id)?.copy_from_host(stream, &rounded)?;
        for (_, into) in optimizer.parts_mut(id)?.filter(|(kind, _)| *kind == KINDS[2].name()) {
            into.copy_from_host(stream, &values)?;
        }
        weights.updated(id)?;
    }
    Ok(notes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ModelShape, Spread};

    fn names(shape: ModelShape) -> Vec<(String, Vec<usize>)> {
        let model = Model::new(shape, Spread::alone(&shape)).expect("sizes that fit");
        wholes(&model).into_iter().map(|stored| (stored.name, stored.shape)).collect()
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
}
