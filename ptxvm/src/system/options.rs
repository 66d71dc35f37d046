//! How launches run and what watches them, also by name: the words of the command, of job files and of device names.

use std::fmt;

use super::{DeviceOptions, SystemError};
use crate::exec::{Asynchrony, Divergence, Options, Schedule};
use crate::numerics::{Approx, Settings, TensorModel};
use crate::observe::check::Selection;
use crate::types::Target;

/// Warp instructions after which a kernel is stopped unless the launch says otherwise: minutes of this executor.
pub const DEFAULT_LIMIT: u64 = 2_000_000_000;
/// Reported errors after which a kernel is stopped unless the launch says otherwise.
pub const DEFAULT_MOST_ERRORS: u64 = 100;

/// The words of a setting, and what each means.
type Words<T> = [(&'static str, T)];

const SCHEDULES: &Words<Schedule> =
    &[("rr", Schedule::RoundRobin), ("reverse", Schedule::Reverse), ("random", Schedule::Random)];
const ASYNCHRONIES: &Words<Asynchrony> =
    &[("eager", Asynchrony::Eager), ("latest", Asynchrony::Latest), ("random", Asynchrony::Random)];
const DIVERGENCES: &Words<Divergence> =
    &[("reconverge", Divergence::Reconverge), ("independent", Divergence::Independent)];
const APPROXES: &Words<Approx> = &[("rounded", Approx::Rounded), ("adversary", Approx::Adversary)];
const MODELS: &Words<TensorModel> = &[
    ("native", TensorModel::Native),
    ("exact:sm_80", TensorModel::ExactSm80),
    ("exact:sm_90", TensorModel::ExactSm90),
];

/// How a launch runs and what watches it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaunchOptions {
    /// The checks.
    pub checks: Selection,
    /// The executor's options.
    pub exec: Options,
    /// What `exact` means on this device.
    pub exact: TensorModel,
}

impl LaunchOptions {
    /// The settings that [`LaunchOptions::set`] knows.
    pub const KEYS: [&str; 9] =
        ["check", "seed", "schedule", "async", "divergence", "approx", "numerics", "limit", "workers"];

    /// No checks, and the tensor cores of a target.
    pub fn of(target: Target) -> LaunchOptions {
        let exact = if target.sm >= 90 { TensorModel::ExactSm90 } else { TensorModel::ExactSm80 };
        let settings = Settings { tensor: exact, ..Settings::default() };
        let exec = Options { limit: DEFAULT_LIMIT, most_errors: DEFAULT_MOST_ERRORS, settings, ..Options::default() };
        LaunchOptions { checks: Selection::NONE, exec, exact }
    }

    /// Sets one by its name: `check` (all, none, or names with commas), `seed`, `schedule` (rr, reverse, random), `async`
    /// (eager, latest, random), `divergence` (reconverge, independent), `approx` (rounded, adversary), `numerics` (exact,
    /// native, exact:sm_80, exact:sm_90), `limit` (warp instructions), `workers` (threads, where no check watches).
    ///
    /// # Errors
    /// [`SystemError::Option`] with what is possible.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SystemError> {
        let exec = &mut self.exec;
        match key {
            "check" => self.checks = checks(value)?,
            "seed" => exec.seed = number(key, value, 0)?,
            "limit" => exec.limit = number(key, value, 1)?,
            "workers" => exec.workers = number(key, value, 1)?.min(1024) as usize,
            "schedule" => exec.schedule = word(key, value, SCHEDULES)?,
            "async" => exec.asynchrony = word(key, value, ASYNCHRONIES)?,
            "divergence" => exec.divergence = word(key, value, DIVERGENCES)?,
            "approx" => exec.settings.approx = word(key, value, APPROXES)?,
            "numerics" if value == "exact" => exec.settings.tensor = self.exact,
            "numerics" => exec.settings.tensor = word(key, value, MODELS)?,
            _ => return Err(wrong("the name of a setting", key, LaunchOptions::KEYS.join(", "))),
        }
        Ok(())
    }
}

