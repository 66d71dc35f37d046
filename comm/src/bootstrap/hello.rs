//! The hello with which every connection of a job begins: both sides prove that they know the job's secret before
//! either acts on anything the other says.
//!
//! ```text
//! caller   opening  magic 8, version 4, purpose 4, nonce 32
//! host     answer   magic 8, version 4, purpose 4, nonce 32, HMAC(secret, "host", purpose, both nonces)
//! caller   claim    HMAC(secret, "caller", purpose, both nonces, claim), length 4, claim
//! host     reply    accepted 1, length 4, text: why not
//! ```
//! Numbers are little-endian. A recorded hello is worthless: the host's nonce is new each time. A reflected one too: the
//! proofs of the two sides differ. Both sides stop at a deadline and read no more bytes than the format allows.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::secret::{Secret, random_bytes};

/// Rises with every change of the formats on the wire.
pub(crate) const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"WARPWEFT";
const MOST_CLAIM_BYTES: usize = 1024;
const MOST_REPLY_BYTES: usize = 2048;
/// A caller has this long to prove itself.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A rank and the rendezvous.
    Control = 1,
    /// Two ranks.
    Data = 2,
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HelloError {
    #[error("it does not speak this protocol: it sent {got:?}")]
    Stranger { got: String },
    #[error("it speaks version {theirs} of the protocol, this program version {ours}; run the same version everywhere")]
    Version { ours: u32, theirs: u32 },
    #[error("the port serves another purpose ({theirs}, expected {ours})")]
    Purpose { ours: u32, theirs: u32 },
    #[error("it does not know the secret of this job; give every rank the same WARPWEFT_SECRET")]
    Secret,
    #[error("it sent {bytes} bytes where at most {most} are allowed")]
    TooLong { bytes: usize, most: usize },
    #[error("{0}")]
    Refused(String),
    #[error("it said nothing until the deadline")]
    Late,
    #[error("it closed the connection in the middle of the hello; does it know the secret of this job?")]
    Closed,
    #[error("{0}")]
    Io(String),
}

/// Both sides' nonces; a proof made for these fits no other connection.
#[derive(Clone)]
struct Nonces {
    purpose: Purpose,
    caller: [u8; 32],
    host: [u8; 32],
}

impl Nonces {
    fn parts<'a>(&'a self, side: &'a [u8], rest: &'a [u8]) -> [&'a [u8]; 5] {
        let purpose: &[u8] = match self.purpose {
            Purpose::Control => b"control",
            Purpose::Data => b"data",
        };
        [side, purpose, &self.caller, &self.host, rest]
    }
}

/// Calls: proves the secret, claims an identity, and returns when the host has accepted it.
pub(crate) fn call(
    stream: &TcpStream,
    purpose: Purpose,
    secret: &Secret,
    claim: &[u8],
    deadline: Instant,
) -> Result<(), HelloError> {
    let mut line = Line { stream, deadline };
    let caller: [u8; 32] = nonce()?;
    line.write(&[MAGIC, &VERSION.to_le_bytes(), &(purpose as u32).to_le_bytes(), &caller])?;
    line.expect_greeting(purpose)?;
    let nonces = Nonces { purpose, caller, host: line.read()? };
    let proof: [u8; 32] = line.read()?;
    if !secret.verifies(&nonces.parts(b"host", &[]), &proof) {
        return Err(HelloError::Secret);
    }
    let proof = secret.tag(&nonces.parts(b"caller", claim));
    line.write(&[&proof, &(claim.len() as u32).to_le_bytes(), claim])?;
    let [accepted] = line.read()?;
    let text = line.read_counted(MOST_REPLY_BYTES)?;
    if accepted == 1 { Ok(()) } else { Err(HelloError::Refused(String::from_utf8_lossy(&text).into_owned())) }
}

/// A caller that has proved the secret and waits for the host's decision on its claim.
pub(crate) struct Guest {
    pub(crate) stream: TcpStream,
    pub(crate) claim: Vec<u8>,
}

impl Guest {
    /// Takes the claim as true; the connection is then the owner's.
    pub(crate) fn accept(self) -> Result<TcpStream, HelloError> {
        self.reply(1, "")?;
        let quiet = self.stream.set_read_timeout(None).and_then(|()| self.stream.set_write_timeout(None));
        quiet.map_err(|error| HelloError::Io(error.to_string()))?;
        Ok(self.stream)
    }

    /// Tells the caller why not, and hangs up.
    pub(crate) fn refuse(self, reason: &str) {
        // The caller may have gone already; it is refused either way.
        let _ = self.reply(0, reason);
    }

    fn reply(&self, accepted: u8, text: &str) -> Result<(), HelloError> {
        let text = &text.as_bytes()[..text.len().min(MOST_REPLY_BYTES)];
        let mut line = Line { stream: &self.stream, deadline: Instant::now() + DEADLINE };
        line.write(&[&[accepted], &(text.len() as u32).to_le_bytes(), text])
    }
}

