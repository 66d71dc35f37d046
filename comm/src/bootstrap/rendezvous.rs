//! The server where the ranks of a job meet. It checks who they say they are, passes their exchanges on, and keeps the
//! connections: one that closes without a goodbye is a rank that died, and all others hear of it at once.
//!
//! One thread decides; a thread for each connection only reads and hands on.

use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::door::Door;
use super::frame::{self, Frame};
use super::hello::{Guest, Purpose};
use super::secret::Secret;
use super::{PING, SILENCE};
use crate::notice::Notices;
use crate::wait::Patience;
use crate::{CommError, Verdict};

/// A rank whose connection takes no bytes for this long counts as dead.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// What a rank says it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Claim {
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) process: u32,
}

/// How a server behaves.
pub(super) struct Settings {
    pub(super) world: usize,
    pub(super) secret: Secret,
    pub(super) notices: Notices,
    /// How long a closed connection waits for [`Rendezvous::ended`] to say how its process ended; zero if nobody will.
    pub(super) grace: Duration,
}

/// A running server. Dropping it tells all ranks that it leaves in order.
pub(super) struct Rendezvous {
    events: Sender<Event>,
    decider: Option<JoinHandle<()>>,
    address: std::net::SocketAddr,
    _door: Door,
}

enum Event {
    Guest(Guest),
    Frame(usize, Frame),
    /// The connection of a rank ended, and how.
    Closed(usize, String),
    /// The process of a rank ended, and how.
    Ended(usize, String),
    /// The server ends: with a verdict, or in order.
    Stop(Option<Verdict>),
}

impl Rendezvous {
    pub(super) fn open(listener: TcpListener, settings: Settings) -> Result<Self, CommError> {
        let (events, inbox) = channel();
        let deliver = events.clone();
        let (secret, notices) = (settings.secret.clone(), settings.notices.clone());
        let door = Door::open(listener, Purpose::Control, secret, notices, move |guest| {
            // The server has ended: the guest is hung up on.
            let _ = deliver.send(Event::Guest(guest));
        })?;
        let state = State::new(settings, events.clone());
        let thread = std::thread::Builder::new().name("warpweft-rendezvous".into());
        let decider = thread.spawn(move || state.run(&inbox)).map_err(|error| CommError::System {
            what: "starting the thread of the rendezvous".into(),
            reason: error.to_string(),
        })?;
        Ok(Self { events, decider: Some(decider), address: door.address(), _door: door })
    }

    pub(super) fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    /// The process of a rank has ended. Harmless if the rank had said goodbye.
    pub(super) fn ended(&self, rank: usize, how: String) {
        let _ = self.events.send(Event::Ended(rank, how));
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        let panicked = || Verdict::Died { rank: 0, how: "its thread panicked".into() };
        let _ = self.events.send(Event::Stop(std::thread::panicking().then(panicked)));
        if let Some(decider) = self.decider.take() {
            let _ = decider.join();
        }
    }
}

/// What the server knows of a rank.
#[derive(Default)]
enum Place {
    #[default]
    Absent,
    Present(Member),
    /// It said goodbye.
    Left,
    Dead,
}

struct Member {
    stream: TcpStream,
    who: String,
    /// When something came last, as the server's patience counts.
    heard: Duration,
    part: Option<Vec<u8>>,
    end: End,
}

/// The signs that a rank has ended. Two come, in any order: its connection closes, and its launcher, if it has one, says
/// how its process ended. Only after the close it is certain that no goodbye is still on its way.
#[derive(Default)]
struct End {
    closed: bool,
    told: bool,
    /// When one sign alone must do, and what it says.
    due: Option<(Instant, String)>,
}

struct State {
    settings: Settings,
    events: Sender<Event>,
    places: Vec<Place>,
    patience: Patience,
    round: u64,
    /// When the running exchange fails, and the timeout behind that.
    deadline: Option<(Instant, Duration)>,
    verdict: Option<Verdict>,
}

impl State {
    fn new(settings: Settings, events: Sender<Event>) -> Self {
        let places = (0..settings.world).map(|_| Place::default()).collect();
        Self {
            settings,
            events,
            places,
            patience: Patience::looking_within(2 * PING),
            round: 0,
            deadline: None,
            verdict: None,
        }
    }

