//! The variables of Open MPI's `mpirun`, and those of Hydra, the `mpiexec` of MPICH, MVAPICH and Intel MPI. Neither says
//! where ranks could meet, so that on several hosts the user must.

use std::fs;

use super::meeting::{Chosen, Meeting};
use super::place::{Launcher, Place};
use super::variables::Variables;
use crate::CommError;

pub(super) const OPEN_MPI: [&str; 4] =
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"];
pub(super) const HYDRA: [&str; 4] = ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"];
/// What names one job of Open MPI: versions 4 and 5 set the first, version 4 the second too.
const OPEN_MPI_JOB: [&str; 2] = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"];
/// The process that starts Hydra's ranks on a host, cut to the 15 characters that the kernel keeps.
const PROXY: &str = "hydra_pmi_proxy";

/// The rank that Open MPI tells.
pub(super) fn open_mpi(variables: &Variables<'_>) -> Result<Option<Place>, CommError> {
    read(variables, Launcher::OpenMpi, &OPEN_MPI)
}

/// The rank that Hydra tells. srun sets `PMI_RANK` and `PMI_SIZE` too with `--mpi=pmi2`, but not the local ones.
pub(super) fn hydra(variables: &Variables<'_>, in_slurm: bool) -> Result<Option<Place>, CommError> {
    if in_slurm && variables.text(HYDRA[2])?.is_none() {
        return Ok(None);
    }
    read(variables, Launcher::Hydra, &HYDRA)
}

fn read(variables: &Variables<'_>, launcher: Launcher, names: &[&'static str; 4]) -> Result<Option<Place>, CommError> {
    let Some([rank, world, local_rank, _]) = variables.all_or_none(names)? else { return Ok(None) };
    let place = Place::new(launcher, [names[0], names[1], names[2]], [&rank, &world, &local_rank])?;
    Ok(Some(place.beside(variables, names[3])?))
}

/// Where Open MPI's ranks meet.
pub(super) fn open_mpi_meeting(variables: &Variables<'_>, place: &Place) -> Result<Meeting, CommError> {
    let mut chosen = Chosen { flags: "`-x MASTER_ADDR=HOST -x MASTER_PORT=PORT`", ..Chosen::default() };
    for name in OPEN_MPI_JOB {
        if let Some(job) = variables.text(name)? {
            (chosen.job, chosen.job_from) = (Some(job), name);
            break;
        }
    }
    chosen.meeting(variables, place)
}

/// Where Hydra's ranks meet. It gives a job no name, but on one host all ranks have one process above them.
pub(super) fn hydra_meeting(variables: &Variables<'_>, place: &Place) -> Result<Meeting, CommError> {
    let job = if place.on_one_host() { proxy_above(variables.process) } else { None };
    let flags = "`-genv MASTER_ADDR HOST -genv MASTER_PORT PORT`";
    Chosen { flags, job, job_from: "the process id of Hydra's proxy", ..Chosen::default() }.meeting(variables, place)
}

/// The proxy among the processes above one, by id and time of start, so that no other job has the same.
fn proxy_above(mut process: u32) -> Option<String> {
    // No chain of wrappers is that long, and a process table that changes meanwhile must not lead in circles.
    for _ in 0..64 {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name is in parentheses and may hold some itself; the fields follow the last.
        let (before, after) = stat.rsplit_once(')')?;
        let mut fields = after.split_whitespace().skip(1);
        let parent = fields.next()?.parse().ok()?;
        if before.split_once('(')?.1 == PROXY {
            return Some(format!("{process} started at {}", fields.nth(17)?));
        }
        process = parent;
    }
    None
}
