//! Starting the ranks of a job as child processes of this one, and watching them.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::environment::{OURS, SECRET, foreign};
use super::rendezvous::{Rendezvous, Settings};
use super::secret::Secret;
use crate::CommError;
use crate::notice::Notices;

/// A connection that closes waits this long for the word of how its process ended, which says more.
const WORD: Duration = Duration::from_millis(700);
/// How often children are looked at where the kernel cannot tell when one ends.
const LOOK: Duration = Duration::from_millis(10);

/// Starts the ranks of a job on this host.
#[derive(Clone, Debug)]
pub struct Launcher {
    ranks: usize,
    grace: Duration,
}

impl Launcher {
    /// For a job of `ranks` processes.
    pub fn new(ranks: usize) -> Self {
        Self { ranks, grace: Duration::from_millis(1500) }
    }

    /// How long after the first failure the other ranks may end by themselves before they are killed; 1.5 s if not set.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Starts `command(rank)` for every rank, with the environment that [`from_env`](super::from_env) reads and a fresh
    /// secret added. The rendezvous runs in this process, on a port that the system chose. A child whose launcher dies
    /// ends by itself, within a second, if it has joined the job.
    ///
    /// # Errors
    /// [`CommError::Config`] for 0 ranks or more than [`MOST_RANKS`](super::MOST_RANKS), [`CommError::System`] if a process cannot be started; none is left then.
    pub fn start(self, mut command: impl FnMut(usize) -> Command) -> Result<Job, CommError> {
        super::check_world("this launch", self.ranks)?;
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| CommError::System {
            what: "opening a port for the rendezvous on 127.0.0.1".into(),
            reason: error.to_string(),
        })?;
        let (secret, notices) = (Secret::random()?, Notices::default());
        let settings = Settings { world: self.ranks, secret: secret.clone(), notices: notices.clone(), grace: WORD };
        let server = Rendezvous::open(listener, settings)?;
        let mut job = Job { children: Vec::new(), server, notices, grace: self.grace };
        for rank in 0..self.ranks {
            let mut command = command(rank);
            let program = command.get_program().to_string_lossy().into_owned();
            let values = [rank.to_string(), self.ranks.to_string(), rank.to_string(), job.server.address().to_string()];
            foreign().for_each(|name| {
                command.env_remove(name);
            });
            command.envs(OURS.iter().zip(values)).env(SECRET, secret.to_hex());
            // On an error `job` is dropped, which ends the ranks already started.
            let child = command.spawn().map_err(|error| CommError::System {
                what: format!("starting `{program}` as rank {rank} of {}", self.ranks),
                reason: error.to_string(),
            })?;
            job.children.push(Rank::new(child));
        }
        Ok(job)
    }
}

/// A running job. Dropping it kills what still runs.
pub struct Job {
    children: Vec<Rank>,
    server: Rendezvous,
    notices: Notices,
    grace: Duration,
}

/// One child process.
struct Rank {
    child: Child,
    /// Becomes readable when the child ends.
    ends: Option<OwnedFd>,
    status: Option<ExitStatus>,
    killed: bool,
}

impl Rank {
    fn new(child: Child) -> Self {
        let ends = Pid::from_raw(child.id() as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { child, ends, status: None, killed: false }
    }
}

/// How a job ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Every rank, in order.
    pub ranks: Vec<Ended>,
    /// The rank whose end was the first failure, as the cause of the others'; none if all succeeded.
    pub first_failure: Option<usize>,
    /// What the user should hear of: connections that were turned away, ranks that were refused.
    pub notices: Vec<String>,
}

impl Outcome {
    /// The first failure as a sentence: `rank 1 (process 4711) was killed by signal 9`.
    pub fn failure(&self) -> Option<String> {
        let rank = self.first_failure?;
        let Ended { process, status, .. } = self.ranks.get(rank)?;
        Some(format!("rank {rank} (process {process}) {}", how(*status)))
    }
}

