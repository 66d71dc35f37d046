//! Which elements of a parameter a rank holds.

use std::ops::Range;

/// Ranges of every dimension of a whole tensor, outermost first, whose product a rank holds. Its memory holds them in this
/// order: a packed layer's rows of queries, then of keys, then of values are three ranges of one dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portion(Vec<Vec<Range<usize>>>);

/// Neighbours in the whole tensor that are neighbours in a rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Index of the first in the whole tensor, flat.
    pub whole: usize,
    /// Index of the first in the rank's memory.
    pub held: usize,
    /// How many.
    pub len: usize,
}

impl Portion {
    /// All of a tensor.
    pub fn whole(shape: &[usize]) -> Self {
        Self(shape.iter().map(|size| vec![0..*size]).collect())
    }

    /// The same, but only `ranges` of one dimension.
    pub fn only(mut self, dimension: usize, ranges: Vec<Range<usize>>) -> Self {
        self.0[dimension] = ranges;
        self
    }

    /// The ranges of each dimension.
    pub fn ranges(&self) -> &[Vec<Range<usize>>] {
        &self.0
    }

    /// Sizes of what is held.
    pub fn shape(&self) -> Vec<usize> {
        self.0.iter().map(|ranges| ranges.iter().map(Range::len).sum()).collect()
    }

    /// Elements held.
    pub fn len(&self) -> usize {
        self.shape().into_iter().product()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is held of a tensor of this shape, in the order of the rank's memory.
    pub fn stretches(&self, shape: &[usize]) -> Vec<Stretch> {
        let mut stretches = vec![Stretch { whole: 0, held: 0, len: 1 }];
        let mut held = 0;
        // From the outermost dimension in: each stretch so far is one index of the dimensions outside.
        for (ranges, size) in self.0.iter().zip(shape) {
            let indices = |outer: &Stretch| {
                let base = outer.whole * size;
                ranges.iter().map(move |range| Stretch { whole: base + range.start, held: 0, len: range.len() })
            };
            let inner: Vec<Stretch> = stretches
                .iter()
                .flat_map(|outer| {
                    (0..outer.len).flat_map(move |i| indices(&Stretch { whole: outer.whole + i, ..*outer }))
                })
                .collect();
            stretches = joined(inner);
        }
        for stretch in &mut stretches {
            stretch.held = held;
            held += stretch.len;
        }
        stretches
    }
}

/// Stretches, neighbours of one another made one.
fn joined(stretches: Vec<Stretch>) -> Vec<Stretch> {
    let mut result: Vec<Stretch> = Vec::with_capacity(stretches.len());
    for stretch in stretches.into_iter().filter(|stretch| stretch.len > 0) {
        match result.last_mut() {
            Some(last) if last.whole + last.len == stretch.whole => last.len += stretch.len,
            _ => result.push(stretch),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(portion: &Portion, shape: &[usize]) -> Vec<usize> {
        portion.stretches(shape).iter().flat_map(|s| s.whole..s.whole + s.len).collect()
    }

    #[test]
    fn stretches_are_as_long_as_they_can_be() {
        let whole = Portion::whole(&[3, 4]);
        assert_eq!(whole.stretches(&[3, 4]), [Stretch { whole: 0, held: 0, len: 12 }]);
        let rows = whole.clone().only(0, vec![0..1, 2..3]);
        let expected = [Stretch { whole: 0, held: 0, len: 4 }, Stretch { whole: 8, held: 4, len: 4 }];
        assert_eq!(rows.stretches(&[3, 4]), expected);
        assert_eq!((rows.shape(), rows.len()), (vec![2, 4], 8));
        let columns = whole.clone().only(1, vec![1..3]);
        assert_eq!(elements(&columns, &[3, 4]), [1, 2, 5, 6, 9, 10]);
        let both = whole.only(0, vec![1..3]).only(1, vec![0..1, 3..4]);
        assert_eq!(elements(&both, &[3, 4]), [4, 7, 8, 11]);
        assert_eq!(both.stretches(&[3, 4]).iter().map(|s| s.held).collect::<Vec<_>>(), [0, 1, 3]);
        assert!(Portion::whole(&[5]).only(0, vec![2..2]).stretches(&[5]).is_empty());
        assert_eq!(elements(&Portion::whole(&[2, 2, 2]).only(1, vec![1..2]), &[2, 2, 2]), [2, 3, 6, 7]);
    }
}
