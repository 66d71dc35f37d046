//! Starting the ranks of a job, as processes or threads, or joining one that a launcher has started; and ending it with one
//! sentence, whatever went wrong on how many ranks.

use std::io::{self, PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use warpweft::comm::bootstrap::launch::Launcher;
use warpweft::comm::bootstrap::{self, Bootstrap};
use warpweft::comm::transport::TransportKind;

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

/// More ranks on one host than this are a slip of the finger.
const MOST_RANKS: usize = 4096;

/// The variable and the number of ranks by which a launcher says that it started this process.
pub(crate) fn launched() -> Option<(&'static str, usize)> {
    ["WARPWEFT_WORLD_SIZE", "WORLD_SIZE"].into_iter().find_map(|name| {
        let world = std::env::var(name).ok()?.trim().parse().ok()?;
        Some((name, world))
    })
}

impl Job {
    /// Runs `rank` on every rank: in this process where it is one of a launcher's, else in children or threads.
    pub(crate) fn run(&self, rank: impl Fn(Bootstrap) -> Result<(), Stop> + Sync) -> Result<(), Stop> {
        if let (Some(ranks), Some((variable, world))) = (self.ranks, launched())
            && ranks != world
        {
            let fix = format!("leave --ranks out, or start {ranks} ranks with the launcher");
            return Err(Stop::usage(format!("--ranks {ranks} contradicts {variable} = {world}; {fix}")));
        }
        if let Some(mut bootstrap) = bootstrap::from_env()? {
            bootstrap.timeout = self.timeout;
            let started_here = std::env::var_os("WARPWEFT_RANK").is_some();
            return rank(bootstrap).map_err(|stop| if started_here { stop.seen_by_parent() } else { stop });
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
        let Some(first) = outcome.first_failure else { return Ok(()) };
        // A status that is not that of a follower is an end of a rank's own.
        let own =
            |rank: usize| outcome.ranks[rank].status.code().filter(|code| ![0, ENDED_BY_PEER.into()].contains(code));
        // Rank 0 has said why on the terminal already.
        if let Some(code) = own(0) {
            return Err(Stop::Reported(u8::try_from(code).unwrap_or(1)));
        }
        let cause = if own(first).is_some() || outcome.ranks[first].status.code().is_none() {
            first
        } else {
            (0..ranks).find(|&rank| own(rank).is_some()).unwrap_or(first)
        };
        let sentence = said[cause].trim().trim_start_matches("warpweft: ");
        match own(cause) {
            Some(2) if !sentence.is_empty() => Err(Stop::usage(sentence)),
            Some(_) if !sentence.is_empty() => Err(Stop::failed(sentence)),
            _ => {
                let how = outcome.failure().unwrap_or_else(|| format!("rank {cause} failed"));
                Err(Stop::failed(format!("{how}; the other ranks have ended too, start the job again")))
            }
        }
    }
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
