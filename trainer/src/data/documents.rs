//! Documents within a sequence: a window over packed documents, cut at their borders.
//!
//! Positions begin again with each document, and no attention crosses a border. The target of a document's last token
//! would be the first token of another one, which nothing before it tells of, so it does not count: then a packed sequence
//! has the loss of its documents run alone. An end-of-text token belongs to the document that it ends, so that the end
//! itself is learnt. A document that began before the window begins again at position 0.

use crate::model::IGNORE;

/// Where the documents of a sequence begin and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Documents {
    bounds: Vec<u32>,
    /// Whether the last document ends with the window.
    ends: bool,
}

impl Documents {
    /// The documents of a sequence of these tokens (at least one), of which those at `begins`, and those behind an `end`
    /// token, begin one; the token behind the sequence may be among them.
    pub(super) fn of(ids: &[u32], begins: impl IntoIterator<Item = u32>, end: Option<u32>) -> Self {
        let mut begins = begins.into_iter().peekable();
        let mut bounds = vec![0];
        for (place, before) in (1..).zip(ids) {
            while begins.next_if(|begin| *begin < place).is_some() {}
            if begins.peek() == Some(&place) || end == Some(*before) {
                bounds.push(place);
            }
        }
        let ends = bounds.last() == Some(&(ids.len() as u32));
        if !ends {
            bounds.push(ids.len() as u32);
        }
        Documents { bounds, ends }
    }

    /// Documents of these lengths, one behind the other, the last of which ends with the sequence.
    pub fn of_lengths(lengths: impl IntoIterator<Item = u32>) -> Self {
        let (mut bounds, mut end) = (vec![0], 0);
        bounds.extend(lengths.into_iter().map(|length| {
            end = u32::saturating_add(end, length);
            end
        }));
        Self { bounds, ends: true }
    }

    /// The first tokens of the documents, and the number of tokens at the end: lengths summed up, as kernels take them.
    pub fn bounds(&self) -> &[u32] {
        &self.bounds
    }

    /// The position of each token within its document.
    pub fn positions(&self) -> impl Iterator<Item = u32> {
        self.bounds.windows(2).flat_map(|ends| 0..ends[1] - ends[0])
    }

    /// Takes the targets out of account that lie in another document than their token.
    pub fn mask(&self, targets: &mut [u32]) {
        let others = if self.ends { self.bounds.len() } else { self.bounds.len() - 1 };
        for bound in &self.bounds[1..others] {
            targets[*bound as usize - 1] = IGNORE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_come_from_the_source_and_from_end_tokens() {
        let ids = [5, 9, 1, 2, 3, 9, 9, 4];
        for (begins, end, bounds, masked) in [
            (vec![], None, vec![0, 8], vec![]),
            (vec![0, 3, 7], None, vec![0, 3, 7, 8], vec![2, 6]),
            (vec![], Some(9), vec![0, 2, 6, 7, 8], vec![1, 5, 6]),
            (vec![2, 4], Some(9), vec![0, 2, 4, 6, 7, 8], vec![1, 3, 5, 6]),
            (vec![8], Some(4), vec![0, 8], vec![7]),
        ] {
            let documents = Documents::of(&ids, begins, end);
            assert_eq!(documents.bounds(), bounds);
            let mut targets = [0; 8];
            documents.mask(&mut targets);
            let places: Vec<_> = (0..8).filter(|place| targets[*place] == IGNORE).collect();
            assert_eq!(places, masked);
            let positions: Vec<_> = documents.positions().collect();
            assert_eq!(positions.len(), 8);
            for place in 0..8 {
                let begins = documents.bounds().contains(&(place as u32));
                assert_eq!(positions[place], if begins { 0 } else { positions[place - 1] + 1 });
            }
        }
    }
}
