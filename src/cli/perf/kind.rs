//! The collectives that `perf` measures: their names, how a size becomes counts, and what counts as bus bandwidth.

use std::fmt;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    AllToAll,
    SendRecv,
}

/// Elements of one rank for one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Elements it gives.
    pub(crate) send: usize,
    /// Elements it gets.
    pub(crate) recv: usize,
    /// What the column `count` shows: the count argument of the call.
    pub(crate) argument: usize,
}

impl Kind {
    pub(crate) const ALL: [Kind; 6] =
        [Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter, Kind::Broadcast, Kind::AllToAll, Kind::SendRecv];

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::AllReduce => "all_reduce",
            Kind::AllGather => "all_gather",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::Broadcast => "broadcast",
            Kind::AllToAll => "alltoall",
            Kind::SendRecv => "sendrecv",
        }
    }

    /// The name of the program of nccl-tests that measures it.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Kind::AllReduce => "all_reduce_perf",
            Kind::AllGather => "all_gather_perf",
            Kind::ReduceScatter => "reduce_scatter_perf",
            Kind::Broadcast => "broadcast_perf",
            Kind::AllToAll => "alltoall_perf",
            Kind::SendRecv => "sendrecv_perf",
        }
    }

    /// Whether it combines elements.
    pub(crate) fn reduces(self) -> bool {
        matches!(self, Kind::AllReduce | Kind::ReduceScatter)
    }

    /// Whether one rank is its root.
    pub(crate) fn rooted(self) -> bool {
        self == Kind::Broadcast
    }

    /// The counts for a size of `bytes`, which is the larger of what a rank gives and gets. Where each rank has a part
    /// of its own the parts are equal and multiples of 16 bytes, as nccl-tests has them.
    pub(crate) fn counts(self, bytes: usize, element: usize, ranks: usize) -> Counts {
        let count = bytes / element;
        let part = (count / ranks) & !(16 / element - 1);
        match self {
            Kind::AllReduce | Kind::Broadcast | Kind::SendRecv => Counts { send: count, recv: count, argument: count },
            Kind::AllGather => Counts { send: part, recv: part * ranks, argument: part },
            Kind::ReduceScatter => Counts { send: part * ranks, recv: part, argument: part },
            Kind::AllToAll => Counts { send: part * ranks, recv: part * ranks, argument: part },
        }
    }

    /// Algorithm and bus bandwidth in GB/s (10^9). The first is bytes over time; the second is what the busiest link
    /// carried, so that it can be held against the hardware whatever the collective and the number of ranks.
    pub(crate) fn bandwidths(self, counts: Counts, element: usize, seconds: f64, ranks: usize) -> (f64, f64) {
        let bytes = counts.send.max(counts.recv) as f64 * element as f64;
        let algorithm = bytes / 1e9 / seconds;
        let n = ranks as f64;
        let factor = match self {
            Kind::AllReduce => 2.0 * (n - 1.0) / n,
            Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll => (n - 1.0) / n,
            Kind::Broadcast | Kind::SendRecv => 1.0,
        };
        (algorithm, algorithm * factor)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_equal_and_aligned() {
        // 1,000 bytes of f32 over 3 ranks: 83 elements a rank, of which 80 are whole 16-byte units.
        assert_eq!(Kind::AllGather.counts(1000, 4, 3), Counts { send: 80, recv: 240, argument: 80 });
        assert_eq!(Kind::ReduceScatter.counts(1000, 4, 3), Counts { send: 240, recv: 80, argument: 80 });
        assert_eq!(Kind::AllToAll.counts(1000, 4, 3), Counts { send: 240, recv: 240, argument: 80 });
        assert_eq!(Kind::AllReduce.counts(1002, 4, 3), Counts { send: 250, recv: 250, argument: 250 });
        assert_eq!(Kind::AllGather.counts(8, 4, 2), Counts { send: 0, recv: 0, argument: 0 });
    }

    #[test]
    fn bus_bandwidth_has_the_factors_of_nccl_tests() {
        let at = |kind: Kind, ranks| {
            let counts = kind.counts(1 << 30, 4, ranks);
            kind.bandwidths(counts, 4, 1.0, ranks)
        };
        let gigabytes = (1u64 << 30) as f64 / 1e9;
        assert_eq!(at(Kind::AllReduce, 4), (gigabytes, gigabytes * 1.5));
        for kind in [Kind::AllGather, Kind::ReduceScatter, Kind::AllToAll] {
            assert_eq!(at(kind, 4), (gigabytes, gigabytes * 0.75), "{kind}");
        }
        for kind in [Kind::Broadcast, Kind::SendRecv] {
            assert_eq!(at(kind, 4), (gigabytes, gigabytes), "{kind}");
        }
        assert_eq!(at(Kind::AllReduce, 1).1, 0.0);
    }
}
