//! Moving elements between registers and words of memory, whatever the memory is made of.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::program::Access;
use crate::registers::{LANES, Narrow, Operands, Registers};
use crate::types::Kind;

/// Memory as words of 32 bits, little endian. A lane may have words of its own (local memory).
pub(super) trait Words {
    /// A word.
    fn load(&self, lane: usize, word: u32) -> u32;
    /// Writes a word.
    fn store(&self, lane: usize, word: u32, value: u32);
    /// Writes the bits of `mask`.
    fn merge(&self, lane: usize, word: u32, mask: u32, value: u32);
    /// Reads word `at + lane * stride` for every lane, where the words of the lanes lie in one row.
    #[inline(always)]
    fn load_row(&self, at: u32, stride: u32, out: &mut Narrow) {
        for (lane, out) in out.iter_mut().enumerate() {
            *out = self.load(lane, at + lane as u32 * stride);
        }
    }
    /// Writes them.
    #[inline(always)]
    fn store_row(&self, at: u32, stride: u32, from: &Narrow) {
        for (lane, from) in from.iter().enumerate() {
            self.store(lane, at + lane as u32 * stride, *from);
        }
    }
}

/// The words of a row: those of lane l are l * stride further.
#[inline(always)]
fn row<T>(words: &[T], at: u32, stride: u32) -> impl Iterator<Item = &T> {
    let end = at + stride * (LANES as u32 - 1);
    words[at as usize..=end as usize].iter().step_by(stride as usize)
}

/// A page of global memory, which other workers may be using.
pub(super) struct Paged<'a>(pub(super) &'a [AtomicU32]);

/// A page of global memory that nobody has touched: what each 8 bytes hold.
pub(super) struct Pattern(pub(super) u64);

/// The shared memory of a block.
pub(super) struct Cells<'a>(pub(super) &'a [Cell<u32>]);

/// Local memory: the words of the lanes lie side by side.
pub(super) struct Interleaved<'a>(pub(super) &'a [Cell<u32>]);

/// The kernel's parameters.
pub(super) struct Fixed<'a>(pub(super) &'a [u32]);

impl Words for Paged<'_> {
    #[inline(always)]
    fn load(&self, _: usize, word: u32) -> u32 {
        self.0[word as usize].load(Relaxed)
    }
    #[inline(always)]
    fn store(&self, _: usize, word: u32, value: u32) {
        self.0[word as usize].store(value, Relaxed);
    }
    #[inline(always)]
    fn merge(&self, _: usize, word: u32, mask: u32, value: u32) {
        // The other bits are other threads' to write meanwhile.
        let word = &self.0[word as usize];
        let mut old = word.load(Relaxed);
        while let Err(now) = word.compare_exchange_weak(old, (old & !mask) | (value & mask), Relaxed, Relaxed) {
            old = now;
        }
    }
    #[inline(always)]
    fn load_row(&self, at: u32, stride: u32, out: &mut Narrow) {
        out.iter_mut().zip(row(self.0, at, stride)).for_each(|(out, word)| *out = word.load(Relaxed));
    }
    #[inline(always)]
    fn store_row(&self, at: u32, stride: u32, from: &Narrow) {
        from.iter().zip(row(self.0, at, stride)).for_each(|(from, word)| word.store(*from, Relaxed));
    }
}

impl Words for Pattern {
    #[inline(always)]
    fn load(&self, _: usize, word: u32) -> u32 {
        (self.0 >> (word % 2 * 32)) as u32
    }
    fn store(&self, _: usize, _: u32, _: u32) {}
    fn merge(&self, _: usize, _: u32, _: u32, _: u32) {}
}

