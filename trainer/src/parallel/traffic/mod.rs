//! Bytes that a rank sends, by what it sends them for: payload only, without the frames around it.
//!
//! Summed over the ranks, P parameters of f32 gradients, M rows of C elements of s bytes, m micro-batches, L layers: data
//! parallelism moves 2 (N - 1) P · 4 a step; tensor parallelism (4 L + 2) · 2 (t - 1) M C s a micro-batch; sequence
//! parallelism (10 L + 5) (t - 1) M C s, and a step's sum of what ranks apply to rows of their own (norms, positions); a
//! pipeline 2 (p - 1) M C s a micro-batch, and 2 V C · 4 a step where its ends share a table. The loss needs three f64 of each
//! row from each tensor-parallel rank. A sum of at most 4 KiB over more than two ranks goes at once to all others, N (N - 1)
//! times its bytes instead of 2 (N - 1). What ZeRO and context parallelism move is said where they are.

use std::ops::{Add, Sub};

/// Bytes sent by one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To ranks with other tokens: gradients, and with ZeRO weights.
    pub data: u64,
    /// To ranks with other experts: rows, and how many there are.
    pub experts: u64,
    /// To ranks with other heads and columns.
    pub tensor: u64,
    /// To ranks with other parts of the same sequences.
    pub context: u64,
    /// To other stages.
    pub pipeline: u64,
    /// To all: sums of losses and norms.
    pub world: u64,
}

impl Traffic {
    /// Of all kinds together.
    pub fn total(&self) -> u64 {
        self.data + self.experts + self.tensor + self.context + self.pipeline + self.world
    }
}

impl Add for Traffic {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            data: self.data + more.data,
            experts: self.experts + more.experts,
            tensor: self.tensor + more.tensor,
            context: self.context + more.context,
            pipeline: self.pipeline + more.pipeline,
            world: self.world + more.world,
        }
    }
}

impl Sub for Traffic {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            data: self.data - before.data,
            experts: self.experts - before.experts,
            tensor: self.tensor - before.tensor,
            context: self.context - before.context,
            pipeline: self.pipeline - before.pipeline,
            world: self.world - before.world,
        }
    }
}
