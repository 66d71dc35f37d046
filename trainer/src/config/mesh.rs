//! How many ranks there are and how the axes of parallelism share them: what was asked for, what a launcher says, and what
//! follows from the rest. An axis that nobody gives is 1, and dp fills what is left.

use super::checks::divisors;
use super::error::{ConfigError, Origin};
use super::resolve::Launched;
use super::values::Values;
use crate::parallel::mesh::Sizes;

/// Ranks of a job where nobody says anything.
const USUAL_RANKS: usize = 2;

/// The axes but dp, which fills what they leave.
const OTHERS: [&str; 3] = ["pp", "cp", "tp"];

/// The sizes of all axes.
///
/// # Errors
/// Numbers that contradict each other, each with its origin.
pub(super) fn sizes(values: &mut Values, launched: Option<&Launched>) -> Result<Sizes, ConfigError> {
    let wants = "a whole number from 1 to 4096";
    let in_range = |n: &usize| (1..=4096).contains(n);
    let axis = |name| Ok::<usize, ConfigError>(values.parse(name, wants, in_range)?.unwrap_or(1));
    let (pp, cp, tp, ep) = (axis("pp")?, axis("cp")?, axis("tp")?, axis("ep")?);
    let others = pp * cp * tp;
    let (ranks, dp): (Option<usize>, Option<usize>) =
        (values.parse("ranks", wants, in_range)?, values.parse("dp", wants, in_range)?);
    // The number of ranks of a run that is resumed gives way to one that was asked for.
    let stored = matches!(values.origin("ranks"), Origin::Checkpoint(_));
    let (world, world_name, origin) = match (launched, ranks) {
        (Some(launched), ranks) => {
            let asked = ranks.filter(|_| !stored).map(|ranks| ("ranks", ranks));
            if let Some((name, asked)) = asked.filter(|(_, asked)| *asked != launched.world) {
                return Err(against_launcher(values, name, asked, launched));
            }
            (Some(launched.world), launched.variable.as_str(), Origin::Environment(launched.variable.clone()))
        }
        (None, Some(ranks)) if !(stored && dp.is_some()) => (Some(ranks), "ranks", values.origin("ranks")),
        _ => (None, "ranks", Origin::Default),
    };
    let sizes = |dp| Sizes { pp, dp, cp, tp, ep };
    let sizes = match (world, dp) {
        (Some(world), Some(dp)) if world != dp * others => {
            let all = product(values, sizes(dp));
            let what = format!("{world_name} {world} ({origin}) is not {all}");
            let fix = match launched {
                Some(_) => format!("start {} ranks with the launcher, or leave --dp out", dp * others),
                None => format!("give --ranks {}, or leave --dp out", dp * others),
            };
            return Err(ConfigError::Contradiction { what, fix });
        }
        (_, Some(dp)) => sizes(dp),
        (Some(world), None) if !world.is_multiple_of(others) => {
            let given: Vec<_> = OTHERS.into_iter().filter(|name| values.get(name).is_some()).collect();
            let named: Vec<_> = given.iter().map(|name| named(values, name)).collect();
            let what = format!("{world_name} {world} ({origin}) do not divide by {}", named.join(" x "));
            let fix = format!("use a multiple of {others} ranks, or change {}", given.join(" or "));
            return Err(ConfigError::Contradiction { what, fix });
        }
        (Some(world), None) => sizes(world / others),
        // As few as the experts can be shared out over.
        (None, None) if others > 1 || ep > 1 => sizes((1..=ep).find(|dp| (dp * cp).is_multiple_of(ep)).unwrap_or(ep)),
        (None, None) => sizes(USUAL_RANKS),
    };
    if !(sizes.dp * cp).is_multiple_of(ep) {
        let data = sizes.dp * cp;
        let what = format!("{} does not divide dp {} x cp {cp} = {data} data ranks", named(values, "ep"), sizes.dp);
        let fix = format!("use ep {}", divisors(data));
        return Err(ConfigError::Contradiction { what, fix });
    }
    let origin = if world.is_some() { origin } else { values.origin("dp") };
    values.layer([("ranks".into(), sizes.ranks().to_string())], &origin)?;
    Ok(sizes)
}

fn against_launcher(values: &Values, name: &'static str, asked: usize, launched: &Launched) -> ConfigError {
    let (variable, world) = (&launched.variable, launched.world);
    ConfigError::Contradiction {
        what: format!("{name} {asked} ({}) contradicts {variable} = {world}", values.origin(name)),
        fix: format!("leave --{name} out, or start {asked} ranks with the launcher"),
    }
}

/// `name value (origin)`.
fn named(values: &Values, name: &'static str) -> String {
    let value = values.get(name).map_or("1", |given| given.value.as_str());
    format!("{name} {value} ({})", values.origin(name))
}

/// The axes' product, each with its number, those that were given with their origin.
fn product(values: &Values, sizes: Sizes) -> String {
    let axes = [("dp", sizes.dp), ("tp", sizes.tp), ("pp", sizes.pp), ("cp", sizes.cp)];
    let text = axes.map(|(name, size)| match values.get(name) {
        Some(_) => format!("{name} {size} ({})", values.origin(name)),
        None => format!("{name} {size}"),
    });
    text.join(" x ")
}
