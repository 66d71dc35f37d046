//! Checks between settings. Each finds one contradiction and says it in one sentence.

use super::{Config, ConfigError, Family};

pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    heads(config)?;
    batch(config)?;
    schedule(config)
}

/// `name value (origin)`, as every message gives a setting.
fn named(config: &Config, name: &str, value: impl std::fmt::Display) -> String {
    format!("{name} {value} ({})", config.origin(name))
}

fn contradiction<T>(what: String, fix: String) -> Result<T, ConfigError> {
    Err(ConfigError::Contradiction { what, fix })
}

/// The divisors of `n` from 1 to 256, as a list to choose from.
fn divisors(n: usize) -> String {
    let all: Vec<_> = (1..=n.min(256)).filter(|d| n.is_multiple_of(*d)).map(|d| d.to_string()).collect();
    all.join(", ")
}

fn heads(config: &Config) -> Result<(), ConfigError> {
    let (channels, heads, kv_heads) = (config.channels, config.heads, config.kv_heads);
    if !channels.is_multiple_of(heads) {
        let what =
            format!("{} do not divide by {}", named(config, "channels", channels), named(config, "heads", heads));
        return contradiction(what, format!("use {} heads", divisors(channels)));
    }
    if !heads.is_multiple_of(kv_heads) {
        let what =
            format!("{} do not divide by {}", named(config, "heads", heads), named(config, "kv-heads", kv_heads));
        return contradiction(what, format!("use {} kv-heads", divisors(heads)));
    }
    let head_size = channels / heads;
    if config.model == Family::Llama && !head_size.is_multiple_of(2) {
        let what = format!(
            "{} over {} gives heads of {head_size}, and rotary positions turn pairs of channels",
            named(config, "channels", channels),
            named(config, "heads", heads)
        );
        let even: Vec<_> =
            (1..=channels.min(256)).filter(|h| channels.is_multiple_of(2 * h)).map(|h| h.to_string()).collect();
        let fix = match even.is_empty() {
            true => format!("use an even number of channels, {}", channels + 1),
            false => format!("use {} heads", even.join(", ")),
        };
        return contradiction(what, fix);
    }
    Ok(())
}

fn batch(config: &Config) -> Result<(), ConfigError> {
    let (batch, ranks) = (config.batch, config.ranks);
    if batch < ranks {
        let what = format!(
            "{} leaves ranks without a sequence at {}",
            named(config, "batch", batch),
            named(config, "ranks", ranks)
        );
        return contradiction(what, format!("use a batch of at least {ranks}, or at most {batch} ranks"));
    }
    Ok(())
}

fn schedule(config: &Config) -> Result<(), ConfigError> {
    let (warmup, steps) = (config.warmup, config.steps);
    if warmup > steps {
        let what = format!("{} is more than {}", named(config, "warmup", warmup), named(config, "steps", steps));
        return contradiction(what, format!("use a warm-up of at most {steps}"));
    }
    Ok(())
}
