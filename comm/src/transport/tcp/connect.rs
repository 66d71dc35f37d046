//! Connecting every pair: the lower rank of a pair listens, the higher one calls.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Link, Tcp};
use crate::bootstrap::{Door, Guest, HelloError, Purpose, call};
use crate::transport::shm::Token;
use crate::transport::{Facts, Setup, Transport};
use crate::{Cause, CommError};

/// How often a waiting rank looks at the job's health.
const LOOK: Duration = Duration::from_millis(20);

/// Where a rank listens; the token of rank 0 names the group.
#[derive(Serialize, Deserialize)]
struct Port {
    token: Token,
    address: SocketAddr,
}

/// What a caller says it is.
#[derive(Serialize, Deserialize)]
struct Claim {
    group: Token,
    from: usize,
    to: usize,
}

pub(in crate::transport) fn connect(setup: &mut Setup<'_>, facts: &[Facts]) -> Result<Box<dyn Transport>, CommError> {
    let deadline = crate::wait::deadline(setup.timeout);
    let (guests, door) = listen(setup, facts)?;
    let own = Port { token: super::super::random_token()?, address: door.address() };
    let own = serde_json::to_vec(&own).map_err(|error| setup.broken(&error.to_string()))?;
    let ports = setup.exchange.all_gather(&own)?;
    let ports: Vec<Port> = ports.iter().filter_map(|bytes| serde_json::from_slice(bytes).ok()).collect();
    if ports.len() != setup.world {
        return Err(setup.broken(&format!("the ports of {} ranks, got {}", setup.world, ports.len())));
    }
    let group = ports[0].token;
    let mut tcp = Tcp { links: (0..setup.world).map(|_| None).collect() };
    for (peer, port) in ports.iter().enumerate().take(setup.rank) {
        let address = SocketAddr::new(reachable(setup, facts, peer), port.address.port());
        let claim = Claim { group, from: setup.rank, to: peer };
        tcp.links[peer] = Some(dial(setup, address, &claim, deadline)?);
    }
    welcome(setup, &guests, &mut tcp, group, deadline)?;
    // Nobody goes on before everybody is connected: who fails here is named at once, not in the first operation.
    setup.exchange.all_gather(&[])?;
    Ok(Box::new(tcp))
}

/// Opens this rank's port, on one interface where that reaches everybody.
fn listen(setup: &Setup<'_>, facts: &[Facts]) -> Result<(Receiver<Guest>, Door), CommError> {
    let own = setup.site.address;
    let one_host = facts.iter().all(|facts| facts.address.is_loopback());
    let interface = match own {
        // The rendezvous is on this host and was reached by loopback, but others come from elsewhere.
        IpAddr::V4(_) if own.is_loopback() && !one_host => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) if own.is_loopback() && !one_host => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        own => own,
    };
    let listener = TcpListener::bind((interface, 0)).map_err(|error| CommError::System {
        what: format!("rank {}: opening a port on {interface}", setup.rank),
        reason: error.to_string(),
    })?;
    let (deliver, guests) = channel();
    let deliver = move |guest| {
        // Nobody listens any more when the set-up has ended; the guest is hung up on.
        let _ = deliver.send(guest);
    };
    let (secret, notices) = (setup.site.secret.clone(), setup.site.notices.clone());
    Door::open(listener, Purpose::Data, secret, notices, deliver).map(|door| (guests, door))
}

/// The address at which this rank reaches a peer.
fn reachable(setup: &Setup<'_>, facts: &[Facts], peer: usize) -> IpAddr {
    let theirs = facts[peer].address;
    // A peer that knows itself only by loopback shares its host with the rendezvous.
    if theirs.is_loopback() && !setup.site.address.is_loopback() { setup.site.rendezvous } else { theirs }
}

fn dial(setup: &Setup<'_>, address: SocketAddr, claim: &Claim, deadline: Instant) -> Result<Link, CommError> {
    let peer = claim.to;
    let broken = |reason: String| {
        let reason = format!("{address}: {reason}");
        setup.failed(Some(peer), Cause::Link { reason })
    };
    let claim = serde_json::to_vec(claim).map_err(|error| broken(error.to_string()))?;
    setup.check_health()?;
    let left = deadline.saturating_duration_since(Instant::now()).max(LOOK);
    let stream = TcpStream::connect_timeout(&address, left).map_err(|error| broken(error.to_string()))?;
    stream.set_nodelay(true).map_err(|error| broken(error.to_string()))?;
    let hello = call(&stream, Purpose::Data, &setup.site.secret, &claim, deadline);
    hello.map_err(|error| broken(error.to_string()))?;
    link(stream).map_err(|error| broken(error.to_string()))
}

fn link(stream: TcpStream) -> std::io::Result<Link> {
    stream.set_nonblocking(true)?;
    let address = stream.peer_addr()?;
    Ok(Link { stream, address })
}

/// Lets the higher ranks in.
fn welcome(
    setup: &Setup<'_>,
    guests: &Receiver<Guest>,
    tcp: &mut Tcp,
    group: Token,
    deadline: Instant,
) -> Result<(), CommError> {
    loop {
        let missing: Vec<usize> = (setup.rank + 1..setup.world).filter(|&peer| tcp.links[peer].is_none()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        setup.check_health()?;
        if Instant::now() >= deadline {
            return Err(setup.failed(missing.first().copied(), Cause::Missing { ranks: missing, after: setup.timeout }));
        }
        let guest = match guests.recv_timeout(LOOK) {
            Ok(guest) => guest,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Err(setup.broken("an open port, and it has closed")),
        };
        let claim = serde_json::from_slice::<Claim>(&guest.claim).ok();
        let claim = claim.filter(|claim| claim.group == group && claim.to == setup.rank);
        match claim.filter(|claim| missing.contains(&claim.from)) {
            None => guest.refuse("this rank waits for no such connection"),
            Some(claim) => {
                let accepted = guest.accept();
                let linked = accepted.and_then(|stream| link(stream).map_err(|e| HelloError::Io(e.to_string())));
                let failed =
                    |error: HelloError| setup.failed(Some(claim.from), Cause::Link { reason: error.to_string() });
                tcp.links[claim.from] = Some(linked.map_err(failed)?);
            }
        }
    }
}
