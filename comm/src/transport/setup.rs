//! Choosing a transport: every rank tells where it is, and all come to the same choice from that.

use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::shm::{self, Backing, Token};
use super::{Exchange, Transport, TransportKind, tcp, thread};
use crate::bootstrap::{Site, random_bytes};
use crate::{Cause, CommError, Failure, Health};

/// What a transport is opened with.
pub struct Setup<'a> {
    /// This rank of the group.
    pub rank: usize,
    /// Ranks of the group.
    pub world: usize,
    /// A channel among exactly the ranks of the group.
    pub exchange: &'a mut dyn Exchange,
    /// Looked at in every wait.
    pub health: &'a Health,
    /// The deadline of the whole.
    pub timeout: Duration,
    /// This process.
    pub site: &'a Site,
}

impl Setup<'_> {
    /// A peer sent something else than `expected`.
    pub(super) fn broken(&self, expected: &str) -> CommError {
        self.failed(None, Cause::Protocol { what: format!("expected {expected}") })
    }

    pub(super) fn check_health(&self) -> Result<(), CommError> {
        self.health.check().map_err(|verdict| verdict.failure(self.rank, self.world, "connect").into())
    }

    pub(super) fn failed(&self, peer: Option<usize>, cause: Cause) -> CommError {
        let (rank, world) = (self.rank, self.world);
        Failure { rank, world, operation: "connect", sequence: 0, peer, address: None, cause }.into()
    }
}

/// Where a rank is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Facts {
    /// The kind that it was told to use.
    pub(super) kind: String,
    /// The same for all threads of a process, and for nothing else.
    pub(super) process: Token,
    pub(super) process_id: u32,
    /// The same for all processes of a running system.
    pub(super) host: String,
    pub(super) address: IpAddr,
}

impl Facts {
    fn gather(kind: TransportKind, site: &Site) -> Result<Self, CommError> {
        static PROCESS: OnceLock<Token> = OnceLock::new();
        let process = match PROCESS.get() {
            Some(token) => *token,
            None => {
                let token = random_token()?;
                *PROCESS.get_or_init(|| token)
            }
        };
        Ok(Self {
            kind: kind.to_string(),
            process,
            process_id: std::process::id(),
            host: host(),
            address: site.address,
        })
    }
}

/// Names this running system: the kernel's id of this boot, which two hosts never share, and the host's name, which
/// containers of one host usually do not.
fn host() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    format!("{} {}", read("/proc/sys/kernel/random/boot_id"), read("/proc/sys/kernel/hostname"))
}

pub(super) fn random_token() -> Result<Token, CommError> {
    random_bytes()
}

/// Opens a transport of `kind` among the ranks of a group; all must ask for the same kind.
///
/// # Errors
/// [`CommError::Config`] when the ranks ask for different kinds or cannot use the one they ask for, and whatever the
/// exchange fails with.
pub fn connect(kind: TransportKind, mut setup: Setup<'_>) -> Result<Box<dyn Transport>, CommError> {
    if setup.world <= 1 {
        return Ok(Box::new(Alone(kind)));
    }
    setup.exchange.set_timeout(setup.timeout);
    let own = serde_json::to_vec(&Facts::gather(kind, setup.site)?)
        .map_err(|error| setup.broken(&format!("facts that can be written, not {error}")))?;
    let facts = setup.exchange.all_gather(&own)?;
    let facts: Vec<Facts> = facts.iter().filter_map(|bytes| serde_json::from_slice(bytes).ok()).collect();
    if facts.len() != setup.world {
        return Err(setup.broken(&format!("the facts of {} ranks, got {}", setup.world, facts.len())));
    }
    match choose(kind, &facts)? {
        TransportKind::Thread => thread::connect(&mut setup, &facts),
        TransportKind::Shm => share(kind, &mut setup, &facts, &Backing::choices()),
        TransportKind::Tcp | TransportKind::Auto => tcp::connect(&mut setup, &facts),
    }
}

/// Shared memory, or tcp where there is none and the choice is ours.
fn share(
    kind: TransportKind,
    setup: &mut Setup<'_>,
    facts: &[Facts],
    backings: &[Backing],
) -> Result<Box<dyn Transport>, CommError> {
    match shm::connect(setup, facts, backings)? {
        Ok(transport) => Ok(transport),
        Err(reason) if kind == TransportKind::Auto => {
            setup.site.notices.add(format!("shared memory cannot be had, tcp is used, which is slower: {reason}"));
            tcp::connect(setup, facts)
        }
        Err(reason) => Err(CommError::System {
            what: "shared memory among the ranks (free some, or use transport tcp)".into(),
            reason,
        }),
    }
}

