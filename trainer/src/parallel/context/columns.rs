//! Elements that lie side by side in rows, taken from rows of one width into rows of another.

use warpweft_device::Float;

/// Columns of rows: those from `first` on, in rows of `row` elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    pub(super) row: usize,
    pub(super) first: usize,
}

/// Copies `width` columns of every row, converted to the other's type.
pub(super) fn copy<A: Float, B: Float>((from, at): (&[A], Columns), (to, into): (&mut [B], Columns), width: usize) {
    each((from, at), (to, into), width, |from, to| *to = B::from_f32(from.to_f32()));
}

/// Adds `width` columns of every row to the other's.
pub(super) fn add((from, at): (&[f32], Columns), (to, into): (&mut [f32], Columns), width: usize) {
    each((from, at), (to, into), width, |from, to| *to += from);
}

#[inline]
fn each<A, B>((from, at): (&[A], Columns), (to, into): (&mut [B], Columns), width: usize, work: impl Fn(&A, &mut B)) {
    // Rows of nothing hold nothing.
    if at.row == 0 || into.row == 0 {
        return;
    }
    for (from, to) in from.chunks_exact(at.row).zip(to.chunks_exact_mut(into.row)) {
        for (from, to) in from[at.first..][..width].iter().zip(&mut to[into.first..][..width]) {
            work(from, to);
        }
    }
}
