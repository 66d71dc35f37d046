//! Which tokens of a sequence a context-parallel rank has.

use std::ops::Range;

use crate::parallel::share;

/// How the ranks share the tokens of a sequence. Uneven shares are ordinary, and so are empty ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// One after the other.
    Contiguous,
    /// In 2 cp pieces, of which rank r has r and 2 cp - 1 - r: one that sees little and one that sees much, so that causal
    /// attention gives all ranks the same work.
    Zigzag,
}

impl Cut {
    fn pieces(self, tokens: usize, cp: usize, rank: usize) -> [Range<usize>; 2] {
        match self {
            Self::Contiguous => [share(tokens, cp, rank), tokens..tokens],
            Self::Zigzag => [share(tokens, 2 * cp, rank), share(tokens, 2 * cp, 2 * cp - 1 - rank)],
        }
    }

    /// The positions of rank `rank`'s tokens, ascending.
    pub fn positions(self, tokens: usize, cp: usize, rank: usize) -> Vec<u32> {
        self.pieces(tokens, cp, rank).into_iter().flatten().map(|position| position as u32).collect()
    }

    /// How many tokens rank `rank` has.
    pub fn tokens(self, tokens: usize, cp: usize, rank: usize) -> usize {
        self.pieces(tokens, cp, rank).iter().map(Range::len).sum()
    }

    /// The most tokens that a rank has.
    pub fn most(self, tokens: usize, cp: usize) -> usize {
        (0..cp).map(|rank| self.tokens(tokens, cp, rank)).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_on_one_rank_in_ascending_order() {
        for cut in [Cut::Contiguous, Cut::Zigzag] {
            for (tokens, cp) in [(16, 1), (16, 2), (17, 2), (13, 3), (5, 4), (1, 4), (0, 3)] {
                let ranks: Vec<_> = (0..cp).map(|rank| cut.positions(tokens, cp, rank)).collect();
                assert!(ranks.iter().all(|rank| rank.is_sorted()));
                for (rank, positions) in ranks.iter().enumerate() {
                    assert_eq!(positions.len(), cut.tokens(tokens, cp, rank));
                }
                let mut all = ranks.concat();
                all.sort_unstable();
                assert_eq!(all, (0..tokens as u32).collect::<Vec<_>>(), "{cut:?} of {tokens} over {cp}");
            }
        }
        assert_eq!(Cut::Zigzag.positions(8, 2, 0), [0, 1, 6, 7]);
        assert_eq!(Cut::Zigzag.positions(8, 2, 1), [2, 3, 4, 5]);
    }

    #[test]
    fn zigzag_gives_every_rank_the_same_causal_work() {
        let work = |cut: Cut, rank| cut.positions(64, 4, rank).iter().map(|position| position + 1).sum::<u32>();
        assert_eq!([0, 1, 2, 3].map(|rank| work(Cut::Zigzag, rank)), [520; 4]);
        assert_eq!([0, 1, 2, 3].map(|rank| work(Cut::Contiguous, rank)), [136, 392, 648, 904]);
    }
}
