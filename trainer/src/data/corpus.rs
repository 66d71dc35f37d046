//! One source cut into windows: its training part, gone through in epochs, and its held-out part.

use std::path::Path;

use super::documents::Documents;
use super::error::DataError;
use super::order;
use super::source::Source;

/// Tokens looked at when a file is opened, so that most wrong files are refused before training starts; each further
/// token is checked when it is read.
const CHECKED_AT_OPENING: u64 = 32 << 20;

/// Windows of a fixed length over one source of tokens.
pub(super) struct Corpus {
    source: Source,
    context: usize,
    vocab: usize,
    /// Tokens of the training part; the held-out part starts here.
    split: u64,
}

impl Corpus {
    /// Windows of `context` tokens, with at least one of them in the source.
    pub(super) fn new(source: Source, context: usize, vocab: usize) -> Result<Self, DataError> {
        let (tokens, window) = (source.tokens(), context as u64 + 1);
        if tokens < window {
            return Err(DataError::TooShort { path: source.path().into(), tokens, context });
        }
        // Too short for both parts: all of it is trained on, and nothing is held out.
        let held_out = if tokens < 2 * window { 0 } else { (tokens / 10).max(window) };
        let corpus = Corpus { source, context, vocab, split: tokens - held_out };
        corpus.check()?;
        Ok(corpus)
    }

    fn check(&self) -> Result<(), DataError> {
        if self.vocab > self.source.largest() as usize {
            return Ok(());
        }
        let mut tokens = vec![0; 1 << 16];
        let end = self.source.tokens().min(CHECKED_AT_OPENING);
        let mut start = 0;
        while start < end {
            let count = tokens.len().min((end - start) as usize);
            self.source.read(start, self.vocab, &mut tokens[..count])?;
            start += count as u64;
        }
        Ok(())
    }

    /// Whether its tokens are the bytes of a text.
    pub(super) fn is_bytes(&self) -> bool {
        self.source.is_bytes()
    }

    /// Whether the source says where documents begin; the path that was opened.
    pub(super) fn documented(&self) -> (bool, &Path) {
        (self.source.has_documents(), self.source.path())
    }

    /// Tokens in all.
    pub(super) fn tokens(&self) -> u64 {
        self.source.tokens()
    }

    /// Tokens of the training part.
    pub(super) fn training_tokens(&self) -> u64 {
        self.split
    }

    /// Sequences of one epoch, at least 1.
    pub(super) fn epoch(&self) -> u64 {
        let context = self.context as u64;
        // One window less than would fit leaves room for the epoch's offset.
        ((self.split - context) / context).max(1)
    }

    /// Where sequence `index` of this source with this seed begins.
    pub(super) fn start(&self, seed: u64, index: u64) -> u64 {
        let (context, windows) = (self.context as u64, self.epoch());
        let key = order::key(seed, index / windows);
        let spare = self.split - 1 - windows * context;
        let offset = order::mix(key) % (spare + 1);
        offset + context * order::permute(key, windows, index % windows)
    }

    /// Sequences of the held-out part; 0 where the data is too short for one.
    pub(super) fn held_out(&self) -> u64 {
        (self.source.tokens() - self.split).saturating_sub(1) / self.context as u64
    }

    /// Where held-out sequence `index` begins, in the order of the text.
    pub(super) fn held_out_start(&self, index: u64) -> u64 {
        debug_assert!(index < self.held_out());
        self.split + index * self.context as u64
    }

    /// The sequence that begins at token `start`. Both slices are `context` long.
    pub(super) fn window(&self, start: u64, ids: &mut [u32], targets: &mut [u32]) -> Result<(), DataError> {
        debug_assert!(ids.len() == self.context && targets.len() == self.context);
        self.source.read(start, self.vocab, ids)?;
        targets[..self.context - 1].copy_from_slice(&ids[1..]);
        self.source.read(start + self.context as u64, self.vocab, &mut targets[self.context - 1..])
    }

    /// The documents in the sequence of these tokens that begins at token `start`.
    pub(super) fn documents(&self, start: u64, ids: &[u32], end: Option<u32>) -> Documents {
        let begins = self.source.begins(start..=start + ids.len() as u64);
        Documents::of(ids, begins.iter().map(|begin| (begin - start) as u32), end)
    }
}
