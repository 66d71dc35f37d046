//! Expert parallelism: each rank has some of the experts, and rows travel to the rank that has theirs and back.
//!
//! A rank's rows come sorted by expert, so that what goes to a rank lies together (its experts are neighbours). It gets the
//! rows of its experts from every rank, one rank after the other, and puts them in the order of experts, those of one in
//! the order of ranks. No row is dropped, and any rank may send any number.
//!
//! Bytes, payload only, n assignments with a place on each of ep ranks, rows of C elements of s bytes: what is not for an
//! own expert, (1 - 1/ep) n C s a rank where use is even, once each way forward and once each way backward; besides, forward,
//! a count of 4 bytes for each expert that is elsewhere.

use std::sync::Arc;

use warpweft_comm::Communicator;
use warpweft_device::{Buffer, Float, Stream};

use crate::TrainError;
use crate::parallel::share;

/// How the rows of one pass are exchanged.
#[derive(Clone, Debug)]
pub struct Exchange {
    group: Option<Arc<Communicator>>,
    /// Rows to each rank.
    sent: Vec<usize>,
    /// Rows from each rank.
    received: Vec<usize>,
    /// Rows of each of this rank's experts.
    counts: Vec<usize>,
    /// Neighbours in what is received that are neighbours in the order of experts: where they are there, where here, how many.
    runs: Vec<[usize; 3]>,
}

impl Exchange {
    /// Tells the ranks of `group` how many rows there are for each of their experts; `counts` has those of this rank's
    /// rows for all experts. Collective.
    ///
    /// # Errors
    /// A failed operation among the ranks.
    pub fn new(group: Option<&Arc<Communicator>>, counts: &[u32]) -> Result<Self, TrainError> {
        let (rank, ranks) = group.map_or((0, 1), |group| (group.rank(), group.world()));
        let experts = |rank| share(counts.len(), ranks, rank);
        let (own, sizes) = (experts(rank).len(), (0..ranks).map(|rank| experts(rank).len()).collect::<Vec<_>>());
        let mut theirs = vec![0u32; ranks * own];
        match group {
            Some(group) => group.all_to_all_v(counts, &sizes, &mut theirs, &vec![own; ranks])?,
            None => theirs.copy_from_slice(counts),
        }
        let sum = |counts: &[u32]| counts.iter().map(|count| *count as usize).sum::<usize>();
        let count = |from: usize, expert: usize| theirs[from * own + expert] as usize;
        // Where the rows of each rank for each expert begin in what is received.
        let mut begins = vec![0; ranks * own];
        let mut end = 0;
        for (begin, count) in begins.iter_mut().zip(&theirs) {
            *begin = end;
            end += *count as usize;
        }
        let (mut runs, mut here) = (Vec::new(), 0);
        for expert in 0..own {
            for from in 0..ranks {
                runs.push([begins[from * own + expert], here, count(from, expert)]);
                here += count(from, expert);
            }
        }
        Ok(Self {
            group: group.cloned(),
            sent: (0..ranks).map(|rank| sum(&counts[experts(rank)])).collect(),
            received: (0..ranks).map(|from| sum(&theirs[from * own..][..own])).collect(),
            counts: (0..own).map(|expert| (0..ranks).map(|from| count(from, expert)).sum()).collect(),
            runs,
        })
    }

    /// Rows of each of this rank's experts, from all ranks.
    pub fn counts(&self) -> &[usize] {
        &self.counts
    }

    /// All of them together.
    pub fn rows(&self) -> usize {
        self.received.iter().sum()
    }

    fn elements(counts: &[usize], width: usize) -> Vec<usize> {
        counts.iter().map(|rows| rows * width).collect()
    }

