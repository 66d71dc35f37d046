//! A page of device memory: words that threads share, and which of its bytes have ever been given a value.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What memory that nobody has written holds, in every 8 bytes: a NaN in each float format, and no sensible integer.
pub(crate) const POISON: u64 = 0xfff5_fff5_fff5_fff5;

/// Bytes of a page as a power of two: 64 KiB.
const SHIFT: u32 = 16;

/// 64 KiB of an allocation; its last page may be shorter.
#[derive(Debug)]
pub struct Page {
    words: Box<[AtomicU32]>,
    /// Bit i of word w: byte 64 w + i has a value.
    defined: Box<[AtomicU64]>,
}

impl Page {
    /// Bytes of every page but an allocation's last.
    pub const BYTES: u64 = 1 << SHIFT;

    /// The page of an offset in an allocation, and the byte in that page.
    #[inline(always)]
    pub fn split(offset: u64) -> (usize, usize) {
        ((offset >> SHIFT) as usize, (offset & (Self::BYTES - 1)) as usize)
    }

    fn new(bytes: u64, pattern: u64, defined: bool) -> Page {
        let halves = [pattern as u32, (pattern >> 32) as u32];
        let bits = if defined { u64::MAX } else { 0 };
        Page {
            words: (0..bytes.div_ceil(4) as usize).map(|at| AtomicU32::new(halves[at % 2])).collect(),
            defined: (0..bytes.div_ceil(64)).map(|_| AtomicU64::new(bits)).collect(),
        }
    }

    /// Its words, little endian.
    #[inline(always)]
    pub fn words(&self) -> &[AtomicU32] {
        &self.words
    }

    /// A bit for each byte that has a value, 64 bytes a word. What a kernel writes is entered here by initcheck alone.
    #[inline(always)]
    pub fn defined(&self) -> &[AtomicU64] {
        &self.defined
    }

    /// Copies bytes out, from byte `at` of the page.
    pub(crate) fn read(&self, at: usize, out: &mut [u8]) {
        let (head, rest) = out.split_at_mut(out.len().min((4 - at % 4) % 4));
        head.copy_from_slice(&self.bytes_of(at / 4)[at % 4..][..head.len()]);
        let first = (at + head.len()) / 4;
        let mut chunks = rest.chunks_exact_mut(4);
        let whole = chunks.len();
        for (chunk, word) in chunks.by_ref().zip(&self.words[first..]) {
            chunk.copy_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        let tail = chunks.into_remainder();
        if !tail.is_empty() {
            tail.copy_from_slice(&self.bytes_of(first + whole)[..tail.len()]);
        }
    }

    fn bytes_of(&self, word: usize) -> [u8; 4] {
        self.words.get(word).map_or([0; 4], |word| word.load(Relaxed).to_le_bytes())
    }

    /// Copies bytes in, from byte `at` of the page; neighbours in the same word keep what other threads give them.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min((4 - at % 4) % 4));
        self.write_part(at, head);
        let first = at + head.len();
        let chunks = rest.chunks_exact(4);
        let tail = chunks.remainder();
        self.write_part(first + rest.len() - tail.len(), tail);
        for (chunk, word) in chunks.zip(&self.words[first / 4..]) {
            word.store(u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]), Relaxed);
        }
    }

    /// Writes 0 to 3 bytes of one word.
    fn write_part(&self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let (mut value, mut mask) = ([0; 4], [0; 4]);
        for (lane, &byte) in bytes.iter().enumerate() {
            (value[at % 4 + lane], mask[at % 4 + lane]) = (byte, 0xff);
        }
        set_bits(&self.words[at / 4], u32::from_le_bytes(mask), u32::from_le_bytes(value));
    }

    /// Repeats `pattern` (byte i of the page is byte i % 8 of it) over bytes of the page.
    fn fill(&self, at: usize, len: usize, pattern: u64) {
        let bytes = pattern.to_le_bytes();
        let block: [u8; 64] = std::array::from_fn(|lane| bytes[(at + lane) % 8]);
        for start in (0..len).step_by(64) {
            self.write(at + start, &block[..(len - start).min(64)]);
        }
    }

    /// Enters `len` bytes from `at` as having a value, or as having none.
    pub(crate) fn set_defined(&self, at: usize, len: usize, defined: bool) {
        let mut start = at;
        while start < at + len {
            let (word, first) = (start / 64, start % 64);
            let count = (64 - first).min(at + len - start);
            let mask = (u64::MAX >> (64 - count)) << first;
            if defined {
                self.defined[word].fetch_or(mask, Relaxed);
            } else {
                self.defined[word].fetch_and(!mask, Relaxed);
            }
            start += count;
        }
    }
}

/// Replaces the bits of `mask`, whatever other threads do to the rest of the word meanwhile.
#[inline(always)]
pub(crate) fn set_bits(word: &AtomicU32, mask: u32, value: u32) {
    let mut old = word.load(Relaxed);
    while let Err(now) = word.compare_exchange_weak(old, (old & !mask) | value, Relaxed, Relaxed) {
        old = now;
    }
}

/// A place for a page: until it is touched it costs no memory, and a fill of the whole of it is a note.
#[derive(Debug)]
pub(crate) struct Slot {
    page: OnceLock<Page>,
    /// What each 8 bytes hold while there is no page.
    pattern: AtomicU64,
    /// Whether that pattern was written by somebody.
    filled: AtomicBool,
}

impl Slot {
    pub(crate) fn new() -> Slot {
        Slot { page: OnceLock::new(), pattern: AtomicU64::new(POISON), filled: AtomicBool::new(false) }
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&Page> {
        self.page.get()
    }

    /// The pattern of a page that is not there, and whether it has a value.
    pub(crate) fn pattern(&self) -> (u64, bool) {
        (self.pattern.load(Relaxed), self.filled.load(Relaxed))
    }

    /// Makes the page. The lock keeps a fill from being lost between the look at its pattern and the page's birth.
    #[cold]
    pub(crate) fn make(&self, bytes: u64, lock: &Mutex<()>) -> &Page {
        let _held = lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.page.get_or_init(|| {
            let (pattern, filled) = self.pattern();
            Page::new(bytes, pattern, filled)
        })
    }

    /// Fills bytes of the page; all of it, where there is no page, by a note.
    pub(crate) fn fill(&self, at: usize, len: usize, bytes: u64, (pattern, defined): (u64, bool), lock: &Mutex<()>) {
        let held = lock.lock().unwrap_or_else(PoisonError::into_inner);
        if self.page.get().is_none() && len as u64 == bytes {
            self.pattern.store(pattern, Relaxed);
            self.filled.store(defined, Relaxed);
            return;
        }
        drop(held);
        let page = self.get().unwrap_or_else(|| self.make(bytes, lock));
        page.fill(at, len, pattern);
        page.set_defined(at, len, defined);
    }
}
