//! Starting the ranks of a job, as processes or threads, or joining one that a launcher has started; and ending it with one
//! sentence, whatever went wrong on how many ranks.

use std::io::{self, PipeReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use warpweft::comm::bootstrap::launch::{Ended, Launcher, Outcome};
use warpweft::comm::bootstrap::{self, Bootstrap, Launched, MOST_RANKS};
use warpweft::comm::transport::TransportKind;
use warpweft::comm::{CommError, Communicator, Options, Verdict};

use super::stop::{ENDED_BY_PEER, Stop};

/// What a local rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Launch {
    /// A child process each.
    Processes,
    /// A thread of this process each.
    Threads,
}

/// A job to be run.
pub(crate) struct Job {
    /// Ranks asked for; `None` leaves it to a launcher's environment, or is `usual_ranks`.
    pub(crate) ranks: Option<usize>,
    /// Ranks where nobody asks.
    pub(crate) usual_ranks: usize,
    /// What carries the bytes.
    pub(crate) transport: TransportKind,
    /// What a rank is; `None` is what the transport needs, or processes.
    pub(crate) launch: Option<Launch>,
    /// How long a rank waits for another.
    pub(crate) timeout: Duration,
}

impl Job {
    /// Runs `rank` on every rank: in this process where it is one of a launcher's, else in children or threads.
    pub(crate) fn run(&self, rank: impl Fn(Bootstrap) -> Result<(), Stop> + Sync) -> Result<(), Stop> {
        let launched = bootstrap::launched()?;
        if let (Some(ranks), Some(Launched { variable, world, .. })) = (self.ranks, launched)
            && ranks != world
        {
            let fix = format!("leave --ranks out, or start {ranks} ranks with the launcher");
            return Err(Stop::usage(format!("--ranks {ranks} contradicts {variable} = {world}; {fix}")));
        }
        if let Some(bootstrap) = bootstrap::from_env_within(self.timeout)? {
            let started_here = launched.is_some_and(|launched| launched.by_us);
            let (number, health) = (bootstrap.rank, bootstrap.health.clone());
            return rank(bootstrap).map_err(|stop| {
                let watched = started_here && !matches!(health.check(), Err(Verdict::Orphaned { .. }));
                if watched { stop.seen_by_parent(number) } else { stop }
            });
        }
        let ranks = self.ranks.unwrap_or(self.usual_ranks);
        if ranks == 0 || ranks > MOST_RANKS {
            return Err(Stop::usage(format!("--ranks {ranks}: a job has 1 to {MOST_RANKS} ranks")));
        }
        match (self.launch, self.transport) {
            (Some(Launch::Processes), TransportKind::Thread) => Err(Stop::usage(
                "--launch processes contradicts --transport thread, which needs threads of one process; leave one of them out",
            )),
            _ if ranks == 1 => rank(Bootstrap::alone()),
            (Some(Launch::Threads), _) | (None, TransportKind::Thread) => self.threads(ranks, rank),
            _ => self.processes(ranks),
        }
    }

    fn threads(&self, ranks: usize, rank: impl Fn(Bootstrap) -> Result<(), Stop> + Sync) -> Result<(), Stop> {
        let stops = Mutex::new(Vec::new());
        let note = |stop| stops.lock().unwrap_or_else(PoisonError::into_inner).push(stop);
        let bootstraps = bootstrap::threads(ranks)?;
        thread::scope(|scope| -> Result<(), Stop> {
            let mut handles = Vec::new();
            for mut bootstrap in bootstraps {
                bootstrap.timeout = self.timeout;
                let number = bootstrap.rank;
                let (rank, note) = (&rank, &note);
                let work = move || rank(bootstrap).unwrap_or_else(note);
                let builder = thread::Builder::new().name(format!("rank-{number}"));
                // The ranks already started are told by the health that all share: their peers' seats are dropped.
                let handle = builder.spawn_scoped(scope, work);
                handles.push((number, handle.map_err(|error| Stop::failed(format!("rank {number}: {error}")))?));
            }
            for (number, handle) in handles {
                if handle.join().is_err() {
                    note(Stop::failed(format!("rank {number} of {ranks} ended by a defect; see above")));
                }
            }
            Ok(())
        })?;
        // In the order of their time; the first that does not merely follow from another rank's is the cause.
        let mut stops = stops.into_inner().unwrap_or_else(PoisonError::into_inner);
        let cause = stops.iter().position(|stop| !matches!(stop, Stop::Peer(_))).unwrap_or(0);
        if stops.is_empty() { Ok(()) } else { Err(stops.swap_remove(cause)) }
    }

