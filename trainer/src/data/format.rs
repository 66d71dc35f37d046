//! How tokens lie in a file, found out from its first bytes where a format has a mark of its own, and from its name where
//! it has none.
//!
//! | format | mark | tokens |
//! |---|---|---|
//! | text | none | one byte each |
//! | nanoGPT's `.bin` | the name's ending | u16 |
//! | llm.c, version 1 (GPT-2) | word 20240520 | u16 after a header of 256 32-bit words: mark, version, count |
//! | llm.c, version 7 (Llama 3) | word 20240801 | u32 after the same header |
//! | Megatron | `MMIDIDX` in the `.idx` beside it (`megatron`) | u16 or i32 |
//!
//! All numbers are little-endian.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::error::{DataError, io_error};
use super::megatron;

const LLMC_MAGIC: u32 = 20_240_520;
const LLMC_WIDE_MAGIC: u32 = 20_240_801;
/// llm.c's files of multiple choices, and its weights in f32 and bf16: `.bin` files that hold no plain tokens.
const LLMC_OTHERS: [(u32, &str); 2] = [(20_240_522, "multiple-choice examples"), (20_240_326, "weights")];
const LLMC_HEADER_BYTES: u64 = 1024;

/// How a token lies in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// One byte, which is the token.
    Byte,
    /// Two bytes.
    U16,
    /// Four bytes.
    U32,
    /// Four bytes with a sign, which no token may have.
    I32,
}

impl Format {
    /// Bytes of a token.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Format::Byte => 1,
            Format::U16 => 2,
            Format::U32 | Format::I32 => 4,
        }
    }

    /// The largest token that it can hold.
    pub(super) fn largest(self) -> u32 {
        match self {
            Format::Byte => u8::MAX.into(),
            Format::U16 => u16::MAX.into(),
            Format::U32 => u32::MAX,
            Format::I32 => i32::MAX as u32,
        }
    }

    /// Tokens from their bytes, the first of which is byte `offset` of the file; each is checked against the vocabulary.
    pub(super) fn decode(
        self,
        bytes: &[u8],
        vocab: usize,
        into: &mut [u32],
        (path, offset): (&Path, u64),
    ) -> Result<(), DataError> {
        debug_assert_eq!(bytes.len(), into.len() * self.bytes() as usize);
        let places = into.iter_mut().zip(bytes.chunks_exact(self.bytes() as usize));
        for (token, bytes) in places {
            *token = match *bytes {
                [byte] => byte.into(),
                [low, high] => u16::from_le_bytes([low, high]).into(),
                [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
                _ => unreachable!("tokens are of 1, 2 or 4 bytes"),
            };
        }
        let Some(i) = into.iter().position(|token| *token as usize >= vocab) else { return Ok(()) };
        let (token, path, offset) = (into[i], path.into(), offset + i as u64 * self.bytes());
        Err(match self {
            Format::I32 if token > i32::MAX as u32 => DataError::Negative { path, offset, token: token as i32 },
            _ => DataError::OutsideVocabulary { path, offset, token, vocab },
        })
    }
}

/// Where the tokens of a file lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) format: Format,
    /// Bytes before the first token.
    pub(super) header: u64,
    pub(super) tokens: u64,
}

impl Layout {
    /// Text, from the first byte to the last.
    pub(super) fn text(bytes: u64) -> Self {
        Layout { format: Format::Byte, header: 0, tokens: bytes }
    }
}

/// Whether a name ends in `.bin`.
pub(super) fn is_bin(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("bin"))
}

/// The layout of a file of `bytes` bytes that has no index.
pub(super) fn detect(file: &File, path: &Path, bytes: u64) -> Result<Layout, DataError> {
    let mut start = [0_u8; 12];
    let start = &mut start[..bytes.min(12) as usize];
    file.read_exact_at(start, 0).map_err(|e| io_error(path, "read", e))?;
    let word = |i: usize| start.get(4 * i..4 * i + 4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
    let unsupported = |what: String, fix| Err(DataError::Unsupported { path: path.into(), what, fix });
    if start.starts_with(&megatron::MAGIC[..7]) {
        let fix = "name it as the .bin is named, with the ending .idx, and leave it beside that file";
        return unsupported("this is an index of Megatron, without the .bin of its name".into(), fix);
    }
    match word(0) {
        Some(LLMC_MAGIC) => return llmc(path, bytes, (Format::U16, 1), [word(1), word(2)]),
        Some(LLMC_WIDE_MAGIC) => return llmc(path, bytes, (Format::U32, 7), [word(1), word(2)]),
        first => {
            if let Some((_, what)) = LLMC_OTHERS.iter().find(|(magic, _)| first == Some(*magic)) {
                return unsupported(format!("this holds {what} of llm.c"), "give a file of tokens");
            }
        }
    }
    match is_bin(path) {
        true if !bytes.is_multiple_of(2) => Err(DataError::OddLength { path: path.into(), bytes }),
        true => Ok(Layout { format: Format::U16, header: 0, tokens: bytes / 2 }),
        false => Ok(Layout::text(bytes)),
    }
}

/// llm.c's header, whose count must be that of the file.
fn llmc(
    path: &Path,
    bytes: u64,
    (format, version): (Format, u32),
    [found, said]: [Option<u32>; 2],
) -> Result<Layout, DataError> {
    let malformed = |offset, what| Err(DataError::Malformed { path: path.into(), offset, what });
    let (Some(found), Some(said), Some(rest)) = (found, said, bytes.checked_sub(LLMC_HEADER_BYTES)) else {
        return malformed(bytes, format!("llm.c's header takes {LLMC_HEADER_BYTES} bytes, and the file ends here"));
    };
    if found != version {
        return malformed(4, format!("this is version {found} of llm.c's token file, and {version} is read"));
    }
    let wanted = u64::from(said) * format.bytes();
    if wanted != rest {
        let tokens = rest / format.bytes();
        let what = format!("the header says {said} tokens, {wanted} bytes, and there are {tokens} in {rest} bytes");
        return malformed(8, what);
    }
    Ok(Layout { format, header: LLMC_HEADER_BYTES, tokens: said.into() })
}
