//! Which rank holds which chunk of the model, and which way micro-batches flow.

/// How the chunks lie on the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Chunk `c` lies on rank `c % p`: the model goes around the ranks `v` times.
    Round,
    /// Two chunks a rank: down the ranks and up again, chunks `i` and `2p-1-i` on rank `i`.
    Vee,
    /// Two copies of a model of `p` stages: chunk `c < p` is stage `c` of the first, on rank `c`; chunk `p + c` is stage `c` of
    /// the second, on rank `p-1-c`. Even micro-batches take the first, odd ones the second.
    Both,
}

/// The chunks of a pipeline and the ranks that hold them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    ranks: usize,
    per_rank: usize,
    shape: Shape,
}

impl Placement {
    /// `v` chunks on each of `p` ranks, both at least 1; in a vee and in both directions there are always two.
    pub fn new(shape: Shape, p: usize, v: usize) -> Self {
        let per_rank = if shape == Shape::Round { v.max(1) } else { 2 };
        Self { ranks: p.max(1), per_rank, shape }
    }

    /// How the chunks lie.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Ranks of the pipeline, `p`.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Chunks on one rank.
    pub fn chunks_per_rank(&self) -> usize {
        self.per_rank
    }

    /// Chunks on all ranks. Where there are two copies of the model, those of both.
    pub fn chunks(&self) -> usize {
        self.ranks * self.per_rank
    }

    /// Copies of the model's parameters: 2 in both directions, else 1.
    pub fn copies(&self) -> usize {
        if self.shape == Shape::Both { 2 } else { 1 }
    }

    /// Into how many parts the model is cut.
    pub fn parts(&self) -> usize {
        self.chunks() / self.copies()
    }

    /// Which part of the model a chunk is, from 0 at the input.
    pub fn part(&self, chunk: usize) -> usize {
        chunk % self.parts()
    }

    /// Which copy of the model a chunk belongs to.
    pub fn copy_of(&self, chunk: usize) -> usize {
        chunk / self.parts()
    }

    /// The share of a stage (the model over `p`) that a chunk is, as its denominator: `v`, or 1 where a chunk is a whole stage.
    pub fn chunks_per_stage(&self) -> usize {
        self.per_rank / self.copies()
    }

    /// The rank that holds a chunk.
    pub fn place(&self, chunk: usize) -> usize {
        let (p, part) = (self.ranks, self.part(chunk));
        match self.shape {
            Shape::Round => part % p,
            Shape::Vee => part.min(2 * p - 1 - part),
            Shape::Both if self.copy_of(chunk) == 0 => part,
            Shape::Both => p - 1 - part,
        }
    }

    /// The chunks of a rank, in the order of their numbers.
    pub fn chunks_of(&self, rank: usize) -> impl Iterator<Item = usize> {
        let this = *self;
        (0..this.chunks()).filter(move |&chunk| this.place(chunk) == rank)
    }

    /// The chunk whose output is this one's input; none at the model's input.
    pub fn before(&self, chunk: usize) -> Option<usize> {
        (self.part(chunk) > 0).then(|| chunk - 1)
    }

    /// The chunk that takes this one's output; none at the loss.
    pub fn after(&self, chunk: usize) -> Option<usize> {
        (self.part(chunk) + 1 < self.parts()).then_some(chunk + 1)
    }

    /// Which copy of the model a micro-batch goes through.
    pub fn copy_for(&self, micro_batch: usize) -> usize {
        micro_batch % self.copies()
    }

    /// Whether this micro-batch goes through this chunk.
    pub fn carries(&self, chunk: usize, micro_batch: usize) -> bool {
        self.copy_of(chunk) == self.copy_for(micro_batch)
    }
}
