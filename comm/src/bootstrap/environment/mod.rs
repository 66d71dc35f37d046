//! A job whose ranks are told by environment variables who they are: by our own launcher, torchrun, mpirun or srun.
//! The variables are listed at the head of [`super`].

mod choice;
mod meeting;
mod mpi;
mod place;
mod slurm;
mod torchrun;
mod variables;

use std::time::Duration;

pub(super) use self::torchrun::OURS;

use self::meeting::Meeting;
use self::place::{Launcher, Place};
use self::variables::{Variables, malformed};
use super::member::{Invitation, Member};
use super::rendezvous::{Rendezvous, Settings};
use super::secret::Secret;
use super::{Bootstrap, DEFAULT_TIMEOUT, Site, user_secret};
use crate::notice::Notices;
use crate::transport::Exchange;
use crate::{CommError, Health};

pub(super) const SECRET: &str = "WARPWEFT_SECRET";
const TIMEOUT: &str = "WARPWEFT_TIMEOUT";

/// The variables by which another launcher tells a process which rank it is: ours must not hand them down.
pub(super) fn foreign() -> impl Iterator<Item = &'static str> {
    let torchrun = torchrun::TORCHRUN.into_iter().chain([torchrun::LOCAL_WORLD]);
    torchrun.chain(mpi::OPEN_MPI).chain(mpi::HYDRA).chain(slurm::SLURM)
}

/// Joins the job that the environment describes, if it describes one. Returns when all ranks have joined.
///
/// The variables are listed in [the module's page](crate::bootstrap).
///
/// # Errors
/// [`CommError::Config`] for variables that are missing, malformed, or contradict each other or the rendezvous; a failure
/// naming the ranks that did not come in time.
pub fn from_env() -> Result<Option<Bootstrap>, CommError> {
    of_this_process(Described::read)?.map(Described::join).transpose()
}

/// [`from_env`] with a deadline of its own for every wait, the first one for all ranks too, whatever `WARPWEFT_TIMEOUT` says.
///
/// # Errors
/// As [`from_env`].
pub fn from_env_within(timeout: Duration) -> Result<Option<Bootstrap>, CommError> {
    of_this_process(Described::read)?.map(|described| Described { timeout, ..described }.join()).transpose()
}

/// What the environment says of this process's job, before anybody is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Whether our own launcher started this process.
    pub by_us: bool,
    /// The variable that says how many ranks there are: `WORLD_SIZE`, `SLURM_STEP_NUM_TASKS`.
    pub variable: &'static str,
    /// How many ranks there are.
    pub world: usize,
    /// How many of them are on this host, where the launcher says so.
    pub local_world: Option<usize>,
}

/// The job that [`from_env`] would join.
///
/// # Errors
/// [`CommError::Config`] for variables that are missing, malformed or contradict each other.
pub fn launched() -> Result<Option<Launched>, CommError> {
    let place = of_this_process(choice::place)?;
    Ok(place.map(|place| Launched {
        by_us: place.launcher == Launcher::Ours,
        variable: place.names[1],
        world: place.world,
        local_world: place.local_world,
    }))
}

fn of_this_process<T>(read: impl Fn(&Variables<'_>) -> Result<T, CommError>) -> Result<T, CommError> {
    let get = |name: &str| match std::env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(value)) => Err(malformed(name, &value.to_string_lossy(), "plain text")),
    };
    read(&Variables { get: &get, process: std::process::id() })
}

/// A job as the environment describes it.
#[derive(Debug, PartialEq, Eq)]
struct Described {
    place: Place,
    meeting: Meeting,
    secret: Option<Secret>,
    timeout: Duration,
}

impl Described {
    fn read(variables: &Variables<'_>) -> Result<Option<Self>, CommError> {
        let Some(place) = choice::place(variables)? else { return Ok(None) };
        let meeting = match place.launcher {
            Launcher::Ours => torchrun::our_meeting(variables)?,
            Launcher::Torchrun => torchrun::meeting(variables)?,
            Launcher::OpenMpi => mpi::open_mpi_meeting(variables, &place)?,
            Launcher::Hydra => mpi::hydra_meeting(variables, &place)?,
            Launcher::Slurm => slurm::meeting(variables, &place)?,
        };
        let secret = variables.text(SECRET)?.map(|digits| {
            // The value itself stays out of the message: it may be nearly right.
            let wrong = format!("{} characters", digits.chars().count());
            Secret::from_hex(&digits).ok_or_else(|| malformed(SECRET, &wrong, "64 hexadecimal digits"))
        });
        let timeout = variables.text(TIMEOUT)?.map(|value| {
            let seconds = value.parse().ok().filter(|seconds| *seconds > 0.0);
            let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            timeout.ok_or_else(|| malformed(TIMEOUT, &value, "seconds, more than 0"))
        });
        let timeout = timeout.transpose()?.unwrap_or(DEFAULT_TIMEOUT);
        Ok(Some(Self { place, meeting, secret: secret.transpose()?, timeout }))
    }

    fn join(self) -> Result<Bootstrap, CommError> {
        let Self { place, meeting, timeout, secret } = self;
        let Place { launcher, rank, world, local_rank, .. } = place;
        let (source, launched) = (launcher.source(), launcher == Launcher::Ours);
        if world == 1 && !launched {
            return Ok(Bootstrap { source, local_rank, timeout, ..Bootstrap::alone() });
        }
        let secret = secret.map_or_else(user_secret::load, Ok)?;
        let secret = meeting.job.as_ref().map_or_else(|| secret.clone(), |job| secret.for_job(job));
        let (notices, health) = (Notices::default(), Health::new());
        let server = if rank == 0 && !launched {
            let (secret, notices) = (secret.clone(), notices.clone());
            let settings = Settings { world, secret, notices, grace: Duration::ZERO };
            Some(Rendezvous::open(meeting.listen()?, settings)?)
        } else {
            None
        };
        let rendezvous = meeting.address();
        let invitation = Invitation { rank, world, rendezvous, secret: secret.clone(), timeout, launched };
        let (mut member, addresses) = Member::join(&invitation, &health, server)?;
        // Nobody goes on before all are there; who is missing is named after the timeout.
        member.all_gather(&[])?;
        let site = Site { secret, address: addresses.own, rendezvous: addresses.rendezvous, notices };
        let exchange = Box::new(member);
        Ok(Bootstrap { rank, world, local_rank, source, health, timeout, site, exchange })
    }
}

#[cfg(test)]
mod tests;
