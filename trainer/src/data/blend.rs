//! Several sources by weight: `0.7:web.bin,0.3:books/`.
//!
//! Weights are decimals above zero and need not sum to 1. They become the smallest whole numbers w_i of the same
//! proportions, with the sum W; sample `n` comes from the source that `Shares` says, the same for every seed, with period
//! W. The rule is Tijdeman's (The chairman assignment problem, 1980): of the sources that may have another sample, the
//! one that must have it first. After any number n of samples, source i has had n w_i / W of them to within
//! 1 - 1/(2k - 2) of a sample, for k sources. (The greedy rule of Megatron, which takes the source that lags most, keeps
//! no such bound from three sources on.) All of it is in whole numbers, so nothing drifts.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Sources of a blend.
const MAX_SOURCES: usize = 64;
/// The largest sum of the weights, as whole numbers: the period of the order, of which a table is made.
const MAX_PERIOD: u64 = 1_000_000;
/// Digits behind the point of a weight.
const MAX_DIGITS: usize = 9;

/// What is to be trained on: one path, or several with their weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blend(Vec<(Weight, PathBuf)>);

/// A weight as it was written, and as a multiple of 10 to the minus [`MAX_DIGITS`].
#[derive(Clone, Debug, PartialEq, Eq)]
struct Weight {
    text: String,
    value: u64,
}

/// What is wrong with a blend.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BlendError {
    /// A weight that is no decimal above zero.
    #[error("weight `{text}` of {} is not a decimal above 0 with at most {MAX_DIGITS} digits behind the point", path.display())]
    Weight {
        /// The weight.
        text: String,
        /// Its source.
        path: PathBuf,
    },
    /// A source that is there twice.
    #[error("{} is there twice; give it once with the sum of its weights", path.display())]
    Twice {
        /// The source.
        path: PathBuf,
    },
    /// A weight or a path that is missing.
    #[error("`{item}` is not WEIGHT:PATH; give every source of a blend as in 0.7:web.bin,0.3:books/")]
    Item {
        /// The part of the text.
        item: String,
    },
    /// Weights whose proportions take too large whole numbers.
    #[error(
        "the weights are as whole numbers that sum to {sum}, and {MAX_PERIOD} is the most; round them to fewer digits"
    )]
    Fine {
        /// The sum.
        sum: u64,
    },
    /// More sources than are taken.
    #[error("there are {count} sources, and {MAX_SOURCES} is the most; join some of them")]
    Many {
        /// How many.
        count: usize,
    },
}

impl Blend {
    /// One source.
    pub fn one(path: impl Into<PathBuf>) -> Self {
        Blend(vec![(Weight { text: "1".into(), value: 10_u64.pow(MAX_DIGITS as u32) }, path.into())])
    }

    /// The paths, in the order in which they were given.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|(_, path)| path.as_path())
    }

    /// The same with absolute paths.
    ///
    /// # Errors
    /// A path, and why the operating system does not make it absolute.
    pub fn absolute(self) -> Result<Self, (PathBuf, io::Error)> {
        let of = |(weight, path): (Weight, PathBuf)| match std::path::absolute(&path) {
            Ok(absolute) => Ok((weight, absolute)),
            Err(error) => Err((path, error)),
        };
        self.0.into_iter().map(of).collect::<Result<_, _>>().map(Blend)
    }

    /// The weights as the smallest whole numbers.
    pub(super) fn weights(&self) -> Vec<u64> {
        let divisor = self.0.iter().fold(0, |divisor, (weight, _)| greatest_divisor(divisor, weight.value));
        self.0.iter().map(|(weight, _)| weight.value / divisor).collect()
    }
}

impl FromStr for Blend {
    type Err = BlendError;

