//! Ranks anywhere: a TCP connection for each pair, authenticated by the job's secret.

mod connect;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(super) use connect::connect;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{LinkError, Transport, TransportKind, Want};

/// One rank's connections, in rank order with none for itself.
struct Tcp {
    links: Vec<Option<Link>>,
}

struct Link {
    stream: TcpStream,
    address: SocketAddr,
}

impl Tcp {
    fn link(&mut self, peer: usize) -> Result<&mut TcpStream, LinkError> {
        let link = self.links.get_mut(peer).and_then(Option::as_mut);
        link.map(|link| &mut link.stream).ok_or(LinkError::Closed { peer })
    }
}

/// What a failed read or write means: nothing to do now, or no link any more.
fn failed(peer: usize, error: &std::io::Error) -> Result<usize, LinkError> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(0),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
            Err(LinkError::Closed { peer })
        }
        _ => Err(LinkError::Broken { peer, reason: error.to_string() }),
    }
}

impl Transport for Tcp {
    fn kind(&self) -> TransportKind {
        TransportKind::Tcp
    }

    fn address(&self, peer: usize) -> String {
        let link = self.links.get(peer).and_then(Option::as_ref);
        link.map_or_else(String::new, |link| link.address.to_string())
    }

    fn try_send(&mut self, peer: usize, bytes: &[u8]) -> Result<usize, LinkError> {
        self.link(peer)?.write(bytes).or_else(|error| failed(peer, &error))
    }

    fn try_recv(&mut self, peer: usize, into: &mut [u8]) -> Result<usize, LinkError> {
        if into.is_empty() {
            return Ok(0);
        }
        match self.link(peer)?.read(into) {
            Ok(0) => Err(LinkError::Closed { peer }),
            Ok(count) => Ok(count),
            Err(error) => failed(peer, &error),
        }
    }

    fn park(&mut self, wanted: &[Want], timeout: Duration) {
        let watched = wanted.iter().filter_map(|want| {
            let link = self.links.get(want.peer)?.as_ref()?;
            Some(PollFd::new(&link.stream, if want.send { PollFlags::OUT } else { PollFlags::IN }))
        });
        let mut watched: Vec<PollFd<'_>> = watched.collect();
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        // Ready, timed out, interrupted: in every case the caller looks again.
        let _ = poll(&mut watched, Some(&timeout));
    }
}
