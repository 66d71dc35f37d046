//! Training data: sequences by number, the same whatever the layout.
//!
//! The first nine tenths are trained on, the rest is held out. An epoch cuts the training part into windows of `context`
//! tokens from an offset of its own, and visits each once in an order of its own; both are pure functions of the seed
//! and the epoch (`order`). So sequence `i` of a run is a pure function of `(seed, i)`: ranks, micro-batches and a
//! resumption in mid-epoch do not change what is seen. A model of `T` tokens takes `T` ids and, one later, `T` targets.

mod error;
mod order;
mod source;

use std::path::Path;

pub use error::DataError;
use source::Source;

/// The built-in text: this project's own sources and documents, as they once were (`scripts/snapshot-text`).
pub const TEXT: &[u8] = include_bytes!("../../text/warpweft.txt");

/// Tokens looked at when a file is opened, so that most wrong files are refused before training starts; each further
/// token is checked when it is read.
const CHECKED_AT_OPENING: u64 = 32 << 20;

/// Sequences of a fixed length over one source of tokens.
pub struct Dataset {
    source: Source,
    context: usize,
    vocab: usize,
    /// Tokens of the training part; the held-out part starts here.
    split: u64,
}

impl Dataset {
    /// Opens a text file, a folder of them, or a `.bin` of 16-bit tokens (nanoGPT's, or llm.c's with its header);
    /// `None` is the built-in text. `context` and `vocab` are at least 1.
    ///
    /// # Errors
    /// What cannot be read, is empty, is shorter than `context + 1` tokens, or holds a token not below `vocab`.
    pub fn open(path: Option<&Path>, context: usize, vocab: usize) -> Result<Self, DataError> {
        let source = match path {
            Some(path) => Source::open(path)?,
            None => Source::embedded(TEXT),
        };
        let (tokens, window) = (source.tokens(), context as u64 + 1);
        if tokens < window {
            return Err(DataError::TooShort { path: source.path().into(), tokens, context });
        }
        // Too short for both parts: all of it is trained on, and nothing is held out.
        let held_out = if tokens < 2 * window { 0 } else { (tokens / 10).max(window) };
        let dataset = Dataset { source, context, vocab, split: tokens - held_out };
        dataset.check()?;
        Ok(dataset)
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

    /// Tokens of a sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Whether its tokens are the bytes of a text.
    pub fn is_bytes(&self) -> bool {
        self.source.is_bytes()
    }

    /// Tokens in all.
    pub fn tokens(&self) -> u64 {
        self.source.tokens()
    }

    /// Tokens of the training part.
    pub fn training_tokens(&self) -> u64 {
        self.split
    }

    /// Sequences of one epoch, at least 1.
    pub fn epoch(&self) -> u64 {
        let context = self.context as u64;
        // One window less than would fit leaves room for the epoch's offset.
        ((self.split - context) / context).max(1)
    }

    /// Sequence `index` of the run with this seed: `batch * step + i` for sequence `i` of step `step`, from 0.
    /// Both slices are `context` long.
    ///
    /// # Errors
    /// What the file system says, a file that got shorter, a token outside the vocabulary.
    pub fn sample(&self, seed: u64, index: u64, ids: &mut [u32], targets: &mut [u32]) -> Result<(), DataError> {
        let (context, windows) = (self.context as u64, self.epoch());
        let key = order::key(seed, index / windows);
        let spare = self.split - 1 - windows * context;
        let offset = order::mix(key) % (spare + 1);
        self.window(offset + context * order::permute(key, windows, index % windows), ids, targets)
    }

    /// Sequences of the held-out part; 0 where the data is too short for one.
    pub fn held_out(&self) -> u64 {
        (self.source.tokens() - self.split).saturating_sub(1) / self.context as u64
    }

    /// Held-out sequence `index`, in the order of the text.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn held_out_sample(&self, index: u64, ids: &mut [u32], targets: &mut [u32]) -> Result<(), DataError> {
        debug_assert!(index < self.held_out());
        self.window(self.split + index * self.context as u64, ids, targets)
    }

    fn window(&self, start: u64, ids: &mut [u32], targets: &mut [u32]) -> Result<(), DataError> {
        debug_assert!(ids.len() == self.context && targets.len() == self.context);
        self.source.read(start, self.vocab, ids)?;
        targets[..self.context - 1].copy_from_slice(&ids[1..]);
        self.source.read(start + self.context as u64, self.vocab, &mut targets[self.context - 1..])
    }
}