    /// Starts this program again as each rank. Rank 0 has the terminal; what the others have to say is kept, and shown
    /// when it is the cause of the end.
    fn processes(&self, ranks: usize) -> Result<(), Stop> {
        let program = std::env::current_exe().map_err(|error| Stop::failed(format!("cannot find myself: {error}")))?;
        let mut said: Vec<Option<PipeReader>> = Vec::new();
        let mut no_pipe = None;
        let job = Launcher::new(ranks).start(|rank| {
            let mut command = Command::new(&program);
            let mut arguments = std::env::args_os();
            // Under the same name, which may be that of one of nccl-tests' programs.
            if let Some(name) = arguments.next() {
                command.arg0(name);
            }
            command.args(arguments).stdin(Stdio::null());
            command.env("WARPWEFT_TIMEOUT", self.timeout.as_secs_f64().to_string());
            if rank == 0 {
                said.push(None);
                return command;
            }
            command.stdout(Stdio::null());
            match io::pipe() {
                Ok((reader, writer)) => {
                    command.stderr(writer);
                    said.push(Some(reader));
                }
                Err(error) => {
                    command.stderr(Stdio::null());
                    said.push(None);
                    no_pipe = Some(error);
                }
            }
            command
        })?;
        if let Some(error) = no_pipe {
            return Err(Stop::failed(format!("cannot make a pipe for {ranks} ranks: {error}; raise `ulimit -n`")));
        }
        let listeners: Vec<_> =
            said.into_iter().map(|reader| thread::spawn(move || reader.map(kept).unwrap_or_default())).collect();
        let outcome = job.wait()?;
        let said: Vec<String> = listeners.into_iter().map(|said| said.join().unwrap_or_default()).collect();
        for notice in &outcome.notices {
            Stop::note(notice);
        }
        end(&outcome, &said)
    }
}

/// Connects the ranks. What the user should hear of although it works is said once for the job.
pub(crate) fn connect(bootstrap: Bootstrap, transport: TransportKind) -> Result<Communicator, CommError> {
    let (rank, notices) = (bootstrap.rank, bootstrap.site.notices.clone());
    let connected = Communicator::new(bootstrap, Options { transport, ..Options::default() });
    if rank == 0 {
        notices.take().iter().for_each(|notice| Stop::note(notice));
    }
    connected
}

/// Why a job of processes ended. `said` is what each rank wrote to standard error, but rank 0, which wrote to the terminal.
fn end(outcome: &Outcome, said: &[String]) -> Result<(), Stop> {
    let Some(first) = outcome.first_failure else { return Ok(()) };
    let ranks = &outcome.ranks;
    // A status that is not that of a follower is an end of a rank's own, and so is a signal that was not ours.
    let own = |rank: usize| ranks[rank].status.code().filter(|code| ![0, ENDED_BY_PEER.into()].contains(code));
    let struck = |rank: usize| ranks[rank].status.code().is_none() && !ranks[rank].killed;
    // Rank 0 has said why already.
    if let Some(code) = own(0) {
        return Err(Stop::Reported(u8::try_from(code).unwrap_or(1)));
    }
    let any = |is: &dyn Fn(usize) -> bool| std::iter::once(first).chain(0..ranks.len()).find(|&rank| is(rank));
    let sentence = |rank: usize| said[rank].trim().trim_start_matches("warpweft: ");
    let others = "the other ranks have ended too, start the job again";
    if let Some(rank) = any(&|rank| struck(rank) || own(rank).is_some() && !sentence(rank).is_empty()) {
        let Ended { process, status, .. } = ranks[rank];
        return Err(match status.signal() {
            Some(signal) => {
                Stop::failed(format!("rank {rank} (process {process}) was killed by signal {signal}; {others}"))
            }
            None if own(rank) == Some(2) => Stop::usage(sentence(rank)),
            None => Stop::failed(sentence(rank)),
        });
    }
    // All that ended by themselves did so for another one's sake, and some say whose; else it is the one that did not end.
    if let Some(rank) = any(&|rank| !sentence(rank).is_empty()) {
        return Err(Stop::failed(sentence(rank)));
    }
    if let Some(rank) = any(&|rank| ranks[rank].status.code().is_none()) {
        let process = ranks[rank].process;
        let why = "did not answer and did not end when the job did, so it was killed";
        return Err(Stop::failed(format!("rank {rank} (process {process}) {why}; {others}")));
    }
    Err(Stop::failed(format!("{}; {others}", outcome.failure().unwrap_or_else(|| format!("rank {first} failed")))))
}

