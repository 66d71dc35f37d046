//! Cases of attention at the edges of what rarely comes up by itself.

use warpweft_device::Float;
use warpweft_kernels::attention::{Dropout, Options};
use warpweft_kernels::philox::Philox4x32;

use super::attention::{Case, shape};

/// A case for each of eight keys, of one query: that key's number is the least that is kept.
pub(crate) fn edges_of_dropout<T: Float>(head_size: usize) -> Vec<Case<T>> {
    let words = Philox4x32::cipher([0; 4], [5, 0]);
    let numbers = words.map(|word| [word & 0xffff, word >> 16]);
    let case = |&number: &u32| {
        let probability = number as f32 / 65536.0;
        let dropout = Some(Dropout { probability, seed: 5, first_sequence: 0, first_head: 0 });
        let case = Case::new(shape(1, (1, 8), (1, 1), head_size), Options { dropout, ..Options::FULL });
        Case { behind: 0, ..case }
    };
    numbers.as_flattened().iter().map(case).collect()
}