    fn run(mut self, inbox: &Receiver<Event>) {
        loop {
            let wait = self.next_look().saturating_duration_since(Instant::now());
            match inbox.recv_timeout(wait) {
                Ok(Event::Guest(guest)) => self.admit(guest),
                Ok(Event::Frame(rank, frame)) => self.hear(rank, frame),
                Ok(Event::Closed(rank, how)) => self.closed(rank, how),
                Ok(Event::Ended(rank, how)) => self.process_ended(rank, how),
                Ok(Event::Stop(verdict)) => {
                    let last = verdict.map_or(Frame::Goodbye, Frame::Verdict);
                    self.tell_all(&last);
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look();
        }
    }

    fn members(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.places.iter().enumerate().filter_map(|(rank, place)| match place {
            Place::Present(member) => Some((rank, member)),
            _ => None,
        })
    }

    fn member(&mut self, rank: usize) -> Option<&mut Member> {
        match self.places.get_mut(rank) {
            Some(Place::Present(member)) => Some(member),
            _ => None,
        }
    }

    /// When something is due even if nothing comes.
    fn next_look(&self) -> Instant {
        let closed = self.members().filter_map(|(_, member)| member.end.due.as_ref().map(|(due, _)| *due));
        let gather = self.deadline.iter().map(|(due, _)| *due);
        let soonest = Instant::now() + PING;
        closed.chain(gather).fold(soonest, Instant::min)
    }

    /// Acts on what has become due.
    fn look(&mut self) {
        let (now, spent) = (Instant::now(), self.patience.spent());
        let due = |(rank, member): (usize, &Member)| match &member.end.due {
            Some((due, how)) => (member.end.closed && member.end.told || now >= *due).then(|| (rank, how.clone())),
            None if spent.saturating_sub(member.heard) > SILENCE => {
                Some((rank, format!("it has been silent for {} s", SILENCE.as_secs())))
            }
            None => None,
        };
        let dead: Vec<(usize, String)> = self.members().filter_map(due).collect();
        dead.into_iter().for_each(|(rank, how)| self.died(rank, &how));
        if let Some((_, after)) = self.deadline.filter(|(due, _)| now >= *due) {
            self.deadline = None;
            let came = |rank: &usize| !self.members().any(|(other, member)| other == *rank && member.part.is_some());
            let ranks = (0..self.settings.world).filter(came).collect();
            let missing = Frame::Missing { round: self.round, ranks, after_ms: after.as_millis() as u64 };
            self.tell(&missing, |member| member.part.take().is_some());
        }
    }

    fn admit(&mut self, guest: Guest) {
        let address = guest.stream.peer_addr().map_or_else(|error| error.to_string(), |peer| peer.to_string());
        match self.judge(&guest.claim) {
            Err(reason) => {
                self.settings.notices.add(format!("a rank was refused: {reason}"));
                guest.refuse(&reason);
            }
            Ok(claim) => match guest.accept().map_err(|error| error.to_string()).and_then(|stream| {
                self.read_from(claim.rank, &stream).map_err(|error| error.to_string())?;
                Ok(stream)
            }) {
                Err(reason) => {
                    self.settings.notices.add(format!("rank {} could not be let in: {reason}", claim.rank));
                }
                Ok(stream) => {
                    let who = format!("process {} at {address}", claim.process);
                    let heard = self.patience.spent();
                    let member = Member { stream, who, heard, part: None, end: End::default() };
                    self.places[claim.rank] = Place::Present(member);
                }
            },
        }
    }

    /// Whether a claim contradicts what is known.
    fn judge(&self, claim: &[u8]) -> Result<Claim, String> {
        let claim: Claim =
            serde_json::from_slice(claim).map_err(|error| format!("its claim has no meaning: {error}"))?;
        let Claim { rank, world, process } = claim;
        let ours = self.settings.world;
        if world != ours {
            return Err(format!("process {process} says that the job has {world} ranks, but it has {ours}"));
        }
        if rank >= ours {
            return Err(format!(
                "process {process} says that it is rank {rank}, but the job has {ours} ranks (from 0)"
            ));
        }
        if let Some(verdict) = &self.verdict {
            let failure = verdict.clone().failure(rank, world, "bootstrap");
            return Err(format!("the job has already failed: {failure}"));
        }
        match &self.places[rank] {
            Place::Absent => Ok(claim),
            Place::Present(member) => {
                Err(format!("process {process} says that it is rank {rank}, but {} is rank {rank} already", member.who))
            }
            Place::Left | Place::Dead => {
                Err(format!("process {process} says that it is rank {rank}, but rank {rank} has come and gone"))
            }
        }
    }

    fn read_from(&self, rank: usize, stream: &TcpStream) -> std::io::Result<()> {
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let (stream, events) = (stream.try_clone()?, self.events.clone());
        let thread = std::thread::Builder::new().name(format!("warpweft-rank-{rank}"));
        thread.spawn(move || {
            let how = loop {
                match frame::receive_from_rank(&stream) {
                    // The decider has ended, and with it the reason to read.
                    Ok(Some(frame)) => match events.send(Event::Frame(rank, frame)) {
                        Ok(()) => {}
                        Err(_) => return,
                    },
                    Ok(None) => break "connection closed".to_owned(),
                    Err(error) => break format!("connection closed: {error}"),
                }
            };
            let _ = events.send(Event::Closed(rank, how));
        })?;
        Ok(())
    }

    fn hear(&mut self, rank: usize, frame: Frame) {
        let (round, now) = (self.round, self.patience.spent());
        let Some(member) = self.member(rank) else { return };
        member.heard = now;
        match frame {
            Frame::Gather { round: theirs, timeout_ms, part } if theirs == round => {
                member.part = Some(part);
                self.gathered(Duration::from_millis(timeout_ms));
            }
            Frame::Verdict(Verdict::Aborted { reason, .. }) => self.end(Verdict::Aborted { by: rank, reason }),
            Frame::Verdict(Verdict::Died { how, .. }) => self.died(rank, &how),
            Frame::Goodbye => {
                self.places[rank] = Place::Left;
                self.stop_waiting_for_the_left();
            }
            Frame::Ping => {
                // A broken connection shows in its reader.
                let _ = frame::send(&member.stream, &Frame::Pong);
            }
            other => self.died(rank, &format!("it sent {other:?}, which no rank sends here")),
        }
    }

    /// A part has come: passes them on if it was the last.
    fn gathered(&mut self, timeout: Duration) {
        // A timeout so long that it has no end in time is no timeout.
        let due = Instant::now().checked_add(timeout).map(|due| (due, timeout));
        self.deadline = self.deadline.or(due);
        if self.members().filter(|(_, member)| member.part.is_some()).count() == self.settings.world {
            let mut parts = Vec::with_capacity(self.settings.world);
            for place in &mut self.places {
                if let Place::Present(member) = place {
                    parts.extend(member.part.take());
                }
            }
            let all = Frame::Gathered { round: self.round, parts };
            self.round += 1;
            self.deadline = None;
            self.tell_all(&all);
        }
        self.stop_waiting_for_the_left();
    }

    /// An exchange that needs a rank which has left cannot succeed.
    fn stop_waiting_for_the_left(&mut self) {
        let waiting = self.members().any(|(_, member)| member.part.is_some());
        let gone = self.places.iter().position(|place| matches!(place, Place::Left));
        if let Some(rank) = gone.filter(|_| waiting) {
            self.end(Verdict::Died { rank, how: "it left while others were still connecting".into() });
        }
    }

    fn closed(&mut self, rank: usize, how: String) {
        let due = Instant::now() + self.settings.grace;
        if let Some(member) = self.member(rank) {
            member.end.closed = true;
            let how = format!("{how} ({})", member.who);
            // The launcher's word, if it has come, says more.
            member.end.due.get_or_insert((due, how));
        }
    }

    fn process_ended(&mut self, rank: usize, how: String) {
        let due = Instant::now() + self.settings.grace;
        if let Some(Place::Absent) = self.places.get(rank) {
            return self.died(rank, &format!("{how} before it joined"));
        }
        if let Some(member) = self.member(rank) {
            member.end.told = true;
            member.end.due = Some((due, how));
        }
    }

    fn died(&mut self, rank: usize, how: &str) {
        self.places[rank] = Place::Dead;
        self.end(Verdict::Died { rank, how: how.to_owned() });
    }

    /// The job has failed: everybody hears why, once.
    fn end(&mut self, verdict: Verdict) {
        if self.verdict.is_none() {
            self.tell_all(&Frame::Verdict(verdict.clone()));
            self.verdict = Some(verdict);
            self.deadline = None;
        }
    }

    fn tell_all(&mut self, frame: &Frame) {
        self.tell(frame, |_| true);
    }

    fn tell(&mut self, frame: &Frame, mut whom: impl FnMut(&mut Member) -> bool) {
        let bytes = frame.encode();
        for place in &mut self.places {
            if let Place::Present(member) = place
                && whom(member)
                && let Err(error) = std::io::Write::write_all(&mut &member.stream, &bytes)
            {
                // Shut, so that the rank notices too if it only has been slow; its reader then reports the close.
                let _ = member.stream.shutdown(std::net::Shutdown::Both);
                self.settings.notices.add(format!("{} took no message: {error}", member.who));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server's state with one of two ranks present, and that rank's end of the connection.
    fn state(grace: Duration) -> (State, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let rank = TcpStream::connect(listener.local_addr().expect("bound")).expect("open");
        let stream = listener.accept().expect("called").0;
        let settings = Settings { world: 2, secret: Secret::unused(), notices: Notices::default(), grace };
        let mut state = State::new(settings, channel().0);
        let (who, heard) = ("process 7 at an address".to_owned(), Duration::ZERO);
        state.places[0] = Place::Present(Member { stream, who, heard, part: None, end: End::default() });
        (state, rank)
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_goodbye_that_arrives_after_the_word_of_the_end_still_counts() {
        let (mut state, _rank) = state(LONG);
        state.process_ended(0, "process 7 ended with exit status 0".into());
        state.look();
        assert_eq!(state.verdict, None);
        state.hear(0, Frame::Goodbye);
        state.closed(0, "connection closed".into());
        state.look();
        assert_eq!(state.verdict, None);
        assert!(matches!(state.places[0], Place::Left));
    }

    #[test]
    fn the_launchers_word_is_preferred_in_either_order_and_not_waited_for_without_a_launcher() {
        let word = "process 7 was killed by signal 9";
        for word_first in [true, false] {
            let (mut state, _rank) = state(LONG);
            if word_first {
                state.process_ended(0, word.into());
            }
            state.closed(0, "connection closed".into());
            if !word_first {
                state.look();
                assert_eq!(state.verdict, None);
                state.process_ended(0, word.into());
            }
            state.look();
            assert_eq!(state.verdict, Some(Verdict::Died { rank: 0, how: word.into() }));
        }
        let (mut state, _rank) = state(Duration::ZERO);
        state.closed(0, "connection closed".into());
        state.look();
        let how = "connection closed (process 7 at an address)".into();
        assert_eq!(state.verdict, Some(Verdict::Died { rank: 0, how }));
    }

    #[test]
    fn a_rank_is_silent_after_half_a_minute_of_listening_and_not_after_a_stop_of_this_process() {
        let (mut state, _rank) = state(LONG);
        let ping = PING.as_secs() as u32;
        // Stopped for a minute, and every rank with it.
        state.patience.stopped_for(Duration::from_secs(60));
        state.look();
        assert_eq!(state.verdict, None);
        state.hear(0, Frame::Ping);
        for _ in 0..SILENCE.as_secs() as u32 / ping {
            assert_eq!(state.verdict, None);
            state.patience.stopped_for(PING);
            state.look();
        }
        assert!(matches!(&state.verdict, Some(Verdict::Died { rank: 0, how }) if how.contains("silent for 30 s")));
    }

    #[test]
    fn a_rank_that_left_is_not_waited_for() {
        let (mut state, _rank) = state(LONG);
        state.places[1] = Place::Left;
        state.hear(0, Frame::Gather { round: 0, timeout_ms: 60_000, part: Vec::new() });
        assert!(matches!(state.verdict, Some(Verdict::Died { rank: 1, .. })));
    }
}
