//! Finding the ranks of a job, proving that they belong to it, and watching whether they live.

use std::time::Duration;

use crate::transport::Exchange;
use crate::{CommError, Health};

/// One rank's place in a job, before any transport exists. Made by a launcher or from the environment.
pub struct Bootstrap {
    /// This rank.
    pub rank: usize,
    /// Ranks of the job.
    pub world: usize,
    /// This rank among those of its host.
    pub local_rank: usize,
    /// Where the job's settings came from, for the log: `local threads`, `torchrun environment`.
    pub source: &'static str,
    /// The job's health; kept up to date by whoever made this.
    pub health: Health,
    /// The deadline of every wait, unless a call says otherwise.
    pub timeout: Duration,
    /// The first channel: slow, authenticated, and enough to set transports up with.
    pub exchange: Box<dyn Exchange + Send>,
}

impl Bootstrap {
    /// A job of one rank: nothing listens and nothing is allocated.
    pub fn alone() -> Self {
        struct Alone;
        impl Exchange for Alone {
            fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
                Ok(vec![bytes.to_vec()])
            }
        }
        Self {
            rank: 0,
            world: 1,
            local_rank: 0,
            source: "one rank",
            health: Health::new(),
            timeout: DEFAULT_TIMEOUT,
            exchange: Box::new(Alone),
        }
    }
}

/// The deadline of a wait where none was given.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
