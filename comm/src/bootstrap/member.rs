//! A rank's connection to the rendezvous: the exchange over it, and the thread that hears of deaths on it.

use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::frame::{self, Frame, MOST_PART_BYTES};
use super::hello::{self, HelloError, Purpose};
use super::rendezvous::{Claim, Rendezvous};
use super::secret::Secret;
use super::{PING, SILENCE};
use crate::transport::Exchange;
use crate::wait::{Patience, deadline};
use crate::{Cause, CommError, Failure, Health, Verdict};

/// How often a waiting rank looks at the job's health.
const LOOK: Duration = Duration::from_millis(20);
/// The rendezvous names the missing at the deadline; only if it says nothing for this long the rank gives up by itself.
const SLACK: Duration = Duration::from_secs(2);
/// A process whose launcher has ended gets this long to end by itself.
const ORPHAN_GRACE: Duration = Duration::from_secs(1);

/// What a rank needs to join.
pub(super) struct Invitation {
    pub(super) rank: usize,
    pub(super) world: usize,
    /// `host:port` of the rendezvous.
    pub(super) rendezvous: String,
    pub(super) secret: Secret,
    pub(super) timeout: Duration,
    /// Whether the rendezvous is a launcher, without which this process must not go on; else it is rank 0.
    pub(super) launched: bool,
}

/// A rank that has joined. Dropping it is the orderly goodbye, except in a panic.
pub(super) struct Member {
    rank: usize,
    world: usize,
    round: u64,
    timeout: Duration,
    health: Health,
    address: SocketAddr,
    line: Arc<Line>,
    answers: Receiver<Frame>,
    monitor: Option<JoinHandle<()>>,
    /// Rank 0 under torchrun holds the server; it goes after the goodbye.
    _rendezvous: Option<Rendezvous>,
}

/// The connection, as its users share it.
struct Line {
    stream: TcpStream,
    writing: Mutex<()>,
    leaving: AtomicBool,
}

impl Line {
    fn send(&self, frame: &Frame) -> std::io::Result<()> {
        let _turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        frame::send(&self.stream, frame)
    }
}

impl Member {
    /// Finds the rendezvous, proves the secret and the claim, and starts to listen for deaths.
    pub(super) fn join(
        invitation: &Invitation,
        health: &Health,
        server: Option<Rendezvous>,
    ) -> Result<(Self, TcpStreamAddresses), CommError> {
        let stream = reach(invitation)?;
        let system = |error: std::io::Error| CommError::System {
            what: format!("talking to the rendezvous at {}", invitation.rendezvous),
            reason: error.to_string(),
        };
        let addresses = TcpStreamAddresses {
            own: stream.local_addr().map_err(system)?.ip(),
            rendezvous: stream.peer_addr().map_err(system)?.ip(),
        };
        stream.set_read_timeout(None).map_err(system)?;
        stream.set_write_timeout(Some(SILENCE)).map_err(system)?;
        let address = stream.peer_addr().map_err(system)?;
        let line = Arc::new(Line { stream, writing: Mutex::default(), leaving: AtomicBool::new(false) });
        let (deliver, answers) = channel();
        let monitor = Monitor { line: line.clone(), health: health.clone(), deliver, launched: invitation.launched };
        let thread = std::thread::Builder::new().name("warpweft-health".into());
        let monitor = thread.spawn(move || monitor.run()).map_err(system)?;
        let (rank, told) = (invitation.rank, Arc::downgrade(&line));
        health.on_report(move |verdict| {
            if let (Verdict::Aborted { by, .. }, Some(line)) = (verdict, told.upgrade())
                && *by == rank
            {
                // A failure means that the connection is gone, which the others hear of anyway.
                let _ = line.send(&Frame::Verdict(verdict.clone()));
            }
        });
        let member = Self {
            rank,
            world: invitation.world,
            round: 0,
            timeout: invitation.timeout,
            health: health.clone(),
            address,
            line,
            answers,
            monitor: Some(monitor),
            _rendezvous: server,
        };
        Ok((member, addresses))
    }

    fn failed(&self, peer: Option<usize>, cause: Cause) -> CommError {
        let (rank, world, address) = (self.rank, self.world, Some(self.address.to_string()));
        let address = address.filter(|_| matches!(cause, Cause::Link { .. } | Cause::Protocol { .. }));
        Failure { rank, world, operation: "bootstrap", sequence: 0, peer, address, cause }.into()
    }
}

/// The two addresses of the connection to the rendezvous.
pub(super) struct TcpStreamAddresses {
    pub(super) own: std::net::IpAddr,
    pub(super) rendezvous: std::net::IpAddr,
}

/// Connects and says hello; tries again while the rendezvous is not up yet.
fn reach(invitation: &Invitation) -> Result<TcpStream, CommError> {
    let Invitation { rank, world, rendezvous, secret, timeout, launched } = invitation;
    let deadline = deadline(*timeout);
    let claim = Claim { rank: *rank, world: *world, process: std::process::id() };
    let claim = serde_json::to_vec(&claim)
        .map_err(|error| CommError::System { what: "writing a claim".into(), reason: error.to_string() })?;
    let mut pause = Duration::from_millis(5);
    loop {
        match attempt(rendezvous, secret, &claim, deadline) {
            Ok(stream) => return Ok(stream),
            Err(HelloError::Refused(reason)) => {
                return Err(CommError::Config {
                    what: format!("the rendezvous at {rendezvous} refused rank {rank} of {world}: {reason}"),
                    fix: "give each process of the job its own rank, and all the same number of ranks".into(),
                });
            }
            // Nothing is listening yet, or a port that stopped answering: rank 0 may still come. A launcher would be there.
            Err(HelloError::Io(_) | HelloError::Late) if !launched && Instant::now() + pause < deadline => {}
            Err(error) => {
                return Err(CommError::Config {
                    what: format!("rank {rank} of {world} cannot join at {rendezvous}: {error}"),
                    fix: "check address and port, that rank 0 or the launcher runs, and that all share one secret"
                        .into(),
                });
            }
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(250));
    }
}

