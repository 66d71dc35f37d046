//! The folder of a run: whether it can be written, and what becomes of an earlier run's files in it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::error::ReportError;
use super::events;
use super::record::StepRecord;

/// The log of a run.
pub const LOG_FILE: &str = "log.jsonl";
/// The folder of the events for TensorBoard.
pub const EVENTS_FOLDER: &str = "tensorboard";
const CHECKPOINTS: &str = "checkpoints";
/// Where a new run in the same folder puts the checkpoints of the one before it.
const CHECKPOINTS_BEFORE: &str = "checkpoints.before";

pub(super) fn io_error(path: &Path, operation: &'static str) -> impl FnOnce(std::io::Error) -> ReportError + use<> {
    let path = path.to_path_buf();
    move |source| ReportError::Io { path, operation, source }
}

/// Creates the folder and writes and removes a small file in it: to be called before any data is read, so that a long
/// preparation does not end at a folder that cannot be written.
///
/// # Errors
/// The path and the operating system's reason.
pub fn prepare(out: &Path) -> Result<(), ReportError> {
    fs::create_dir_all(out).map_err(io_error(out, "create the output folder"))?;
    let probe = out.join(format!(".probe-{}", std::process::id()));
    let written = File::create(&probe).and_then(|mut file| file.write_all(b"warpweft\n"));
    let removed = fs::remove_file(&probe);
    written.and(removed).map_err(io_error(out, "write into the output folder"))
}

/// Checks in the same way that a single file (a trace) can be written; one that is there keeps its content.
///
/// # Errors
/// The path and the operating system's reason.
pub fn prepare_file(path: &Path) -> Result<(), ReportError> {
    let was_there = path.exists();
    File::options().create(true).append(true).open(path).map_err(io_error(path, "write"))?;
    if !was_there {
        fs::remove_file(path).map_err(io_error(path, "remove"))?;
    }
    Ok(())
}

/// Readies the folder for a run that was not in it: an earlier one's checkpoints are set aside (once: those set aside before are
/// removed), so that `--resume` can never mix the two; its log and events are replaced. Gives where the checkpoints are
/// now, if there were any.
pub(super) fn start(out: &Path) -> Result<Option<PathBuf>, ReportError> {
    let (checkpoints, before) = (out.join(CHECKPOINTS), out.join(CHECKPOINTS_BEFORE));
    let there = checkpoints.exists();
    if there {
        match fs::remove_dir_all(&before) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(io_error(&before, "remove")(e)),
            _ => {}
        }
        fs::rename(&checkpoints, &before).map_err(io_error(&checkpoints, "set aside"))?;
    }
    for entry in fs::read_dir(out.join(EVENTS_FOLDER)).into_iter().flatten().flatten() {
        if events::is_ours(&entry.file_name().to_string_lossy()) {
            fs::remove_file(entry.path()).map_err(io_error(&entry.path(), "remove"))?;
        }
    }
    Ok(there.then_some(before))
}

/// A run that goes on.
#[derive(Clone, Copy, Debug)]
pub struct Resumed<'a> {
    /// Steps done.
    pub step: u64,
    /// The folder of the run so far, whose log is gone on with; another one than the new output folder, perhaps.
    pub run: &'a Path,
}

impl Resumed<'_> {
    /// Whether the run goes on where it was.
    pub(super) fn stays_in(&self, out: &Path) -> bool {
        let real = |path: &Path| fs::canonicalize(path).ok();
        real(self.run).is_some_and(|run| real(out) == Some(run))
    }
}

/// The lines that a log begins with: none for a new run; for one that goes on, those of its steps so far.
///
/// A run that was killed may have left half a line at the end, which is dropped like the lines that will come again.
pub(super) fn kept_log(resumed: Option<Resumed<'_>>) -> Result<String, ReportError> {
    let Some(Resumed { step, run }) = resumed else { return Ok(String::new()) };
    let path = run.join(LOG_FILE);
    match File::open(&path) {
        Ok(file) => lines_up_to(&path, file, step),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(e) => Err(io_error(&path, "open")(e)),
    }
}

/// Opens the log, with the lines that it begins with.
pub(super) fn open_log(out: &Path, kept: &str) -> Result<(PathBuf, File), ReportError> {
    let path = out.join(LOG_FILE);
    let partial = out.join(format!(".{LOG_FILE}.partial"));
    let mut file = File::create(&partial).map_err(io_error(&partial, "create"))?;
    file.write_all(kept.as_bytes()).map_err(io_error(&partial, "write"))?;
    fs::rename(&partial, &path).map_err(io_error(&path, "replace"))?;
    Ok((path, file))
}

fn lines_up_to(path: &Path, file: File, step: u64) -> Result<String, ReportError> {
    let mut kept = String::new();
    let mut torn: Option<ReportError> = None;
    for (index, line) in BufReader::new(file).split(b'\n').enumerate() {
        let line = line.map_err(io_error(path, "read"))?;
        // Only the last line may be half a line.
        if let Some(error) = torn.take() {
            return Err(error);
        }
        match serde_json::from_slice::<StepRecord>(&line) {
            Ok(record) if record.step <= step => {
                kept.push_str(&String::from_utf8_lossy(&line));
                kept.push('\n');
            }
            Ok(_) => {}
            Err(source) => torn = Some(ReportError::Log { path: path.into(), line: index + 1, source }),
        }
    }
    Ok(kept)
}
