//! Mixtures of experts: which experts a token goes to, rows in the order of experts and back, products by expert.
//!
//! - [`router`]: scores, the K experts of each token, their weights; ties go to the lower expert.
//! - [`balance`]: the auxiliary loss of each sequence, and the bias that balances without a loss.
//! - [`dispatch`]: counts, order and capacity; rows to experts (`permute`) and their weighted sum back (`combine`).
//! - [`grouped`]: the products of a linear layer whose weight is each expert's own.
//!
//! E experts, K of them a token, M rows. An assignment is one of the M K pairs of a row and one of its experts, numbered
//! row K + k. Sums have a fixed order; no result depends on the number of threads.

pub mod balance;
pub mod dispatch;
pub mod grouped;
pub mod reference;
pub mod router;

use crate::KernelError;

/// Sizes of a routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Tokens (M).
    pub rows: usize,
    /// Experts (E).
    pub experts: usize,
    /// Experts of a token (K), at most E.
    pub top_k: usize,
}

impl Shape {
    fn check(&self, op: &'static str) -> Result<(), KernelError> {
        if self.top_k > self.experts {
            let allowed = format!("at most {}, the experts there are", self.experts);
            return Err(KernelError::Size { op, argument: "top_k", given: self.top_k, allowed });
        }
        if self.experts > u32::MAX as usize {
            let allowed = format!("at most {}", u32::MAX);
            return Err(KernelError::Size { op, argument: "experts", given: self.experts, allowed });
        }
        if self.rows.checked_mul(self.top_k.max(1)).is_none_or(|assignments| assignments >= u32::MAX as usize) {
            let allowed = format!("such that rows times top_k stay below {}", u32::MAX);
            return Err(KernelError::Size { op, argument: "rows", given: self.rows, allowed });
        }
        Ok(())
    }

    /// The experts of assignments, each of which must be one.
    fn check_experts(&self, op: &'static str, experts: &[u32]) -> Result<(), KernelError> {
        match experts.iter().find(|expert| **expert as usize >= self.experts) {
            Some(&given) => {
                let allowed = format!("below {}, the experts there are", self.experts);
                Err(KernelError::Size { op, argument: "experts", given: given as usize, allowed })
            }
            None => Ok(()),
        }
    }
}
