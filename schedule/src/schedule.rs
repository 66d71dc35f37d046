//! A schedule: made by name or read from elsewhere, and checked either way.

use crate::check::{check, computations};
use crate::{Costs, Name, Operation, Placement, Proof, ScheduleError, Step, order, with_messages};

/// For every rank the list of what it does, and the proof that it is right.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    placement: Placement,
    micro_batches: usize,
    costs: Costs,
    steps: Vec<Vec<Step>>,
    proof: Proof,
    origin: String,
}

impl Schedule {
    /// Most operations of a schedule (F, B and W of each chunk and micro-batch).
    pub const MOST_OPERATIONS: usize = 6_000_000;

    /// The schedule of this name for `m` micro-batches on `p` ranks. `v` is the number of chunks a rank (only interleaved has a
    /// choice, and takes 2 where none is given; auto keeps to it); `memory` the most activations that a rank may hold, counted
    /// in micro-batches of one whole stage. The costs decide what auto finds and the proof's times, no other order.
    pub fn new(
        name: Name,
        p: usize,
        m: usize,
        v: Option<usize>,
        costs: Costs,
        memory: Option<usize>,
    ) -> Result<Self, ScheduleError> {
        let costs = costs.checked()?;
        Self::sizes(p, m, v)?;
        let (placement, orders, origin) = order::make(name, p, m, v, &costs, memory)?;
        let schedule = Self::from_orders(placement, m, costs, &orders, origin)?;
        schedule.within(name, memory)
    }

    /// A schedule from elsewhere: the lists with their messages, checked with this much room for messages between two ranks.
    pub fn from_steps(
        placement: Placement,
        micro_batches: usize,
        costs: Costs,
        steps: Vec<Vec<Step>>,
        room: usize,
    ) -> Result<Self, ScheduleError> {
        let proof = check(&placement, micro_batches, &steps, &costs, room, None)?;
        Ok(Self { placement, micro_batches, costs, steps, proof, origin: "given".to_owned() })
    }

    pub(crate) fn from_orders(
        placement: Placement,
        micro_batches: usize,
        costs: Costs,
        orders: &[Vec<Operation>],
        origin: String,
    ) -> Result<Self, ScheduleError> {
        // Without messages the checker says what is wrong with such an order.
        let alone = || orders.iter().map(|order| order.iter().copied().map(Step::Compute).collect()).collect();
        let steps = with_messages(&placement, micro_batches, orders, &costs).unwrap_or_else(alone);
        Ok(Self { origin, ..Self::from_steps(placement, micro_batches, costs, steps, 0)? })
    }

    fn sizes(p: usize, m: usize, v: Option<usize>) -> Result<(), ScheduleError> {
        let counts = [
            (p, "the number of ranks p", "--p, --pp"),
            (m, "the number of micro-batches m", "--m"),
            (v.unwrap_or(1), "the number of chunks a rank v", "--v, --chunks"),
        ];
        if let Some(&(_, what, flag)) = counts.iter().find(|(count, _, _)| *count == 0) {
            return Err(ScheduleError::Zero { what, flag });
        }
        let v = v.unwrap_or(1);
        // Most orders have padding, of up to two rounds of the ranks.
        let operations = 3 * (p as u128) * (v as u128) * (m as u128 + 2 * p as u128);
        if operations > Self::MOST_OPERATIONS as u128 {
            return Err(ScheduleError::Large { p, v, m, operations, most: Self::MOST_OPERATIONS });
        }
        Ok(())
    }

    fn within(self, name: Name, memory: Option<usize>) -> Result<Self, ScheduleError> {
        let Some(limit) = memory else { return Ok(self) };
        let per_stage = self.placement.chunks_per_stage();
        let most = self.proof.peak_activations.iter().copied().max().unwrap_or(0);
        if most <= limit.saturating_mul(per_stage) {
            return Ok(self);
        }
        let needed = if per_stage == 1 { most.to_string() } else { format!("{most}/{per_stage}") };
        let fix = format!("allow {} or use auto", most.div_ceil(per_stage));
        Err(ScheduleError::Memory { name, needed, limit, fix })
    }

    /// What a rank does, in order.
    pub fn rank(&self, rank: usize) -> &[Step] {
        &self.steps[rank]
    }

    /// What a rank computes, in order.
    pub fn computations(&self, rank: usize) -> Vec<Operation> {
        computations(&self.steps[rank])
    }

    /// Ranks of the pipeline.
    pub fn ranks(&self) -> usize {
        self.placement.ranks()
    }

    /// Micro-batches of a step.
    pub fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// Which rank holds which chunk.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Chunks on all ranks; with two copies of the model, those of both.
    pub fn chunks(&self) -> usize {
        self.placement.chunks()
    }

    /// The rank that holds a chunk.
    pub fn place(&self, chunk: usize) -> usize {
        self.placement.place(chunk)
    }

    /// For each rank the most activations that it holds at once, in micro-batches of one chunk: a whole stage, or `1/v` of one.
    pub fn peak_activations(&self) -> Vec<usize> {
        self.proof.peak_activations.clone()
    }

    /// The times that it was made for.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// What was proven.
    pub fn proof(&self) -> &Proof {
        &self.proof
    }

    /// The name it was made by; for auto also what was found.
    pub fn origin(&self) -> &str {
        &self.origin
    }
}
