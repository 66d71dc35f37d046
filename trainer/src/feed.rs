//! A rank's sequences, cut into micro-batches, and into this rank's tokens of each.

use warpweft_device::{Float, Stream};

use crate::TrainError;
use crate::data::Documents;
use crate::model::Slot;
use crate::parallel::mesh::Mesh;

/// A rank's part of a batch: sequences of `tokens` tokens each, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Sequences<'a> {
    /// What goes in.
    pub inputs: &'a [u32],
    /// What is to come out at each place; [`IGNORE`](crate::model::IGNORE) counts for nothing.
    pub targets: &'a [u32],
}

/// The same, in which several documents may lie side by side that see nothing of each other.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    /// The sequences.
    pub sequences: Sequences<'a>,
    /// The documents of each; empty where each is one.
    pub documents: &'a [Documents],
}

impl<'a> From<Sequences<'a>> for Packed<'a> {
    fn from(sequences: Sequences<'a>) -> Self {
        Self { sequences, documents: &[] }
    }
}

/// Sequences as the passes of a step take them.
pub(crate) struct Feed<'a> {
    sequences: Sequences<'a>,
    documents: &'a [Documents],
    /// Tokens of a sequence.
    whole: usize,
    /// Where in a sequence this rank's tokens are.
    places: Vec<u32>,
    /// The positions of this rank's tokens in their documents, of all sequences, or of those of one micro-batch.
    positions: Vec<u32>,
    /// Whether those of each sequence are 0, 1, ..
    plain: bool,
    /// Sequences of a micro-batch.
    micro_batch: usize,
    /// Index of the first sequence in the batch of all ranks.
    first: u64,
}

impl<'a> Sequences<'a> {
    /// Those of one micro-batch; none where this rank has fewer than others.
    fn part(self, index: usize, size: usize) -> Self {
        let len = self.inputs.len();
        let range = (index * size).min(len)..((index + 1) * size).min(len);
        Self { inputs: &self.inputs[range.clone()], targets: &self.targets[range] }
    }
}

impl<'a> Feed<'a> {
    /// Sequences of `whole` tokens each, as many at once as a micro-batch has; `first` is the index of the first among those
    /// of all ranks.
    pub(crate) fn new(packed: Packed<'a>, mesh: &Mesh, whole: usize, micro_batch: usize, first: u64) -> Self {
        let (Packed { sequences, documents }, places) = (packed, mesh.places(whole));
        let of = |documents: &Documents| {
            let positions: Vec<u32> = documents.positions().collect();
            places.iter().map(|place| positions[*place as usize]).collect::<Vec<_>>()
        };
        let positions = match documents {
            [] => places.repeat(micro_batch),
            _ => documents.iter().flat_map(of).collect(),
        };
        let plain = documents.is_empty() && mesh.sequence().is_none();
        Self { sequences, documents, whole, places, positions, plain, micro_batch, first }
    }

    /// The documents of a micro-batch; none where each sequence is one.
    pub(crate) fn documents(&self, index: usize) -> &'a [Documents] {
        let first = (index * self.micro_batch).min(self.documents.len());
        &self.documents[first..(first + self.micro_batch).min(self.documents.len())]
    }

    /// The positions of the tokens of a micro-batch.
    fn positions(&self, index: usize) -> &[u32] {
        let first = if self.documents.is_empty() { 0 } else { index * self.micro_batch * self.places.len() };
        let len = self.batch(index) * self.places.len();
        if len == 0 { &[] } else { &self.positions[first..first + len] }
    }

    /// Whether those of each sequence are 0, 1, ..
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Tokens of each sequence on this rank.
    pub(crate) fn tokens(&self) -> usize {
        self.places.len()
    }

    /// Sequences of a micro-batch.
    pub(crate) fn batch(&self, index: usize) -> usize {
        self.sequences.part(index, self.micro_batch * self.whole).inputs.len() / self.whole.max(1)
    }

    /// Index of its first sequence in the batch of all ranks.
    pub(crate) fn first_sample(&self, index: usize) -> u64 {
        self.first + (index * self.micro_batch) as u64
    }

    /// Puts a micro-batch into the memory of a pass.
    ///
    /// # Errors
    /// More tokens than it has room for.
    pub(crate) fn load<T: Float>(&self, index: usize, stream: &Stream, slot: &mut Slot<T>) -> Result<(), TrainError> {
        let Sequences { inputs, targets } = self.sequences.part(index, self.micro_batch * self.whole);
        let mine = |whole: &[u32]| -> Vec<u32> {
            let of = |sequence: &[u32]| self.places.iter().map(|place| sequence[*place as usize]).collect::<Vec<_>>();
            whole.chunks_exact(self.whole.max(1)).flat_map(of).collect()
        };
        let batch = self.batch(index);
        slot.load(stream, batch, (&mine(inputs), self.positions(index), &mine(targets)))
    }
}
