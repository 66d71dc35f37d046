//! What `ptx run` is to do: buffers, launches, dumps and settings. A job file holds it as JSON; the flags give the same.

use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::Value as Json;

use super::scalar::Scalar;

/// All of it. Paths are as written; [`Job::folder`] is where they start.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) folder: PathBuf,
    pub(super) device: String,
    pub(super) module: String,
    pub(super) buffers: Vec<(String, Memory)>,
    pub(super) launches: Vec<Launch>,
    /// Buffer and file.
    pub(super) dump: Vec<(String, String)>,
    /// Settings of the launches, by name.
    pub(super) settings: Vec<(&'static str, String)>,
}

/// A buffer.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Memory {
    /// The size of the file, where there is one and this is left out.
    pub(super) bytes: Option<u64>,
    /// `zero`, `poison` (no value) or a file.
    #[serde(default = "poison")]
    pub(super) init: String,
}

fn poison() -> String {
    "poison".to_owned()
}

/// A launch.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) kernel: String,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared: u32,
    pub(super) cluster: [u32; 3],
    pub(super) params: Vec<Param>,
}

/// A parameter.
#[derive(Clone, Debug)]
pub(super) enum Param {
    Scalar(Scalar),
    Pointer(Target),
    /// A struct: bytes, of which 8 at each place are overwritten by an address.
    Bytes(Vec<u8>, Vec<(usize, Target)>),
}

/// An address: that of a buffer, and bytes added.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) buffer: String,
    pub(super) offset: i64,
}

/// The file, as JSON has it.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default = "sm_80")]
    device: String,
    module: String,
    #[serde(default)]
    buffers: Entries<Memory>,
    launches: Vec<LaunchEntry>,
    #[serde(default)]
    dump: Entries<String>,
    check: Option<Json>,
    seed: Option<u64>,
    schedule: Option<String>,
    #[serde(rename = "async")]
    asynchrony: Option<String>,
    divergence: Option<String>,
    approx: Option<String>,
    numerics: Option<String>,
    limit: Option<u64>,
    workers: Option<u64>,
}