/// Answers a caller: proves the secret, checks that the caller knows it, and returns its claim.
fn answer(stream: &TcpStream, purpose: Purpose, secret: &Secret) -> Result<Vec<u8>, HelloError> {
    let mut line = Line { stream, deadline: Instant::now() + DEADLINE };
    let greeting = line.expect_greeting(purpose);
    if let Err(HelloError::Version { .. } | HelloError::Purpose { .. }) = greeting {
        // So that the caller can name both versions; the rest of the answer would mean nothing to it.
        line.write(&[MAGIC, &VERSION.to_le_bytes(), &(purpose as u32).to_le_bytes()])?;
    }
    greeting?;
    let nonces = Nonces { purpose, caller: line.read()?, host: nonce()? };
    let proof = secret.tag(&nonces.parts(b"host", &[]));
    line.write(&[MAGIC, &VERSION.to_le_bytes(), &(purpose as u32).to_le_bytes(), &nonces.host, &proof])?;
    let proof: [u8; 32] = line.read()?;
    let claim = line.read_counted(MOST_CLAIM_BYTES)?;
    if !secret.verifies(&nonces.parts(b"caller", &claim), &proof) {
        return Err(HelloError::Secret);
    }
    Ok(claim)
}

/// Answers a caller. One that is no guest is reported before it is hung up on.
pub(super) fn receive(
    stream: TcpStream,
    purpose: Purpose,
    secret: &Secret,
    report: impl FnOnce(HelloError),
) -> Option<Guest> {
    match answer(&stream, purpose, secret) {
        Ok(claim) => Some(Guest { stream, claim }),
        Err(error) => {
            report(error);
            None
        }
    }
}

fn nonce() -> Result<[u8; 32], HelloError> {
    random_bytes().map_err(|error| HelloError::Io(error.to_string()))
}

/// A blocking connection with a deadline for all of its reads and writes together.
struct Line<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Line<'_> {
    fn left(&self) -> Result<Option<Duration>, HelloError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(HelloError::Late) } else { Ok(Some(left)) }
    }

    fn write(&mut self, parts: &[&[u8]]) -> Result<(), HelloError> {
        let left = self.left()?;
        self.stream.set_write_timeout(left).map_err(io)?;
        self.stream.write_all(&parts.concat()).map_err(io)
    }

    fn read<const N: usize>(&mut self) -> Result<[u8; N], HelloError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn read_counted(&mut self, most: usize) -> Result<Vec<u8>, HelloError> {
        let bytes = u32::from_le_bytes(self.read()?) as usize;
        if bytes > most {
            return Err(HelloError::TooLong { bytes, most });
        }
        let mut counted = vec![0; bytes];
        self.fill(&mut counted)?;
        Ok(counted)
    }

    fn fill(&mut self, mut bytes: &mut [u8]) -> Result<(), HelloError> {
        while !bytes.is_empty() {
            // Set anew for each read: a caller that drips bytes does not get more time.
            let left = self.left()?;
            self.stream.set_read_timeout(left).map_err(io)?;
            match self.stream.read(bytes) {
                Ok(0) => return Err(HelloError::Closed),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(io(error)),
            }
        }
        Ok(())
    }

    fn expect_greeting(&mut self, purpose: Purpose) -> Result<(), HelloError> {
        let magic: [u8; 8] = self.read()?;
        if &magic != MAGIC {
            return Err(HelloError::Stranger { got: String::from_utf8_lossy(&magic).into_owned() });
        }
        let theirs = u32::from_le_bytes(self.read()?);
        if theirs != VERSION {
            return Err(HelloError::Version { ours: VERSION, theirs });
        }
        let (ours, theirs) = (purpose as u32, u32::from_le_bytes(self.read()?));
        if ours == theirs { Ok(()) } else { Err(HelloError::Purpose { ours, theirs }) }
    }
}

