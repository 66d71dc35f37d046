//! Working memory that a thread keeps from one kernel to the next, so that no kernel allocates in its loops.

use std::cell::RefCell;

/// Spare arrays kept by a thread; more than a kernel ever holds at once.
const KEPT: usize = 8;

thread_local! {
    static SPARE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with `len` floats of unspecified (but initialised) content. Calls may nest; each has memory of its own.
#[inline(always)]
pub(crate) fn with<R>(len: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    // Taken out while in use: a thread that waits inside `work` may start another kernel, which then takes the next.
    let mut memory = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
    if memory.len() < len {
        memory.resize(len, 0.0);
    }
    let result = work(&mut memory[..len]);
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < KEPT {
            spare.push(memory);
        }
    });
    result
}

/// As [`with`], in parts of the given lengths.
#[inline(always)]
pub(crate) fn with_parts<const N: usize, R>(lengths: [usize; N], work: impl FnOnce([&mut [f32]; N]) -> R) -> R {
    with(lengths.iter().sum(), |memory| {
        let mut rest = memory;
        work(lengths.map(|length| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(length);
            rest = after;
            part
        }))
    })
}
