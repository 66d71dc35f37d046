//! Which element of a matrix each lane holds (PTX ISA, "Matrix Fragments for mma"): g = lane / 4, t = lane % 4, v the
//! element's index in the lane's fragment.

/// The operand that a fragment is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Matrix {
    A,
    B,
    /// C and D.
    C,
}

/// The layout of one operand of an `mma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Which operand.
    pub matrix: Matrix,
    /// The tile's rows of A and C: 16, or 8.
    pub m: u32,
    /// The tile's shared dimension.
    pub k: u32,
    /// Bits of an element.
    pub bits: u32,
}

impl Fragment {
    /// Elements that each lane holds.
    pub fn elements(self) -> u32 {
        let size = match self.matrix {
            Matrix::A => self.m * self.k,
            Matrix::B => self.k * 8,
            Matrix::C => self.m * 8,
        };
        size / 32
    }

    /// Row and column of element `v` of `lane`: of A (row, k), of B (k, column), of C (row, column).
    #[inline(always)]
    pub fn place(self, lane: u32, v: u32) -> (u32, u32) {
        let (g, t) = (lane / 4, lane % 4);
        // Elements that share a 32-bit register lie side by side in k; then rows, then k again.
        let packed = (32 / self.bits).max(1);
        let (within, register) = (v % packed, v / packed);
        let span = 4 * packed;
        match self.matrix {
            Matrix::A if self.m == 16 => (g + 8 * (register % 2), t * packed + within + span * (register / 2)),
            Matrix::A => (g, t * packed + within + span * register),
            Matrix::B => (t * packed + within + span * register, g),
            Matrix::C => (g + 8 * (v / 2), 2 * t + v % 2),
        }
    }
}
