//! The weights as others read them: whole tensors in one safetensors file, made of the parameters' rows, and read as
//! pieces of parameters again.

use std::ops::Range;
use std::path::Path;

use super::error::CheckpointError;
use super::held::Held;
use super::piece::{Pieces, turned};
use super::tensors::Tensors;

/// Rows of a parameter, or of the matrices that it is a stack of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The parameter's name.
    pub parameter: String,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Which: ranges of its first dimensions, all of the others.
    pub ranges: Vec<Range<usize>>,
}

impl Rows {
    fn held(&self) -> Held {
        let mut held = Held::whole(&self.shape);
        for (dimension, range) in self.ranges.iter().enumerate() {
            held.portion = held.portion.only(dimension, vec![range.clone()]);
        }
        held.part = 0..held.portion.len();
        held
    }
}

/// One tensor of the weights' file: rows of parameters one after the other, perhaps turned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Its name in the file.
    pub name: String,
    /// Its sizes there.
    pub shape: Vec<usize>,
    /// What it is made of.
    pub parts: Vec<Rows>,
    /// Whether the file has its transpose.
    pub turned: bool,
}

impl Whole {
    /// A parameter as it is.
    pub fn plain(name: &str, shape: &[usize]) -> Self {
        let rows = 0..shape.first().copied().unwrap_or(0);
        let part = Rows { parameter: name.into(), shape: shape.to_vec(), ranges: vec![rows] };
        Self { name: name.into(), shape: shape.to_vec(), parts: vec![part], turned: false }
    }

    /// Its bytes, put together from pieces of its parameters, and their type's name in safetensors.
    pub(super) fn assemble(&self, pieces: &Pieces<'_>) -> Result<Vec<u8>, CheckpointError> {
        let (mut bytes, mut size) = (Vec::new(), 1);
        for part in &self.parts {
            let (held, begun) = (part.held(), bytes.len());
            size = pieces.dtype(&part.parameter)?.bitsize() / 8;
            bytes.resize(begun + held.len() * size, 0);
            pieces.read_bytes(&part.parameter, &held, &mut bytes[begun..])?;
        }
        let columns = self.parts.first().map_or(1, |part| part.shape[1..].iter().product());
        Ok(if self.turned { turned(&bytes, columns, size) } else { bytes })
    }

    /// Adds what a file has of its parameters, under its name or `named`, to `pieces`. A file may have more rows than are
    /// wanted, where `padded`; then they are left out.
    fn find<'a>(
        &self,
        file: &'a Tensors,
        named: &str,
        padded: bool,
        pieces: &mut Pieces<'a>,
    ) -> Result<(), CheckpointError> {
        let (_, has) = file.info(named)?;
        let fits = has == self.shape
            || padded && has.len() == self.shape.len() && has[0] >= self.shape[0] && has[1..] == self.shape[1..];
        if !fits {
            let (path, tensor) = (file.path().to_path_buf(), named.to_owned());
            return Err(CheckpointError::Shape { path, tensor, has: has.to_vec(), wants: self.shape.clone() });
        }
        let mut first = 0;
        for part in &self.parts {
            let held = part.held();
            let elements = held.len();
            match self.turned {
                true => pieces.add_columns(&part.parameter, held, (file, named, first))?,
                false => pieces.add_rows(&part.parameter, held, (file, named, first))?,
            }
            first += elements;
        }
        Ok(())
    }
}

/// The parameters in the weights' file of a checkpoint, which has these tensors and no others.
pub(super) fn in_checkpoint<'a>(wholes: &[Whole], file: &'a Tensors) -> Result<Pieces<'a>, CheckpointError> {
    let mut pieces = Pieces::new(file.path());
    for whole in wholes {
        whole.find(file, &whole.name, false, &mut pieces)?;
    }
    let known: std::collections::BTreeSet<&str> = wholes.iter().map(|whole| whole.name.as_str()).collect();
    match file.names().find(|name| !known.contains(name)) {
        Some(tensor) => Err(CheckpointError::Unexpected { path: file.path().into(), tensor: tensor.into() }),
        None => Ok(pieces),
    }
}

