//! Sequences from every kind of source, their order, and data that is not as it should be.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use warpweft_trainer::data::{DataError, Dataset, TEXT};

fn write(folder: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, bytes).unwrap();
    path
}

/// Bytes in which each position can be told from its neighbours.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i % 251) as u8).collect()
}

fn u16s(tokens: impl IntoIterator<Item = u16>) -> Vec<u8> {
    tokens.into_iter().flat_map(u16::to_le_bytes).collect()
}

fn sample(dataset: &Dataset, seed: u64, index: u64) -> (Vec<u32>, Vec<u32>) {
    let (mut ids, mut targets) = (vec![0; dataset.context()], vec![0; dataset.context()]);
    dataset.sample(seed, index, &mut ids, &mut targets).unwrap();
    (ids, targets)
}

fn held_out(dataset: &Dataset, index: u64) -> (Vec<u32>, Vec<u32>) {
    let (mut ids, mut targets) = (vec![0; dataset.context()], vec![0; dataset.context()]);
    dataset.held_out_sample(index, &mut ids, &mut targets).unwrap();
    (ids, targets)
}

#[track_caller]
fn says(result: Result<Dataset, DataError>, parts: &[&str]) {
    let Err(error) = result else { panic!("accepted") };
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "`{text}` lacks `{part}`");
    }
}

#[test]
fn the_built_in_text_is_there() {
    let dataset = Dataset::open(None, 64, 256).unwrap();
    assert_eq!(dataset.tokens(), TEXT.len() as u64);
    assert!(dataset.epoch() > 100 && dataset.held_out() > 10);
    let (ids, targets) = sample(&dataset, 1, 0);
    assert_eq!(ids[1..], targets[..63]);
    assert!(ids.iter().all(|id| *id < 256));
}

/// A `.bin` whose tokens are their own positions, so that a window says where it lies.
fn positions(count: u16, context: usize) -> (TempDir, Dataset) {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "positions.bin", &u16s(0..count));
    let dataset = Dataset::open(Some(&path), context, 1 << 16).unwrap();
    (folder, dataset)
}

#[test]
fn an_epoch_sees_each_window_once_and_nothing_held_out() {
    let (_folder, dataset) = positions(5000, 16);
    assert_eq!(dataset.training_tokens(), 4500);
    let windows = dataset.epoch();
    assert_eq!(windows, (4500 - 16) / 16);
    for epoch in 0..3 {
        let mut seen = vec![0; 5000];
        for index in 0..windows {
            let (ids, targets) = sample(&dataset, 9, epoch * windows + index);
            for (id, target) in ids.iter().zip(&targets) {
                assert_eq!(*target, id + 1);
                seen[*id as usize] += 1;
            }
        }
        assert!(seen.iter().all(|count| *count <= 1), "a token was trained on twice in an epoch");
        assert_eq!(seen.iter().sum::<u64>(), windows * 16);
        assert_eq!(seen[4500..].iter().sum::<u64>(), 0, "a held-out token was trained on");
        // All but the ends, for which the offset leaves at most two windows.
        assert!(windows * 16 >= 4500 - 32);
    }
}

#[test]
fn the_order_depends_on_seed_and_epoch_alone() {
    let (_folder, dataset) = positions(5000, 16);
    let starts = |seed, from: u64| (from..from + 50).map(|i| sample(&dataset, seed, i).0[0]).collect::<Vec<_>>();
    assert_eq!(starts(1, 0), starts(1, 0));
    assert_ne!(starts(1, 0), starts(2, 0));
    assert_ne!(starts(1, 0), starts(1, dataset.epoch()));
    // Far beyond any run, still defined.
    sample(&dataset, 1, u64::MAX);
}

#[test]
fn held_out_sequences_cover_the_last_tenth_in_order() {
    let (_folder, dataset) = positions(5000, 16);
    assert_eq!(dataset.held_out(), 499 / 16);
    for index in 0..dataset.held_out() {
        let (ids, targets) = held_out(&dataset, index);
        let start = 4500 + 16 * index as u32;
        assert_eq!(ids, (start..start + 16).collect::<Vec<_>>());
        assert_eq!(targets, (start + 1..start + 17).collect::<Vec<_>>());
    }
}

#[test]
fn short_data_still_gives_a_whole_window_to_each_part() {
    for tokens in 9..40 {
        let (_folder, dataset) = positions(tokens, 8);
        for index in 0..2 * dataset.epoch() {
            let (_, targets) = sample(&dataset, 3, index);
            assert!(u64::from(targets[7]) < dataset.training_tokens());
        }
        assert_eq!(dataset.held_out() > 0, tokens >= 18, "{tokens} tokens");
        (0..dataset.held_out()).for_each(|index| assert!(held_out(&dataset, index).1[7] < u32::from(tokens)));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "short.txt", &bytes(8));
    says(Dataset::open(Some(&path), 8, 256), &["short.txt", "8 tokens", "context 8", "at least 9", "at most 7"]);
    let (_folder, one) = positions(2, 1);
    assert_eq!(sample(&one, 0, 5), (vec![0], vec![1]));
}

