//! Sums that are the same bits at every layout (`--exact`): gradients by a tree over samples, norms by integers.
//!
//! A gradient is formed for each sequence alone, and the sequences of a step are summed in a binary tree over their indices:
//! a node covers samples `[i 2^l, (i + 1) 2^l)`, and where there are none on the right the left one passes up. Which rank
//! forms a leaf, in which micro-batch and when changes nothing. A rank adds what it has of the tree; then each rank gets
//! the nodes of all others for its part of the elements, adds the rest of the tree, and gives the result to all. An
//! embedding that is the output projection too has a tree for each of the two, which are added last.
//!
//! What that costs: the sums wait for the end of the step, a rank holds a whole gradient for each level of the tree it has
//! begun (besides the account of memory), also where ZeRO shares gradients out otherwise, and it sends one for each node it
//! ends with: one where the ranks share the samples evenly as powers of two, a few more otherwise.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use warpweft_comm::{Communicator, Op};
use warpweft_device::View;

use crate::TrainError;
use crate::model::{Layer, Table};
use crate::parallel::layout::Axes;
use crate::parallel::mesh::Mesh;
use crate::parallel::share;

/// A node of the tree: its level, 0 for the samples, and its place there.
pub(crate) type Node = (u32, usize);

/// What a rank has of a tree over `samples` samples.
#[derive(Clone, Debug)]
struct Tree<V> {
    samples: usize,
    nodes: BTreeMap<Node, V>,
}

impl<V> Tree<V> {
    fn new(samples: usize) -> Self {
        Self { samples, nodes: BTreeMap::new() }
    }

    /// Puts a node in, and joins it with what is there as far up as that goes.
    fn insert(&mut self, (mut level, mut index): Node, mut value: V, mut add: impl FnMut(V, V) -> V) {
        while 1 << level < self.samples {
            let (left, alone) = (index % 2 == 0, (index + 1) << level >= self.samples);
            if !(left && alone) {
                let Some(other) = self.nodes.remove(&(level, index ^ 1)) else { break };
                value = if left { add(value, other) } else { add(other, value) };
            }
            (level, index) = (level + 1, index / 2);
        }
        self.nodes.insert((level, index), value);
    }

    /// The sum of all samples, if all are in.
    fn into_root(mut self) -> Option<V> {
        let (node, value) = self.nodes.pop_first()?;
        (self.nodes.is_empty() && 1 << node.0 >= self.samples).then_some(value)
    }
}

/// The nodes that a rank with these samples ends with.
pub(crate) fn nodes_of(samples: usize, own: Range<usize>) -> Vec<Node> {
    let mut tree = Tree::new(samples);
    own.for_each(|sample| tree.insert((0, sample), (), |(), ()| ()));
    tree.nodes.into_keys().collect()
}

fn add(mut left: Vec<f32>, right: Vec<f32>) -> Vec<f32> {
    left.iter_mut().zip(right).for_each(|(left, right)| *left += right);
    left
}

/// The trees of one rank, by unit.
pub(crate) struct SampleSums {
    samples: usize,
    units: Vec<UnitSums>,
    copies: Arc<Communicator>,
    world: Arc<Communicator>,
    /// Whether opposite stages hold the same, and each has some of the samples that these data ranks have.
    doubled: bool,
    /// Units that the layer at work has added to for the sequence at hand.
    pub(crate) touched: Vec<usize>,
}

struct UnitSums {
    /// One, or where two layers use the unit one for each.
    trees: Vec<Tree<Vec<f32>>>,
    elements: usize,
}

impl SampleSums {
    /// Trees for steps of `samples` sequences.
    ///
    /// # Errors
    /// [`TrainError::NotExact`] for axes over which nothing is summed so.
    pub(crate) fn new(table: &Table, mesh: &Mesh, samples: usize) -> Result<Self, TrainError> {
        let sizes = mesh.sizes();
        for (axis, ranks) in [("tp", sizes.tp), ("cp", sizes.cp), ("ep", sizes.ep)] {
            if ranks > 1 {
                return Err(TrainError::NotExact { axis, ranks });
            }
        }
        let doubled = table.is_there_twice();
        let units = table.units().iter().map(|unit| {
            // Opposite stages that hold the same have both uses of it, each for some of the samples.
            let twice = unit.ids().map(|id| table.get(id)).any(|of| of.uses > 1 || doubled && of.shared);
            UnitSums { trees: vec![Tree::new(samples); if twice { 2 } else { 1 }], elements: unit.elements }
        });
        let copies = mesh.groups(Axes::TOKENS)?.first().map(|group| Arc::clone(group));
        let copies = copies.unwrap_or_else(|| Arc::new(Communicator::alone()));
        Ok(Self { samples, units: units.collect(), copies, world: mesh.world().clone(), doubled, touched: Vec::new() })
    }