    /// Brings rows of `width` elements, sorted by expert, to the ranks that have the experts. Collective.
    ///
    /// # Errors
    /// A failed operation among the ranks.
    pub fn to_experts<T: Float>(
        &self,
        stream: &Stream,
        rows: &Buffer<T>,
        width: usize,
    ) -> Result<Buffer<T>, TrainError> {
        let there = self.exchanged(stream, rows, [&self.sent, &self.received], width)?;
        let mut here = stream.device().uninitialized(there.len())?;
        for [begin, into, rows] in &self.runs {
            let to = here.view_mut(into * width..(into + rows) * width)?;
            to.copy_from(stream, there.view(begin * width..(begin + rows) * width)?)?;
        }
        Ok(here)
    }

    /// Brings rows back to where they came from, in the order that they had there. Collective.
    ///
    /// # Errors
    /// A failed operation among the ranks.
    pub fn from_experts<T: Float>(
        &self,
        stream: &Stream,
        rows: &Buffer<T>,
        width: usize,
    ) -> Result<Buffer<T>, TrainError> {
        let mut there = stream.device().uninitialized(rows.len())?;
        for [begin, into, count] in &self.runs {
            let to = there.view_mut(begin * width..(begin + count) * width)?;
            to.copy_from(stream, rows.view(into * width..(into + count) * width)?)?;
        }
        self.exchanged(stream, &there, [&self.received, &self.sent], width)
    }

    /// Rows for each rank, exchanged for those from each.
    fn exchanged<T: Float>(
        &self,
        stream: &Stream,
        rows: &Buffer<T>,
        [out, back]: [&[usize]; 2],
        width: usize,
    ) -> Result<Buffer<T>, TrainError> {
        let (out, back) = (Self::elements(out, width), Self::elements(back, width));
        let mut there = stream.device().uninitialized(back.iter().sum())?;
        match &self.group {
            Some(group) => group.all_to_all_v(rows, &out, &mut there, &back)?,
            None => there.as_view_mut().copy_from(stream, rows.as_view())?,
        }
        Ok(there)
    }
}

#[cfg(test)]
mod tests {
    use warpweft_comm::{Options, bootstrap};
    use warpweft_device::Device;

    use super::*;

    #[test]
    fn rows_go_to_their_experts_and_come_back_where_they_were() {
        // Five experts over three ranks: 2, 2, 1. Rank r has (r + e) % 3 rows for expert e.
        let rank = |communicator: Communicator| {
            let group = Arc::new(communicator);
            let (rank, device) = (group.rank(), Device::cpu_with_threads(1).expect("a thread"));
            let stream = device.stream();
            let count = |rank: usize, expert: usize| (rank + expert) % 3;
            let counts: Vec<u32> = (0..5).map(|expert| count(rank, expert) as u32).collect();
            let exchange = Exchange::new(Some(&group), &counts).expect("counts");
            let own = share(5, 3, rank);
            assert_eq!(
                exchange.counts(),
                own.clone().map(|e| (0..3).map(|r| count(r, e)).sum()).collect::<Vec<usize>>()
            );
            // A row says whose it is, for which expert, and which one of those.
            let rows = |rank: usize, expert: usize| -> Vec<f32> {
                (0..count(rank, expert)).flat_map(|i| [rank as f32, expert as f32, i as f32]).collect()
            };
            let mine: Vec<f32> = (0..5).flat_map(|expert| rows(rank, expert)).collect();
            let before = group.sent_bytes();
            let there = exchange.to_experts(&stream, &device.upload(&mine).expect("rows"), 3).expect("an exchange");
            let away = (0..5).filter(|expert| !own.contains(expert)).map(|expert| count(rank, expert)).sum::<usize>();
            assert_eq!(group.sent_bytes() - before, away as u64 * 3 * 4);
            let expected: Vec<f32> = own.flat_map(|e| (0..3).flat_map(move |r| rows(r, e))).collect();
            assert_eq!(there.as_view().host().expect("host"), expected);
            let back = exchange.from_experts(&stream, &there, 3).expect("an exchange");
            assert_eq!(back.as_view().host().expect("host"), mine);
        };
        std::thread::scope(|scope| {
            for bootstrap in bootstrap::threads(3).expect("a job of threads") {
                scope.spawn(|| rank(Communicator::new(bootstrap, Options::default()).expect("all ranks")));
            }
        });
    }
}
