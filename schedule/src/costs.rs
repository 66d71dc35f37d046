//! How long the operations take.

use crate::{Kind, Placement, ScheduleError};

/// Times of one micro-batch in one whole stage (the model over `p` ranks), in any unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Forward.
    pub forward: f64,
    /// Backward to the input alone.
    pub backward: f64,
    /// Backward to the weights alone.
    pub weight: f64,
    /// From the end of an operation until its result is on another rank.
    pub comm: f64,
}

impl Default for Costs {
    /// F = B = W = 1, and no time between ranks.
    fn default() -> Self {
        Self { forward: 1.0, backward: 1.0, weight: 1.0, comm: 0.0 }
    }
}

impl Costs {
    /// These, if they can be the times of anything.
    pub fn checked(self) -> Result<Self, ScheduleError> {
        for (what, value) in [("F", self.forward), ("B", self.backward), ("W", self.weight)] {
            if !(value > 0.0 && value <= Self::MOST) {
                return Err(ScheduleError::Time { what, value, wanted: "above 0 and at most 1e12" });
            }
        }
        if !(self.comm >= 0.0 && self.comm <= Self::MOST) {
            return Err(ScheduleError::Time { what: "comm", value: self.comm, wanted: "from 0 to 1e12" });
        }
        Ok(self)
    }

    /// The longest time that is taken: sums stay far from infinity.
    const MOST: f64 = 1e12;

    /// Time of all three computations of one micro-batch in one stage.
    pub fn compute(&self) -> f64 {
        self.forward + self.backward + self.weight
    }

    /// Time of an operation in one chunk of a placement.
    pub fn of(&self, kind: Kind, placement: &Placement) -> f64 {
        let stage = match kind {
            Kind::F => self.forward,
            Kind::B => self.backward,
            Kind::W => self.weight,
            Kind::BW => self.backward + self.weight,
        };
        stage / placement.chunks_per_stage() as f64
    }
}
