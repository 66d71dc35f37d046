//! How a tensor lies over the ranks, and the communication that takes it from one layout to another.
//!
//! Every reduction of the trainer is derived here from what a tensor is and what it must become, never from a flag.
//!
//! The axes are those over which a tensor can differ. They refine the axes of the [mesh](crate::parallel::mesh): the
//! data-parallel and context-parallel ranks, which all see tokens of their own, are together the product of
//! [`Axis::Replica`], [`Axis::Data`] and [`Axis::Ep`]; the tensor-parallel ranks are the product of [`Axis::Tp`] and
//! [`Axis::Kv`], the latter larger than 1 only where several of them share a key/value head.

use std::fmt;

/// An axis over which a tensor can be spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// The first and the last stage of a pipeline, which both hold a tied embedding.
    Pp,
    /// Groups of ranks with tokens of their own, each of which holds all state that is shared out: more than 1 with HSDP.
    Replica,
    /// Ranks of such a group with tokens of their own and the same experts, over which state is shared out.
    Data,
    /// Ranks with tokens of their own and experts of their own.
    Ep,
    /// Ranks with heads, columns and key/value heads of their own.
    Tp,
    /// Ranks with heads and columns of their own that share a key/value head.
    Kv,
}

impl Axis {
    /// Every axis.
    pub const ALL: [Self; 6] = [Self::Pp, Self::Replica, Self::Data, Self::Ep, Self::Tp, Self::Kv];

    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pp => "pp",
            Self::Replica => "replica",
            Self::Data => "data",
            Self::Ep => "ep",
            Self::Tp => "tp",
            Self::Kv => "kv",
        }
    }
}

/// Some of the axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Axes(u8);

impl Axes {
    /// None.
    pub const NONE: Self = Self(0);
    /// All ranks that see tokens of their own: dp x cp.
    pub const TOKENS: Self = Self::of(&[Axis::Replica, Axis::Data, Axis::Ep]);
    /// The ranks of one replica that see tokens of their own: those over which state is shared out.
    pub const SHARDS: Self = Self::of(&[Axis::Data, Axis::Ep]);
    /// The ranks that see tokens of their own and hold the same experts.
    pub const SAME_EXPERTS: Self = Self::of(&[Axis::Replica, Axis::Data]);
    /// All tensor-parallel ranks.
    pub const TENSOR: Self = Self::of(&[Axis::Tp, Axis::Kv]);

    /// These.
    pub const fn of(axes: &[Axis]) -> Self {
        let (mut bits, mut index) = (0, 0);
        while index < axes.len() {
            bits |= 1 << axes[index] as u8;
            index += 1;
        }
        Self(bits)
    }

    /// Whether `axis` is one of them.
    pub const fn has(self, axis: Axis) -> bool {
        self.0 & (1 << axis as u8) != 0
    }

    /// These and `axis`.
    pub const fn with(self, axis: Axis) -> Self {
        Self(self.0 | 1 << axis as u8)
    }

    /// Those that are in both.
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    /// These but for `others`.
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = Axis> {
        Axis::ALL.into_iter().filter(move |axis| self.has(*axis))
    }
}

impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("no axis");
        }
        let names: Vec<_> = self.iter().map(Axis::name).collect();
        f.write_str(&names.join(" x "))
    }
}

/// How a tensor lies over the ranks of one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Every rank has all of it.
    Replicated,
    /// Every rank has a part along this dimension.
    Sharded(u8),
    /// Every rank has a summand of it.
    Partial,
}

/// How a tensor lies over all axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout([Placement; Axis::ALL.len()]);