impl Words for Cells<'_> {
    #[inline(always)]
    fn load(&self, _: usize, word: u32) -> u32 {
        self.0[word as usize].get()
    }
    #[inline(always)]
    fn store(&self, _: usize, word: u32, value: u32) {
        self.0[word as usize].set(value);
    }
    #[inline(always)]
    fn merge(&self, _: usize, word: u32, mask: u32, value: u32) {
        let cell = &self.0[word as usize];
        cell.set((cell.get() & !mask) | (value & mask));
    }
    #[inline(always)]
    fn load_row(&self, at: u32, stride: u32, out: &mut Narrow) {
        out.iter_mut().zip(row(self.0, at, stride)).for_each(|(out, word)| *out = word.get());
    }
    #[inline(always)]
    fn store_row(&self, at: u32, stride: u32, from: &Narrow) {
        from.iter().zip(row(self.0, at, stride)).for_each(|(from, word)| word.set(*from));
    }
}

impl Words for Interleaved<'_> {
    #[inline(always)]
    fn load(&self, lane: usize, word: u32) -> u32 {
        self.0[word as usize * LANES + lane].get()
    }
    #[inline(always)]
    fn store(&self, lane: usize, word: u32, value: u32) {
        self.0[word as usize * LANES + lane].set(value);
    }
    #[inline(always)]
    fn merge(&self, lane: usize, word: u32, mask: u32, value: u32) {
        let cell = &self.0[word as usize * LANES + lane];
        cell.set((cell.get() & !mask) | (value & mask));
    }
}

impl Words for Fixed<'_> {
    #[inline(always)]
    fn load(&self, _: usize, word: u32) -> u32 {
        self.0[word as usize]
    }
    fn store(&self, _: usize, _: u32, _: u32) {}
    fn merge(&self, _: usize, _: u32, _: u32, _: u32) {}
}

/// Calls `step` for each lane of `mask`, ascending.
#[inline(always)]
pub(super) fn each_lane(mask: u32, mut step: impl FnMut(usize)) {
    if mask == u32::MAX {
        for lane in 0..LANES {
            step(lane);
        }
    } else {
        super::lanes(mask).for_each(step);
    }
}

/// How an element is extended to its register.
#[derive(Clone, Copy)]
struct Extend {
    /// Bits to shift up and, arithmetically, down again; 0 for an unsigned element.
    signed: u32,
    /// Bits of the register that exist.
    keep: u64,
}

impl Extend {
    fn new(access: &Access) -> Extend {
        let all = if access.wide { 64 } else { 32 };
        let bits = match u32::from(access.register_bits) {
            0 => all,
            bits => bits.min(all),
        };
        let signed =
            if access.ty.kind() == Kind::Signed && access.ty.bits() < bits { 64 - access.ty.bits() } else { 0 };
        Extend { signed, keep: u64::MAX >> (64 - bits) }
    }

    #[inline(always)]
    fn apply(self, raw: u64) -> u64 {
        (((raw << self.signed) as i64 >> self.signed) as u64) & self.keep
    }
}

/// Loads the elements of an access at `offsets` (bytes) into its registers, in the lanes of `mask`.
#[inline(always)]
pub(super) fn load<W: Words>(
    words: &W,
    registers: &mut Registers,
    operands: &Operands,
    access: &Access,
    at: Lanes<'_>,
) {
    let bytes = access.ty.bytes();
    let extend = Extend::new(access);
    for element in 0..u32::from(access.count) {
        let slot = operands[element as usize];
        if bytes == 4 && !access.wide {
            let out = registers.narrow_mut(slot);
            if at.in_row(access) {
                words.load_row(at.offsets[0] / 4 + element, u32::from(access.count), out);
                continue;
            }
            each_lane(at.mask, |lane| out[lane] = words.load(lane, at.offsets[lane] / 4 + element));
        } else if access.wide {
            let out = registers.wide_mut(slot);
            each_lane(at.mask, |lane| {
                out[lane] = extend.apply(load_element(words, lane, at.offsets[lane] + element * bytes, bytes));
            });
        } else {
            let out = registers.narrow_mut(slot);
            each_lane(at.mask, |lane| {
                out[lane] = extend.apply(load_element(words, lane, at.offsets[lane] + element * bytes, bytes)) as u32;
            });
        }
    }
}

