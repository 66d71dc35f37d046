//! What the host does with device memory: reads, writes, fills, copies. All of it gives bytes a value.

use std::sync::Arc;

use super::{AddressSpace, Allocation, MemoryError, Page};

impl AddressSpace {
    /// The allocation that holds all of a range.
    fn whole(&self, operation: &'static str, address: u64, bytes: u64) -> Result<Arc<Allocation>, MemoryError> {
        let found = self.find(address).filter(|allocation| allocation.contains(address, bytes));
        found.ok_or_else(|| MemoryError::Range { operation, address, bytes, nearest: self.nearest(address, bytes) })
    }

    /// Copies device memory out.
    ///
    /// # Errors
    /// [`MemoryError::Range`].
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        if !out.is_empty() {
            let allocation = self.whole("read", address, out.len() as u64)?;
            allocation.load(address - allocation.base, out);
        }
        Ok(())
    }

    /// Copies into device memory.
    ///
    /// # Errors
    /// [`MemoryError::Range`].
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        if !bytes.is_empty() {
            let allocation = self.whole("write", address, bytes.len() as u64)?;
            let offset = address - allocation.base;
            allocation.store(offset, bytes);
            allocation.set_defined(offset, bytes.len() as u64, true);
        }
        Ok(())
    }

    /// Repeats a value of 1, 2, 4 or 8 bytes. Pages that nobody has touched stay untouched.
    ///
    /// # Errors
    /// [`MemoryError::Range`], [`MemoryError::Pattern`].
    pub fn fill(&self, address: u64, bytes: u64, value: &[u8]) -> Result<(), MemoryError> {
        let width = value.len();
        let fits = |number: u64| number.is_multiple_of(width as u64);
        if !matches!(width, 1 | 2 | 4 | 8) || !fits(address) || !fits(bytes) {
            return Err(MemoryError::Pattern { address, bytes, pattern: width });
        }
        if bytes > 0 {
            let allocation = self.whole("fill", address, bytes)?;
            let pattern = std::array::from_fn(|lane| value[lane % width]);
            allocation.fill(address - allocation.base, bytes, u64::from_le_bytes(pattern), true);
        }
        Ok(())
    }

    /// Copies within the address space, between any two devices. What has no value at the source has none at the
    /// destination, and untouched pages of the source touch none.
    ///
    /// # Errors
    /// [`MemoryError::Range`].
    pub fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), MemoryError> {
        if bytes == 0 {
            return Ok(());
        }
        let source = self.whole("copy from", from, bytes)?;
        let target = self.whole("copy to", to, bytes)?;
        let (from, to) = (from - source.base, to - target.base);
        let mut buffer = vec![0; Page::BYTES as usize];
        let mut done = 0;
        // From page border to page border of the source, so that an untouched page is seen as one.
        while done < bytes {
            let (page, at) = Page::split(from + done);
            let len = (Page::BYTES - at as u64).min(bytes - done);
            if let Some((pattern, defined)) = source.untouched(page) {
                let turn = ((to + done) % 8 + 8 - at as u64 % 8) % 8;
                target.fill(to + done, len, pattern.rotate_left(turn as u32 * 8), defined);
            } else {
                let part = &mut buffer[..len as usize];
                source.load(from + done, part);
                target.store(to + done, part);
                copy_defined(&source, from + done, &target, to + done, len);
            }
            done += len;
        }
        Ok(())
    }
}

/// Carries over which bytes have a value, in runs.
fn copy_defined(source: &Allocation, from: u64, target: &Allocation, to: u64, bytes: u64) {
    for start in (0..bytes).step_by(64) {
        let len = (bytes - start).min(64) as u32;
        let mut mask = source.defined(from + start, len);
        let mut at = 0;
        while at < len {
            let defined = mask & 1 == 1;
            let run = if defined { mask.trailing_ones() } else { mask.trailing_zeros() }.min(len - at);
            target.set_defined(to + start + u64::from(at), u64::from(run), defined);
            mask = mask.checked_shr(run).unwrap_or(0);
            at += run;
        }
    }
}
