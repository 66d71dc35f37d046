//! One number for all of a training's state: the SHA-256 of whole tensors in a fixed order, at any layout.
//!
//! Of each parameter in the order of the table come the weights (f32; the master weights where there are some), the first
//! and the second moment, as little-endian f32 of the whole tensor. Each element comes from the one rank that counts it in
//! the global norm; a tensor is put together on all ranks, one at a time. The biases of routers, which all have, come last.

use sha2::{Digest, Sha256};
use warpweft_device::Float;

use crate::TrainError;
use crate::model::{Parameter, Table, TensorId};
use crate::optimizer::Optimizer;
use crate::parallel::mesh::Mesh;
use crate::parallel::plan::Plan;
use crate::parallel::weights::Weights;
use crate::parallel::zero::{Sharding, overlap};

/// What is hashed of each parameter, in this order.
const KINDS: [&str; 3] = ["weights", "m", "v"];

/// Some of a whole tensor's elements: where each stretch of neighbours begins and how long it is, and all their values.
#[derive(Default)]
struct Elements {
    stretches: Vec<u64>,
    values: Vec<f32>,
}

/// The state of a training, as one rank holds it.
pub(crate) struct State<'a, T> {
    pub(crate) table: &'a Table,
    pub(crate) mesh: &'a Mesh,
    pub(crate) plan: &'a Plan,
    pub(crate) sharding: &'a Sharding,
    pub(crate) weights: &'a Weights<T>,
    pub(crate) optimizer: &'a Optimizer,
}

impl<T: Float> State<'_, T> {
    /// The digest, in hexadecimal. Collective over all ranks.
    ///
    /// # Errors
    /// Elements that no rank counts, or several; a failed operation among the ranks.
    pub(crate) fn sha256(&self) -> Result<String, TrainError> {
        let mut hash = Sha256::new();
        for (id, parameter) in self.table.iter() {
            for kind in KINDS {
                let whole = self.whole(parameter, self.counted(id, parameter, kind)?)?;
                whole.iter().for_each(|value| hash.update(value.to_le_bytes()));
            }
        }
        self.weights.biases().values()?.iter().for_each(|bias| hash.update(bias.to_le_bytes()));
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The elements that this rank has to give.
    fn counted(&self, id: TensorId, parameter: &Parameter, kind: &str) -> Result<Elements, TrainError> {
        let mut elements = Elements::default();
        let here = self.table.units()[parameter.unit.0].here;
        if !here || !self.plan.parameters[id.index()].counted {
            return Ok(elements);
        }
        let mine = &self.sharding.of(parameter.unit)?.mine;
        let Some((in_part, in_parameter)) = overlap(mine, &parameter.range()) else { return Ok(elements) };
        elements.values = self.values(parameter, kind)?[in_part].to_vec();
        for stretch in parameter.entry.portion.stretches(parameter.shape()) {
            if let Some((in_stretch, _)) = overlap(&(stretch.held..stretch.held + stretch.len), &in_parameter) {
                elements.stretches.extend([(stretch.whole + in_stretch.start) as u64, in_stretch.len() as u64]);
            }
        }
        Ok(elements)
    }

    /// This rank's part of a unit's weights or state.
    fn values(&self, parameter: &Parameter, kind: &str) -> Result<Vec<f32>, TrainError> {
        let part = |wanted| {
            let mut parts = self.optimizer.parts(parameter.unit)?;
            Ok::<_, TrainError>(parts.find(|(name, _)| *name == wanted).map(|(_, view)| view))
        };
        let wanted = if kind == "weights" { "master" } else { kind };
        match part(wanted)? {
            Some(view) => Ok(view.to_host()?.into_owned()),
            None => {
                let weights = self.weights.part(parameter.unit)?.to_host()?;
                Ok(weights.iter().map(|weight| weight.to_f32()).collect())
            }
        }
    }

    /// The whole tensor, from what all ranks give of it.
    fn whole(&self, parameter: &Parameter, mine: Elements) -> Result<Vec<f32>, TrainError> {
        let world = self.mesh.world();
        let mut lengths = vec![0u64; 2 * world.world()];
        world.all_gather(&[mine.stretches.len() as u64, mine.values.len() as u64][..], &mut lengths[..])?;
        let lengths_of = |part: usize| lengths.iter().skip(part).step_by(2).map(|n| *n as usize).collect::<Vec<_>>();
        let (stretches_of, values_of) = (lengths_of(0), lengths_of(1));
        let mut stretches = vec![0u64; stretches_of.iter().sum()];
        world.all_gather_v(&mine.stretches[..], &mut stretches[..], &stretches_of)?;
        let mut values = vec![0f32; values_of.iter().sum()];
        world.all_gather_v(&mine.values[..], &mut values[..], &values_of)?;
        let elements = parameter.elements();
        let (mut whole, mut given, mut rest) = (vec![f32::NAN; elements], vec![false; elements], &values[..]);
        let wrong = || TrainError::NotWhole { parameter: parameter.name().to_owned() };
        for stretch in stretches.chunks_exact(2) {
            let (start, len) = (stretch[0] as usize, stretch[1] as usize);
            let range = start..start.saturating_add(len);
            let (some, after) = rest.split_at_checked(len).ok_or_else(wrong)?;
            whole.get_mut(range.clone()).ok_or_else(wrong)?.copy_from_slice(some);
            if given[range.clone()].contains(&true) {
                return Err(wrong());
            }
            given[range].fill(true);
            rest = after;
        }
        if given.contains(&false) || !rest.is_empty() { Err(wrong()) } else { Ok(whole) }
    }
}