    /// A path, or `WEIGHT:PATH` with commas between; a path that looks like it is written `./0.5:name`.
    fn from_str(text: &str) -> Result<Self, BlendError> {
        if weighted(text).is_none() {
            return Ok(Blend::one(text));
        }
        let mut blend = Blend(Vec::new());
        // A comma that no weight follows is part of the path.
        let mut rest = Some(text);
        while let Some(item) = rest {
            let end = item.match_indices(',').map(|(at, _)| at).find(|at| weighted(&item[at + 1..]).is_some());
            let (here, after) = end.map_or((item, None), |at| (&item[..at], Some(&item[at + 1..])));
            rest = after;
            let Some((weight, path)) = weighted(here).filter(|(_, path)| !path.is_empty()) else {
                return Err(BlendError::Item { item: here.into() });
            };
            let path = PathBuf::from(path);
            let Some(value) = decimal(weight) else { return Err(BlendError::Weight { text: weight.into(), path }) };
            if blend.paths().any(|before| before == path) {
                return Err(BlendError::Twice { path });
            }
            blend.0.push((Weight { text: weight.into(), value }, path));
        }
        if blend.0.len() > MAX_SOURCES {
            return Err(BlendError::Many { count: blend.0.len() });
        }
        match blend.weights().iter().try_fold(0_u64, |sum, weight| sum.checked_add(*weight)).unwrap_or(u64::MAX) {
            sum if sum > MAX_PERIOD => Err(BlendError::Fine { sum }),
            _ => Ok(blend),
        }
    }
}

impl Display for Blend {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let [(weight, path)] = &self.0[..]
            && weight.text == "1"
            && weighted(&path.to_string_lossy()).is_none()
        {
            return write!(f, "{}", path.display());
        }
        for (i, (weight, path)) in self.0.iter().enumerate() {
            write!(f, "{}{}:{}", if i > 0 { "," } else { "" }, weight.text, path.display())?;
        }
        Ok(())
    }
}

/// The weight, of whatever sign, and the path of `WEIGHT:PATH...`.
fn weighted(text: &str) -> Option<(&str, &str)> {
    text.split_once(':').filter(|(weight, _)| weight.parse::<f64>().is_ok())
}

