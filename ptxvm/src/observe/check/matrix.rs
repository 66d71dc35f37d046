//! Which lanes hold which rows and columns of an `mma`, so that what is wrong in one row stays in that row.
//!
//! With group g = lane / 4 and t = lane % 4 (PTX ISA, "Matrix fragments"): register i of A holds row g + 8 (i % 2), B
//! holds column g, and register i of an f32 C or D holds row g + 8 (i / 2) and column 2 t + i % 2, of a 16-bit one row
//! g + 8 i and columns 2 t and 2 t + 1. `m8n8k4` of f64 has one row a lane: register i of C is column 2 t + i.

use crate::registers::LANES;

/// Rows and columns of D that something is true of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    rows: u16,
    columns: u8,
}

impl Marks {
    /// Marks the rows of A that the lanes of `lanes` hold in register `register`.
    pub(super) fn a(&mut self, register: usize, lanes: u32) {
        self.rows |= u16::from(groups(lanes)) << (8 * (register % 2));
    }

    /// Marks the columns of B that the lanes hold.
    pub(super) fn b(&mut self, lanes: u32) {
        self.columns |= groups(lanes);
    }

    /// The lanes in which register `register` of D, of `registers` in all, holds an element of a marked row or column.
    /// `packed` registers hold two elements.
    pub(super) fn d(&self, register: usize, registers: usize, packed: bool) -> u32 {
        let high = if packed { register % 2 } else { register / 2 } * usize::from(registers > 2 || packed);
        let mut lanes = 0;
        for lane in 0..LANES {
            let row = lane / 4 + 8 * high;
            let first = 2 * (lane % 4);
            let columns = if packed { 0b11 << first } else { 1 << (first + register % 2) };
            let marked = self.rows >> row & 1 == 1 || u32::from(self.columns) & columns != 0;
            lanes |= u32::from(marked) << lane;
        }
        lanes
    }
}

/// Bit g: some lane of the four of group g is among them.
fn groups(lanes: u32) -> u8 {
    (0..8).fold(0, |groups, group| groups | u8::from(lanes >> (4 * group) & 0xf != 0) << group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_a_marks_a_row_of_d_and_a_column_of_b_a_column() {
        let mut marks = Marks::default();
        marks.a(1, 1 << 6);
        // Row 1 + 8: registers 2 and 3 of lanes 4 to 7.
        assert_eq!([0, 1, 2, 3].map(|register| marks.d(register, 4, false)), [0, 0, 0xf0, 0xf0]);
        assert_eq!([0, 1].map(|register| marks.d(register, 2, true)), [0, 0xf0]);
        let mut marks = Marks::default();
        marks.b(1 << 13);
        // Column 3: the odd registers of lanes with t = 1.
        assert_eq!([0, 1, 2, 3].map(|register| marks.d(register, 4, false)), [0, 0x2222_2222, 0, 0x2222_2222]);
        assert_eq!(marks.d(0, 2, true), 0x2222_2222);
        // m8n8k4 in f64.
        assert_eq!([0, 1].map(|register| marks.d(register, 2, false)), [0, 0x2222_2222]);
    }
}