/// What a group of ranks must do to a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// Nothing: it already lies as it must.
    Nothing,
    /// Sum it over the ranks of these axes, the result on all of them.
    AllReduce(Axes),
    /// Sum it over the ranks of these axes, each its part of the result.
    ReduceScatter(Axes),
    /// Put it together from the parts of the ranks of these axes.
    AllGather(Axes),
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
    pub const REPLICATED: Self = Self([Placement::Replicated; Axis::ALL.len()]);

    /// The same, but for its placement over some axes.
    pub const fn with(mut self, axes: Axes, placement: Placement) -> Self {
        let mut index = 0;
        while index < Axis::ALL.len() {
            if axes.has(Axis::ALL[index]) {
                self.0[index] = placement;
            }
            index += 1;
        }
        self
    }

    /// Its placement over one axis.
    pub fn over(&self, axis: Axis) -> Placement {
        self.0[axis as usize]
    }

    /// The axes over which it has this placement.
    pub fn axes(&self, wanted: impl Fn(Placement) -> bool) -> Axes {
        Axis::ALL.into_iter().filter(|axis| wanted(self.over(*axis))).fold(Axes::NONE, Axes::with)
    }

    /// The layout that the gradient of a parameter has after a backward pass: a summand over every axis on which the
    /// ranks see other tokens (where the parameter is not theirs alone), and over those of `seen_in_part`, on which each
    /// rank applied it to some of the rows, for some of the heads, or in one of its two uses, only.
    pub fn of_local_gradient(self, seen_in_part: Axes) -> Self {
        Axes::TOKENS.iter().chain(seen_in_part.iter()).fold(self, |layout, axis| match layout.over(axis) {
            Placement::Replicated => layout.with(Axes::of(&[axis]), Placement::Partial),
            Placement::Sharded(_) | Placement::Partial => layout,
        })
    }

    /// The one communication that turns this layout into `to`.
    ///
    /// # Errors
    /// [`LayoutError`] where there is none: a second sum of what is summed already, or a change that needs more than one.
    pub fn move_to(self, to: Self) -> Result<Move, LayoutError> {
        let error = LayoutError { from: self, to };
        let mut done = Move::Nothing;
        for axis in Axis::ALL {
            let this = match (self.over(axis), to.over(axis)) {
                (from, to) if from == to => continue,
                (Placement::Partial, Placement::Replicated) => Move::AllReduce,
                (Placement::Partial, Placement::Sharded(_)) => Move::ReduceScatter,
                (Placement::Sharded(_), Placement::Replicated) => Move::AllGather,
                _ => return Err(error),
            };
            let so_far = done.axes();
            if done != Move::Nothing && done != this(so_far) {
                return Err(error);
            }
            done = this(so_far.with(axis));
        }
        Ok(done)
    }

    /// The layout after a communication.
    ///
    /// # Errors
    /// [`LayoutError`] where it would be wrong: a sum over ranks that have no summands, parts of what has no parts.
    pub fn after(self, done: Move, dimension: u8) -> Result<Self, LayoutError> {
        let (axes, from, to): (_, fn(Placement) -> bool, _) = match done {
            Move::Nothing => return Ok(self),
            Move::AllReduce(axes) => (axes, |p| p == Placement::Partial, Placement::Replicated),
            Move::ReduceScatter(axes) => (axes, |p| p == Placement::Partial, Placement::Sharded(dimension)),
            Move::AllGather(axes) => (axes, |p| matches!(p, Placement::Sharded(_)), Placement::Replicated),
        };
        let result = self.with(axes, to);
        match axes.iter().all(|axis| from(self.over(axis))) {
            true => Ok(result),
            false => Err(LayoutError { from: self, to: result }),
        }
    }
}

impl Move {
    /// The axes that it goes over.
    pub const fn axes(self) -> Axes {
        match self {
            Self::Nothing => Axes::NONE,
            Self::AllReduce(axes) | Self::ReduceScatter(axes) | Self::AllGather(axes) => axes,
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for axis in Axis::ALL {
            let text = match self.over(axis) {
                Placement::Replicated => continue,
                Placement::Sharded(dimension) => format!("{}:sharded({dimension})", axis.name()),
                Placement::Partial => format!("{}:partial", axis.name()),
            };
            write!(f, "{}{text}", if first { "" } else { " " })?;
            first = false;
        }
        if first { f.write_str("replicated") } else { Ok(()) }
    }
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::AllReduce(axes) => write!(f, "all-reduce over {axes}"),
            Self::ReduceScatter(axes) => write!(f, "reduce-scatter over {axes}"),
            Self::AllGather(axes) => write!(f, "all-gather over {axes}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gradient_is_summed_once_and_only_once() {
        let parameter = Layout::REPLICATED;
        let gradient = parameter.of_local_gradient(Axes::NONE);
        let sum = Move::AllReduce(Axes::TOKENS);
        assert_eq!(gradient.move_to(parameter), Ok(sum));
        assert_eq!(gradient.after(sum, 0), Ok(parameter));
        assert!(parameter.after(sum, 0).is_err(), "a second sum");
        assert_eq!(parameter.move_to(parameter), Ok(Move::Nothing));
        let error = parameter.move_to(gradient).unwrap_err();
        let expected = "no communication takes a tensor from replicated to replica:partial data:partial ep:partial";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn an_expert_is_summed_over_its_own_group_only() {
        let expert = Layout::REPLICATED.with(Axes::of(&[Axis::Ep]), Placement::Sharded(0));
        let gradient = expert.of_local_gradient(Axes::NONE);
        assert_eq!(gradient.move_to(expert), Ok(Move::AllReduce(Axes::SAME_EXPERTS)));
        assert!(gradient.after(Move::AllReduce(Axes::TOKENS), 0).is_err(), "others' experts are not summands");
    }

    #[test]
    fn rows_of_a_sequence_parallel_region_come_and_go() {
        let stream = Layout::REPLICATED.with(Axes::TENSOR, Placement::Sharded(0));
        assert_eq!(stream.move_to(Layout::REPLICATED), Ok(Move::AllGather(Axes::TENSOR)));
        let partial = Layout::REPLICATED.with(Axes::TENSOR, Placement::Partial);
        assert_eq!(partial.move_to(stream), Ok(Move::ReduceScatter(Axes::TENSOR)));
        assert_eq!(partial.after(Move::ReduceScatter(Axes::TENSOR), 0), Ok(stream));
        let mixed = partial.with(Axes::TOKENS, Placement::Sharded(0));
        assert!(mixed.move_to(stream.with(Axes::TOKENS, Placement::Replicated)).is_err(), "two communications");
    }
}
