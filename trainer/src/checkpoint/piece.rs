//! Pieces of tensors: which elements of a whole tensor something holds, and how others are put together from them.
//!
//! Ranks of any layout write pieces, and ranks of any other read what they need: elements meet by their index in the
//! whole tensor.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::tensor::Dtype;
use warpweft_device::{DType, Element};

use super::error::CheckpointError;
use super::held::{Held, Index};
use super::tensors::Tensors;
use super::write;
use crate::model::Stretch;

/// Bytes that nobody asked for, but that are read along rather than asked for twice.
const GAP: usize = 1 << 16;

/// What a rank holds of one tensor, copied out of the running model.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The whole tensor's name.
    pub name: String,
    /// Which of its elements.
    pub held: Held,
    /// Their type: `F32`, `BF16`, `F16`, `F64` or an integer.
    pub dtype: DType,
    /// The elements in the machine's (little-endian) order.
    pub bytes: Vec<u8>,
}

impl Piece {
    /// A copy of `elements`.
    pub fn new<T: Element>(name: impl Into<String>, held: Held, elements: &[T]) -> Self {
        Self { name: name.into(), held, dtype: T::DTYPE, bytes: bytemuck::cast_slice(elements).to_vec() }
    }

    /// Its sizes in a file.
    pub(super) fn stored_shape(&self) -> Vec<usize> {
        self.held.stored_shape()
    }
}

/// The text of the index of a file's pieces, by their names there: of those that are not whole tensors of that name.
pub(super) fn index_text(pieces: &[(String, &Piece)]) -> String {
    let entry = |(key, piece): &'_ (String, &Piece)| {
        let of = Some(piece.name.clone()).filter(|name| name != key);
        let whole = of.is_none() && piece.held == Held::whole(&piece.held.shape);
        (!whole).then(|| (key.clone(), piece.held.index(of)))
    };
    let index: BTreeMap<String, Index> = pieces.iter().filter_map(entry).collect();
    // Names and numbers always serialise.
    serde_json::to_string(&index).unwrap_or_default()
}

/// Where the elements of a piece are.
enum Data<'a> {
    Memory(&'a [u8]),
    /// From this byte of a tensor of a file on.
    File(&'a Tensors, String, usize),
    /// A matrix of this many columns in a file, whose transpose's elements are meant, from this one on.
    Turned(&'a Tensors, String, usize, usize),
}

struct Located<'a> {
    held: Held,
    dtype: Dtype,
    data: Data<'a>,
}

/// Pieces of tensors wherever they are, by the tensors' names.
pub struct Pieces<'a> {
    place: PathBuf,
    by_name: BTreeMap<String, Vec<Located<'a>>>,
}

impl<'a> Pieces<'a> {
    /// None yet; messages name `place`.
    pub(super) fn new(place: &Path) -> Self {
        Self { place: place.into(), by_name: BTreeMap::new() }
    }

    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    fn add(&mut self, name: String, located: Located<'a>) {
        self.by_name.entry(name).or_default().push(located);
    }

    /// Adds pieces that are in memory.
    pub(super) fn add_memory(&mut self, pieces: &'a [Piece]) {
        for Piece { name, held, dtype, bytes } in pieces {
            let (held, dtype) = (held.clone(), write::dtype(*dtype));
            self.add(name.clone(), Located { held, dtype, data: Data::Memory(bytes) });
        }
    }

    /// Adds the pieces of a file, as its index says.
    pub(super) fn add_file(&mut self, file: &'a Tensors) -> Result<(), CheckpointError> {
        let form = |what: String| {
            let (path, field) = (file.path().to_path_buf(), "index of the pieces".into());
            CheckpointError::Form { path, at: 8, field, what }
        };
        let text = file.index().unwrap_or("{}");
        let mut index: BTreeMap<String, Index> = serde_json::from_str(text).map_err(|e| form(e.to_string()))?;
        for name in file.names() {
            let (dtype, shape) = file.info(name)?;
            let (of, held) = match index.remove(name) {
                None => (None, Held::whole(shape)),
                Some(mut index) => {
                    let of = index.of.take();
                    let held = index.held();
                    (of, held.ok_or_else(|| form(format!("the ranges of `{name}` are not in its shape")))?)
                }
            };
            if held.len() != shape.iter().product::<usize>() {
                return Err(form(format!("{} elements of `{name}` have the shape {shape:?}", held.len())));
            }
            let located = Located { held, dtype, data: Data::File(file, name.into(), 0) };
            self.add(of.unwrap_or_else(|| name.into()), located);
        }
        Ok(())
    }

    /// Sizes of a whole tensor.
    ///
    /// # Errors
    /// A tensor that is not there.
    pub fn shape(&self, name: &str) -> Result<&[usize], CheckpointError> {
        Ok(&self.located(name)?[0].held.shape)
    }

