//! Settings as they were given: text, with the place each came from, before anything is known of its meaning.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use super::error::{ConfigError, Origin};
use super::flags::{FLAGS, Flag};

/// One value that somebody gave.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) value: String,
    pub(super) origin: Origin,
}

/// Settings by name. A later layer replaces an earlier one: checkpoint or file, then flags.
#[derive(Clone, Debug, Default)]
pub(super) struct Values(BTreeMap<&'static str, Given>);

impl Values {
    /// Adds a layer, in which no setting may be there twice.
    pub(super) fn layer(
        &mut self,
        pairs: impl IntoIterator<Item = (String, String)>,
        origin: &Origin,
    ) -> Result<(), ConfigError> {
        let mut layer: BTreeMap<&'static str, Given> = BTreeMap::new();
        for (name, value) in pairs {
            let flag = known(&name, origin)?;
            if let Some(before) = layer.get(flag.name) {
                let first = before.value.clone();
                return Err(ConfigError::Twice { name: flag.name, origin: origin.clone(), first, second: value });
            }
            layer.insert(flag.name, Given { value, origin: origin.clone() });
        }
        self.0.extend(layer);
        Ok(())
    }

    pub(super) fn get(&self, name: &'static str) -> Option<&Given> {
        debug_assert!(Flag::find(name).is_some(), "{name} is not in the table");
        self.0.get(name)
    }

    pub(super) fn remove(&mut self, name: &'static str) {
        self.0.remove(name);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &Given)> {
        self.0.iter().map(|(name, given)| (*name, given))
    }

    /// Where the value of a setting came from.
    pub(super) fn origin(&self, name: &'static str) -> Origin {
        self.get(name).map_or(Origin::Default, |given| given.origin.clone())
    }

    /// The value as a `T`, or `None` where nobody gave it; `wants` describes what is allowed.
    pub(super) fn parse<T: FromStr>(
        &self,
        name: &'static str,
        wants: &str,
        allowed: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, ConfigError> {
        let Some(given) = self.get(name) else { return Ok(None) };
        match given.value.trim().parse::<T>() {
            Ok(value) if allowed(&value) => Ok(Some(value)),
            _ => Err(ConfigError::Value {
                name,
                value: given.value.clone(),
                origin: given.origin.clone(),
                nearest: None,
                wants: wants.into(),
            }),
        }
    }

    /// One of the choices of the setting.
    pub(super) fn choice(&self, name: &'static str) -> Result<Option<&'static str>, ConfigError> {
        let choices = Flag::find(name).map_or(&[][..], |flag| flag.choices);
        let Some(given) = self.get(name) else { return Ok(None) };
        match choices.iter().find(|choice| **choice == given.value) {
            Some(choice) => Ok(Some(choice)),
            None => Err(ConfigError::Value {
                name,
                value: given.value.clone(),
                origin: given.origin.clone(),
                nearest: nearest(&given.value, choices.iter().copied()),
                wants: choices.join(" or "),
            }),
        }
    }
}

/// The entry of a name, or an error with the nearest one.
fn known(name: &str, origin: &Origin) -> Result<&'static Flag, ConfigError> {
    Flag::find(name).ok_or_else(|| ConfigError::Unknown {
        name: name.into(),
        origin: origin.clone(),
        nearest: nearest(name, FLAGS.iter().map(|flag| flag.name)),
    })
}

/// The candidate closest to what was typed, if any is close enough to be meant.
pub fn nearest(typed: &str, candidates: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let typed = typed.trim_start_matches('-').replace('_', "-").to_lowercase();
    candidates
        .map(|name| (strsim::normalized_damerau_levenshtein(&typed, name), name))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness >= 0.5)
        .map(|(_, name)| name)
}

/// Reads a file of `name = value` lines.
pub(super) fn read(path: &Path) -> Result<Vec<(String, String)>, ConfigError> {
    let io = |source| ConfigError::Io { path: path.into(), operation: "read", source };
    let text = fs::read_to_string(path).map_err(io)?;
    parse(&text, path)
}

/// Takes the text of such a file apart; `path` is for messages.
pub(super) fn parse(text: &str, path: &Path) -> Result<Vec<(String, String)>, ConfigError> {
    let at = |offset: usize, what: String| {
        let before = &text.as_bytes()[..offset.min(text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
        ConfigError::Syntax { path: path.into(), line, column, what }
    };
    let table: toml::Table =
        text.parse().map_err(|e: toml::de::Error| at(e.span().map_or(0, |span| span.start), e.message().into()))?;
    let mut pairs = Vec::with_capacity(table.len());
    for (name, value) in table {
        let text_of = match value {
            toml::Value::String(text) => text,
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Float(number) => number.to_string(),
            toml::Value::Boolean(switch) => switch.to_string(),
            other => {
                known(&name, &Origin::File(path.into()))?;
                let offset = text.find(&name).unwrap_or(0);
                let what = format!("`{name}` is {}, not one value", kind(&other));
                return Err(at(offset, what));
            }
        };
        pairs.push((name, text_of));
    }
    Ok(pairs)
}

fn kind(value: &toml::Value) -> &'static str {
    match value {
        toml::Value::Table(_) => "a section",
        toml::Value::Array(_) => "a list",
        _ => "a date",
    }
}
