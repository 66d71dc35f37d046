//! Which elements of a whole tensor something holds, in memory and in the index of a file.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::model::{Portion, Stretch};

/// Some elements of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// Sizes of the whole tensor.
    pub shape: Vec<usize>,
    /// A product of ranges of its dimensions.
    pub portion: Portion,
    /// Of the portion's elements, in its order, those meant.
    pub part: Range<usize>,
}

/// The same in an index.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Index {
    /// The whole tensor's name, where the piece has another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) of: Option<String>,
    shape: Vec<usize>,
    ranges: Vec<Vec<(usize, usize)>>,
    part: (usize, usize),
}

impl Held {
    /// All elements of a tensor.
    pub fn whole(shape: &[usize]) -> Self {
        let portion = Portion::whole(shape);
        Self { shape: shape.to_vec(), part: 0..portion.len(), portion }
    }

    /// Some rows of a tensor, all others' elements left out.
    pub fn rows(shape: &[usize], rows: Range<usize>) -> Self {
        let portion = Portion::whole(shape).only(0, vec![rows]);
        Self { shape: shape.to_vec(), part: 0..portion.len(), portion }
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.part.len()
    }

    /// Whether it is none.
    pub fn is_empty(&self) -> bool {
        self.part.is_empty()
    }

    /// Sizes under which they stand in a file: of the portion where all of it is held, else of a row.
    pub(super) fn stored_shape(&self) -> Vec<usize> {
        if self.part == (0..self.portion.len()) { self.portion.shape() } else { vec![self.part.len()] }
    }

    /// Neighbours in the whole tensor that are neighbours here, ascending.
    pub(super) fn stretches(&self) -> Vec<Stretch> {
        let clip = |stretch: Stretch| {
            let (start, end) = (
                stretch.held.max(self.part.start),
                (stretch.held + stretch.len).min(self.part.end).max(self.part.start),
            );
            (start < end).then(|| Stretch {
                whole: stretch.whole + start - stretch.held,
                held: start - self.part.start,
                len: end - start,
            })
        };
        self.portion.stretches(&self.shape).into_iter().filter_map(clip).collect()
    }

    pub(super) fn index(&self, of: Option<String>) -> Index {
        let pairs = |ranges: &Vec<Range<usize>>| ranges.iter().map(|range| (range.start, range.end)).collect();
        let ranges = self.portion.ranges().iter().map(pairs).collect();
        Index { of, shape: self.shape.clone(), ranges, part: (self.part.start, self.part.end) }
    }
}

impl Index {
    /// What it says, where that can be: `None` else.
    pub(super) fn held(self) -> Option<Held> {
        let fits = self.ranges.len() == self.shape.len()
            && self.ranges.iter().zip(&self.shape).all(|(ranges, size)| {
                let mut last = 0;
                ranges.iter().all(|&(start, end)| {
                    let ascends = last <= start && start <= end && end <= *size;
                    last = end;
                    ascends
                })
            });
        let elements = self.shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        if !fits || elements.is_none() || self.part.0 > self.part.1 {
            return None;
        }
        let mut portion = Portion::whole(&self.shape);
        for (dimension, ranges) in self.ranges.into_iter().enumerate() {
            portion = portion.only(dimension, ranges.into_iter().map(|(start, end)| start..end).collect());
        }
        let part = self.part.0..self.part.1;
        (part.end <= portion.len()).then_some(Held { shape: self.shape, portion, part })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_says_the_same_after_it_was_read_and_nothing_impossible() {
        let portion = Portion::whole(&[4, 6]).only(1, vec![0..2, 4..5]);
        let held = Held { shape: vec![4, 6], portion, part: 2..9 };
        let text = serde_json::to_string(&held.index(None)).unwrap();
        let read = |text: &str| serde_json::from_str::<Index>(text).unwrap().held();
        assert_eq!(read(&text), Some(held));
        for wrong in [
            r#"{"shape":[4,6],"ranges":[[[0,4]]],"part":[0,1]}"#,
            r#"{"shape":[4],"ranges":[[[0,5]]],"part":[0,1]}"#,
            r#"{"shape":[4],"ranges":[[[2,4],[0,2]]],"part":[0,1]}"#,
            r#"{"shape":[4],"ranges":[[[0,4]]],"part":[0,5]}"#,
            r#"{"shape":[4294967296,4294967296,4],"ranges":[[[0,1]],[[0,1]],[[0,1]]],"part":[0,1]}"#,
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
