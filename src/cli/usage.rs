//! A wrong command line in one sentence.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What clap says in several lines, in one: what is wrong, and the nearest thing that is known.
pub(crate) fn sentence(error: &clap::Error) -> String {
    let get = |kind| error.get(kind).map(plain).filter(|text| !text.is_empty());
    let argument = get(ContextKind::InvalidArg).unwrap_or_default();
    let near = get(ContextKind::SuggestedArg)
        .or_else(|| get(ContextKind::SuggestedSubcommand))
        .or_else(|| get(ContextKind::SuggestedValue))
        .map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
    let value = get(ContextKind::InvalidValue).unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument if near.is_empty() => {
            format!("there is no flag or argument `{argument}`; `--help` lists them")
        }
        ErrorKind::UnknownArgument => format!("there is no flag or argument `{argument}`{near}"),
        ErrorKind::InvalidSubcommand => {
            let name = get(ContextKind::InvalidSubcommand).unwrap_or_default();
            let near = if near.is_empty() { "; `--help` lists them".to_owned() } else { near };
            format!("there is no command `{name}`{near}")
        }
        ErrorKind::InvalidValue if value.is_empty() => format!("{argument} lacks its value"),
        ErrorKind::InvalidValue => {
            let known = get(ContextKind::ValidValue).map_or_else(String::new, |known| format!("; use {known}"));
            format!("{argument} cannot be `{value}`{known}{near}")
        }
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error).map_or_else(String::new, |why| format!("; {why}"));
            format!("{argument} cannot be `{value}`{why}")
        }
        ErrorKind::MissingSubcommand => "which command is missing; `--help` lists them".to_owned(),
        ErrorKind::MissingRequiredArgument => format!("{argument} is missing; `--help` shows how it is used"),
        ErrorKind::ArgumentConflict => {
            let other = get(ContextKind::PriorArg).unwrap_or_default();
            if other.is_empty() || other == argument {
                format!("{argument} is given twice")
            } else {
                format!("{argument} cannot be given together with {other}")
            }
        }
        // The rest is rare; clap's first line is a sentence of its own.
        _ => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    }
}

fn plain(value: &ContextValue) -> String {
    match value {
        ContextValue::Strings(all) => all.join(", "),
        other => other.to_string(),
    }
}