    /// Forgets the sums of a step.
    pub(crate) fn clear(&mut self) {
        self.touched.clear();
        self.units.iter_mut().flat_map(|unit| &mut unit.trees).for_each(|tree| tree.nodes.clear());
    }

    /// Puts in what a layer added to a unit for one sequence.
    pub(crate) fn insert(&mut self, unit: usize, layer: Layer, sample: u64, values: &[f32]) {
        let trees = &mut self.units[unit].trees;
        let which = if layer == Layer::Head { trees.len() - 1 } else { 0 };
        trees[which].insert((0, sample as usize), values.to_vec(), add);
    }

    /// The sum of a unit over all samples of all ranks, on every rank; `end` are the stages that hold it.
    ///
    /// # Errors
    /// Samples that no rank put in; a failed operation among the ranks.
    pub(crate) fn sum(&mut self, unit: usize, end: &Communicator, into: &mut [f32]) -> Result<(), TrainError> {
        if self.doubled {
            self.merge(unit, end)?;
        }
        self.sum_of_data_ranks(unit, into)?;
        if !self.doubled && end.world() > 1 {
            // Two summands: no order matters.
            end.all_reduce(into, Op::Sum)?;
        }
        Ok(())
    }

    /// Gives opposite stages the samples that the other one has.
    fn merge(&mut self, unit: usize, ends: &Communicator) -> Result<(), TrainError> {
        let (world, elements) = (ends.world(), self.units[unit].elements);
        for tree in &mut self.units[unit].trees {
            let mut counts = vec![0u64; world];
            ends.all_gather(&[tree.nodes.len() as u64][..], &mut counts[..])?;
            let of = |each: usize| counts.iter().map(|count| *count as usize * each).collect::<Vec<_>>();
            let (places_of, values_of) = (of(2), of(elements));
            let mine: Vec<u64> = tree.nodes.keys().flat_map(|(level, at)| [u64::from(*level), *at as u64]).collect();
            let (mut places, mut values) = (vec![0u64; places_of.iter().sum()], vec![0.0; values_of.iter().sum()]);
            ends.all_gather_v(&mine[..], &mut places[..], &places_of)?;
            let mine: Vec<f32> = tree.nodes.values().flatten().copied().collect();
            ends.all_gather_v(&mine[..], &mut values[..], &values_of)?;
            let mut whole = Tree::new(tree.samples);
            for (place, values) in places.chunks_exact(2).zip(values.chunks_exact(elements.max(1))) {
                whole.insert((place[0] as u32, place[1] as usize), values.to_vec(), add);
            }
            *tree = whole;
        }
        Ok(())
    }

    /// The same over the ranks that have other samples.
    fn sum_of_data_ranks(&mut self, unit: usize, into: &mut [f32]) -> Result<(), TrainError> {
        let (samples, elements) = (self.samples, self.units[unit].elements);
        let world = self.copies.world();
        let counts: Vec<usize> = (0..world).map(|rank| share(elements, world, rank).len()).collect();
        let mine = share(elements, world, self.copies.rank());
        let mut sum: Option<Vec<f32>> = None;
        for tree in &mut self.units[unit].trees {
            let tree = std::mem::replace(tree, Tree::new(samples));
            let tree = if world == 1 { tree } else { exchange(&self.copies, tree, elements)? };
            let root = tree.into_root().ok_or(TrainError::Bucket { bucket: unit })?;
            sum = Some(match sum {
                Some(before) => add(before, root),
                None => root,
            });
        }
        into[mine].copy_from_slice(&sum.unwrap_or_default());
        if world > 1 {
            self.copies.all_gather_v_in_place(into, &counts)?;
        }
        Ok(())
    }

