//! Whether a plan is right, before anything runs: every tensor is followed from layout to layout.
//!
//! The layers say what a region does to a layout (inside one, every rank needs all rows, and leaves a summand of them); a
//! plan's communication must join these ends. A sum that is missing, done twice or over other ranks leaves a layout that
//! the next layer cannot take. Only the layouts decide, not how many ranks an axis has: a plan that is wrong for two ranks
//! is refused on one.

use std::fmt;

use warpweft_comm::Op;

use crate::TrainError;
use crate::model::Table;
use crate::parallel::layout::{Axes, Layout, Move, Placement};
use crate::parallel::mesh::Mesh;
use crate::parallel::plan::{Border, Plan, Region, counted};
use crate::parallel::zero::{Sharding, overlap};

/// Where in a step a communication is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// The border of a region: its name, the direction of the pass, and the end.
    Border(&'static str, &'static str, &'static str),
    /// The gradient of a parameter.
    Gradient(String),
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Border(region, direction, end) => write!(f, "{direction} of the {region}, where a pass {end} it"),
            Self::Gradient(name) => write!(f, "the gradient of {name}"),
        }
    }
}

/// A plan that would give wrong numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A communication that a tensor of this layout cannot take part in.
    #[error("{at}: {by} of a tensor that is {from}")]
    Impossible {
        /// Where.
        at: At,
        /// The communication.
        by: Move,
        /// What the tensor is before it.
        from: Layout,
    },
    /// A tensor that is not, afterwards, what the next layer needs.
    #[error("{at}: after {by} the tensor is {found}; what follows needs it {needed}")]
    Left {
        /// Where.
        at: At,
        /// The communication.
        by: Move,
        /// What the tensor is after it.
        found: Layout,
        /// What it must be.
        needed: Layout,
    },
    /// A gradient that the plan takes for something else than the layers leave.
    #[error("{at}: the plan takes it for {planned}; a backward pass leaves it {left}")]
    Gradient {
        /// Where.
        at: At,
        /// What the plan says.
        planned: Layout,
        /// What the layers do.
        left: Layout,
    },
    /// Ranks whose plans do not make one model.
    #[error("the ranks count {counted} elements in the global norm; the model has {elements}")]
    Elements {
        /// What all ranks count together.
        counted: u64,
        /// Elements of all parameters.
        elements: u64,
    },
    /// Elements that the global norm would count twice, or never.
    #[error("{at}: this rank {} its elements in the global norm, and {}", if *counts { "counts" } else { "does not count" }, if *counts { "another one does too" } else { "no other one does" })]
    Counted {
        /// Where.
        at: At,
        /// Whether this rank counts them.
        counts: bool,
    },
}

impl Plan {
    /// Follows every tensor of a step through the plan.
    ///
    /// # Errors
    /// The first that does not arrive as it must.
    pub fn check(&self, table: &Table, mesh: &Mesh) -> Result<(), PlanError> {
        let stream = self.stream;
        let whole = stream.with(Axes::TENSOR, Placement::Replicated);
        let summand = stream.with(Axes::TENSOR, Placement::Partial);
        let border = |region: &'static str, direction, end, by, from, to| {
            follow(At::Border(region, direction, end), by, from, to)
        };
        let ends = |name: &'static str, region: Region, way: [bool; 2], back: [bool; 2]| {
            let sides = [("forward", region.forward, way), ("backward", region.backward, back)];
            for (direction, Border { enter, leave }, [enters, leaves]) in sides {
                // What does not communicate there must say so: it has no tensor on its way in, or out.
                let (from, to) = if enters { (stream, whole) } else { (whole, whole) };
                border(name, direction, "enters", enter, from, to)?;
                let (from, to) = if leaves { (summand, stream) } else { (whole, whole) };
                border(name, direction, "leaves", leave, from, to)?;
            }
            Ok(())
        };
        ends("embedding", self.embedding, [false, true], [true, false])?;
        ends("attention", self.attention, [true, true], [true, true])?;
        ends("MLP", self.mlp, [true, true], [true, true])?;
        ends("head", self.head, [true, false], [false, true])?;
        for (parameter, reduction) in table.parameters().iter().zip(&self.parameters) {
            let at = || At::Gradient(parameter.name().to_owned());
            let (left, state) = (parameter.local_gradient(), self.zero.state(parameter.entry.layout));
            if reduction.from != left {
                return Err(PlanError::Gradient { at: at(), planned: reduction.from, left });
            }
            let [everywhere, apart] = reduction.by;
            let impossible = |_| PlanError::Impossible { at: at(), by: everywhere, from: left };
            follow(at(), apart, left.after(everywhere, 0).map_err(impossible)?, state)?;
            if reduction.state != state {
                return Err(PlanError::Gradient { at: at(), planned: reduction.state, left: state });
            }
            if reduction.counted != counted(parameter, state, mesh) {
                return Err(PlanError::Counted { at: at(), counts: reduction.counted });
            }
        }
        Ok(())
    }
}

