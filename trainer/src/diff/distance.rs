//! How far apart two tensors are, and where.

use serde::Serialize;

/// An element of both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Element {
    /// Its index in the whole tensor, by dimension.
    pub index: Vec<usize>,
    /// The first run's number; JSON has no infinite one, nor NaN.
    pub a: f64,
    /// The second run's.
    pub b: f64,
}

/// How far apart two tensors are.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Distance {
    /// The first element that is further apart than it may be.
    pub first: Option<Element>,
    /// The one that is furthest apart for what it may be.
    pub worst: Option<Element>,
    /// Elements further apart than they may be.
    pub beyond: usize,
    /// Elements there are.
    pub elements: usize,
    /// The largest distance of an element, relative to the larger of the two and of the tensor's root mean square; infinite
    /// where one is no number.
    pub relative: f64,
}

/// Compares element by element. An element may be apart by `tolerance` relative, and by `more` of its index besides; where that
/// is infinite it is left out.
pub(super) fn compare(
    (a, b): (&[f64], &[f64]),
    shape: &[usize],
    tolerance: f64,
    more: impl Fn(usize) -> f64,
) -> Distance {
    let scale = root_mean_square(a).max(root_mean_square(b));
    let element = |at: usize| Element { index: index_of(at, shape), a: a[at], b: b[at] };
    let (mut distance, mut worst) = (Distance { elements: a.len(), ..Distance::default() }, 0.0);
    for (at, (x, y)) in a.iter().zip(b).enumerate() {
        if x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan() {
            continue;
        }
        let more = more(at);
        if more == f64::INFINITY {
            continue;
        }
        let size = x.abs().max(y.abs()).max(scale);
        let apart = (x - y).abs();
        let relative = if apart.is_finite() { apart / size.max(f64::MIN_POSITIVE) } else { f64::INFINITY };
        distance.relative = distance.relative.max(relative);
        let may = tolerance * size + more;
        if apart.is_finite() && apart <= may && may > 0.0 {
            continue;
        }
        distance.beyond += 1;
        distance.first.get_or_insert_with(|| element(at));
        let times = if apart.is_finite() { apart / may.max(f64::MIN_POSITIVE * size) } else { f64::INFINITY };
        if times > worst || distance.worst.is_none() {
            worst = times;
            distance.worst = Some(element(at));
        }
    }
    distance
}

/// Whether no output depends on an element: on a key's bias, which adds the same to all scores of a row. Rounding alone moves it.
pub(super) fn is_idle(parameter: &str, shape: &[usize], at: usize) -> bool {
    parameter.ends_with("c_attn.kv.bias") && shape.first().is_some_and(|rows| at < rows / 2)
}

/// Steps over which AdamW's second moment remembers.
const MEMORY: f64 = 1000.0;

/// By how much `updates` at this rate, the last of which is that of `step`, may move each weight apart where gradients of these
/// sizes are apart by the tolerance. AdamW divides a gradient by its own size, so that one which is small beside others of its
/// tensor, rounding noise, moves a weight by as much as the rate either way.
pub(super) fn of_updates(gradients: &[f64], (rate, updates): (f64, u64), step: u64, tolerance: f64) -> Vec<f64> {
    let noise = tolerance * root_mean_square(gradients) * (step as f64).min(MEMORY).sqrt();
    let apart = |size: &f64| rate * updates as f64 * (2.0 * noise / size.max(f64::MIN_POSITIVE)).min(2.0);
    gradients.iter().map(apart).collect()
}

/// Of the finite numbers.
fn root_mean_square(values: &[f64]) -> f64 {
    let finite = values.iter().filter(|value| value.is_finite());
    let squares: f64 = finite.map(|value| value * value).sum();
    (squares / values.len().max(1) as f64).sqrt()
}

fn index_of(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (place, size) in index.iter_mut().zip(shape).rev() {
        (*place, at) = (at % size, at / size);
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(a: &[f64], b: &[f64], tolerance: f64) -> Distance {
        compare((a, b), &[2, a.len() / 2], tolerance, |_| 0.0)
    }

    #[test]
    fn the_first_and_the_worst_are_found() {
        let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 2.0, 3.1, 4.0, 7.0, 6.0]);
        let found = plain(&a, &b, 1e-3);
        assert_eq!((found.beyond, found.elements), (2, 6));
        assert_eq!(found.first, Some(Element { index: vec![0, 2], a: 3.0, b: 3.1 }));
        assert_eq!(found.worst, Some(Element { index: vec![1, 1], a: 5.0, b: 7.0 }));
        assert_eq!(found.relative, 2.0 / 7.0);
        assert_eq!(plain(&a, &b, 0.5).beyond, 0);
    }

    #[test]
    fn no_tolerance_is_the_same_bits() {
        assert_eq!(plain(&[1.0, 0.0], &[1.0, -0.0], 0.0).beyond, 1);
        assert_eq!(plain(&[1.0, 1.0], &[1.0, 1.0 + f64::EPSILON], 0.0).beyond, 1);
        assert_eq!(plain(&[1.0, f64::NAN], &[1.0, f64::NAN], 0.0).beyond, 0);
    }

    #[test]
    fn what_is_no_number_is_never_near_one() {
        let found = plain(&[1.0, f64::NAN, f64::INFINITY, 1.0], &[1.0, 1.0, 1.0, 1.0], 1e9);
        assert_eq!((found.beyond, found.relative), (2, f64::INFINITY));
        assert_eq!(found.first.map(|element| element.index), Some(vec![0, 1]));
    }

    #[test]
    fn small_elements_are_measured_by_their_tensor() {
        // 1e-9 beside ones is nothing; alone it is all there is.
        assert_eq!(plain(&[1.0, 1e-9], &[1.0, 2e-9], 1e-6).beyond, 0);
        assert_eq!(plain(&[0.0, 1e-9], &[0.0, 2e-9], 1e-6).beyond, 1);
    }
}
