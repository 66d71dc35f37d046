//! Token files of llm.c and Megatron, written here from the descriptions of their formats, whole and damaged.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use warpweft_trainer::data::{DataError, Dataset};
use warpweft_trainer::model::IGNORE;

fn write(folder: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn words<const N: usize>(numbers: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
    numbers.into_iter().flatten().collect()
}

fn open(path: &Path, vocab: usize) -> Result<Dataset, DataError> {
    Dataset::open(Some(path), 16, vocab)
}

#[track_caller]
fn says(path: &Path, parts: &[&str]) {
    let Err(error) = open(path, 1 << 20) else { panic!("accepted") };
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "`{text}` lacks `{part}`");
    }
}

/// The first held-out sequence, which is the first of the last tenth.
fn held_out(dataset: &Dataset) -> Vec<u32> {
    let (mut ids, mut targets) = (vec![0; 16], vec![0; 16]);
    dataset.held_out_sample(0, &mut ids, &mut targets).unwrap();
    ids
}

/// A file of llm.c: mark, version and count in a header of 1024 bytes, then the tokens.
fn llmc(mark: u32, version: u32, count: u32, tokens: &[u8]) -> Vec<u8> {
    let mut file = words([mark, version, count].map(u32::to_le_bytes));
    file.resize(1024, 0);
    file.extend(tokens);
    file
}

#[test]
fn llmc_tokens_of_both_widths_are_read_whatever_the_name() {
    let folder = tempfile::tempdir().unwrap();
    let narrow = words((0..500_u16).map(u16::to_le_bytes));
    let wide = words((0..500_u32).map(|i| (i + 100_000).to_le_bytes()));
    for name in ["a.bin", "a.tokens"] {
        let path = write(&folder, name, &llmc(20_240_520, 1, 500, &narrow));
        let dataset = open(&path, 500).unwrap();
        assert_eq!(dataset.tokens(), 500);
        assert_eq!(held_out(&dataset), (450..466).collect::<Vec<_>>());
        let path = write(&folder, name, &llmc(20_240_801, 7, 500, &wide));
        let dataset = open(&path, 100_500).unwrap();
        assert!(!dataset.is_bytes());
        assert_eq!(held_out(&dataset), (100_450..100_466).collect::<Vec<_>>());
    }
    let path = write(&folder, "outside.bin", &llmc(20_240_801, 7, 500, &wide));
    let error = open(&path, 100_499).err().expect("one token too many").to_string();
    assert!(error.contains("token 100499 at byte 3020") && error.contains("at least 100500"), "{error}");
}

#[test]
fn llmc_files_that_are_cut_or_something_else_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = words((0..500_u16).map(u16::to_le_bytes));
    let whole = llmc(20_240_520, 1, 500, &tokens);
    let path = write(&folder, "cut.bin", &whole[..2000]);
    says(&path, &["cut.bin, byte 8", "says 500 tokens, 1000 bytes", "there are 488 in 976 bytes"]);
    for length in [4, 10, 1022, 1023] {
        let path = write(&folder, "short.bin", &whole[..length]);
        says(&path, &["short.bin", &format!("byte {length}"), "takes 1024 bytes"]);
    }
    let path = write(&folder, "later.bin", &llmc(20_240_520, 2, 500, &tokens));
    says(&path, &["later.bin, byte 4", "version 2", "1 is read"]);
    let path = write(&folder, "wide.bin", &llmc(20_240_801, 1, 250, &tokens));
    says(&path, &["version 1", "7 is read"]);
    let path = write(&folder, "huge.bin", &llmc(20_240_801, 7, u32::MAX, &tokens));
    says(&path, &["says 4294967295 tokens, 17179869180 bytes"]);
    let path = write(&folder, "hellaswag.bin", &llmc(20_240_522, 1, 500, &tokens));
    says(&path, &["multiple-choice examples", "give a file of tokens"]);
}

/// An index of Megatron over sequences of these lengths, and the sequences that begin documents.
#[derive(Clone)]
struct Index {
    mark: Vec<u8>,
    version: u64,
    code: u8,
    lengths: Vec<i32>,
    documents: Vec<i64>,
    /// Bytes of a token, for the offsets.
    width: i64,
}

impl Index {
    fn of(code: u8, width: i64) -> Self {
        let mark = b"MMIDIDX\0\0".to_vec();
        // 500 tokens, one empty sequence among them.
        Self { mark, version: 1, code, lengths: vec![100, 0, 150, 250], documents: vec![0, 2, 4], width }
    }

    fn offsets(&self) -> Vec<i64> {
        let before = self.lengths.iter().scan(0, |sum, length| {
            let start = *sum;
            *sum += i64::from(*length) * self.width;
            Some(start)
        });
        before.collect()
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes_with(&self.offsets())
    }

    fn bytes_with(&self, offsets: &[i64]) -> Vec<u8> {
        let mut bytes = self.mark.clone();
        bytes.extend(self.version.to_le_bytes());
        bytes.push(self.code);
        bytes.extend((self.lengths.len() as u64).to_le_bytes());
        bytes.extend((self.documents.len() as u64).to_le_bytes());
        bytes.extend(words(self.lengths.iter().map(|n| n.to_le_bytes())));
        bytes.extend(words(offsets.iter().map(|n| n.to_le_bytes())));
        bytes.extend(words(self.documents.iter().map(|n| n.to_le_bytes())));
        bytes
    }
}

