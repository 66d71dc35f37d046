//! Training data: sequences by number, the same whatever the layout.
//!
//! Of each source, the first nine tenths are trained on, the rest is held out. An epoch cuts the training part into
//! windows of `context` tokens from an offset of its own, and visits each once in an order of its own; both are pure
//! functions of the seed and the epoch (`order`). Of several sources, each goes through its own epochs, and which of them
//! a sample comes from follows from its number and the weights alone (`blend`). So sequence `i` of a run is a pure
//! function of `(seed, i)`: ranks, micro-batches and a resumption in mid-epoch do not change what is seen. A model of
//! `T` tokens takes `T` ids and, one later, `T` targets.

mod blend;
mod corpus;
mod documents;
mod error;
mod format;
mod megatron;
mod order;
mod source;

use std::path::Path;

use blend::Shares;
pub use blend::{Blend, BlendError};
use corpus::Corpus;
pub use documents::Documents;
pub use error::DataError;
use source::Source;

/// The built-in text: this project's own sources and documents, as they once were (`scripts/snapshot-text`).
pub const TEXT: &[u8] = include_bytes!("../../text/warpweft.txt");

/// Sequences of a fixed length over one source of tokens, or several by weight.
pub struct Dataset {
    corpora: Vec<Corpus>,
    shares: Shares,
    context: usize,
}

impl Dataset {
    /// Opens a text file, a folder of them, or a file of tokens (nanoGPT's or llm.c's `.bin`, Megatron's `.bin` and
    /// `.idx`); `None` is the built-in text. `context` and `vocab` are at least 1.
    ///
    /// # Errors
    /// What cannot be read, is empty, is shorter than `context + 1` tokens, or holds a token not below `vocab`.
    pub fn open(path: Option<&Path>, context: usize, vocab: usize) -> Result<Self, DataError> {
        match path {
            Some(path) => Self::blended(&Blend::one(path), context, vocab),
            None => Self::of(vec![Source::embedded(TEXT)], vec![1], context, vocab),
        }
    }

    /// Opens several sources, each of any of these kinds, to be seen in proportion to their weights.
    ///
    /// # Errors
    /// As [`open`](Self::open), of the first source with a fault.
    pub fn blended(blend: &Blend, context: usize, vocab: usize) -> Result<Self, DataError> {
        let sources = blend.paths().map(Source::open).collect::<Result<_, _>>()?;
        Self::of(sources, blend.weights(), context, vocab)
    }

    fn of(sources: Vec<Source>, weights: Vec<u64>, context: usize, vocab: usize) -> Result<Self, DataError> {
        let corpora = sources.into_iter().map(|source| Corpus::new(source, context, vocab));
        Ok(Dataset { corpora: corpora.collect::<Result<_, _>>()?, shares: Shares::new(weights), context })
    }

    /// Tokens of a sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Whether its tokens are the bytes of a text.
    pub fn is_bytes(&self) -> bool {
        self.corpora.iter().all(Corpus::is_bytes)
    }

    /// Tokens in all.
    pub fn tokens(&self) -> u64 {
        self.corpora.iter().map(Corpus::tokens).sum()
    }

    /// Tokens of the training parts.
    pub fn training_tokens(&self) -> u64 {
        self.corpora.iter().map(Corpus::training_tokens).sum()
    }

    /// Sequences after which each source was gone through once at least; at least 1.
    pub fn epoch(&self) -> u64 {
        self.shares.until_all_have(&self.corpora.iter().map(Corpus::epoch).collect::<Vec<_>>())
    }

    /// The source, by its place in the blend, that sequence `index` of any run comes from.
    pub fn source_of(&self, index: u64) -> usize {
        self.shares.of(index).0
    }

    /// Sequence `index` of the run with this seed: `batch * step + i` for sequence `i` of step `step`, from 0.
    /// Both slices are `context` long.
    ///
    /// # Errors
    /// What the file system says, a file that got shorter, a token outside the vocabulary.
    pub fn sample(&self, seed: u64, index: u64, ids: &mut [u32], targets: &mut [u32]) -> Result<(), DataError> {
        let (corpus, start) = self.start(seed, index);
        corpus.window(start, ids, targets)
    }

    /// The same as packed documents, which end where the source says so (Megatron's documents, the files of a folder) and
    /// behind each `end` token, if one is given. Targets in another document than their token are
    /// [`IGNORE`](crate::model::IGNORE).
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn packed_sample(
        &self,
        (seed, index): (u64, u64),
        end: Option<u32>,
        ids: &mut [u32],
        targets: &mut [u32],
    ) -> Result<Documents, DataError> {
        packed(self.start(seed, index), end, ids, targets)
    }

    /// Whether there is something to tell documents by: an `end` token, or borders in every source.
    ///
    /// # Errors
    /// The first source without.
    pub fn check_documents(&self, end: Option<u32>) -> Result<(), DataError> {
        let missing = self.corpora.iter().map(Corpus::documented).find(|(documented, _)| !documented);
        match missing {
            Some((_, path)) if end.is_none() => Err(DataError::NoDocuments { path: path.into() }),
            _ => Ok(()),
        }
    }

    /// The source of sequence `index`, and where in it the sequence begins.
    fn start(&self, seed: u64, index: u64) -> (&Corpus, u64) {
        let (source, own) = self.shares.of(index);
        // Sources of one size must not be gone through in one order.
        let seed = if source == 0 { seed } else { order::key(seed, !(source as u64)) };
        let corpus = &self.corpora[source];
        (corpus, corpus.start(seed, own))
    }

    /// Sequences of the held-out parts in proportion to the weights, as many as there are of all; 0 where a source is
    /// too short for one.
    pub fn held_out(&self) -> u64 {
        self.shares.until_one_ends(&self.corpora.iter().map(Corpus::held_out).collect::<Vec<_>>())
    }

    /// Held-out sequence `index`, in the order of the texts.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn held_out_sample(&self, index: u64, ids: &mut [u32], targets: &mut [u32]) -> Result<(), DataError> {
        let (corpus, start) = self.held_out_start(index);
        corpus.window(start, ids, targets)
    }

    /// The same as packed documents.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn packed_held_out_sample(
        &self,
        index: u64,
        end: Option<u32>,
        ids: &mut [u32],
        targets: &mut [u32],
    ) -> Result<Documents, DataError> {
        packed(self.held_out_start(index), end, ids, targets)
    }

    fn held_out_start(&self, index: u64) -> (&Corpus, u64) {
        let (source, own) = self.shares.of(index);
        let corpus = &self.corpora[source];
        (corpus, corpus.held_out_start(own))
    }
}

/// The documents of a window, whose targets in other documents count for nothing.
fn packed(
    (corpus, start): (&Corpus, u64),
    end: Option<u32>,
    ids: &mut [u32],
    targets: &mut [u32],
) -> Result<Documents, DataError> {
    corpus.window(start, ids, targets)?;
    let documents = corpus.documents(start, ids, end);
    documents.mask(targets);
    Ok(documents)
}
