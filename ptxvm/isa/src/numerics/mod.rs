//! Arithmetic as the hardware does it: rounding modes, approximate functions, tensor cores.

pub mod approx;
pub mod bits;
pub mod double;
pub mod flags;
pub mod format;
pub mod integer;
pub mod single;
pub mod sixteen;
pub mod tensor;

/// How numbers are made, where the ISA leaves room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Approximate functions.
    pub approx: Approx,
    /// Tensor cores.
    pub tensor: TensorModel,
    /// Seeds the adversary.
    pub seed: u64,
}

/// The results of approximate functions (`ex2.approx` and the like).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approx {
    /// Correctly rounded.
    Rounded,
    /// Moved by a seeded amount within the documented bound: a kernel that fails under it is fragile.
    Adversary,
}

/// How a tensor core sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorModel {
    /// As measured on sm_80: two steps of k8, 24 fraction bits.
    ExactSm80,
    /// As measured on sm_90: one step, 25 fraction bits.
    ExactSm90,
    /// f32 sums in the obvious order: faster, and not what silicon gives.
    Native,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { approx: Approx::Rounded, tensor: TensorModel::ExactSm80, seed: 0 }
    }
}