pub(super) fn sm_80() -> String {
    "sm_80".to_owned()
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct LaunchEntry {
    kernel: String,
    grid: Vec<u32>,
    block: Vec<u32>,
    #[serde(default)]
    shared: u32,
    #[serde(default)]
    cluster: Vec<u32>,
    #[serde(default)]
    params: Vec<Entries<Json>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PointerEntry {
    at: usize,
    ptr: String,
    #[serde(default)]
    offset: i64,
}

impl Job {
    /// Reads a job file. The error is a sentence that names the place in it.
    pub(super) fn read(path: &Path) -> Result<Job, String> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read job {shown}: {error}"))?;
        let file: File = serde_json::from_str(&text).map_err(|error| format!("job {shown}: {error}"))?;
        let folder = path.parent().map_or_else(PathBuf::new, Path::to_path_buf);
        Job::from_file(file, folder).map_err(|error| format!("job {shown}: {error}"))
    }

    fn from_file(file: File, folder: PathBuf) -> Result<Job, String> {
        let mut settings = Vec::new();
        let numbers = [("seed", file.seed), ("limit", file.limit), ("workers", file.workers)];
        settings.extend(numbers.into_iter().filter_map(|(key, value)| Some((key, value?.to_string()))));
        let words = [
            ("check", file.check.map(checks).transpose()?),
            ("schedule", file.schedule),
            ("async", file.asynchrony),
            ("divergence", file.divergence),
            ("approx", file.approx),
            ("numerics", file.numerics),
        ];
        settings.extend(words.into_iter().filter_map(|(key, value)| Some((key, value?))));
        let launches = file
            .launches
            .into_iter()
            .enumerate()
            .map(|(at, launch)| launch.resolve().map_err(|error| format!("launches[{at}]: {error}")));
        Ok(Job {
            folder,
            device: file.device,
            module: file.module,
            buffers: file.buffers.0,
            launches: launches.collect::<Result<_, _>>()?,
            dump: file.dump.0,
            settings,
        })
    }
}

/// `all`, `none`, or an array of names, as the setting spells it.
fn checks(value: Json) -> Result<String, String> {
    let wrong = || format!("check cannot be {value}: use \"all\", \"none\" or an array of names");
    match &value {
        Json::String(word) => Ok(word.clone()),
        Json::Array(names) if names.is_empty() => Ok("none".to_owned()),
        Json::Array(names) => {
            let names: Option<Vec<&str>> = names.iter().map(Json::as_str).collect();
            Ok(names.ok_or_else(wrong)?.join(","))
        }
        _ => Err(wrong()),
    }
}

impl LaunchEntry {
    fn resolve(self) -> Result<Launch, String> {
        let cluster = if self.cluster.is_empty() { [1; 3] } else { shape("cluster", &self.cluster)? };
        let params = self.params.into_iter().enumerate();
        let params = params.map(|(at, entry)| param(entry.0).map_err(|error| format!("params[{at}]: {error}")));
        Ok(Launch {
            grid: shape("grid", &self.grid)?,
            block: shape("block", &self.block)?,
            shared: self.shared,
            cluster,
            params: params.collect::<Result<_, _>>()?,
            kernel: self.kernel,
        })
    }
}

/// One to three extents; those left out are 1.
pub(super) fn shape(what: &str, extents: &[u32]) -> Result<[u32; 3], String> {
    match *extents {
        [x] => Ok([x, 1, 1]),
        [x, y] => Ok([x, y, 1]),
        [x, y, z] => Ok([x, y, z]),
        _ => Err(format!("{what} has {} numbers; 1 to 3 are possible", extents.len())),
    }
}

fn param(entry: Vec<(String, Json)>) -> Result<Param, String> {
    let get = |name: &str| entry.iter().find(|(key, _)| key == name).map(|(_, value)| value);
    let allowed: &[&str] = if get("ptr").is_some() {
        &["ptr", "offset"]
    } else if get("bytes").is_some() {
        &["bytes", "pointers"]
    } else {
        &Scalar::TYPES
    };
    if let Some((key, _)) = entry.iter().find(|(key, _)| !allowed.contains(&key.as_str())) {
        let scalars = Scalar::TYPES.join(", ");
        return Err(format!(
            "`{key}` does not belong here; a parameter is ptr (with offset), bytes (with pointers) or one of {scalars}"
        ));
    }
    if let Some(pointer) = get("ptr") {
        let buffer = pointer.as_str().ok_or_else(|| format!("ptr cannot be {pointer}: it names a buffer"))?;
        let offset = get("offset").map_or(Some(0), Json::as_i64).ok_or("offset is no whole number")?;
        return Ok(Param::Pointer(Target { buffer: buffer.to_owned(), offset }));
    }
    if let Some(text) = get("bytes") {
        let text =
            text.as_str().ok_or_else(|| format!("bytes cannot be {text}: it is a string of hexadecimal digits"))?;
        let pointers = get("pointers").cloned().unwrap_or(Json::Array(Vec::new()));
        let pointers: Vec<PointerEntry> =
            serde_json::from_value(pointers).map_err(|error| format!("pointers: {error}"))?;
        let places = pointers.into_iter().map(|entry| (entry.at, Target { buffer: entry.ptr, offset: entry.offset }));
        return raw(text, places.collect());
    }
    match entry.as_slice() {
        [(ty, value)] => Scalar::from_json(ty, value).map(Param::Scalar),
        [] => Err("it is empty; a parameter is ptr, bytes or a number such as {\"u32\": 128}".to_owned()),
        _ => Err(format!("it has {} values; a parameter has one", entry.len())),
    }
}

/// A struct parameter: its digits, and where addresses go.
pub(super) fn raw(digits: &str, places: Vec<(usize, Target)>) -> Result<Param, String> {
    let bytes = hexadecimal(digits)?;
    for (at, target) in &places {
        if at.checked_add(8).is_none_or(|end| end > bytes.len()) {
            let size = bytes.len();
            return Err(format!("the address of `{}` at byte {at} does not fit in {size} bytes", target.buffer));
        }
    }
    Ok(Param::Bytes(bytes, places))
}

fn hexadecimal(text: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace() && *c != '_')
        .map(|c| c.to_digit(16).map_or(255, |d| d as u8))
        .collect();
    if !digits.len().is_multiple_of(2) || digits.contains(&255) {
        return Err("bytes must be pairs of hexadecimal digits".to_owned());
    }
    Ok(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// A JSON object in the order of the file; a name that comes twice is an error.
struct Entries<T>(Vec<(String, T)>);

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Entries(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(EntriesVisitor(PhantomData))
    }
}

struct EntriesVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for EntriesVisitor<T> {
    type Value = Entries<T>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries: Vec<(String, T)> = Vec::new();
        while let Some((key, value)) = map.next_entry::<String, T>()? {
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(A::Error::custom(format!("`{key}` is there twice")));
            }
            entries.push((key, value));
        }
        Ok(Entries(entries))
    }
}
