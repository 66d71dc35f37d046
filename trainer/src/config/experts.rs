//! The settings of a mixture of experts: read together, because they mean something only where there are experts.

use super::error::ConfigError;
use super::values::Values;
use super::{Config, checks, resolve};
use crate::model::MoeShape;
use crate::parallel::mesh::Sizes;

/// The settings that nothing but a mixture has.
const OF_EXPERTS: [&str; 7] =
    ["top-k", "expert-hidden", "shared-expert", "router", "capacity", "aux-loss", "bias-rate"];

/// The mixture asked for, and the width of the expert that all tokens share; `hidden` is the width of a dense model's MLP.
///
/// # Errors
/// A value that its setting cannot take; a setting of experts where there are none.
pub(super) fn read(values: &Values, hidden: usize) -> Result<Option<(MoeShape, usize)>, ConfigError> {
    let experts = resolve::whole(values, "experts", 0)? as usize;
    if experts == 0 {
        return match OF_EXPERTS.into_iter().find(|name| values.get(name).is_some()) {
            Some(name) => Err(without_experts(values, name)),
            None => Ok(None),
        };
    }
    let capacity = resolve::real(values, "capacity", 0.0)?;
    let moe = MoeShape {
        sigmoid: values.choice("router")? == Some("sigmoid"),
        balance: resolve::real(values, "aux-loss", 0.01)?,
        bias_rate: resolve::real(values, "bias-rate", 0.0)?,
        capacity: (capacity > 0.0).then_some(capacity),
        ..MoeShape::new(
            resolve::size(values, "experts", 1)?,
            resolve::size(values, "top-k", 2)?,
            resolve::size(values, "expert-hidden", hidden)?,
        )
    };
    let shared = values.parse("shared-expert", "a whole number from 0 to 2147483647", |n| *n <= i32::MAX as usize)?;
    Ok(Some((moe, shared.unwrap_or(0))))
}

fn without_experts(values: &Values, name: &'static str) -> ConfigError {
    let value = values.get(name).map_or("", |given| given.value.as_str());
    let (origin, none) = (values.origin(name), values.origin("experts"));
    ConfigError::Contradiction {
        what: format!("{name} {value} ({origin}) is of a mixture of experts, and experts is 0 ({none})"),
        fix: format!("give --experts, or leave --{name} out"),
    }
}

/// Whether each token finds as many experts as it goes to, and each expert-parallel rank has one.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let Sizes { dp, cp, ep, .. } = config.sizes;
    let Some(MoeShape { experts, top_k, .. }) = config.moe else {
        if ep == 1 {
            return Ok(());
        }
        let what = format!("{} shares out experts, and {}", named(config, "ep", ep), named(config, "experts", 0));
        return checks::contradiction(what, "give --experts, or leave --ep out".into());
    };
    let of = named(config, "experts", experts);
    if top_k > experts {
        let what = format!("{} is more than {of}", named(config, "top-k", top_k));
        return checks::contradiction(what, format!("use a top-k of at most {experts}"));
    }
    if ep > experts {
        let fits: Vec<_> = (1..=experts).filter(|ep| (dp * cp).is_multiple_of(*ep)).map(|ep| ep.to_string()).collect();
        let what = format!("{of} leave ranks without one at {}", named(config, "ep", ep));
        return checks::contradiction(what, format!("use ep {}, or at least {ep} experts", fits.join(", ")));
    }
    Ok(())
}

fn named(config: &Config, name: &str, value: usize) -> String {
    checks::named(config, name, value)
}

/// What [`read`] reads back, by name.
pub(super) fn table(moe: &MoeShape, shared: usize) -> Vec<(&'static str, toml::Value)> {
    let whole = |n: usize| toml::Value::Integer(n as i64);
    vec![
        ("experts", whole(moe.experts)),
        ("top-k", whole(moe.top_k)),
        ("expert-hidden", whole(moe.hidden)),
        ("shared-expert", whole(shared)),
        ("router", if moe.sigmoid { "sigmoid" } else { "softmax" }.into()),
        ("capacity", moe.capacity.unwrap_or(0.0).into()),
        ("aux-loss", moe.balance.into()),
        ("bias-rate", moe.bias_rate.into()),
    ]
}
