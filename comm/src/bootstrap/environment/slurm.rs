//! The variables that Slurm's `srun` gives the tasks of a step, and its way to write lists of hosts.

use super::meeting::{Chosen, Meeting};
use super::place::{Launcher, Place};
use super::variables::{Variables, malformed, number};
use crate::CommError;

/// What tells the rank. `sbatch` and `salloc` set some of them for their script or shell, which is no rank; the step they
/// do not set.
pub(super) const SLURM: [&str; 5] =
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"];
const JOB: &str = "SLURM_JOB_ID";
const STEP: &str = SLURM[3];
/// The process that srun itself started.
const TASK: &str = "SLURM_TASK_PID";
/// Set in a step with a terminal.
const TERMINAL: &str = "SLURM_PTY_PORT";

/// The rank that srun tells. None in the script of `sbatch`, the shell of `salloc`, and a shell that
/// `srun --pty` started for somebody to type in: what is started there is no task.
pub(super) fn srun(variables: &Variables<'_>) -> Result<Option<Place>, CommError> {
    if variables.text(STEP)?.is_none() {
        return Ok(None);
    }
    // Tasks of this very step; SLURM_NTASKS can be those that the whole allocation was asked for.
    let tasks = if variables.text(SLURM[4])?.is_some() { SLURM[4] } else { SLURM[1] };
    let Some([rank, world, local_rank]) = variables.all_or_none(&[SLURM[0], tasks, SLURM[2]])? else {
        return Ok(None);
    };
    let place = Place::new(Launcher::Slurm, [SLURM[0], tasks, SLURM[2]], [&rank, &world, &local_rank])?;
    if place.world == 1 && variables.text(TERMINAL)?.is_some() && !direct(variables)? {
        return Ok(None);
    }
    let local_world = tasks_here(variables)?;
    Ok(Some(Place { local_world, ..place }))
}

/// Whether srun started this very process, with nothing between that could be another launcher.
pub(super) fn direct(variables: &Variables<'_>) -> Result<bool, CommError> {
    Ok(variables.text(TASK)?.is_some_and(|process| process == variables.process.to_string()))
}

/// Where the tasks of a step meet: on its first host, where task 0 is unless `--distribution=arbitrary` says otherwise.
pub(super) fn meeting(variables: &Variables<'_>, place: &Place) -> Result<Meeting, CommError> {
    let mut chosen = Chosen { flags: "`srun --export=ALL,MASTER_ADDR=HOST,MASTER_PORT=PORT`", ..Chosen::default() };
    for name in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"] {
        if let Some(list) = variables.text(name)? {
            let wanted = "a list of hosts as Slurm writes it, such as `n[01-03,7],m4`";
            let hosts = Hosts::read(&list).ok_or_else(|| malformed(name, &list, wanted))?;
            chosen.first_host = Some(hosts);
            break;
        }
    }
    if let Some(job) = variables.text(JOB)? {
        let step = variables.text(STEP)?.unwrap_or_default();
        (chosen.job, chosen.job_from) = (Some(format!("{job}.{step}")), "SLURM_JOB_ID and SLURM_STEP_ID");
    }
    chosen.meeting(variables, place)
}

/// Tasks of the step on this host: `SLURM_STEP_TASKS_PER_NODE` is a list such as `2(x3),1`, a number for each host.
fn tasks_here(variables: &Variables<'_>) -> Result<Option<usize>, CommError> {
    let name = "SLURM_STEP_TASKS_PER_NODE";
    let (Some(list), Some(mut node)) = (variables.text(name)?, variables.number("SLURM_NODEID")?) else {
        return Ok(None);
    };
    let wrong = || malformed(name, &list, "tasks of each host as Slurm writes them, such as `2(x3),1`");
    for part in list.split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, number(name, times.strip_suffix(')').ok_or_else(wrong)?)?),
            None => (part, 1),
        };
        if node < times {
            return tasks.parse().map(Some).map_err(|_| wrong());
        }
        node -= times;
    }
    Err(wrong())
}

/// A list of hosts, of which only the first and whether there are more is needed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hosts {
    pub(super) first: String,
    pub(super) several: bool,
}

impl Hosts {
    /// Reads `n[01-03,7],m4`: names with commas between, and in a name any number of `[..]`, each a list of numbers and of
    /// ranges whose first number has the zeros that all have.
    pub(super) fn read(list: &str) -> Option<Self> {
        let (mut depth, mut names) = (0, 0);
        let between = |c: char| {
            depth += i32::from(c == '[') - i32::from(c == ']');
            c == ',' && depth == 0
        };
        let mut hosts: Option<Self> = None;
        for name in list.split(between) {
            let (first, several) = first_of(name)?;
            names += 1;
            hosts.get_or_insert(Self { first, several });
        }
        hosts.map(|hosts| Self { several: hosts.several || names > 1, ..hosts })
    }
}

/// The first host of a name with its `[..]`, and whether the name means more than one.
fn first_of(name: &str) -> Option<(String, bool)> {
    let (mut first, mut several, mut rest) = (String::new(), false, name);
    loop {
        let (plain, after) = rest.split_at(rest.find('[').unwrap_or(rest.len()));
        if !plain.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c)) {
            return None;
        }
        first.push_str(plain);
        let Some(after) = after.strip_prefix('[') else { break };
        let (inside, after) = after.split_once(']')?;
        let mut parts = inside.split(',');
        first.push_str(first_number(parts.next()?, &mut several)?);
        for part in parts {
            first_number(part, &mut several)?;
            several = true;
        }
        rest = after;
    }
    (!first.is_empty()).then_some((first, several))
}

/// The first number of `7` or `01-03`, as it is written.
fn first_number<'a>(part: &'a str, several: &mut bool) -> Option<&'a str> {
    let (low, high) = part.split_once('-').unwrap_or((part, part));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let [from, to]: [u64; 2] = [low.parse().ok()?, high.parse().ok()?];
    *several |= from < to;
    (digits(low) && digits(high) && from <= to).then_some(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list_is_the_one_that_scontrol_shows_first() {
        // What `scontrol show hostnames LIST | head -1` prints, and whether it prints more lines.
        for (list, first, several) in [
            ("node7", "node7", false),
            ("n[01-03,7],m4", "n01", true),
            ("m4,n[01-03]", "m4", true),
            ("gpu-a[09-12]-ib", "gpu-a09-ib", true),
            ("rack[2-3]n[005,017]", "rack2n005", true),
            ("a[7],b", "a7", true),
            ("a[7]", "a7", false),
            ("host.example.org", "host.example.org", false),
            ("[0-3]", "0", true),
        ] {
            let hosts = Hosts::read(list).unwrap_or_else(|| panic!("{list} has no meaning"));
            assert_eq!((hosts.first.as_str(), hosts.several), (first, several), "{list}");
        }
        for list in
            ["", ",", "a,", "n[", "n]", "n[]", "n[3-1]", "n[1-]", "n[+1]", "n[a]", "n[1", "n[1][", "a b", "n[1,]"]
        {
            assert_eq!(Hosts::read(list), None, "{list}");
        }
    }
}
