//! Checks between settings. Each finds one contradiction and says it in one sentence.

use super::{Config, ConfigError, Family, Origin, experts};
use crate::parallel::context::Method;
use crate::parallel::mesh::Sizes;

pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    heads(config)?;
    tensor(config)?;
    context(config)?;
    shards(config)?;
    experts::check(config)?;
    batch(config)?;
    documents(config)?;
    schedule(config)
}

/// `name value (origin)`, as every message gives a setting.
pub(super) fn named(config: &Config, name: &str, value: impl std::fmt::Display) -> String {
    format!("{name} {value} ({})", config.origin(name))
}

pub(super) fn contradiction<T>(what: String, fix: String) -> Result<T, ConfigError> {
    Err(ConfigError::Contradiction { what, fix })
}

/// The divisors of `n` from 1 to 256, as a list to choose from.
pub(super) fn divisors(n: usize) -> String {
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

/// Whether tensor-parallel ranks can share the heads, and have rows to share.
fn tensor(config: &Config) -> Result<(), ConfigError> {
    let (heads, kv_heads, tp) = (config.heads, config.kv_heads, config.sizes.tp);
    if !heads.is_multiple_of(tp) {
        let what = format!("{} do not divide by {}", named(config, "heads", heads), named(config, "tp", tp));
        return contradiction(what, format!("use tp {}", divisors(heads)));
    }
    if !kv_heads.is_multiple_of(tp) && !tp.is_multiple_of(kv_heads) {
        let what = format!(
            "{} can be neither shared out nor shared by {}",
            named(config, "kv-heads", kv_heads),
            named(config, "tp", tp)
        );
        let fits =
            |tp: &usize| heads.is_multiple_of(*tp) && (kv_heads.is_multiple_of(*tp) || tp.is_multiple_of(kv_heads));
        let all: Vec<_> = (1..=heads.min(256)).filter(fits).map(|tp| tp.to_string()).collect();
        return contradiction(what, format!("use tp {}", all.join(", ")));
    }
    if config.sequence_parallel && tp == 1 {
        let what = format!("{} shares rows out over one rank, {}", named(config, "sp", true), named(config, "tp", tp));
        return contradiction(what, "give --tp too, or leave --sp out".into());
    }
    Ok(())
}

/// Whether the exchange of tokens for heads can share the heads that a tensor-parallel rank has.
fn context(config: &Config) -> Result<(), ConfigError> {
    let Sizes { cp, tp, .. } = config.sizes;
    if config.cp_method == Method::Ring || cp == 1 {
        return Ok(());
    }
    let (heads, kv_heads) = (config.heads / tp, (config.kv_heads / tp).max(1));
    let by = |what: &str, number: usize| {
        format!(
            "cp-method ulysses ({}): {what} {number} a rank and {}",
            config.origin("cp-method"),
            named(config, "cp", cp)
        )
    };
    if !heads.is_multiple_of(cp) {
        let what = format!("{} do not divide", by("heads", heads));
        return contradiction(what, format!("use cp {}, or cp-method ring", divisors(heads)));
    }
    if !kv_heads.is_multiple_of(cp) && !cp.is_multiple_of(kv_heads) {
        let what = format!("{}: one must divide the other", by("kv-heads", kv_heads));
        return contradiction(what, format!("use cp {}, or cp-method ring", divisors(kv_heads)));
    }
    Ok(())
}

/// Whether the data ranks can be shared out in groups of so many.
fn shards(config: &Config) -> Result<(), ConfigError> {
    let (Sizes { dp, cp, .. }, Some(shards)) = (config.sizes, config.zero.shards) else { return Ok(()) };
    if (dp * cp).is_multiple_of(shards) {
        return Ok(());
    }
    let what =
        format!("{} does not divide dp {dp} x cp {cp} = {} data ranks", named(config, "shards", shards), dp * cp);
    contradiction(what, format!("use shards {}", divisors(dp * cp)))
}

fn batch(config: &Config) -> Result<(), ConfigError> {
    let (batch, dp) = (config.batch, config.sizes.dp);
    if batch >= dp {
        return Ok(());
    }
    let (name, origin) = if config.origin("dp") == Origin::Default { ("ranks", config.ranks) } else { ("dp", dp) };
    let what = format!(
        "{} leaves data-parallel ranks without a sequence at {}",
        named(config, "batch", batch),
        named(config, name, origin)
    );
    contradiction(what, format!("use a batch of at least {dp}, or at most {batch} data-parallel ranks"))
}

/// Whether an end of documents is a token, and asked for.
fn documents(config: &Config) -> Result<(), ConfigError> {
    let Some(end) = config.end_token else { return Ok(()) };
    if !config.documents {
        let what = format!("{} ends documents, and packing is windows", named(config, "end-token", end));
        return contradiction(what, "give --packing documents too, or leave --end-token out".into());
    }
    if end as usize >= config.vocab {
        let what = format!("{} is none of {}", named(config, "end-token", end), named(config, "vocab", config.vocab));
        return contradiction(what, format!("use a token below {}", config.vocab));
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
