//! What a run says of itself: the log, the events for TensorBoard, the trace, the lines on the terminal.

mod error;
pub mod events;
mod folder;
mod progress;
mod record;
pub mod trace;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

pub use error::ReportError;
use events::Events;
use folder::io_error;
pub use folder::{EVENTS_FOLDER, LOG_FILE, Resumed, prepare, prepare_file};
pub use progress::{Progress, bytes, grouped, memory_table, step_line};
pub use record::StepRecord;

/// Writes each step of a run to all its outputs. One rank of a run has it.
pub struct Reporter {
    log_path: PathBuf,
    log: File,
    events: Events,
    progress: Progress,
    steps: u64,
}

impl Reporter {
    /// Opens the outputs in `out`, which [`prepare`] made. A run that goes on keeps its log up to there. Where `out` holds
    /// another run, the log and the events of that one are replaced, and its checkpoints are set aside.
    ///
    /// # Errors
    /// What the file system says, with the path; a log that is none.
    pub fn open(
        out: &Path,
        steps: u64,
        resumed: Option<Resumed<'_>>,
        mut progress: Progress,
    ) -> Result<Self, ReportError> {
        // Read before anything is touched: a log that is none must stay as it is.
        let kept = folder::kept_log(resumed)?;
        if !resumed.is_some_and(|resumed| resumed.stays_in(out))
            && let Some(before) = folder::start(out)?
        {
            progress.note(&format!("the checkpoints of an earlier run are in {} now", before.display()))?;
        }
        let (log_path, log) = folder::open_log(out, &kept)?;
        let done = resumed.map(|resumed| resumed.step);
        let events = Events::create(out, done)?;
        progress.start(steps, done.unwrap_or(0));
        Ok(Self { log_path, log, events, progress, steps })
    }

    /// Reports one step. Its line is in the log when this returns.
    ///
    /// # Errors
    /// What the file system says, with the path.
    pub fn step(&mut self, record: &StepRecord) -> Result<(), ReportError> {
        let write = io_error(&self.log_path, "write");
        let mut line = match serde_json::to_vec(record) {
            Ok(line) => line,
            Err(e) => return Err(write(e.into())),
        };
        line.push(b'\n');
        // One write for the line: whoever reads along, or a kill, never meets half of one, short of a full disk.
        self.log.write_all(&line).map_err(write)?;
        self.events.step(record)?;
        self.progress.step(record, self.steps)
    }

    /// Ends the log with the digest of all weights and optimizer state after the last step.
    ///
    /// # Errors
    /// What the file system says, with the path.
    pub fn state(&mut self, sha256: &str, steps: u64) -> Result<(), ReportError> {
        let line = format!("{{\"state_sha256\": \"{sha256}\", \"steps\": {steps}}}\n");
        self.log.write_all(line.as_bytes()).map_err(io_error(&self.log_path, "write"))
    }

    /// Shows some other text, of one or more lines.
    ///
    /// # Errors
    /// What the sink says.
    pub fn note(&mut self, text: &str) -> Result<(), ReportError> {
        self.progress.note(text)
    }

    /// Ends the run: the last line names the files written, `others` among them, which are returned.
    ///
    /// # Errors
    /// What the sink or the file system says.
    pub fn finish(self, others: impl IntoIterator<Item = PathBuf>) -> Result<Vec<PathBuf>, ReportError> {
        self.log.sync_all().map_err(io_error(&self.log_path, "flush to the disk"))?;
        let mut files = vec![self.log_path, self.events.path().to_path_buf()];
        files.extend(others);
        let names: Vec<_> = files.iter().map(|path| path.display().to_string()).collect();
        self.progress.finish(&format!("wrote {}", names.join(", ")))?;
        Ok(files)
    }
}