#[test]
fn megatron_is_found_by_its_bin_its_idx_and_what_they_share() {
    let folder = tempfile::tempdir().unwrap();
    let narrow = words((0..500_u16).map(u16::to_le_bytes));
    let wide = words((0..500_i32).map(i32::to_le_bytes));
    for (index, tokens) in [(Index::of(8, 2), narrow), (Index::of(4, 4), wide)] {
        write(&folder, "web.text_document.bin", &tokens);
        write(&folder, "web.text_document.idx", &index.bytes());
        for name in ["web.text_document.bin", "web.text_document.idx", "web.text_document"] {
            let dataset = open(&folder.path().join(name), 500).unwrap();
            assert_eq!(dataset.tokens(), 500);
            assert_eq!(held_out(&dataset), (450..466).collect::<Vec<_>>());
        }
    }
}

#[test]
fn damaged_megatron_files_are_refused_with_file_and_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "t.bin", &words((0..500_u16).map(u16::to_le_bytes)));
    let good = Index::of(8, 2);
    let with = |change: fn(&mut Index)| {
        let mut index = good.clone();
        change(&mut index);
        index.bytes()
    };
    let offsets = |change: fn(&mut Vec<i64>)| {
        let mut offsets = good.offsets();
        change(&mut offsets);
        good.bytes_with(&offsets)
    };
    let cases: Vec<(Vec<u8>, &[&str])> = vec![
        (with(|i| i.mark[0] = b'X'), &["t.idx, byte 0", "MMIDIDX"]),
        (with(|i| i.version = 2), &["t.idx, byte 9", "version 2", "1 is read"]),
        (with(|i| i.code = 5), &["byte 17", "type int64 (code 5)", "uint16 and int32"]),
        (with(|i| i.code = 7), &["type float32 (code 7)"]),
        (with(|i| i.code = 99), &["unknown to Megatron (code 99)"]),
        (with(|i| i.lengths[2] = -1), &["byte 42", "sequence 2 has -1 tokens"]),
        (with(|i| i.lengths[3] = 249), &["499 tokens of 2 bytes", "t.bin is 1000 bytes long"]),
        (with(|i| i.documents[1] = 5), &["document 1 begins at sequence 5", "4 in all"]),
        (with(|i| i.documents[0] = 1), &["document 0 begins at sequence 1"]),
        (with(|i| i.documents = vec![0, 3, 2, 4]), &["document 2 begins at sequence 2, after 3"]),
        (with(|i| i.documents[2] = 3), &["does not end with the 4 sequences"]),
        (with(|i| i.documents.clear()), &["does not end with the 4 sequences"]),
        (offsets(|o| o[2] = 7), &["byte 66", "sequence 2 is said to lie at byte 7, not at 200"]),
        (offsets(|o| o[3] = -500), &["at byte -500"]),
        (good.bytes()[..20].to_vec(), &["t.idx, byte 20", "takes 34 bytes"]),
        (good.bytes()[..100].to_vec(), &["4 sequences and 3 entries of documents take 106 bytes", "has 100"]),
    ];
    for (index, parts) in cases {
        write(&folder, "t.idx", &index);
        says(&path, parts);
    }
    // Counts that no memory holds, in a file of a few bytes.
    let mut bytes = good.bytes();
    bytes[18..34].fill(0xff);
    write(&folder, "t.idx", &bytes);
    says(&path, &["18446744073709551615 sequences"]);
    fs::remove_file(&path).unwrap();
    says(&folder.path().join("t.idx"), &["index of Megatron, without the .bin"]);
}

#[test]
fn a_megatron_token_below_zero_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut tokens: Vec<i32> = (0..500).collect();
    tokens[300] = -2;
    let path = write(&folder, "t.bin", &words(tokens.into_iter().map(i32::to_le_bytes)));
    write(&folder, "t.idx", &Index::of(4, 4).bytes());
    says(&path, &["t.bin: token -2 at byte 1200 is below zero"]);
}

#[test]
fn sequences_are_cut_where_documents_begin() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "t.bin", &words((0..500_u16).map(u16::to_le_bytes)));
    let index = Index { lengths: [7, 0, 13, 9, 1].repeat(17)[..82].to_vec(), ..Index::of(8, 2) };
    let tokens: i32 = index.lengths.iter().sum();
    let mut index = Index { documents: (0..=82).filter(|i| i % 5 != 4).collect(), ..index };
    index.lengths[81] += 500 - tokens;
    // A document that begins with each sequence but those of one token, which go on with the one before.
    index.documents.dedup();
    let mut begins = vec![false; 501];
    let mut at = 0;
    for (number, length) in index.lengths.iter().enumerate() {
        begins[at] |= index.documents.contains(&(number as i64));
        at += *length as usize;
    }
    assert_eq!(at, 500);
    let path = folder.path().join("t");
    write(&folder, "t.idx", &index.bytes());
    let dataset = open(&path, 500).unwrap();
    let (mut ids, mut targets) = (vec![0; 16], vec![0; 16]);
    for number in 0..2 * dataset.epoch() {
        for end in [None, Some(77)] {
            let documents = dataset.packed_sample((3, number), end, &mut ids, &mut targets).unwrap();
            let start = ids[0] as usize;
            let border = |place: usize| begins[start + place] || end == Some((start + place) as u32 - 1);
            let positions: Vec<u32> = documents.positions().collect();
            for place in 0..16 {
                let first = place == 0 || border(place);
                assert_eq!(documents.bounds().contains(&(place as u32)), first, "token {place} from {start}");
                assert_eq!(positions[place], if first { 0 } else { positions[place - 1] + 1 });
                let target = (start + place + 1) as u32;
                assert_eq!(targets[place], if border(place + 1) { IGNORE } else { target });
            }
        }
    }
}
