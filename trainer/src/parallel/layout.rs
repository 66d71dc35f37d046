//! How a tensor lies over the ranks, and the communication that takes it from one layout to another.
//!
//! Every reduction of the trainer is derived here from what a tensor is and what it must become, never from a flag. The
//! mesh has one axis so far, `dp`; an axis more is a field more in [`Layout`].

use std::fmt;

/// How a tensor lies over the ranks of one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Every rank has all of it.
    Replicated,
    /// Every rank has a part along this dimension.
    Sharded(usize),
    /// Every rank has a summand of it.
    Partial,
}

/// How a tensor lies over the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Over the data-parallel ranks.
    pub dp: Placement,
}

/// What a group of ranks must do to a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Nothing: it already lies as it must.
    Nothing,
    /// Sum it over the ranks, the result on all of them.
    AllReduce,
}

/// A change of layout that this trainer has no communication for, or that would be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no communication takes a tensor from {from} to {to}")]
pub struct LayoutError {
    /// What it is.
    pub from: Layout,
    /// What it was to become.
    pub to: Layout,
}

impl Layout {
    /// All of it everywhere.
    pub const REPLICATED: Self = Self { dp: Placement::Replicated };

    /// The layout that the gradient of a parameter has after a backward pass in which every data-parallel rank saw
    /// samples of its own: a summand of what the parameter's layout asks for.
    pub fn of_local_gradient(self) -> Self {
        Self { dp: Placement::Partial }
    }

    /// The communication over the data-parallel ranks that turns this layout into `to`.
    ///
    /// # Errors
    /// [`LayoutError`] where there is none: a second sum of what is summed already, or a layout without support.
    pub fn reduction_to(self, to: Layout) -> Result<Reduction, LayoutError> {
        match (self.dp, to.dp) {
            (from, to) if from == to => Ok(Reduction::Nothing),
            (Placement::Partial, Placement::Replicated) => Ok(Reduction::AllReduce),
            _ => Err(LayoutError { from: self, to }),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dp {
            Placement::Replicated => write!(f, "dp:replicated"),
            Placement::Sharded(dimension) => write!(f, "dp:sharded({dimension})"),
            Placement::Partial => write!(f, "dp:partial"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gradient_is_summed_once_and_only_once() {
        let parameter = Layout::REPLICATED;
        let gradient = parameter.of_local_gradient();
        assert_eq!(gradient.reduction_to(parameter), Ok(Reduction::AllReduce));
        assert_eq!(parameter.reduction_to(parameter), Ok(Reduction::Nothing));
        let error = parameter.reduction_to(gradient).unwrap_err();
        assert_eq!(error.to_string(), "no communication takes a tensor from dp:replicated to dp:partial");
        let sharded = Layout { dp: Placement::Sharded(0) };
        assert!(gradient.reduction_to(sharded).is_err());
    }
}