#[test]
fn a_folder_is_its_files_in_order_of_their_paths() {
    let folder = tempfile::tempdir().unwrap();
    let whole = bytes(1000);
    write(&folder, "b/one.txt", &whole[100..130]);
    write(&folder, "a.txt", &whole[..100]);
    write(&folder, "b/empty.txt", &[]);
    write(&folder, "c/deep/er/two.txt", &whole[130..]);
    write(&folder, ".git/config", b"no training data");
    let joined = tempfile::tempdir().unwrap();
    let file = write(&joined, "all.txt", &whole);
    let (many, one) =
        (Dataset::open(Some(folder.path()), 32, 256).unwrap(), Dataset::open(Some(&file), 32, 256).unwrap());
    assert_eq!(many.tokens(), 1000);
    for index in 0..3 * many.epoch() {
        assert_eq!(sample(&many, 4, index), sample(&one, 4, index));
    }
}

#[test]
fn more_files_than_are_kept_open_read_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let whole = bytes(900);
    for (i, part) in whole.chunks(9).enumerate() {
        write(&folder, &format!("{i:03}.txt"), part);
    }
    let many = Dataset::open(Some(folder.path()), 32, 256).unwrap();
    let (ids, _) = held_out(&many, 0);
    assert_eq!(ids, whole[810..842].iter().map(|byte| u32::from(*byte)).collect::<Vec<_>>());
}

#[test]
fn files_that_hold_nothing_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    says(Dataset::open(Some(Path::new("/nonexistent/x")), 8, 256), &["cannot open /nonexistent/x", "No such file"]);
    says(Dataset::open(Some(folder.path()), 8, 256), &["holds no data", "give a text file"]);
    let empty = write(&folder, "empty.txt", &[]);
    says(Dataset::open(Some(&empty), 8, 256), &["empty.txt holds no data"]);
    let empty = write(&folder, "empty.bin", &[]);
    says(Dataset::open(Some(&empty), 8, 256), &["empty.bin holds no data"]);
    says(Dataset::open(Some(folder.path()), 8, 256), &["empty.bin", "a folder is read as text"]);
    says(Dataset::open(Some(Path::new("/dev/zero")), 8, 256), &["/dev/zero", "neither a file nor a folder"]);
    // A pipe that nobody writes into must not be waited for.
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    says(Dataset::open(Some(&pipe), 8, 256), &["pipe", "neither a file nor a folder"]);
}

#[test]
fn token_files_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let odd = write(&folder, "odd.bin", &[0; 101]);
    says(Dataset::open(Some(&odd), 8, 256), &["odd.bin is 101 bytes", "2 bytes each"]);
    let mut tokens: Vec<u16> = (0..1000).map(|i| i % 65).collect();
    tokens[777] = 65;
    let path = write(&folder, "char.bin", &u16s(tokens));
    says(Dataset::open(Some(&path), 8, 65), &["char.bin", "token 65 at byte 1554", "vocabulary of 65", "at least 66"]);
    assert!(Dataset::open(Some(&path), 8, 66).is_ok());
    let text = write(&folder, "text.txt", b"abc\xffdefghijklmnop");
    says(Dataset::open(Some(&text), 4, 128), &["token 255 at byte 3", "vocabulary of 128"]);
}

#[test]
fn a_token_is_checked_again_when_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "char.bin", &u16s((0..200).map(|i| i % 65)));
    let dataset = Dataset::open(Some(&path), 8, 65).unwrap();
    fs::write(&path, u16s(std::iter::repeat_n(900, 200))).unwrap();
    let (mut ids, mut targets) = ([0; 8], [0; 8]);
    let error = dataset.sample(1, 0, &mut ids, &mut targets).unwrap_err();
    assert!(matches!(error, DataError::OutsideVocabulary { token: 900, vocab: 65, .. }), "{error}");
}

#[test]
fn a_file_that_shrinks_while_training_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "text.txt", &bytes(1000));
    let dataset = Dataset::open(Some(&path), 8, 256).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(3).unwrap();
    let (mut ids, mut targets) = ([0; 8], [0; 8]);
    let text = dataset.sample(1, 5, &mut ids, &mut targets).unwrap_err().to_string();
    assert!(text.contains("got shorter") && text.contains("1000 bytes at the start, 3 now"), "{text}");
}

#[cfg(unix)]
#[test]
fn a_link_back_to_its_folder_ends() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "text.txt", &bytes(100));
    std::os::unix::fs::symlink(folder.path(), folder.path().join("ring")).unwrap();
    assert_eq!(Dataset::open(Some(folder.path()), 8, 256).unwrap().tokens(), 100);
}
