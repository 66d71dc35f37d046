//! What the checker has proven of a schedule.

use crate::Timeline;

/// The lists are complete, in order of their dependencies, and end; with these numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Proof {
    /// Messages that fit between two ranks in the run that ended; 0: each send waited for its receive.
    pub room: usize,
    /// The longest span of a rank, from the start of its first operation to the end of its last.
    pub cost: f64,
    /// `(cost - m (F + B + W)) / cost`.
    pub bubble_rate: f64,
    /// For each rank the most chunks' activations of a micro-batch that it holds at once: from the start of F to the end of W (or
    /// of BW). A chunk is a whole stage, or `1/v` of one where a rank holds `v` chunks of one copy of the model.
    pub peak_activations: Vec<usize>,
    /// For each rank the most messages that it has taken and not used yet.
    pub peak_received: Vec<usize>,
    /// Messages that each rank sends.
    pub sends: Vec<usize>,
    /// When everything runs.
    pub timeline: Timeline,
}