    /// The sum of the squares of all ranks' tensors, on the first rank of the job, and zero on the others.
    ///
    /// # Errors
    /// What went wrong on the device before; a failed operation among the ranks.
    pub(crate) fn sum_of_squares(&self, tensors: &[View<'_, f32>]) -> Result<f64, TrainError> {
        let mut sum = Accumulator::default();
        for tensor in tensors {
            // The square of an f32 is exact in f64.
            tensor.to_host()?.iter().for_each(|value| sum.add(f64::from(*value) * f64::from(*value)));
        }
        sum.carry();
        self.world.all_reduce(&mut sum.limbs[..], Op::Sum)?;
        Ok(if self.world.rank() == 0 { sum.value() } else { 0.0 })
    }
}

/// Sends all ranks the nodes of a tree for their parts of the elements; gives the tree of this rank's part.
fn exchange(ranks: &Communicator, tree: Tree<Vec<f32>>, elements: usize) -> Result<Tree<Vec<f32>>, TrainError> {
    let (world, samples) = (ranks.world(), tree.samples);
    let nodes: Vec<Vec<Node>> = (0..world).map(|rank| nodes_of(samples, share(samples, world, rank))).collect();
    let parts: Vec<Range<usize>> = (0..world).map(|rank| share(elements, world, rank)).collect();
    let own = parts[ranks.rank()].len();
    let send_counts: Vec<usize> = parts.iter().map(|part| part.len() * tree.nodes.len()).collect();
    let receive_counts: Vec<usize> = nodes.iter().map(|nodes| nodes.len() * own).collect();
    let mut send = Vec::with_capacity(send_counts.iter().sum());
    for part in parts {
        tree.nodes.values().for_each(|values| send.extend_from_slice(&values[part.clone()]));
    }
    let mut received = vec![0.0; receive_counts.iter().sum()];
    ranks.all_to_all_v(&send[..], &send_counts, &mut received[..], &receive_counts)?;
    let mut whole = Tree::new(samples);
    let mut rest = &received[..];
    for node in nodes.into_iter().flatten() {
        let (values, after) = rest.split_at(own);
        whole.insert(node, values.to_vec(), add);
        rest = after;
    }
    Ok(whole)
}

/// Fixed point: limbs of 32 bits, the lowest of which counts 2^-320. Sums of squares of f32 values, which are multiples of
/// 2^-298 below 2^256, are exact in it, so that no order of them matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accumulator {
    /// The last one counts what was not finite.
    limbs: [i64; LIMBS + 1],
    /// Additions since the last carry.
    additions: u32,
}

/// Bytes of an [`Accumulator`] on its way to other ranks.
pub(crate) const LIMBS_BYTES: usize = (LIMBS + 1) * size_of::<i64>();

const LIMBS: usize = 22;
const LOWEST: i32 = -320;

impl Accumulator {
    /// Adds a number that is zero, or at least 2^-298 in its last bit and below 2^257.
    pub(crate) fn add(&mut self, value: f64) {
        if value == 0.0 {
            return;
        }
        let bits = value.to_bits();
        let exponent = (bits >> 52 & 0x7ff) as i32;
        // The square of a finite f32 is a normal f64.
        if exponent == 0x7ff || exponent == 0 {
            self.limbs[LIMBS] += 1;
            return;
        }
        // The value is the significand times two to this power above the lowest bit; what is cut off below is zero.
        let (significand, place) = (bits & ((1 << 52) - 1) | 1 << 52, exponent - 1075 - LOWEST);
        let (significand, place) = if place < 0 { (significand >> -place, 0) } else { (significand, place as usize) };
        let wide = u128::from(significand) << (place % 32);
        for (limb, piece) in self.limbs[place / 32..].iter_mut().zip([wide, wide >> 32, wide >> 64]) {
            *limb += i64::from(piece as u32);
        }
        self.additions += 1;
        if self.additions == 1 << 30 {
            self.carry();
        }
    }