/// Whether the plans of all ranks together count every element of the model once.
///
/// Collective over all ranks.
///
/// # Errors
/// [`PlanError::Elements`]; a failed operation among the ranks.
pub fn check_together(plan: &Plan, table: &Table, sharding: &Sharding, mesh: &Mesh) -> Result<(), TrainError> {
    let mut sum = [0];
    for (_, parameter) in table.iter_here().filter(|(id, _)| plan.parameters[id.index()].counted) {
        let part = overlap(&sharding.of(parameter.unit)?.mine, &parameter.range());
        sum[0] += part.map_or(0, |(part, _)| part.len() as u64);
    }
    mesh.world().all_reduce(&mut sum[..], Op::Sum)?;
    let ([counted], elements) = (sum, table.elements() as u64);
    match counted == elements {
        true => Ok(()),
        false => Err(Box::new(PlanError::Elements { counted, elements }).into()),
    }
}

/// Follows one tensor through one communication.
fn follow(at: At, by: Move, from: Layout, needed: Layout) -> Result<(), PlanError> {
    let dimension = needed.axes(|placement| matches!(placement, Placement::Sharded(_))).iter().next();
    let dimension = match dimension.map(|axis| needed.over(axis)) {
        Some(Placement::Sharded(dimension)) => dimension,
        _ => 0,
    };
    match from.after(by, dimension) {
        Err(_) => Err(PlanError::Impossible { at, by, from }),
        Ok(found) if found == needed => Ok(()),
        Ok(found) => Err(PlanError::Left { at, by, found, needed }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{Model, ModelShape, Spread};
    use crate::parallel::layout::Axis;
    use crate::parallel::mesh::Sizes;
    use crate::parallel::zero::Zero;

    /// The plan of one rank of a mesh, which needs no other to be checked.
    fn plan(shape: ModelShape, rows_apart: bool, zero: Zero) -> (Model, Mesh, Plan) {
        let spread = Spread { sequence_parallel: rows_apart, ..Spread::alone(&shape) };
        let model = Model::new(shape, spread).expect("sizes that fit");
        let mesh = Mesh::new(Arc::new(warpweft_comm::Communicator::alone()), Sizes::ONE, 1).expect("one rank");
        let plan = Plan::derive(model.table(), &mesh, rows_apart, zero).expect("a plan");
        (model, mesh, plan)
    }

    /// Every other communication that could stand in place of one: left out, done of another kind, over other ranks.
    fn others(of: Move) -> Vec<Move> {
        let sets = [
            Axes::TOKENS,
            Axes::TENSOR,
            Axes::SHARDS,
            Axes::SAME_EXPERTS,
            Axes::of(&[Axis::Replica]),
            Axes::of(&[Axis::Data]),
            Axes::of(&[Axis::Ep]),
            Axes::of(&[Axis::Pp]),
            Axes::of(&[Axis::Kv]),
            Axes::TOKENS.with(Axis::Pp),
            Axes::TOKENS.with(Axis::Tp).with(Axis::Kv),
        ];
        let kinds = [Move::AllReduce, Move::ReduceScatter, Move::AllGather];
        let all = kinds.iter().flat_map(|kind| sets.iter().map(|set| kind(*set))).chain([Move::Nothing]);
        all.filter(|other| *other != of).collect()
    }

    fn borders(plan: &mut Plan) -> [&mut Move; 16] {
        let Plan { embedding, attention, mlp, head, .. } = plan;
        let [e, a, m, h] = [embedding, attention, mlp, head];
        [
            &mut e.forward.enter,
            &mut e.forward.leave,
            &mut e.backward.enter,
            &mut e.backward.leave,
            &mut a.forward.enter,
            &mut a.forward.leave,
            &mut a.backward.enter,
            &mut a.backward.leave,
            &mut m.forward.enter,
            &mut m.forward.leave,
            &mut m.backward.enter,
            &mut m.backward.leave,
            &mut h.forward.enter,
            &mut h.forward.leave,
            &mut h.backward.enter,
            &mut h.backward.leave,
        ]
    }

    #[test]
    fn a_plan_with_one_communication_changed_is_refused() {
        let shapes = [ModelShape::gpt2(2, 8, 2, 4, 11), ModelShape::llama(2, 8, 2, 1, 4, 11)];
        let (mut mutants, mut refused) = (0, 0);
        let all = shapes.into_iter().flat_map(|shape| [(shape, false), (shape, true)]);
        for (shape, rows_apart, zero) in all.flat_map(|(shape, apart)| [0, 1].map(|stage| (shape, apart, stage))) {
            let (model, mesh, right) = plan(shape, rows_apart, Zero::stage(zero));
            right.check(model.table(), &mesh).expect("what is derived is right");
            let mut see = |mutant: &Plan| {
                mutants += 1;
                refused += usize::from(mutant.check(model.table(), &mesh).is_err());
            };
            for border in 0..16 {
                let of = *borders(&mut right.clone())[border];
                for other in others(of) {
                    let mut mutant = right.clone();
                    *borders(&mut mutant)[border] = other;
                    see(&mutant);
                }
            }
            for id in 0..right.parameters.len() {
                for (part, of) in right.parameters[id].by.into_iter().enumerate() {
                    for other in others(of) {
                        let mut mutant = right.clone();
                        mutant.parameters[id].by[part] = other;
                        see(&mutant);
                    }
                }
                let mut mutant = right.clone();
                mutant.parameters[id].counted ^= true;
                see(&mutant);
                let mut mutant = right.clone();
                mutant.parameters[id].from = Layout::REPLICATED;
                see(&mutant);
                let mut mutant = right.clone();
                mutant.parameters[id].state = right.parameters[id].from;
                see(&mutant);
            }
        }
        assert!(mutants > 2000, "{mutants} mutants");
        assert_eq!(refused, mutants, "every mutant is wrong");
    }

    #[test]
    fn the_refusal_says_where_and_what() {
        let (model, mesh, mut plan) = plan(ModelShape::gpt2(1, 8, 2, 4, 11), false, Zero::NONE);
        plan.mlp.forward.leave = Move::Nothing;
        let error = plan.check(model.table(), &mesh).unwrap_err().to_string();
        let expected = "forward of the MLP, where a pass leaves it: after nothing the tensor is tp:partial kv:partial; \
                        what follows needs it replicated";
        assert_eq!(error, expected);
        plan.mlp.forward.leave = plan.attention.forward.leave;
        plan.parameters[0].counted = false;
        let error = plan.check(model.table(), &mesh).unwrap_err().to_string();
        let expected = "the gradient of transformer.wte.weight: this rank does not count its elements in the global norm, \
                        and no other one does";
        assert_eq!(error, expected);
    }
}
