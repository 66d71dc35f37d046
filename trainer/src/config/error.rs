//! What can be wrong with a configuration. Each message is one sentence: the numbers, where they came from, the fix.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody gave it.
    Default,
    /// The command line.
    Flag,
    /// The configuration file.
    File(PathBuf),
    /// The configuration stored in a checkpoint.
    Checkpoint(PathBuf),
    /// A variable of the environment that a launcher set.
    Environment(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Flag => f.write_str("flag"),
            Origin::File(path) | Origin::Checkpoint(path) => write!(f, "{}", path.display()),
            Origin::Environment(variable) => write!(f, "environment variable {variable}"),
        }
    }
}

/// A configuration that cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No setting has this name.
    #[error("there is no setting `{name}` ({origin}){}", did_you_mean(.nearest))]
    Unknown {
        /// The name given.
        name: String,
        /// Where.
        origin: Origin,
        /// The known name closest to it, if one is close.
        nearest: Option<&'static str>,
    },
    /// A value that its setting cannot take.
    #[error("{name} cannot be `{value}` ({origin}){}; give {wants}", did_you_mean(.nearest))]
    Value {
        /// The setting.
        name: &'static str,
        /// The value given.
        value: String,
        /// Where.
        origin: Origin,
        /// The closest allowed value, if one is close.
        nearest: Option<&'static str>,
        /// What it takes.
        wants: String,
    },
    /// Two settings, or a setting and the surroundings, that do not go together.
    #[error("{what}; {fix}")]
    Contradiction {
        /// The settings with their numbers and origins.
        what: String,
        /// What to change.
        fix: String,
    },
    /// A setting that was given twice, under one name or two.
    #[error("{name} is given twice ({origin}): `{first}` and `{second}`; give one")]
    Twice {
        /// The setting.
        name: &'static str,
        /// Where.
        origin: Origin,
        /// The first value.
        first: String,
        /// The second.
        second: String,
    },
    /// A setting that is part of a run's numbers and was given another value with `--resume`.
    #[error(
        "{name} {value} ({origin}) cannot change when a run is resumed, which has {}; \
         leave it out, or start a new run ({free} may change)",
        .stored.as_deref().unwrap_or("the default")
    )]
    Resumed {
        /// The setting.
        name: &'static str,
        /// The value given.
        value: String,
        /// Where.
        origin: Origin,
        /// The run's value, where one is stored.
        stored: Option<String>,
        /// The names of those that may.
        free: String,
    },
    /// The file is not TOML, or holds more than plain `name = value` lines.
    #[error("{}, line {line}, column {column}: {what}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong there.
        what: String,
    },
    /// The file could not be read.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The checkpoint to resume from cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] crate::checkpoint::CheckpointError),
}

fn did_you_mean(name: &Option<&'static str>) -> String {
    name.map_or(String::new(), |name| format!("; did you mean `{name}`?"))
}