/// The kind that all ranks use, from what all ranks know.
fn choose(kind: TransportKind, facts: &[Facts]) -> Result<TransportKind, CommError> {
    let name = kind.to_string();
    if let Some((rank, other)) = facts.iter().enumerate().find(|(_, other)| other.kind != name) {
        return Err(CommError::Config {
            what: format!("this rank was told to use transport {name}, rank {rank} to use {}", other.kind),
            fix: "give every rank the same transport".into(),
        });
    }
    let apart = |same: fn(&Facts, &Facts) -> bool| facts.iter().position(|other| !same(&facts[0], other));
    let other_process = apart(|a, b| a.process == b.process);
    let other_host = apart(|a, b| a.host == b.host);
    match (kind, other_process, other_host) {
        (TransportKind::Auto, None, _) => Ok(TransportKind::Thread),
        (TransportKind::Auto, _, None) => Ok(TransportKind::Shm),
        (TransportKind::Auto, ..) => Ok(TransportKind::Tcp),
        (TransportKind::Thread, Some(rank), _) => Err(CommError::Config {
            what: format!(
                "transport thread needs all ranks in one process, but rank 0 is process {} and rank {rank} process {}",
                facts[0].process_id, facts[rank].process_id
            ),
            fix: "use shm, tcp or auto".into(),
        }),
        (TransportKind::Shm, _, Some(rank)) => Err(CommError::Config {
            what: format!(
                "transport shm needs all ranks on one host, but rank 0 is on {} and rank {rank} on {}",
                facts[0].host, facts[rank].host
            ),
            fix: "use tcp or auto".into(),
        }),
        (kind, ..) => Ok(kind),
    }
}

/// The links of a rank that has no peers.
struct Alone(TransportKind);

impl Transport for Alone {
    fn kind(&self) -> TransportKind {
        if self.0 == TransportKind::Auto { TransportKind::Thread } else { self.0 }
    }

    fn address(&self, _peer: usize) -> String {
        String::new()
    }

    fn try_send(&mut self, peer: usize, _bytes: &[u8]) -> Result<usize, super::LinkError> {
        Err(super::LinkError::Closed { peer })
    }

    fn try_recv(&mut self, peer: usize, _into: &mut [u8]) -> Result<usize, super::LinkError> {
        Err(super::LinkError::Closed { peer })
    }

    fn park(&mut self, _wanted: &[super::Want], timeout: Duration) {
        std::thread::sleep(timeout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::{Bootstrap, threads};

    /// What `share` comes to with these backings, on each of three ranks, and what the user hears.
    fn shared(kind: TransportKind, backings: &[Backing]) -> Vec<(Result<TransportKind, String>, Vec<String>)> {
        let rank = |mut bootstrap: Bootstrap| {
            let Bootstrap { rank, world, health, timeout, site, exchange, .. } = &mut bootstrap;
            let mut setup =
                Setup { rank: *rank, world: *world, exchange: &mut **exchange, health, timeout: *timeout, site };
            let facts = vec![Facts::gather(kind, site).expect("facts"); *world];
            let opened = share(kind, &mut setup, &facts, backings);
            let told = opened.map(|transport| transport.kind()).map_err(|error| error.to_string());
            // All have added their notices, which they share, before one takes them.
            setup.exchange.all_gather(&[]).expect("all are here");
            (told, setup.site.notices.take())
        };
        std::thread::scope(|scope| {
            let ranks = threads(3).expect("ranks").into_iter();
            let ranks: Vec<_> = ranks.map(|bootstrap| scope.spawn(move || rank(bootstrap))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn too_little_shared_memory_means_tcp_with_a_warning_or_an_error_with_the_numbers() {
        let needed = shm::segment_bytes(3).to_string();
        let small = [Backing::Folder { path: "/dev/shm".into(), most_bytes: 65536 }];
        let told = shared(TransportKind::Auto, &small);
        assert!(told.iter().all(|(kind, _)| *kind == Ok(TransportKind::Tcp)), "{told:?}");
        let warnings: Vec<&String> = told.iter().flat_map(|(_, notices)| notices).collect();
        assert!(warnings.iter().any(|line| line.contains("tcp is used") && line.contains(&needed)), "{warnings:?}");
        for (told, _) in shared(TransportKind::Shm, &small) {
            let error = told.expect_err("too small");
            assert!(error.contains(&needed) && error.contains("65536 free"), "{error}");
        }
    }

    #[test]
    fn a_file_serves_where_a_memfd_cannot_and_is_gone_once_all_have_it() {
        let folder = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
        let none = Backing::Folder { path: folder.path().join("none"), most_bytes: u64::MAX };
        let file = Backing::Folder { path: folder.path().into(), most_bytes: u64::MAX };
        let told = shared(TransportKind::Shm, &[none, file]);
        assert!(told.iter().all(|(kind, _)| *kind == Ok(TransportKind::Shm)), "{told:?}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("it").count(), 0);
    }
}