/// The last words of a rank: what it writes to standard error, of which the end counts.
fn kept(mut reader: PipeReader) -> String {
    const MOST: usize = 16 << 10;
    let (mut kept, mut block) = (Vec::new(), [0; 4096]);
    while let Ok(len @ 1..) = reader.read(&mut block) {
        kept.extend_from_slice(&block[..len]);
        if kept.len() > MOST {
            kept.drain(..kept.len() - MOST);
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::*;

    /// A rank that ended with this status.
    fn exit(code: i32) -> Ended {
        Ended { process: 4700, status: ExitStatus::from_raw(code << 8), killed: false }
    }

    /// A rank that a signal ended: ours to one that would not end, or somebody else's.
    fn signal(number: i32, ours: bool) -> Ended {
        Ended { process: 4711, status: ExitStatus::from_raw(number), killed: ours }
    }

    fn ended(first: usize, ranks: &[Ended], said: &[&str]) -> Result<(), Stop> {
        let outcome = Outcome { ranks: ranks.to_vec(), first_failure: Some(first), notices: Vec::new() };
        let said: Vec<String> = said.iter().map(|said| (*said).to_owned()).collect();
        end(&outcome, &said)
    }

    fn sentence(ended: Result<(), Stop>) -> String {
        match ended {
            Err(Stop::Failed(sentence)) => sentence,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_rank_that_was_killed_is_named_whoever_was_seen_to_end_first() {
        for first in [0, 1, 2] {
            let said = sentence(ended(first, &[exit(3), signal(9, false), exit(3)], &["", "", "rank 1 died"]));
            assert!(said.contains("rank 1 (process 4711) was killed by signal 9"), "{said}");
        }
    }

    #[test]
    fn what_a_rank_says_of_its_own_end_is_passed_on_with_its_status() {
        let usage = ended(2, &[exit(3), exit(3), exit(2)], &["", "rank 2 died", "warpweft: wrong input\n"]);
        assert!(matches!(usage, Err(Stop::Usage(said)) if said == "wrong input"));
        assert_eq!(sentence(ended(1, &[exit(3), exit(1)], &["", "warpweft: disk full"])), "disk full");
        assert!(matches!(ended(1, &[exit(2), exit(3)], &["", "rank 0 died"]), Err(Stop::Reported(2))));
    }

    #[test]
    fn a_rank_that_no_longer_answered_is_named_and_not_the_one_that_noticed() {
        let said = sentence(ended(0, &[exit(3), signal(9, true)], &["", ""]));
        assert!(said.starts_with("rank 1 (process 4711) did not answer"), "{said}");
        let said = sentence(ended(0, &[exit(3), exit(3), signal(9, true)], &["", "warpweft: rank 2 was silent", ""]));
        assert_eq!(said, "rank 2 was silent");
        let said = sentence(ended(0, &[exit(3), exit(3)], &["", ""]));
        assert!(said.contains("rank 0 (process 4700) ended with exit status 3"), "{said}");
    }
}
