//! Which launcher started this process, where the variables of several are there: one starts another (torchrun's agents by
//! srun, mpirun in a Slurm job), and children inherit what was meant for their parents.

use super::place::{Launcher, Place};
use super::variables::Variables;
use super::{mpi, slurm, torchrun};
use crate::CommError;

/// The rank of this process, as its own launcher tells it.
pub(super) fn place(variables: &Variables<'_>) -> Result<Option<Place>, CommError> {
    let slurm = slurm::srun(variables)?;
    let direct = slurm.is_some() && slurm::direct(variables)?;
    let mpi = [mpi::open_mpi(variables)?, mpi::hydra(variables, slurm.is_some())?];
    // What srun itself has started was started by no mpirun, whose variables come from around srun then.
    let mpi = mpi.map(|place| place.filter(|place| !direct || slurm.is_some_and(|slurm| same(place, &slurm))));
    let ours = torchrun::ours(variables)?;
    let another = ours.is_some() || slurm.is_some() || mpi.iter().any(Option::is_some);
    let torchrun = torchrun::torchrun(variables, another)?;
    let mut told = [ours, torchrun, mpi[0], mpi[1], slurm].into_iter().flatten();
    let Some(first) = told.next() else { return Ok(None) };
    for other in told {
        if !(first.launcher != Launcher::Ours && (same(&first, &other) || within(variables, &first, &other)?)) {
            return Err(contradiction(&first, &other));
        }
    }
    Ok(Some(first))
}

/// A script that sets torchrun's variables from Slurm's, say.
fn same(one: &Place, other: &Place) -> bool {
    (one.rank, one.world) == (other.rank, other.world)
}

/// Whether the first launcher's processes were started by processes of the other's.
fn within(variables: &Variables<'_>, inner: &Place, outer: &Place) -> Result<bool, CommError> {
    Ok(match inner.launcher {
        Launcher::Torchrun => torchrun::agents(variables)? == Some(outer.world),
        // mpirun starts a daemon on each host by srun. One rank of one is no job that could tell who started whom.
        Launcher::OpenMpi | Launcher::Hydra => {
            outer.launcher == Launcher::Slurm && (inner.world > 1 || outer.world == 1)
        }
        Launcher::Ours | Launcher::Slurm => false,
    })
}

fn contradiction(one: &Place, other: &Place) -> CommError {
    CommError::Config {
        what: format!(
            "the variables of {} ({}) and of {} ({}) are both set",
            one.launcher.name(),
            one.told(),
            other.launcher.name(),
            other.told()
        ),
        fix: format!(
            "unset those of the launcher that did not start this process, with `env -u {}` or `env -u {}`",
            one.names.join(" -u "),
            other.names.join(" -u ")
        ),
    }
}