/// Where the lanes of an access begin.
#[derive(Clone, Copy)]
pub(super) struct Lanes<'a> {
    /// In bytes, a multiple of the access's size.
    pub(super) offsets: &'a [u32; LANES],
    /// Lanes that access.
    pub(super) mask: u32,
    /// Bytes from each lane to the next, where it is the same for all 32; else 0.
    pub(super) step: u32,
}

impl Lanes<'_> {
    /// All lanes access, each the place behind the one before.
    #[inline(always)]
    fn in_row(&self, access: &Access) -> bool {
        self.step == 4 * u32::from(access.count)
    }
}

/// Bytes from each lane to the next, where all lanes access and it is the same for all; else 0.
#[inline(always)]
pub(super) fn step(offsets: &[u32; LANES], mask: u32) -> u32 {
    let step = offsets[1].wrapping_sub(offsets[0]);
    let mut differ = !mask;
    for lane in 1..LANES {
        differ |= offsets[lane].wrapping_sub(offsets[lane - 1]) ^ step;
    }
    if differ == 0 { step } else { 0 }
}

/// An element of 1, 2, 4 or 8 bytes at a multiple of its size.
#[inline(always)]
pub(super) fn load_element<W: Words>(words: &W, lane: usize, offset: u32, bytes: u32) -> u64 {
    let word = words.load(lane, offset / 4);
    match bytes {
        1 => u64::from(word >> (offset % 4 * 8) & 0xff),
        2 => u64::from(word >> (offset % 4 * 8) & 0xffff),
        4 => u64::from(word),
        _ => u64::from(word) | u64::from(words.load(lane, offset / 4 + 1)) << 32,
    }
}

/// Writes an element of 1, 2, 4 or 8 bytes.
#[inline(always)]
pub(super) fn store_element<W: Words>(words: &W, lane: usize, offset: u32, bytes: u32, value: u64) {
    let shift = offset % 4 * 8;
    match bytes {
        1 => words.merge(lane, offset / 4, 0xff << shift, (value as u32) << shift),
        2 => words.merge(lane, offset / 4, 0xffff << shift, (value as u32) << shift),
        4 => words.store(lane, offset / 4, value as u32),
        _ => {
            words.store(lane, offset / 4, value as u32);
            words.store(lane, offset / 4 + 1, (value >> 32) as u32);
        }
    }
}

/// Stores the registers of an access, in the lanes of `mask`, ascending: of lanes that write the same place the last
/// one wins.
#[inline(always)]
pub(super) fn store<W: Words>(words: &W, registers: &Registers, operands: &Operands, access: &Access, at: Lanes<'_>) {
    let bytes = access.ty.bytes();
    for element in 0..u32::from(access.count) {
        let slot = operands[element as usize];
        if access.wide {
            let from = registers.wide(slot);
            each_lane(at.mask, |lane| {
                store_element(words, lane, at.offsets[lane] + element * bytes, bytes, from[lane]);
            });
        } else if bytes == 4 {
            let from = registers.narrow(slot);
            if at.in_row(access) {
                words.store_row(at.offsets[0] / 4 + element, u32::from(access.count), from);
                continue;
            }
            each_lane(at.mask, |lane| words.store(lane, at.offsets[lane] / 4 + element, from[lane]));
        } else {
            let from = registers.narrow(slot);
            each_lane(at.mask, |lane| {
                store_element(words, lane, at.offsets[lane] + element * bytes, bytes, u64::from(from[lane]));
            });
        }
    }
}

/// The bytes that a store of these registers writes, lane by lane.
pub(super) fn values(registers: &Registers, operands: &Operands, access: &Access, mask: u32) -> [[u8; 32]; LANES] {
    let bytes = access.ty.bytes() as usize;
    let mut all = [[0; 32]; LANES];
    for element in 0..usize::from(access.count) {
        let slot = operands[element];
        for lane in super::lanes(mask) {
            let value = if access.wide { registers.wide(slot)[lane] } else { u64::from(registers.narrow(slot)[lane]) };
            let to = &mut all[lane][element * bytes..];
            let len = bytes.min(8).min(to.len());
            to[..len].copy_from_slice(&value.to_le_bytes()[..len]);
        }
    }
    all
}