/// How a rank ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Its process id.
    pub process: u32,
    /// Its status; 0 is success.
    pub status: ExitStatus,
    /// It did not end by itself in time after another had failed, and was killed for that.
    pub killed: bool,
}

/// What a status says, as a predicate.
fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(code)) => format!("ended with exit status {code}"),
        (None, None) => format!("ended: {status}"),
    }
}

impl Job {
    /// The process ids of the ranks, in order.
    pub fn processes(&self) -> Vec<u32> {
        self.children.iter().map(|rank| rank.child.id()).collect()
    }

    /// What the user should hear of so far.
    pub fn notices(&self) -> &Notices {
        &self.notices
    }

    /// Waits until all ranks have ended. When one fails, all others hear which and how, within a second, and get their
    /// grace to end; then they are killed.
    ///
    /// # Errors
    /// [`CommError::System`] if the system does not tell the status of a child.
    pub fn wait(mut self) -> Result<Outcome, CommError> {
        let mut first_failure = None;
        let mut kill_at: Option<Instant> = None;
        loop {
            let ended = self.reap()?;
            for rank in ended {
                let Some(status) = self.children[rank].status else { continue };
                // Also a success: a rank that never joined, or left without a goodbye, is missed by the others.
                self.server.ended(rank, format!("process {} {}", self.children[rank].child.id(), how(status)));
                if !status.success() && first_failure.is_none() {
                    first_failure = Some(rank);
                    kill_at = Some(Instant::now() + self.grace);
                }
            }
            if self.children.iter().all(|rank| rank.status.is_some()) {
                return Ok(self.outcome(first_failure));
            }
            match kill_at.map(|at| at.saturating_duration_since(Instant::now())) {
                Some(left) if left.is_zero() => {
                    self.kill();
                    kill_at = None;
                }
                left => self.rest(left),
            }
        }
    }

    /// The ranks that have ended since the last call; the killed ones first, since the others may have failed for them.
    fn reap(&mut self) -> Result<Vec<usize>, CommError> {
        let mut ended = Vec::new();
        for (index, rank) in self.children.iter_mut().enumerate().filter(|(_, rank)| rank.status.is_none()) {
            rank.status = rank.child.try_wait().map_err(|error| CommError::System {
                what: format!("the status of rank {index} (process {})", rank.child.id()),
                reason: error.to_string(),
            })?;
            if rank.status.is_some() {
                ended.push(index);
            }
        }
        let by_signal = |index: &usize| self.children[*index].status.is_some_and(|status| status.signal().is_some());
        ended.sort_by_key(|index| !by_signal(index));
        Ok(ended)
    }

    /// Sleeps until a child ends or the time is over; may return early.
    fn rest(&self, time: Option<Duration>) {
        let running = self.children.iter().filter(|rank| rank.status.is_none());
        let ends: Option<Vec<&OwnedFd>> = running.map(|rank| rank.ends.as_ref()).collect();
        let Some(ends) = ends else {
            return std::thread::sleep(time.map_or(LOOK, |time| time.min(LOOK)));
        };
        let mut watched: Vec<PollFd<'_>> = ends.into_iter().map(|end| PollFd::new(end, PollFlags::IN)).collect();
        let time = time.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() });
        let _ = poll(&mut watched, time.as_ref());
    }

    fn kill(&mut self) {
        for rank in self.children.iter_mut().filter(|rank| rank.status.is_none()) {
            // An error means that it has ended in this moment.
            rank.killed = rank.child.kill().is_ok();
        }
    }

    fn outcome(&self, first_failure: Option<usize>) -> Outcome {
        let ended = |rank: &Rank| {
            let (process, killed) = (rank.child.id(), rank.killed);
            rank.status.map(|status| Ended { process, status, killed })
        };
        let ranks = self.children.iter().filter_map(ended).collect();
        Outcome { ranks, first_failure, notices: self.notices.take() }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
        for rank in self.children.iter_mut().filter(|rank| rank.status.is_none()) {
            // A killed process ends at once; this takes its entry out of the system's table.
            let _ = rank.child.wait();
        }
    }
}