    /// Brings every limb below 2^32 again.
    pub(crate) fn carry(&mut self) {
        for index in 0..LIMBS - 1 {
            self.limbs[index + 1] += self.limbs[index] >> 32;
            self.limbs[index] &= 0xffff_ffff;
        }
        self.additions = 0;
    }

    /// The sum as f64, within two units in the last place; NaN where something was not finite.
    pub(crate) fn value(mut self) -> f64 {
        self.carry();
        if self.limbs[LIMBS] != 0 {
            return f64::NAN;
        }
        let limbs = self.limbs[..LIMBS].iter().enumerate().rev();
        limbs.fold(0.0, |sum, (index, limb)| sum + *limb as f64 * 2f64.powi(LOWEST + 32 * index as i32))
    }
}

/// A loss as a multiple of 2^-24: sums of those are exact in f64 up to half a billion, whatever their order.
pub(crate) fn fixed_point(loss: f32) -> f64 {
    (f64::from(loss) * f64::from(1 << 24)).round() / f64::from(1 << 24)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums letters as text, so that the tree shows.
    fn join(left: String, right: String) -> String {
        format!("({left}{right})")
    }

    #[test]
    fn the_tree_hangs_on_the_number_of_samples_alone() {
        let letters = |order: &[usize]| {
            let mut tree = Tree::new(order.len());
            order.iter().for_each(|i| tree.insert((0, *i), char::from(b'a' + *i as u8).to_string(), join));
            tree.into_root().expect("all samples")
        };
        assert_eq!(letters(&[0]), "a");
        assert_eq!(letters(&[0, 1, 2]), "((ab)c)");
        assert_eq!(letters(&[4, 2, 0, 3, 1]), "(((ab)(cd))e)");
        assert_eq!(letters(&[0, 1, 2, 3, 4, 5, 6]), letters(&[6, 5, 4, 3, 2, 1, 0]));
    }

    #[test]
    fn ranks_trees_join_to_the_tree_of_one() {
        for samples in 1..=17 {
            for world in 1..=8 {
                let mut whole = Tree::new(samples);
                for rank in 0..world {
                    for node in nodes_of(samples, share(samples, world, rank)) {
                        whole.insert(node, (), |(), ()| ());
                    }
                }
                assert!(whole.into_root().is_some(), "{samples} samples on {world} ranks");
            }
        }
        assert_eq!(nodes_of(8, 0..4).len(), 1, "an even share is one node to send");
        let mut short: Tree<()> = Tree::new(3);
        short.insert((0, 0), (), |(), ()| ());
        assert!(short.into_root().is_none(), "a sample is missing");
    }

    #[test]
    fn no_order_matters_where_f64_would_round() {
        let values = [1.5f32, 3e38, 1e-45, -7.25e-20, 2e19, 1.0 + f32::EPSILON, 1e-38];
        let square = |value: f32| f64::from(value) * f64::from(value);
        let sum = |values: &mut dyn Iterator<Item = f32>| {
            let mut sum = Accumulator::default();
            values.for_each(|value| sum.add(square(value)));
            sum.carry();
            sum
        };
        let (forward, backward) = (sum(&mut values.into_iter()), sum(&mut values.into_iter().rev()));
        assert_eq!(forward, backward);
        // The smallest is still there: it is what is left when the others are taken away.
        let without = sum(&mut values.into_iter().filter(|value| *value != 1e-45));
        let left: Vec<i64> = forward.limbs.iter().zip(without.limbs).map(|(all, less)| all - less).collect();
        let smallest = sum(&mut std::iter::once(1e-45));
        assert_eq!(left, smallest.limbs);
        assert_eq!(smallest.value(), square(f32::from_bits(1)));
        // A thousand ones and a small one: exactly, as integers have it.
        let many = sum(&mut std::iter::repeat_n(1.0f32, 1000).chain([0.5]));
        assert_eq!(many.value(), 1000.25);
        assert_eq!(sum(&mut [3e38f32; 9].into_iter()).value(), 9.0 * square(3e38));
    }

    #[test]
    fn what_is_not_finite_comes_through() {
        for bad in [f64::NAN, f64::INFINITY] {
            let mut sum = Accumulator::default();
            sum.add(1.0);
            sum.add(bad);
            assert!(sum.value().is_nan());
        }
    }
}
