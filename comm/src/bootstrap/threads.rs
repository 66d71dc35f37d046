//! A job whose ranks are threads of this process: the exchange is a table under a lock.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Bootstrap, DEFAULT_TIMEOUT, Secret, Site};
use crate::notice::Notices;
use crate::transport::Exchange;
use crate::{Cause, CommError, Failure, Health, Verdict};

/// How often a waiting rank looks at the job's health.
const LOOK: Duration = Duration::from_millis(20);

/// Makes a job of `world` ranks for threads of this process; give each thread one. They share a health: a thread that
/// panics, or leaves while others wait for it, is reported to all as died.
///
/// # Errors
/// [`CommError::Config`] for a world of 0 or more than [`MOST_RANKS`](super::MOST_RANKS); [`CommError::System`] without random numbers.
pub fn threads(world: usize) -> Result<Vec<Bootstrap>, CommError> {
    super::check_world("this call", world)?;
    if world == 1 {
        return Ok(vec![Bootstrap::alone()]);
    }
    let health = Health::new();
    let site = Site {
        secret: Secret::random()?,
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        rendezvous: IpAddr::V4(Ipv4Addr::LOCALHOST),
        notices: Notices::default(),
    };
    let table = Arc::new(Table::new(world));
    let member = |rank| Bootstrap {
        rank,
        world,
        local_rank: rank,
        source: "local threads",
        health: health.clone(),
        timeout: DEFAULT_TIMEOUT,
        site: site.clone(),
        exchange: Box::new(Seat { rank, health: health.clone(), table: table.clone(), timeout: DEFAULT_TIMEOUT }),
    };
    Ok((0..world).map(member).collect())
}

struct Table {
    rounds: Mutex<Rounds>,
    changed: Condvar,
}

/// The round that is being filled, and the last one that was.
struct Rounds {
    filling: u64,
    parts: Vec<Option<Vec<u8>>>,
    complete: Arc<Vec<Vec<u8>>>,
    left: Vec<bool>,
}

impl Table {
    fn new(world: usize) -> Self {
        let rounds =
            Rounds { filling: 0, parts: vec![None; world], complete: Arc::default(), left: vec![false; world] };
        Self { rounds: Mutex::new(rounds), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Seat {
    rank: usize,
    health: Health,
    table: Arc<Table>,
    timeout: Duration,
}

impl Seat {
    fn failed(&self, world: usize, peer: Option<usize>, cause: Cause) -> CommError {
        Failure { rank: self.rank, world, operation: "bootstrap", sequence: 0, peer, address: None, cause }.into()
    }
}

impl Exchange for Seat {
    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        let start = Instant::now();
        let mut rounds = self.table.lock();
        let round = rounds.filling;
        let world = rounds.parts.len();
        rounds.parts[self.rank] = Some(bytes.to_vec());
        if rounds.parts.iter().all(Option::is_some) {
            let parts = rounds.parts.iter_mut().filter_map(Option::take).collect();
            rounds.complete = Arc::new(parts);
            rounds.filling += 1;
            self.table.changed.notify_all();
        }
        // The next round needs this rank, so `complete` stays what it is until this rank has taken it.
        while rounds.filling == round {
            if let Err(verdict) = self.health.check() {
                return Err(verdict.failure(self.rank, world, "bootstrap").into());
            }
            let missing: Vec<usize> = (0..world).filter(|&rank| rounds.parts[rank].is_none()).collect();
            if let Some(&gone) = missing.iter().find(|&&rank| rounds.left[rank]) {
                let how = "its thread left before the ranks were connected".to_owned();
                self.health.report(Verdict::Died { rank: gone, how: how.clone() });
                return Err(self.failed(world, Some(gone), Cause::Died { how }));
            }
            if start.elapsed() >= self.timeout {
                let peer = missing.first().copied();
                let cause = Cause::Missing { ranks: missing, after: self.timeout };
                return Err(self.failed(world, peer, cause));
            }
            let wait = self.table.changed.wait_timeout(rounds, LOOK.min(self.timeout));
            rounds = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(rounds.complete.as_ref().clone())
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.health.report(Verdict::Died { rank: self.rank, how: "its thread panicked".into() });
        }
        self.table.lock().left[self.rank] = true;
        self.table.changed.notify_all();
    }
}
