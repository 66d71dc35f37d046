//! What the hardware would be charged for by attention's kernels, by the counters of the software device.
#![forbid(unsafe_code)]

mod common;

use common::attention::{Case, shape};
use common::counters::profiles;
use warpweft_device::{Float, bf16};
use warpweft_kernels::attention::{Dropout, Options, Window};

/// Forward and backward, over tiles that all see and tiles that some see, with every switch.
fn assert_no_conflicts<T: Float>(head_size: usize) {
    let dropout = Some(Dropout { probability: 0.3, seed: 7, first_sequence: 0, first_head: 0 });
    let window = Window { left: Some(70), right: Some(3) };
    let options = Options { window, softcap: Some(5.0), dropout, ..Options::FULL };
    let case = Case::<T>::new(shape(1, (70, 99), (2, 1), head_size), options).alibi();
    let profiles = profiles(|on| {
        let saved = case.forward(on);
        case.backward(on, &saved);
    });
    assert_eq!(profiles.len(), 4);
    for profile in &profiles {
        let lines = profile.instructions.iter().filter(|line| line.conflicts > 0);
        let lines: Vec<String> =
            lines.map(|line| format!("{} ({} times): {}", line.line, line.conflicts, line.text)).collect();
        assert_eq!(profile.wavefronts.1, 0, "{}, bank conflicts: {lines:#?}", profile.kernel);
    }
}

#[test]
fn shared_memory_has_no_bank_conflicts() {
    for head_size in [8, 40, 128, 136, 256] {
        assert_no_conflicts::<f32>(head_size);
    }
    for head_size in [64, 128, 256] {
        assert_no_conflicts::<bf16>(head_size);
    }
}
