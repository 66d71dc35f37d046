//! What a layout must not change.

use warpweft_trainer::parallel::mesh::Sizes;

use crate::training::{ONE_RANK, Seen, Training};

/// Losses within 2e-6 of one rank's and gradient norms within 1e-5, at every step; every rank has the same.
pub(crate) fn assert_same(training: Training, dp: usize, what: &str) {
    let alone = Training { sizes: Sizes::ONE, sequence_parallel: false, pipeline: ONE_RANK, ..training };
    let reference = alone.run::<f32>(1).remove(0);
    let seen = training.run::<f32>(dp);
    for rank in &seen {
        assert_eq!((&rank.losses, &rank.norms), (&seen[0].losses, &seen[0].norms), "{what}: ranks differ");
    }
    let Seen { losses, norms, .. } = &seen[0];
    for step in 0..losses.len() {
        let apart = |ours: &[f64], theirs: &[f64]| (ours[step] - theirs[step]).abs() / theirs[step];
        let (loss, norm) = (apart(losses, &reference.losses), apart(norms, &reference.norms));
        assert!(loss <= 2e-6, "{what}, step {}: losses {loss:e} apart", step + 1);
        assert!(norm <= 1e-5, "{what}, step {}: norms {norm:e} apart", step + 1);
    }
}
