//! Which rank this process is, as one launcher tells it.

use super::variables::{Variables, number};
use crate::CommError;
use crate::bootstrap::check_world;

/// Who starts processes and tells them by variables which rank they are, the innermost first where one starts another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Launcher {
    Ours,
    Torchrun,
    OpenMpi,
    Hydra,
    Slurm,
}

impl Launcher {
    /// Where the job's settings come from, for the log.
    pub(super) fn source(self) -> &'static str {
        match self {
            Launcher::Ours => "warpweft launcher",
            Launcher::Torchrun => "torchrun environment",
            Launcher::OpenMpi => "Open MPI environment",
            Launcher::Hydra => "MPI environment (Hydra)",
            Launcher::Slurm => "Slurm environment",
        }
    }

    /// Its name in a sentence.
    pub(super) fn name(self) -> &'static str {
        match self {
            Launcher::Ours => "our launcher",
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "Open MPI's mpirun",
            Launcher::Hydra => "Hydra's mpiexec",
            Launcher::Slurm => "Slurm's srun",
        }
    }
}

/// What a launcher tells a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) launcher: Launcher,
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) local_rank: usize,
    /// Ranks on this host, where the launcher says so.
    pub(super) local_world: Option<usize>,
    /// The variables of rank and world.
    pub(super) names: [&'static str; 2],
}

impl Place {
    /// Reads and checks the numbers of rank, world and local rank, in this order.
    pub(super) fn new(
        launcher: Launcher,
        names: [&'static str; 3],
        [rank, world, local_rank]: [&str; 3],
    ) -> Result<Self, CommError> {
        let (rank, world) = (number(names[0], rank)?, number(names[1], world)?);
        let local_rank = number(names[2], local_rank)?;
        if rank >= world {
            return Err(CommError::Config {
                what: format!("{} is {rank}, but {} is {world}", names[0], names[1]),
                fix: format!("ranks are numbered from 0, so this must be at most {}", world.saturating_sub(1)),
            });
        }
        check_world(names[1], world)?;
        Ok(Self { launcher, rank, world, local_rank, local_world: None, names: [names[0], names[1]] })
    }

    /// With the number of ranks on this host from a variable, where it is set.
    pub(super) fn beside(mut self, variables: &Variables<'_>, name: &str) -> Result<Self, CommError> {
        self.local_world = variables.number(name)?;
        Ok(self)
    }

    /// Whether all ranks are on this host, as far as is known.
    pub(super) fn on_one_host(&self) -> bool {
        self.local_world == Some(self.world)
    }

    /// `RANK = 1 of WORLD_SIZE = 4`.
    pub(super) fn told(&self) -> String {
        format!("{} = {} of {} = {}", self.names[0], self.rank, self.names[1], self.world)
    }
}
