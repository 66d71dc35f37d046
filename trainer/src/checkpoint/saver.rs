//! The threads that write checkpoints while training goes on, one a rank, and what the ranks tell each other of them.
//!
//! Nobody waits for anybody while ranks write: at every [`Saver::poll`] they find out together whether all are done. An
//! error of one is then known to all, and ends all of them with the same words.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use warpweft_comm::{CommError, Communicator, Op};

use super::error::CheckpointError;
use super::write::{self, Seals};
use super::{FOLDER, Snapshot};
use crate::TrainError;

/// How often ranks that have nothing else to do ask whether all are done.
const PAUSE: Duration = Duration::from_millis(1);

type Job<R> = JoinHandle<Result<R, CheckpointError>>;

/// A checkpoint on its way to the disk.
enum Running {
    /// Every rank writes its own; rank 0 needs the rest of its snapshot later.
    Shards(Job<(Seals, Option<Snapshot>)>),
    /// Rank 0 completes it.
    Commit(Option<Job<PathBuf>>),
}

/// What a rank tells the others of its part.
#[derive(Serialize, Deserialize)]
enum Told {
    Wrote(Seals),
    Completed(Option<PathBuf>),
    Failed(String),
}

/// Writes the checkpoints of one run, one at a time, in the background. All ranks of a run have one and make the same calls.
pub struct Saver {
    checkpoints: PathBuf,
    ranks: Arc<Communicator>,
    running: Option<(u64, Running)>,
    newest: Option<PathBuf>,
}

impl Saver {
    /// For the run of this folder, which all of its ranks see; nothing is touched yet.
    pub fn new(run: &Path, ranks: Arc<Communicator>) -> Self {
        Self { checkpoints: run.join(FOLDER), ranks, running: None, newest: None }
    }

    /// Starts to write a snapshot; waits first for the one before it, if that is still being written.
    ///
    /// # Errors
    /// What went wrong with the one before it, on any rank; this one is then not written.
    pub fn save(&mut self, mut snapshot: Snapshot) -> Result<(), TrainError> {
        self.wait()?;
        let (checkpoints, step) = (self.checkpoints.clone(), snapshot.step);
        let place = (self.ranks.rank(), self.ranks.world());
        let job = self.start(move || {
            let seals = write::write_shards(&checkpoints, place, &snapshot)?;
            snapshot.optimizer = Vec::new();
            Ok((seals, (place.0 == 0).then_some(snapshot)))
        })?;
        self.running = Some((step, Running::Shards(job)));
        Ok(())
    }

