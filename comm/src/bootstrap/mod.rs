//! Finding the ranks of a job, proving that they belong to it, and watching whether they live.
//!
//! Three ways lead to a [`Bootstrap`]: [`threads`] makes all ranks of a job in this process; [`launch`] starts a process
//! for each; [`from_env`] joins the job that the environment describes, whether that launcher, torchrun, mpirun or srun
//! wrote it:
//!
//! | launcher | variables |
//! |---|---|
//! | ours | `WARPWEFT_RANK`, `WARPWEFT_WORLD_SIZE`, `WARPWEFT_LOCAL_RANK`, `WARPWEFT_RENDEZVOUS`: all or none, and no other launcher's |
//! | torchrun | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT`: all or none. When `TORCHELASTIC_USE_AGENT_STORE` is `True` torchrun itself listens on that port, and ours is the next one |
//! | Open MPI 4 and 5 | `OMPI_COMM_WORLD_RANK`, `_SIZE`, `_LOCAL_RANK`, `_LOCAL_SIZE`; the job's name is `PMIX_NAMESPACE` (else `OMPI_MCA_ess_base_jobid`) |
//! | Hydra: MPICH, MVAPICH, Intel MPI | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`, `MPI_LOCALNRANKS`; the job's name is the process `hydra_pmi_proxy` above all ranks of one host |
//! | Slurm's srun | `SLURM_STEP_ID`, `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` (else `SLURM_NTASKS`), `SLURM_LOCALID`; hosts from `SLURM_STEP_NODELIST` (else `SLURM_JOB_NODELIST`); the job's name is `SLURM_JOB_ID` with `SLURM_STEP_ID` |
//!
//! The script of `sbatch`, the shell of `salloc` and that of `srun --pty` are no ranks, whatever Slurm sets for them.
//!
//! Where they meet: rank 0 listens at `MASTER_ADDR` and `MASTER_PORT`. mpirun and srun need neither on one host, srun not on
//! several either: the address is then loopback or the first of Slurm's hosts (where task 0 is, unless
//! `--distribution=arbitrary`), the port 20000 to 31999 by the SHA-256 of the job's name. Two jobs with one port do not mix:
//! their secrets are made out of their names; the second one's rank 0 says that the port is taken.
//! Open MPI and Hydra on several hosts need `-x MASTER_ADDR=HOST -x MASTER_PORT=PORT` or `-genv MASTER_ADDR HOST -genv MASTER_PORT PORT`.
//!
//! Several launchers' variables at once: the first in the order of the table counts if both say the same rank of as many;
//! if torchrun's agents are as many as the other's ranks (they were started by it); or if mpirun was started in
//! a step of Slurm, unless srun started this process itself (`SLURM_TASK_PID`), which then counts. All else is refused, both named.
//!
//! For all launchers:
//!
//! | variable | meaning |
//! |---|---|
//! | `WARPWEFT_SECRET` | the job's secret, 64 hexadecimal digits; else the user's own, made on first use in `warpweft/secret` below `$XDG_CONFIG_HOME` or `~/.config`, readable by its owner only. Hosts without a shared home need the variable |
//! | `WARPWEFT_TIMEOUT` | seconds until a wait fails; 600 if unset |

mod door;
mod environment;
mod frame;
mod hello;
pub mod launch;
mod member;
mod rendezvous;
mod secret;
mod threads;
mod user_secret;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

pub(crate) use door::Door;
pub use environment::{Launched, from_env, from_env_within, launched};
pub(crate) use hello::{Guest, HelloError, Purpose, call};
pub use secret::Secret;
pub(crate) use secret::random_bytes;
pub use threads::threads;

use crate::notice::Notices;
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
    /// Where the job's settings came from, for the log: `local threads`, `Slurm environment`.
    pub source: &'static str,
    /// The job's health; kept up to date by whoever made this.
    pub health: Health,
    /// The deadline of every wait, unless a call says otherwise.
    pub timeout: Duration,
    /// What transports need to know of this process.
    pub site: Site,
    /// The first channel: slow, authenticated, and enough to set transports up with. It is also this rank's membership:
    /// dropping it is the orderly goodbye, so keep it as long as the job lasts.
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
            site: Site {
                // Nothing listens in a job of one rank, so nobody can present a proof.
                secret: Secret::unused(),
                address: IpAddr::V4(Ipv4Addr::LOCALHOST),
                rendezvous: IpAddr::V4(Ipv4Addr::LOCALHOST),
                notices: Notices::default(),
            },
            exchange: Box::new(Alone),
        }
    }
}

/// What the transports of a process share: how it proves its membership and where it can be reached.
#[derive(Clone, Debug)]
pub struct Site {
    /// Proves membership of the job on every port.
    pub secret: Secret,
    /// The address of the interface that reaches the rendezvous; data connections use it too.
    pub address: IpAddr,
    /// The address of the rendezvous.
    pub rendezvous: IpAddr,
    /// What the user should hear of.
    pub notices: Notices,
}

/// The most ranks of a job: the memory for the links between all pairs grows with the square.
pub const MOST_RANKS: usize = 4096;

/// Refuses a number of ranks that no job has; `source` says who asks for it.
fn check_world(source: &str, world: usize) -> Result<(), CommError> {
    if (1..=MOST_RANKS).contains(&world) {
        return Ok(());
    }
    let what = format!("{source} asks for {world} ranks");
    Err(CommError::Config { what, fix: format!("a job has 1 to {MOST_RANKS} ranks") })
}

/// The deadline of a wait where none was given.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// How often a rank and the rendezvous tell each other that they are there.
const PING: Duration = Duration::from_secs(5);
/// Who says nothing for this long counts as dead.
const SILENCE: Duration = Duration::from_secs(30);