fn attempt(rendezvous: &str, secret: &Secret, claim: &[u8], deadline: Instant) -> Result<TcpStream, HelloError> {
    let io = |error: std::io::Error| HelloError::Io(error.to_string());
    let mut last = HelloError::Io("the name has no address".into());
    for address in rendezvous.to_socket_addrs().map_err(io)? {
        let left = deadline.saturating_duration_since(Instant::now()).max(LOOK);
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(io)?;
                hello::call(&stream, Purpose::Control, secret, claim, deadline)?;
                return Ok(stream);
            }
            Err(error) => last = io(error),
        }
    }
    Err(last)
}

impl Exchange for Member {
    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        if bytes.len() > MOST_PART_BYTES {
            return Err(CommError::Argument {
                operation: "exchange",
                what: format!("{} bytes were given, at most {MOST_PART_BYTES} are allowed", bytes.len()),
            });
        }
        let timeout_ms = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        let gather = Frame::Gather { round: self.round, timeout_ms, part: bytes.to_vec() };
        let start = Instant::now();
        // If the connection is gone, the monitor knows better than this error why.
        let sent = self.line.send(&gather);
        loop {
            match self.answers.recv_timeout(LOOK) {
                Ok(Frame::Gathered { round, parts }) if round == self.round && parts.len() == self.world => {
                    self.round += 1;
                    return Ok(parts);
                }
                Ok(Frame::Missing { round, ranks, after_ms }) if round == self.round => {
                    let after = Duration::from_millis(after_ms);
                    return Err(self.failed(ranks.first().copied(), Cause::Missing { ranks, after }));
                }
                // The answer to an exchange that has failed here already.
                Ok(Frame::Gathered { round, .. } | Frame::Missing { round, .. }) if round < self.round => {}
                Ok(other) => {
                    let what = format!("expected the parts of {} ranks, got {other:?}", self.world);
                    return Err(self.failed(None, Cause::Protocol { what }));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.health.check().map_err(|verdict| verdict.failure(self.rank, self.world, "bootstrap"))?;
                    let reason = sent.err().map_or("the rendezvous has left".to_owned(), |error| error.to_string());
                    return Err(self.failed(None, Cause::Link { reason }));
                }
            }
            self.health.check().map_err(|verdict| verdict.failure(self.rank, self.world, "bootstrap"))?;
            if start.elapsed() > self.timeout.saturating_add(SLACK) {
                return Err(self.failed(None, Cause::TimedOut { after: start.elapsed() }));
            }
        }
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.line.leaving.store(true, Ordering::Release);
        let last = if std::thread::panicking() {
            // Long before the process has unwound and ended, the others know.
            let how = format!("process {} panicked", std::process::id());
            Frame::Verdict(Verdict::Died { rank: self.rank, how })
        } else {
            Frame::Goodbye
        };
        // If it cannot be sent the connection is gone, which the others hear of too.
        let _ = self.line.send(&last);
        // Wakes the monitor, which sees that this was meant. What was sent still arrives.
        let _ = self.line.stream.shutdown(Shutdown::Both);
        if let Some(monitor) = self.monitor.take() {
            let _ = monitor.join();
        }
    }
}

/// The thread that listens on the connection.
struct Monitor {
    line: Arc<Line>,
    health: Health,
    deliver: Sender<Frame>,
    launched: bool,
}

impl Monitor {
    fn run(self) {
        let mut silence = Patience::looking_within(2 * PING);
        let lost = loop {
            if self.line.leaving.load(Ordering::Acquire) {
                return;
            }
            if !self.readable() {
                if silence.spent() > SILENCE {
                    break format!("silent for {} s", SILENCE.as_secs());
                }
                // If it cannot be sent, the next read says why.
                let _ = self.line.send(&Frame::Ping);
                continue;
            }
            silence = Patience::looking_within(2 * PING);
            match frame::receive_from_rendezvous(&self.line.stream) {
                Ok(Some(Frame::Verdict(verdict))) => self.health.report(verdict),
                Ok(Some(Frame::Pong)) => {}
                // It leaves in order: this rank may go on, unwatched.
                Ok(Some(Frame::Goodbye)) => return,
                Ok(Some(answer)) => {
                    // Without a receiver this rank is leaving.
                    let _ = self.deliver.send(answer);
                }
                Ok(None) => break "connection closed".to_owned(),
                Err(error) => break format!("connection closed: {error}"),
            }
        };
        if !self.line.leaving.load(Ordering::Acquire) {
            self.lost(lost);
        }
    }

    /// Waits for bytes, or for the time of the next ping.
    fn readable(&self) -> bool {
        let mut watched = [PollFd::new(&self.line.stream, PollFlags::IN)];
        let timeout = Timespec { tv_sec: PING.as_secs() as i64, tv_nsec: PING.subsec_nanos().into() };
        let _ = poll(&mut watched, Some(&timeout));
        !watched[0].revents().is_empty()
    }

    fn lost(self, how: String) {
        if !self.launched {
            return self.health.report(Verdict::Died { rank: 0, how });
        }
        self.health.report(Verdict::Orphaned { how });
        let end = Instant::now() + ORPHAN_GRACE;
        while Instant::now() < end {
            if self.line.leaving.load(Ordering::Acquire) {
                return;
            }
            std::thread::sleep(LOOK);
        }
        // The launcher is the only owner of this process: without it nobody would ever end it or read its results, and it
        // has had its time to leave by the error that all its waits give.
        std::process::exit(1);
    }
}