/// Tensors that some programs write beside the weights, and that say nothing of them: attention masks, tables of angles.
const NO_WEIGHTS: [&str; 3] = [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"];

/// The vocabulary's tables, which may have more rows than there are tokens.
const TABLES: [&str; 3] = ["wte.weight", "embed_tokens.weight", "lm_head.weight"];

/// The table of positions, which may have more rows than a sequence has tokens.
const POSITIONS: &str = "wpe.weight";

/// The parameters in files from elsewhere, at `place`, and what a user should know of it. Names may lack the model's prefix;
/// rows past the vocabulary and the longest sequence are left out; an output projection that is the embedding may be there
/// once more.
pub(super) fn from_elsewhere<'a>(
    wholes: &[Whole],
    place: &Path,
    files: &'a [Tensors],
) -> Result<(Pieces<'a>, Vec<String>), CheckpointError> {
    let (mut pieces, mut notes) = (Pieces::new(place), Vec::new());
    let with = |name: &str| files.iter().find(|file| file.info(name).is_ok());
    let mut known = std::collections::BTreeMap::new();
    for whole in wholes {
        let short = whole.name.split_once('.').map_or("", |(_, rest)| rest);
        let found = with(&whole.name).map(|file| (file, whole.name.as_str())).or_else(|| Some((with(short)?, short)));
        let missing = || CheckpointError::Missing { path: place.into(), tensor: whole.name.clone() };
        let (file, named) = found.ok_or_else(missing)?;
        let past = match TABLES.iter().any(|table| whole.name.ends_with(table)) {
            true => Some("vocabulary"),
            false => whole.name.ends_with(POSITIONS).then_some("longest sequence"),
        };
        whole.find(file, named, past.is_some(), &mut pieces)?;
        let (_, has) = file.info(named)?;
        if let Some(past) = past.filter(|_| has != whole.shape) {
            let (rows, wants) = (has[0], whole.shape[0]);
            let left_out = rows - wants;
            notes.push(format!(
                "`{named}` has {rows} rows; the last {left_out} are past the {past} of {wants} and left out"
            ));
        }
        known.insert(named.to_owned(), file);
    }
    let others = files.iter().flat_map(|file| file.names().map(move |name| (file, name)));
    for (file, name) in others.filter(|(_, name)| !known.contains_key(*name)) {
        if NO_WEIGHTS.iter().any(|ending| name.ends_with(ending)) {
            continue;
        }
        let table = known.iter().find(|(known, _)| TABLES.iter().any(|table| known.ends_with(table)));
        match table {
            Some((table, at)) if name == "lm_head.weight" && same((file, name), (at, table))? => {
                notes.push(format!("`{name}` is `{table}` once more, as the model has it"));
            }
            _ => return Err(CheckpointError::Unexpected { path: file.path().into(), tensor: name.into() }),
        }
    }
    Ok((pieces, notes))
}

/// Whether two tensors are the same, element by element.
fn same((file, one): (&Tensors, &str), (at, other): (&Tensors, &str)) -> Result<bool, CheckpointError> {
    const AT_ONCE: usize = 1 << 20;
    if file.info(one)? != at.info(other)? {
        return Ok(false);
    }
    let size = file.size(one)?;
    for start in (0..size).step_by(AT_ONCE) {
        let range = start..size.min(start + AT_ONCE);
        if file.bytes(one, range.clone())? != at.bytes(other, range)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The pieces of all shards of a checkpoint's folder.
pub(crate) fn of_shards<'a>(folder: &Path, shards: &'a [Tensors]) -> Result<Pieces<'a>, CheckpointError> {
    let mut pieces = Pieces::new(folder);
    for shard in shards {
        pieces.add_file(shard)?;
    }
    Ok(pieces)
}
