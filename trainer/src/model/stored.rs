//! What a rank writes of weights and optimizer state into a checkpoint, and what it takes from one, or from a file of another
//! program: elements meet by their index in the whole tensor, whatever the layouts.

use std::ops::Range;

use warpweft_device::{Element, Float, Stream};
use warpweft_kernels::rope;

use crate::TrainError;
use crate::checkpoint::{Checkpoint, Foreign, Held, Piece, Pieces};
use crate::model::layers::EPS;
use crate::model::names::{biases, wholes, wholes_as_in};
use crate::model::table::{Table, Unit};
use crate::model::{Biases, Model, TensorId};
use crate::optimizer::{KINDS, Optimizer};
use crate::parallel::plan::Plan;
use crate::parallel::weights::Weights;
use crate::parallel::zero::overlap;

/// The biases of all routers, which every rank has.
///
/// # Errors
/// An error of the work before.
pub(crate) fn save_biases(model: &Model, values: &Biases) -> Result<Vec<Piece>, TrainError> {
    let (experts, values) = (values.experts().max(1), values.values()?);
    Ok(biases(model)
        .zip(values.chunks(experts))
        .map(|(name, values)| Piece::new(name, Held::whole(&[values.len()]), values))
        .collect())
}

/// Sets them from what stands in a file.
fn read_biases(model: &Model, pieces: &Pieces<'_>, into: &mut Biases) -> Result<(), TrainError> {
    let experts = into.experts().max(1);
    into.change(|values| {
        for (name, values) in biases(model).zip(values.chunks_mut(experts)) {
            pieces.read_f32(&name, &Held::whole(&[values.len()]), values)?;
        }
        Ok(())
    })
}

/// What a part of a unit holds of each of its parameters: which elements, and where in the part.
pub(crate) fn held<'a>(
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
        let values = values.to_host()?;
        for (id, held, at) in held(table, unit, &mine).filter(|(id, ..)| plan.parameters[id.0].counted) {
            of_weights.push(Piece::new(table.get(id).name(), held, &values[at]));
        }
        for (kind, values) in optimizer.parts(id)? {
            let values = values.to_host()?;
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
    let (table, wholes, shape) = (model.table(), wholes_as_in(model, file), model.shape());
    // What no shape of a tensor tells.
    file.expect(&[
        (&["num_attention_heads", "n_head"], shape.heads as f64),
        (&["num_key_value_heads"], shape.kv_heads as f64),
        (&["rope_theta"], rope::Options::default().base.into()),
        (&["rms_norm_eps", "layer_norm_epsilon"], EPS.into()),
        (&["num_experts_per_tok"], shape.moe.map_or(0, |moe| moe.top_k) as f64),
    ])?;
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