    /// Adds some elements of a tensor that stand in a tensor of a file, from its element `first` on.
    pub(super) fn add_rows(
        &mut self,
        name: &str,
        held: Held,
        (file, tensor, first): (&'a Tensors, &str, usize),
    ) -> Result<(), CheckpointError> {
        let (dtype, _) = file.info(tensor)?;
        self.add(name.into(), Located { held, dtype, data: Data::File(file, tensor.into(), first) });
        Ok(())
    }

    /// The same of the transpose of a matrix.
    pub(super) fn add_columns(
        &mut self,
        name: &str,
        held: Held,
        (file, tensor, first): (&'a Tensors, &str, usize),
    ) -> Result<(), CheckpointError> {
        let (dtype, shape) = file.info(tensor)?;
        let columns = shape.last().copied().unwrap_or(1);
        self.add(name.into(), Located { held, dtype, data: Data::Turned(file, tensor.into(), columns, first) });
        Ok(())
    }

    fn located(&self, name: &str) -> Result<&[Located<'a>], CheckpointError> {
        let missing = || CheckpointError::Missing { path: self.place.clone(), tensor: name.into() };
        self.by_name.get(name).map(Vec::as_slice).filter(|pieces| !pieces.is_empty()).ok_or_else(missing)
    }

    /// The type of a tensor's elements.
    ///
    /// # Errors
    /// A tensor that is not there.
    pub(super) fn dtype(&self, name: &str) -> Result<Dtype, CheckpointError> {
        Ok(self.located(name)?[0].dtype)
    }

    /// Reads elements of a tensor, which have this type.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape or type, or not there in all its elements.
    pub fn read<T: Element>(&self, name: &str, wanted: &Held, into: &mut [T]) -> Result<(), CheckpointError> {
        let dtype = self.dtype(name)?;
        if write::dtype(T::DTYPE) != dtype {
            let (path, tensor, has) = (self.place.clone(), name.into(), format!("{dtype:?}").to_lowercase());
            return Err(CheckpointError::Type { path, tensor, has, wants: T::DTYPE });
        }
        self.read_bytes(name, wanted, bytemuck::cast_slice_mut(into))
    }

    /// Reads elements of a tensor as f32, of whichever float type they are.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_f32(&self, name: &str, wanted: &Held, into: &mut [f32]) -> Result<(), CheckpointError> {
        let dtype = self.dtype(name)?;
        let mut bytes = vec![0; into.len() * (dtype.bitsize() / 8)];
        self.read_bytes(name, wanted, &mut bytes)?;
        let convert: fn(&[u8]) -> f32 = match dtype {
            Dtype::F32 => |b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            Dtype::F64 => |b| f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f32,
            Dtype::BF16 => |b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32(),
            Dtype::F16 => |b| half::f16::from_le_bytes([b[0], b[1]]).to_f32(),
            _ => return self.read(name, wanted, into),
        };
        for (value, bytes) in into.iter_mut().zip(bytes.chunks_exact(dtype.bitsize() / 8)) {
            *value = convert(bytes);
        }
        Ok(())
    }

    /// The same as bytes, of whatever type.
    pub(super) fn read_bytes(&self, name: &str, wanted: &Held, into: &mut [u8]) -> Result<(), CheckpointError> {
        let (pieces, wanted_stretches) = (self.located(name)?, wanted.stretches());
        let mut found: Vec<Range<usize>> = Vec::new();
        for piece in pieces {
            let (path, tensor) = (self.place.clone(), name.to_owned());
            if piece.held.shape != wanted.shape {
                let (has, wants) = (piece.held.shape.clone(), wanted.shape.clone());
                return Err(CheckpointError::Shape { path, tensor, has, wants });
            }
            let size = piece.dtype.bitsize() / 8;
            let common = common(&piece.held.stretches(), &wanted_stretches, size);
            for run in runs(&common) {
                let bytes = piece.bytes(run[0].from..run[run.len() - 1].from + run[run.len() - 1].len)?;
                for Common { from, to, len } in run {
                    let from = from - run[0].from;
                    let (source, target) = (bytes.get(from..from + len), into.get_mut(*to..to + len));
                    let (Some(source), Some(target)) = (source, target) else {
                        let what = format!("{} bytes are not room for {}", into.len(), wanted.len());
                        return Err(CheckpointError::Snapshot { tensor, what });
                    };
                    target.copy_from_slice(source);
                    found.push(*to..to + len);
                }
            }
        }
        match first_gap(found, into.len()) {
            None => Ok(()),
            Some(at) => {
                let size = pieces[0].dtype.bitsize() / 8;
                let inside = wanted_stretches.iter().find(|s| (s.held..s.held + s.len).contains(&(at / size)));
                let at = inside.map_or(0, |s| s.whole + at / size - s.held);
                Err(CheckpointError::Incomplete { path: self.place.clone(), tensor: name.into(), at })
            }
        }
    }

    /// Checks that there is no tensor beyond those of `names`.
    ///
    /// # Errors
    /// The first one that is.
    pub fn expect_only<'b>(&self, names: impl IntoIterator<Item = &'b str>) -> Result<(), CheckpointError> {
        let known: std::collections::BTreeSet<&str> = names.into_iter().collect();
        match self.names().find(|name| !known.contains(name)) {
            Some(tensor) => Err(CheckpointError::Unexpected { path: self.place.clone(), tensor: tensor.into() }),
            None => Ok(()),
        }
    }
}

