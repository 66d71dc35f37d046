//! Which steps are written down, and what of them.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::Kind;

/// What the user asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Steps by number.
    pub steps: Steps,
    /// Every so many steps; 0 none.
    pub every: u64,
    /// What of them.
    pub what: What,
}

impl Wanted {
    /// Whether a step is written down.
    pub fn has(&self, step: u64) -> bool {
        self.steps.0.iter().any(|range| range.contains(&step)) || self.every > 0 && step.is_multiple_of(self.every)
    }
}

/// Steps, as `3`, `1-5` or several of these with commas between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps(Vec<RangeInclusive<u64>>);

impl FromStr for Steps {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let one = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.trim().parse().map_err(|_| ())?, last.trim().parse().map_err(|_| ())?);
            if first >= 1 && first <= last { Ok(first..=last) } else { Err(()) }
        };
        text.split(',').map(one).collect::<Result<_, _>>().map(Self)
    }
}

/// Which tensors of a step: all, or some groups of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct What {
    /// Tokens, the stream after each layer, losses.
    activations: bool,
    /// The stream's errors before each layer.
    errors: bool,
    /// Of each parameter.
    gradients: bool,
    /// Before and after the step.
    weights: bool,
}

impl Default for What {
    fn default() -> Self {
        Self { activations: true, errors: true, gradients: true, weights: true }
    }
}

impl What {
    /// Whether tensors of this kind are among them.
    pub fn has(self, kind: Kind) -> bool {
        match kind {
            Kind::Input | Kind::Forward | Kind::Loss => self.activations,
            Kind::Before | Kind::After => self.weights,
            Kind::Error => self.errors,
            Kind::Gradient => self.gradients,
        }
    }

    fn groups(&mut self) -> [(&'static str, &mut bool); 4] {
        let Self { activations, errors, gradients, weights } = self;
        [("activations", activations), ("errors", errors), ("gradients", gradients), ("weights", weights)]
    }
}

impl FromStr for What {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut what = Self { activations: false, errors: false, gradients: false, weights: false };
        for word in text.split(',') {
            let mut groups = what.groups();
            let (_, group) = groups.iter_mut().find(|(name, _)| *name == word.trim()).ok_or(())?;
            **group = true;
        }
        Ok(what)
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut what = *self;
        let names: Vec<_> = what.groups().into_iter().filter(|(_, has)| **has).map(|(name, _)| name).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_numbers_and_ranges() {
        let wanted = Wanted { steps: "2, 5-7".parse().expect("steps"), every: 10, what: What::default() };
        let has: Vec<u64> = (0..=20).filter(|step| wanted.has(*step)).collect();
        assert_eq!(has, [0, 2, 5, 6, 7, 10, 20]);
        for wrong in ["", "0", "3-2", "1,", "a", "1--2", "-3"] {
            assert_eq!(wrong.parse::<Steps>(), Err(()), "{wrong}");
        }
        assert!(!Wanted::default().has(1));
    }

    #[test]
    fn what_is_a_list_of_groups() {
        let what: What = "weights, errors".parse().expect("groups");
        let has: Vec<_> = Kind::ALL.into_iter().filter(|kind| what.has(*kind)).collect();
        assert_eq!(has, [Kind::Before, Kind::Error, Kind::After]);
        assert_eq!(what.to_string(), "errors,weights");
        assert_eq!("activations,errors,gradients,weights".parse(), Ok(What::default()));
        assert_eq!("weight".parse::<What>(), Err(()));
    }
}