impl DeviceOptions {
    /// A device by the name of its target: `sm_80`.
    ///
    /// # Errors
    /// [`SystemError::Option`].
    pub fn named(target: &str) -> Result<DeviceOptions, SystemError> {
        let found = target.strip_prefix("sm_").and_then(|number| number.parse().ok());
        match found {
            Some(sm @ (80 | 86 | 87 | 89 | 90)) => Ok(Target { sm, specific: false }.into()),
            _ => Err(wrong("device", target, "sm_80, sm_86, sm_87, sm_89, sm_90".to_owned())),
        }
    }

    /// Sets a setting of its launches, `memory` in bytes, or the number of `multiprocessors`.
    ///
    /// # Errors
    /// [`SystemError::Option`].
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SystemError> {
        match key {
            "memory" => self.memory_bytes = number(key, value, 1)?,
            "multiprocessors" => self.multiprocessors = number(key, value, 1)?.min(1024) as u32,
            _ => self.launch.set(key, value)?,
        }
        Ok(())
    }
}

fn wrong(key: &str, value: &str, wanted: String) -> SystemError {
    SystemError::Option { key: key.to_owned(), value: value.to_owned(), wanted }
}

fn number(key: &str, value: &str, least: u64) -> Result<u64, SystemError> {
    let number = value.parse().ok().filter(|&number| number >= least);
    number.ok_or_else(|| wrong(key, value, format!("a whole number from {least} to {}", u64::MAX)))
}

fn word<T: Copy>(key: &str, value: &str, words: &Words<T>) -> Result<T, SystemError> {
    let names = || words.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    words.iter().find(|(name, _)| *name == value).map(|&(_, found)| found).ok_or_else(|| wrong(key, value, names()))
}

fn spelled<T: PartialEq>(value: &T, words: &Words<T>) -> &'static str {
    words.iter().find(|(_, known)| known == value).map_or("", |(name, _)| name)
}

fn checks(value: &str) -> Result<Selection, SystemError> {
    let mut chosen = Selection::NONE;
    for name in value.split(',') {
        let known = Selection::named(name);
        chosen = chosen | known.ok_or_else(|| wrong("check", name, format!("all, none, {}", all_checks())))?;
    }
    Ok(chosen)
}

fn all_checks() -> String {
    Selection::ALL.checks().map(|check| check.to_string()).collect::<Vec<_>>().join(", ")
}

/// The settings as flags of `warpweft ptx run`, for replaying.
impl fmt::Display for LaunchOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exec = &self.exec;
        let tensor = exec.settings.tensor;
        let numerics = if tensor == self.exact { "exact" } else { spelled(&tensor, MODELS) };
        write!(out, "--check {} --seed {}", self.checks, exec.seed)?;
        write!(out, " --schedule {}", spelled(&exec.schedule, SCHEDULES))?;
        write!(out, " --async {}", spelled(&exec.asynchrony, ASYNCHRONIES))?;
        write!(out, " --divergence {}", spelled(&exec.divergence, DIVERGENCES))?;
        write!(out, " --approx {} --numerics {numerics}", spelled(&exec.settings.approx, APPROXES))?;
        write!(out, " --limit {}", exec.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_spelled_as_they_are_read() {
        let mut options = LaunchOptions::of(Target::SM_90);
        for (key, value) in [
            ("check", "memcheck,racecheck"),
            ("seed", "7"),
            ("schedule", "random"),
            ("async", "latest"),
            ("divergence", "independent"),
            ("approx", "adversary"),
            ("numerics", "exact:sm_80"),
            ("limit", "1000"),
        ] {
            options.set(key, value).unwrap();
            assert!(options.to_string().contains(&format!("--{key} {value}")), "{options}");
        }
        options.set("numerics", "exact").unwrap();
        assert_eq!(options.exec.settings.tensor, TensorModel::ExactSm90);
        let error = options.set("schedule", "rev").unwrap_err().to_string();
        assert_eq!(error, "schedule cannot be `rev`: use rr, reverse, random");
        for (key, value) in [("check", "all,"), ("limit", "0"), ("seed", "-1"), ("speed", "1"), ("numerics", "")] {
            assert!(options.set(key, value).is_err(), "{key}={value}");
        }
        assert!(DeviceOptions::named("sm_70").is_err() && DeviceOptions::named("80").is_err());
    }
}