    fn start<R: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<R, CheckpointError> + Send + 'static,
    ) -> Result<Job<R>, CheckpointError> {
        let spawned = std::thread::Builder::new().name("checkpoint".into()).spawn(job);
        let path = self.checkpoints.clone();
        spawned.map_err(|source| CheckpointError::Io { path, operation: "start a thread to write", source })
    }

    /// Finds out with all ranks whether their part of a checkpoint is written, and goes on with it if so; never waits for a
    /// disk. For every step.
    ///
    /// # Errors
    /// The failed write's, of whichever rank; a peer that died.
    pub fn poll(&mut self) -> Result<(), TrainError> {
        let Some((_, running)) = &self.running else { return Ok(()) };
        let done = match running {
            Running::Shards(job) => job.is_finished(),
            Running::Commit(job) => job.as_ref().is_none_or(JoinHandle::is_finished),
        };
        let mut busy = [u64::from(!done)];
        self.ranks.all_reduce(&mut busy[..], Op::Sum)?;
        if busy[0] == 0 { self.advance() } else { Ok(()) }
    }

    /// Waits for the write in progress and returns the newest checkpoint that this saver wrote.
    ///
    /// # Errors
    /// The failed write's, of whichever rank; a peer that died.
    pub fn finish(mut self) -> Result<Option<PathBuf>, TrainError> {
        self.wait()?;
        Ok(self.newest.take())
    }

    /// Waits for the write in progress, if there is one.
    ///
    /// # Errors
    /// The failed write's, of whichever rank; a peer that died.
    pub fn wait(&mut self) -> Result<(), TrainError> {
        while self.running.is_some() {
            self.poll()?;
            if self.running.is_some() {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// From one part of a write, which all ranks have done or failed at, to the next.
    fn advance(&mut self) -> Result<(), TrainError> {
        let Some((step, running)) = self.running.take() else { return Ok(()) };
        let (mine, snapshot) = match running {
            Running::Shards(job) => match join(job) {
                Ok((seals, snapshot)) => (Ok(Told::Wrote(seals)), snapshot),
                Err(error) => (Err(error), None),
            },
            Running::Commit(job) => (job.map(join).transpose().map(Told::Completed), None),
        };
        let told = self.tell(step, mine)?;
        let (mut files, mut completed) = (Seals::new(), None);
        for told in told {
            match told {
                Told::Wrote(seals) => files.extend(seals),
                Told::Completed(path) => completed = completed.or(path),
                // `tell` made it an error.
                Told::Failed(_) => {}
            }
        }
        if completed.is_some() {
            self.newest = completed;
            return Ok(());
        }
        let checkpoints = self.checkpoints.clone();
        let job = snapshot.map(|snapshot| self.start(move || write::commit(&checkpoints, &snapshot, files)));
        self.running = Some((step, Running::Commit(job.transpose()?)));
        Ok(())
    }

    /// Tells all ranks how it went here; gives what each told, or the first error.
    fn tell(&self, step: u64, mine: Result<Told, CheckpointError>) -> Result<Vec<Told>, TrainError> {
        let (mine, error) = match mine {
            Ok(told) => (told, None),
            Err(error) => (Told::Failed(error.to_string()), Some(error)),
        };
        let alone = self.ranks.world() == 1;
        let told = if alone { vec![mine] } else { exchange(&self.ranks, &mine, Told::Failed)? };
        let failed = told.iter().enumerate().find_map(|(rank, told)| match told {
            Told::Failed(what) => Some(CheckpointError::OnRank { rank, what: what.clone() }),
            _ => None,
        });
        let Some(reason) = error.filter(|_| alone).or(failed) else { return Ok(told) };
        if self.ranks.rank() == 0 {
            write::give_up(&self.checkpoints, step);
        }
        let previous = super::locate(&self.checkpoints).ok();
        Err(CheckpointError::NotWritten { step, reason: Box::new(reason), previous }.into())
    }
}

/// What each rank tells, by rank; `unread` is for one whose words cannot be read.
pub(crate) fn exchange<T: Serialize + DeserializeOwned>(
    ranks: &Communicator,
    mine: &T,
    unread: impl Fn(String) -> T,
) -> Result<Vec<T>, CommError> {
    // Names, numbers and text always serialise, and what was serialised is read again.
    let mine = serde_json::to_vec(mine).unwrap_or_default();
    let mut lengths = vec![0u64; ranks.world()];
    ranks.all_gather(&[mine.len() as u64][..], &mut lengths[..])?;
    let lengths: Vec<usize> = lengths.into_iter().map(|length| length as usize).collect();
    let mut all = vec![0u8; lengths.iter().sum()];
    ranks.all_gather_v(&mine[..], &mut all[..], &lengths)?;
    let mut rest = &all[..];
    let told = lengths.into_iter().map(|length| {
        let (text, after) = rest.split_at(length);
        rest = after;
        serde_json::from_slice(text).unwrap_or_else(|e| unread(format!("its report cannot be read: {e}")))
    });
    Ok(told.collect())
}

fn join<R>(job: Job<R>) -> Result<R, CheckpointError> {
    match job.join() {
        Ok(result) => result,
        // A panic of the writer is a defect of this program, to be seen as one.
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

impl Drop for Saver {
    /// What this rank is writing is written to its end, so that a run that ends early keeps its last checkpoint if all ranks
    /// had their part on the disk; a rank alone completes it.
    fn drop(&mut self) {
        if self.ranks.world() == 1 {
            let _ = self.wait();
        }
        match self.running.take() {
            Some((_, Running::Shards(job))) => drop(job.join()),
            Some((_, Running::Commit(Some(job)))) => drop(job.join()),
            _ => {}
        }
    }
}
