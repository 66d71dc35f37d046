//! The thread that writes checkpoints while training goes on.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use super::error::CheckpointError;
use super::{FOLDER, Snapshot, write};

/// Writes the checkpoints of one run, one at a time, in the background.
pub struct Saver {
    checkpoints: PathBuf,
    running: Option<JoinHandle<Result<PathBuf, CheckpointError>>>,
    newest: Option<PathBuf>,
}

impl Saver {
    /// For the run of this folder; nothing is touched yet.
    pub fn new(run: &Path) -> Self {
        Self { checkpoints: run.join(FOLDER), running: None, newest: None }
    }

    /// Starts to write a snapshot; waits first for the one before it, if that is still being written.
    ///
    /// # Errors
    /// What went wrong with the one before it; this one is then not written.
    pub fn save(&mut self, snapshot: Snapshot) -> Result<(), CheckpointError> {
        self.wait()?;
        let checkpoints = self.checkpoints.clone();
        let job = move || {
            let step = snapshot.step;
            write::write(&checkpoints, &snapshot).map_err(|reason| CheckpointError::NotWritten {
                step,
                reason: Box::new(reason),
                previous: super::locate(&checkpoints).ok(),
            })
        };
        let spawned = std::thread::Builder::new().name("checkpoint".into()).spawn(job);
        let running = spawned.map_err(|source| CheckpointError::Io {
            path: self.checkpoints.clone(),
            operation: "start a thread to write",
            source,
        })?;
        self.running = Some(running);
        Ok(())
    }

    /// Says what went wrong with a write that has ended; never waits. For every step.
    ///
    /// # Errors
    /// The failed write's.
    pub fn poll(&mut self) -> Result<(), CheckpointError> {
        if self.running.as_ref().is_some_and(JoinHandle::is_finished) { self.wait() } else { Ok(()) }
    }

    /// Waits for the write in progress and returns the newest checkpoint that this saver wrote.
    ///
    /// # Errors
    /// The failed write's.
    pub fn finish(mut self) -> Result<Option<PathBuf>, CheckpointError> {
        self.wait()?;
        Ok(self.newest.take())
    }

    fn wait(&mut self) -> Result<(), CheckpointError> {
        let Some(running) = self.running.take() else { return Ok(()) };
        match running.join() {
            Ok(result) => self.newest = Some(result?),
            // A panic of the writer is a defect of this program, to be seen as one.
            Err(panic) => std::panic::resume_unwind(panic),
        }
        Ok(())
    }
}

impl Drop for Saver {
    /// A write in progress is finished, so that a run that ends early keeps its last checkpoint.
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = running.join();
        }
    }
}
