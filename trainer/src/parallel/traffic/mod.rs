//! Bytes that a rank sends, by what it sends them for: payload only, without the frames around it.
//!
//! What it will be is [predicted](predict) from the sizes alone.

mod predict;

use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

pub use predict::predict;

/// Bytes sent by one rank, or by all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// By kind, with their names.
    pub fn kinds(&self) -> [(&'static str, u64); 6] {
        let Self { data, experts, tensor, context, pipeline, world } = *self;
        [
            ("data", data),
            ("experts", experts),
            ("tensor", tensor),
            ("context", context),
            ("pipeline", pipeline),
            ("world", world),
        ]
    }

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