/// A decimal above zero in units of 10 to the minus [`MAX_DIGITS`].
fn decimal(text: &str) -> Option<u64> {
    let (whole, behind) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(behind) || behind.len() > MAX_DIGITS {
        return None;
    }
    format!("{whole}{behind:0<MAX_DIGITS$}").parse().ok().filter(|value| *value > 0)
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

/// Which source each sample comes from.
pub(super) struct Shares {
    weights: Vec<u64>,
    /// Of each place of a period: the source, and how many samples of the period it has had before.
    period: Vec<(u32, u32)>,
}

impl Shares {
    /// Of weights above zero, whose sum is at most [`MAX_PERIOD`].
    pub(super) fn new(weights: Vec<u64>) -> Self {
        let sum: u64 = weights.iter().sum();
        let mut had = vec![0_u64; weights.len()];
        // The 2k - 2 of the bound; one source alone lacks nothing.
        let parts = (2 * weights.len() as i128 - 2).max(1);
        let mut period = Vec::with_capacity(sum as usize);
        for n in 1..=sum {
            // What source i lacks of its share of n samples, in W-ths of a sample.
            let lacks = |i: usize| i128::from(weights[i] * n) - i128::from(had[i] * sum);
            let may = (0..weights.len()).filter(|i| lacks(*i) * parts >= i128::from(sum));
            // Samples until it lacks more than the bound allows, w_i times as many.
            let left = |i: usize| i128::from(sum) * (parts - 1) - lacks(i) * parts;
            let first =
                may.min_by(|a, b| (left(*a) * i128::from(weights[*b])).cmp(&(left(*b) * i128::from(weights[*a]))));
            let source = first.unwrap_or_else(|| (0..weights.len()).max_by_key(|i| lacks(*i)).unwrap_or(0));
            period.push((source as u32, had[source] as u32));
            had[source] += 1;
        }
        Shares { weights, period }
    }

    /// The source of sample `index`, and which of the source's own samples it is.
    pub(super) fn of(&self, index: u64) -> (usize, u64) {
        let length = self.period.len() as u64;
        let (source, before) = self.period[(index % length) as usize];
        (source as usize, index / length * self.weights[source as usize] + u64::from(before))
    }

    /// The most samples from the first on of which no source has to give more than its `has`.
    pub(super) fn until_one_ends(&self, has: &[u64]) -> u64 {
        let whole = has.iter().zip(&self.weights).map(|(has, weight)| has / weight).min().unwrap_or(0);
        let start = whole * self.period.len() as u64;
        let more = (start..start + self.period.len() as u64).position(|index| {
            let (source, own) = self.of(index);
            own >= has[source]
        });
        start + more.unwrap_or(0) as u64
    }

    /// The fewest samples after which every source has given `wants` of its own at least.
    pub(super) fn until_all_have(&self, wants: &[u64]) -> u64 {
        let needs = |source: usize| {
            // The place of its last wanted sample, and one more.
            let (periods, rest) =
                ((wants[source] - 1) / self.weights[source], (wants[source] - 1) % self.weights[source]);
            let place = self.period.iter().position(|at| *at == (source as u32, rest as u32)).unwrap_or(0);
            periods * self.period.len() as u64 + place as u64 + 1
        };
        (0..wants.len()).map(needs).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prefix_has_each_share_to_within_a_sample() {
        for weights in [vec![1], vec![7, 3], vec![1, 1, 1], vec![90, 5, 3, 2], vec![499, 1, 250, 250], vec![1, 1000]] {
            let sum: u64 = weights.iter().sum();
            let shares = Shares::new(weights.clone());
            let mut had = vec![0_u64; weights.len()];
            let bound = 1.0 - 1.0 / (2 * weights.len()).saturating_sub(2).max(1) as f64;
            for n in 1..=3 * sum {
                let (source, own) = shares.of(n - 1);
                assert_eq!(own, had[source], "a source's own samples come in their order");
                had[source] += 1;
                for (weight, had) in weights.iter().zip(&had) {
                    let off = *had as f64 - (n * weight) as f64 / sum as f64;
                    assert!(off.abs() <= bound + 1e-9, "{weights:?} after {n}: {had} of {weight}/{sum}");
                }
            }
        }
    }

    #[test]
    fn the_ends_of_sources_are_found_in_the_order() {
        let shares = Shares::new(vec![7, 3]);
        for has in [[0, 5], [5, 0], [7, 3], [20, 9], [100, 9], [8, 4]] {
            let most = shares.until_one_ends(&has);
            assert!((0..most).all(|n| shares.of(n).1 < has[shares.of(n).0]));
            assert!(shares.of(most).1 >= has[shares.of(most).0], "{has:?}");
        }
        for wants in [[1, 1], [7, 3], [20, 9], [5, 100]] {
            let all = shares.until_all_have(&wants);
            let given = |source, n| (0..n).filter(|n| shares.of(*n).0 == source).count() as u64;
            assert!((0..2).all(|source| given(source, all) >= wants[source]));
            assert!((0..2).any(|source| given(source, all - 1) < wants[source]));
        }
    }

    #[test]
    fn a_blend_is_read_back_as_it_is_written() {
        for text in ["a.txt", "0.7:web.bin,0.3:books/", "1:a,b.txt,2.50:c", "./0.5:x", "2:a"] {
            let blend: Blend = text.parse().unwrap();
            assert_eq!(blend.to_string().parse(), Ok(blend));
        }
        let blend: Blend = "0.7:web.bin,0.3:books/".parse().unwrap();
        assert_eq!((blend.weights(), blend.paths().count()), (vec![7, 3], 2));
        let blend: Blend = "1:a,b.txt,2.50:c".parse().unwrap();
        assert_eq!(blend.paths().collect::<Vec<_>>(), [Path::new("a,b.txt"), Path::new("c")]);
        assert_eq!(blend.weights(), [2, 5]);
    }

    #[test]
    fn wrong_blends_are_one_sentence() {
        for (text, wanted) in [
            ("0:a,1:b", "weight `0` of a is not a decimal above 0"),
            ("1:a,-0.5:b", "weight `-0.5` of b"),
            ("inf:a", "weight `inf` of a"),
            ("1:a,nan:b", "weight `nan` of b"),
            ("1:a,2:a", "a is there twice"),
            ("1:a,2:", "`2:` is not WEIGHT:PATH"),
            ("1:a,0.000001:b", "sum to 1000001"),
        ] {
            let error = text.parse::<Blend>().unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