impl Located<'_> {
    /// Some of its bytes.
    fn bytes(&self, range: Range<usize>) -> Result<Cow<'_, [u8]>, CheckpointError> {
        let size = self.dtype.bitsize() / 8;
        match &self.data {
            Data::Memory(bytes) => Ok(Cow::Borrowed(&bytes[range])),
            Data::File(file, name, first) => {
                Ok(Cow::Owned(file.bytes(name, range.start + first * size..range.end + first * size)?))
            }
            Data::Turned(file, name, columns, first) => {
                let all = file.bytes(name, 0..file.size(name)?)?;
                Ok(Cow::Owned(
                    turned(&all, *columns, size)[range.start + first * size..range.end + first * size].to_vec(),
                ))
            }
        }
    }
}

/// The transpose of rows of `columns` elements of `size` bytes.
pub(super) fn turned(bytes: &[u8], columns: usize, size: usize) -> Vec<u8> {
    let mut result = Vec::with_capacity(bytes.len());
    for column in 0..columns {
        for row in bytes.chunks_exact(columns * size) {
            result.extend_from_slice(&row[column * size..(column + 1) * size]);
        }
    }
    result
}

/// Bytes that two pieces have in common: where they begin in each, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Common {
    from: usize,
    to: usize,
    len: usize,
}

fn common(from: &[Stretch], to: &[Stretch], size: usize) -> Vec<Common> {
    let (mut result, mut i, mut j) = (Vec::new(), 0, 0);
    while let (Some(a), Some(b)) = (from.get(i), to.get(j)) {
        let (a_end, b_end) = (a.whole + a.len, b.whole + b.len);
        let (start, end) = (a.whole.max(b.whole), a_end.min(b_end));
        if start < end {
            let (from, to) = (a.held + start - a.whole, b.held + start - b.whole);
            result.push(Common { from: from * size, to: to * size, len: (end - start) * size });
        }
        if a_end <= b_end {
            i += 1;
        } else {
            j += 1;
        }
    }
    result
}

/// Neighbours near enough to be read at once.
fn runs(common: &[Common]) -> impl Iterator<Item = &[Common]> {
    common.chunk_by(|a, b| b.from - (a.from + a.len) <= GAP)
}

/// The first of `len` bytes that no range has.
fn first_gap(mut ranges: Vec<Range<usize>>, len: usize) -> Option<usize> {
    ranges.sort_by_key(|range| range.start);
    let mut end = 0;
    for range in ranges {
        if range.start > end {
            break;
        }
        end = end.max(range.end);
    }
    (end < len).then_some(end)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init, reason = "ranges of a dimension, of which there may be one")]

    use super::*;
    use crate::model::Portion;

    fn held(shape: &[usize], dimension: usize, ranges: &[Range<usize>], part: Range<usize>) -> Held {
        let portion = Portion::whole(shape).only(dimension, ranges.to_vec());
        Held { shape: shape.to_vec(), portion, part }
    }

    #[test]
    fn any_pieces_make_any_other() {
        let shape = [4, 6];
        let whole: Vec<u16> = (0..24).collect();
        let pick = |held: &Held| -> Vec<u16> {
            held.stretches().iter().flat_map(|s| whole[s.whole..s.whole + s.len].to_vec()).collect()
        };
        // Columns shared out unevenly; of the second part the elements again in two shards that cut a row.
        let pieces = [
            held(&shape, 1, &[0..2, 4..5], 0..12),
            held(&shape, 1, &[2..4, 5..6], 0..5),
            held(&shape, 1, &[2..4, 5..6], 5..12),
        ];
        let pieces = pieces.map(|held| Piece::new("x", held.clone(), &pick(&held)));
        let mut all = Pieces::new(Path::new("somewhere"));
        all.add_memory(&pieces);
        for wanted in [
            Held::whole(&shape),
            Held::rows(&shape, 1..3),
            held(&shape, 1, &[1..6], 3..17),
            held(&shape, 0, &[0..1, 3..4], 0..12),
        ] {
            let mut into = vec![99u16; wanted.len()];
            all.read("x", &wanted, &mut into).unwrap();
            assert_eq!(into, pick(&wanted));
        }
        // Without the last shard, row 2 ends where its sixth element was.
        let mut some = Pieces::new(Path::new("somewhere"));
        some.add_memory(&pieces[..2]);
        let error = some.read("x", &Held::whole(&shape), &mut [0u16; 24]).unwrap_err();
        assert!(matches!(error, CheckpointError::Incomplete { at: 11, .. }), "{error:?}");
    }

    #[test]
    fn turned_twice_is_the_same() {
        let bytes: Vec<u8> = (0..24).collect();
        assert_eq!(turned(&bytes, 3, 4)[..8], [0, 1, 2, 3, 12, 13, 14, 15]);
        assert_eq!(turned(&turned(&bytes, 3, 4), 2, 4), bytes);
    }
}