fn io(error: std::io::Error) -> HelloError {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => HelloError::Late,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => HelloError::Closed,
        _ => HelloError::Io(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Two ends of a connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let caller = TcpStream::connect(listener.local_addr().expect("bound")).expect("open");
        (caller, listener.accept().expect("called").0)
    }

    fn soon() -> Instant {
        Instant::now() + DEADLINE
    }

    /// What the host says of a caller that sends these bytes and hangs up.
    fn host_hears(bytes: &[u8]) -> HelloError {
        let (caller, host) = pair();
        (&caller).write_all(bytes).expect("sent");
        caller.shutdown(std::net::Shutdown::Write).expect("open");
        answer(&host, Purpose::Data, &Secret::unused()).expect_err("refused")
    }

    fn opening(version: u32, purpose: Purpose) -> Vec<u8> {
        [&MAGIC[..], &version.to_le_bytes(), &(purpose as u32).to_le_bytes(), &[9; 32]].concat()
    }

    #[test]
    fn both_sides_agree_and_the_claim_arrives() {
        let (caller, host) = pair();
        let secret = Secret::random().expect("random");
        std::thread::scope(|scope| {
            let call = scope.spawn(|| call(&caller, Purpose::Data, &secret, b"claim", soon()));
            let guest = receive(host, Purpose::Data, &secret, |_| ()).expect("proved");
            assert_eq!(guest.claim, b"claim");
            guest.accept().expect("told");
            assert_eq!(call.join().expect("no panic"), Ok(()));
        });
        let (caller, host) = pair();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| call(&caller, Purpose::Control, &secret, b"", soon()));
            receive(host, Purpose::Control, &secret, |_| ()).expect("proved").refuse("rank 1 is taken");
            assert_eq!(call.join().expect("no panic"), Err(HelloError::Refused("rank 1 is taken".into())));
        });
    }

    #[test]
    fn another_secret_version_or_purpose_is_named_on_both_sides() {
        let (caller, host) = pair();
        std::thread::scope(|scope| {
            let (ours, theirs) = (Secret::random().expect("random"), Secret::random().expect("random"));
            let call = scope.spawn(move || {
                let said = call(&caller, Purpose::Data, &ours, b"claim", soon());
                drop(caller);
                said
            });
            assert_eq!(answer(&host, Purpose::Data, &theirs).err(), Some(HelloError::Closed));
            assert_eq!(call.join().expect("no panic"), Err(HelloError::Secret));
        });
        let (caller, host) = pair();
        std::thread::scope(|scope| {
            let secret = Secret::random().expect("random");
            let other = secret.clone();
            let call = scope.spawn(move || call(&caller, Purpose::Control, &other, b"", soon()));
            let error = HelloError::Purpose { ours: 2, theirs: 1 };
            assert_eq!(answer(&host, Purpose::Data, &secret).err(), Some(error));
            assert_eq!(call.join().expect("no panic"), Err(HelloError::Purpose { ours: 1, theirs: 2 }));
        });
        let error = HelloError::Version { ours: VERSION, theirs: 77 };
        assert_eq!(host_hears(&opening(77, Purpose::Data)), error);
        let (caller, host) = pair();
        (&host).write_all(&opening(77, Purpose::Data)).expect("sent");
        assert_eq!(call(&caller, Purpose::Data, &Secret::unused(), b"", soon()), Err(error));
    }

    #[test]
    fn strangers_are_refused_without_reading_on() {
        assert_eq!(host_hears(b"GET / HTTP/1.1\r\n\r\n"), HelloError::Stranger { got: "GET / HT".into() });
        assert!(matches!(host_hears(&[0xFF; 200]), HelloError::Stranger { .. }));
        assert_eq!(host_hears(b""), HelloError::Closed);
        assert_eq!(host_hears(&opening(VERSION, Purpose::Data)[..20]), HelloError::Closed);
        let oversized = [&opening(VERSION, Purpose::Data)[..], &[0; 32], &u32::MAX.to_le_bytes()].concat();
        let error = HelloError::TooLong { bytes: u32::MAX as usize, most: MOST_CLAIM_BYTES };
        assert_eq!(host_hears(&oversized), error);
        let unproven = [&opening(VERSION, Purpose::Data)[..], &[0; 32], &3u32.to_le_bytes(), b"abc"].concat();
        assert_eq!(host_hears(&unproven), HelloError::Secret);
    }

    #[test]
    fn a_recorded_hello_opens_nothing() {
        let secret = Secret::random().expect("random");
        let (caller, host) = pair();
        let (tap, relay) = pair();
        let recorded = std::thread::scope(|scope| {
            scope.spawn(|| call(&tap, Purpose::Data, &secret, b"claim", soon()));
            scope.spawn(|| receive(host, Purpose::Data, &secret, |_| ()).map(Guest::accept));
            // A listener in the middle passes everything on and keeps what the caller sent.
            let mut recorded = vec![0; 48];
            (&relay).read_exact(&mut recorded).expect("opening");
            (&caller).write_all(&recorded).expect("open");
            let mut answered = [0; 80];
            (&caller).read_exact(&mut answered).expect("answer");
            (&relay).write_all(&answered).expect("open");
            let mut claim = [0; 41];
            (&relay).read_exact(&mut claim).expect("claim");
            (&caller).write_all(&claim).expect("open");
            let mut reply = [0; 5];
            (&caller).read_exact(&mut reply).expect("reply");
            assert_eq!(reply, [1, 0, 0, 0, 0], "the original is accepted");
            (&relay).write_all(&reply).expect("open");
            recorded.extend_from_slice(&claim);
            recorded
        });
        let (caller, host) = pair();
        (&caller).write_all(&recorded).expect("open");
        assert_eq!(answer(&host, Purpose::Data, &secret).err(), Some(HelloError::Secret));
    }

    #[test]
    fn a_silent_caller_is_dropped_at_the_deadline() {
        let (caller, host) = pair();
        let mut line = Line { stream: &host, deadline: Instant::now() + Duration::from_millis(80) };
        (&caller).write_all(b"WARP").expect("open");
        let start = Instant::now();
        assert_eq!(line.expect_greeting(Purpose::Data), Err(HelloError::Late));
        assert!(start.elapsed() < DEADLINE);
    }
}
