//! The degenerate inputs that every op must take, each a test of its own: `OP_no_rows` and so on, as the table of
//! docs/kernels.md has them.

use warpweft_device::{Float, bf16, f16};

/// An op at any size: forward and backward on a software device under every check, against what must come out.
pub(crate) trait Op {
    /// `before` elements lie before each array in its buffer, NaNs around it (`common/padded.rs`).
    fn check<T: Float>(rows: usize, columns: usize, before: usize);
}

pub(crate) fn in_every_type<O: Op>(rows: usize, columns: usize, before: usize) {
    O::check::<f32>(rows, columns, before);
    O::check::<bf16>(rows, columns, before);
    O::check::<f16>(rows, columns, before);
}

/// The tests of an op: nothing at all, rows of nothing, rows of 2^16 + 1, arrays that begin one element off every alignment, and
/// NaNs directly behind the last element of arrays whose rows are no whole accesses.
#[allow(unused_macros, reason = "not every test program has ops of rows")]
macro_rules! degenerate_inputs {
    ($op:ident: $no_rows:ident, $no_columns:ident, $rows_of_65_537:ident, $off_by_one:ident, $between_nans:ident) => {
        #[test]
        fn $no_rows() {
            common::degenerate::in_every_type::<$op>(0, 40, 8);
        }

        #[test]
        fn $no_columns() {
            common::degenerate::in_every_type::<$op>(5, 0, 8);
        }

        #[test]
        fn $rows_of_65_537() {
            common::degenerate::in_every_type::<$op>(2, 65_537, 8);
        }

        #[test]
        fn $off_by_one() {
            common::degenerate::in_every_type::<$op>(3, 40, 1);
        }

        #[test]
        fn $between_nans() {
            common::degenerate::in_every_type::<$op>(3, 37, 8);
        }
    };
}
#[allow(unused_imports, reason = "as above")]
pub(crate) use degenerate_inputs;
