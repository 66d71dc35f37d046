//! Reading environment variables: what is set, what must come together, what has no meaning.

use crate::CommError;

/// A variable's value; an empty one is none.
pub(super) type Value = Result<Option<String>, CommError>;

/// The environment of a process, or one that a test makes up.
pub(super) struct Variables<'a> {
    pub(super) get: &'a dyn Fn(&str) -> Value,
    /// The id of the process whose environment it is.
    pub(super) process: u32,
}

impl Variables<'_> {
    /// The value without the space around it, if there is any.
    pub(super) fn text(&self, name: &str) -> Value {
        let value = (self.get)(name)?;
        Ok(value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty()))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<usize>, CommError> {
        self.text(name)?.map(|value| number(name, &value)).transpose()
    }

    /// The values of variables that belong together: all of them, or none.
    pub(super) fn all_or_none<const N: usize>(&self, names: &[&str; N]) -> Result<Option<[String; N]>, CommError> {
        let values = names.iter().map(|name| self.text(name)).collect::<Result<Vec<_>, _>>()?;
        let listed = |set: bool| {
            let chosen = names.iter().zip(&values).filter(|(_, value)| value.is_some() == set);
            chosen.map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
        };
        match values.iter().flatten().count() {
            0 => Ok(None),
            count if count == N => {
                let values: Vec<String> = values.into_iter().flatten().collect();
                Ok(<[String; N]>::try_from(values).ok())
            }
            _ => Err(CommError::Config {
                what: format!("{} is set, but {} is not", listed(true), listed(false)),
                fix: format!("set all of {} or none", names.join(", ")),
            }),
        }
    }
}

pub(super) fn malformed(name: &str, value: &str, wanted: &str) -> CommError {
    CommError::Config { what: format!("{name} is `{value}`"), fix: format!("set it to {wanted}") }
}

pub(super) fn number(name: &str, value: &str) -> Result<usize, CommError> {
    value.trim().parse().map_err(|_| malformed(name, value, "a whole number, 0 or more"))
}

/// A port that somebody can listen on.
pub(super) fn port(name: &str, value: &str, wanted: &str) -> Result<u16, CommError> {
    value.parse().ok().filter(|port| *port > 0).ok_or_else(|| malformed(name, value, wanted))
}
