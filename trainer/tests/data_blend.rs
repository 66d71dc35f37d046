//! Several sources by weight: whose sample comes when, and in which order each source is gone through.
#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;
use warpweft_trainer::data::{Blend, Dataset};

const CONTEXT: usize = 8;

/// A `.bin` of `count` tokens from `first` on, so that each token says its source and its place.
fn source(folder: &TempDir, name: &str, first: u16, count: u16) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, (first..first + count).flat_map(u16::to_le_bytes).collect::<Vec<_>>()).unwrap();
    path
}

fn sample(dataset: &Dataset, seed: u64, index: u64) -> Vec<u32> {
    let (mut ids, mut targets) = (vec![0; CONTEXT], vec![0; CONTEXT]);
    dataset.sample(seed, index, &mut ids, &mut targets).unwrap();
    assert_eq!(ids[1..], targets[..CONTEXT - 1]);
    ids
}

fn three() -> (TempDir, Dataset) {
    let folder = tempfile::tempdir().unwrap();
    let [a, b, c] = [("a.bin", 0, 9000), ("b.bin", 10_000, 900), ("c.bin", 20_000, 900)]
        .map(|(name, first, count)| source(&folder, name, first, count).display().to_string());
    let blend: Blend = format!("0.75:{a},0.2:{b},0.05:{c}").parse().unwrap();
    let dataset = Dataset::blended(&blend, CONTEXT, 1 << 16).unwrap();
    (folder, dataset)
}

#[test]
fn every_prefix_has_the_weights_to_within_one_sample() {
    let (_folder, dataset) = three();
    assert_eq!(dataset.tokens(), 10_800);
    let mut counts = [0_u64; 3];
    for index in 0..1000 {
        let source = sample(&dataset, 5, index)[0] as usize / 10_000;
        assert_eq!(source, dataset.source_of(index));
        counts[source] += 1;
        for (count, weight) in counts.into_iter().zip([0.75, 0.2, 0.05]) {
            let wanted = weight * (index + 1) as f64;
            assert!((count as f64 - wanted).abs() < 1.0, "{counts:?} after {} samples", index + 1);
        }
    }
    assert_eq!(counts, [750, 200, 50]);
    // Far beyond any run, still defined.
    sample(&dataset, 5, u64::MAX);
}

#[test]
fn each_source_goes_through_its_own_epochs_in_its_own_order() {
    let (_folder, dataset) = three();
    let mut starts = [Vec::new(), Vec::new(), Vec::new()];
    for index in 0..dataset.epoch() {
        starts[dataset.source_of(index)].push(sample(&dataset, 5, index)[0] % 10_000);
    }
    // 810 training tokens of the small ones: 100 windows an epoch, of which none is seen twice.
    let windows = (810 - 8) / 8;
    for own in &starts[1..] {
        assert!(own.len() >= windows);
        for epoch in own.chunks(windows) {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), epoch.len(), "a window twice in an epoch");
        }
    }
    assert_ne!(starts[1][..windows], starts[2][..windows], "sources of one size in one order");
    assert_ne!(sample(&dataset, 5, 0), sample(&dataset, 6, 0));
}

#[test]
fn held_out_sequences_follow_the_weights_and_are_never_trained_on() {
    let (_folder, dataset) = three();
    let count = dataset.held_out();
    // The second source has (90 - 1) / 8 = 11 and gives a fifth.
    assert!((55..63).contains(&count), "{count}");
    let mut by_source = [0_u64; 3];
    for index in 0..count {
        let (mut ids, mut targets) = ([0; CONTEXT], [0; CONTEXT]);
        dataset.held_out_sample(index, &mut ids, &mut targets).unwrap();
        let (source, place) = (ids[0] / 10_000, ids[0] % 10_000);
        assert!(place >= if source == 0 { 8100 } else { 810 });
        by_source[source as usize] += 1;
    }
    assert_eq!(by_source[1], 11);
}

#[test]
fn a_source_with_a_fault_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let good = source(&folder, "good.bin", 0, 900).display().to_string();
    let short = source(&folder, "short.bin", 0, 4).display().to_string();
    for (text, parts) in [
        (format!("1:{good},1:{short}"), ["short.bin holds 4 tokens", "at least 9"]),
        (format!("1:{good},1:/nonexistent/x"), ["cannot open", "/nonexistent/x"]),
    ] {
        let error = Dataset::blended(&text.parse().unwrap(), CONTEXT, 1 << 16).err().expect("a fault").to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}
