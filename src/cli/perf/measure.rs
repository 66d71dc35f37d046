//! One collective at one size: the call, its time, and whether every element is right.

use std::time::Instant;

use warpweft::comm::{CommError, Communicator, Op};

use super::kind::{Counts, Kind};
use super::sample::{Sample, operand, reduced};

/// What is called.
#[derive(Clone, Copy)]
pub(crate) struct Case<'a> {
    pub(crate) communicator: &'a Communicator,
    pub(crate) kind: Kind,
    pub(crate) op: Op,
    pub(crate) root: usize,
    pub(crate) counts: Counts,
    pub(crate) in_place: bool,
}

/// The memory of one rank, for the largest size.
pub(crate) struct Buffers<T> {
    send: Vec<T>,
    recv: Vec<T>,
}

impl<T: Sample> Buffers<T> {
    /// Memory for `elements` given and as many received; `None` where there is not so much.
    pub(crate) fn new(elements: usize) -> Option<Self> {
        let zeros = || {
            let mut memory = Vec::new();
            memory.try_reserve_exact(elements).ok()?;
            memory.resize(elements, T::from_whole(0));
            Some(memory)
        };
        Some(Self { send: zeros()?, recv: zeros()? })
    }
}

impl Case<'_> {
    /// Calls it once.
    ///
    /// all_to_all and sendrecv have no in-place form; what a caller in their place does, a copy of what it gives, is
    /// part of the call. A broadcast out of place is one in place after a copy at the root.
    pub(crate) fn call<T: Sample>(&self, buffers: &mut Buffers<T>) -> Result<(), CommError> {
        let Counts { send, recv, .. } = self.counts;
        let (rank, world) = (self.communicator.rank(), self.communicator.world());
        let comm = self.communicator;
        let Buffers { send: given, recv: got } = buffers;
        match (self.kind, self.in_place) {
            (Kind::AllReduce, false) => comm.all_reduce_into(&given[..send], &mut got[..recv], self.op),
            (Kind::AllReduce, true) => comm.all_reduce(&mut got[..recv], self.op),
            (Kind::AllGather, false) => comm.all_gather(&given[..send], &mut got[..recv]),
            (Kind::AllGather, true) => comm.all_gather_in_place(&mut got[..recv]),
            (Kind::ReduceScatter, false) => comm.reduce_scatter(&given[..send], &mut got[..recv], self.op),
            (Kind::ReduceScatter, true) => comm.reduce_scatter_in_place(&mut got[..send], self.op),
            (Kind::Broadcast, in_place) => {
                if !in_place && rank == self.root {
                    got[..recv].copy_from_slice(&given[..send]);
                }
                comm.broadcast(&mut got[..recv], self.root)
            }
            (Kind::AllToAll, in_place) => {
                if in_place {
                    given[..send].copy_from_slice(&got[..send]);
                }
                comm.all_to_all(&given[..send], &mut got[..recv])
            }
            (Kind::SendRecv, in_place) => {
                if in_place {
                    given[..send].copy_from_slice(&got[..send]);
                }
                let (next, previous) = ((rank + 1) % world, (rank + world - 1) % world);
                comm.sendrecv(&given[..send], next, &mut got[..recv], previous)
            }
        }
    }

    /// Seconds of one call, the mean of `iterations` on this rank.
    pub(crate) fn time<T: Sample>(
        &self,
        buffers: &mut Buffers<T>,
        iterations: u32,
        barrier_after_each: bool,
    ) -> Result<f64, CommError> {
        self.communicator.barrier()?;
        let started = Instant::now();
        for _ in 0..iterations {
            self.call(buffers)?;
            if barrier_after_each {
                self.communicator.barrier()?;
            }
        }
        Ok(started.elapsed().as_secs_f64() / f64::from(iterations))
    }

    /// Calls it once on known data and counts the wrong elements of this rank.
    pub(crate) fn check<T: Sample>(&self, buffers: &mut Buffers<T>, seed: u64) -> Result<u64, CommError> {
        self.fill(buffers, seed);
        self.call(buffers)?;
        let Counts { recv, .. } = self.counts;
        let start = if self.in_place && self.kind == Kind::ReduceScatter { self.communicator.rank() * recv } else { 0 };
        let got = &buffers.recv[start..start + recv];
        let wrong = got.iter().enumerate().filter(|(index, got)| **got != self.expected(seed, *index));
        Ok(wrong.count() as u64)
    }

    /// Fills what this rank gives, and everything else with what no rank expects.
    fn fill<T: Sample>(&self, buffers: &mut Buffers<T>, seed: u64) {
        let Counts { send, recv, .. } = self.counts;
        let rank = self.communicator.rank();
        buffers.recv[..send.max(recv)].fill(T::from_whole(T::EXACT));
        let given = match (self.in_place, self.kind) {
            (false, _) => &mut buffers.send[..send],
            (true, Kind::AllGather) => &mut buffers.recv[rank * send..(rank + 1) * send],
            // In place a rank that is not the root gives nothing: its buffer is only overwritten.
            (true, Kind::Broadcast) if rank != self.root => &mut buffers.recv[..0],
            (true, _) => &mut buffers.recv[..send],
        };
        for (index, element) in given.iter_mut().enumerate() {
            *element = self.given(seed, rank, index);
        }
    }

    /// What `rank` gives at `index`.
    fn given<T: Sample>(&self, seed: u64, rank: usize, index: usize) -> T {
        let op = if self.kind.reduces() { self.op } else { Op::Max };
        T::from_whole(operand(op, T::EXACT, seed, self.communicator.world(), rank, index))
    }

    /// What this rank must get at `index`.
    fn expected<T: Sample>(&self, seed: u64, index: usize) -> T {
        let (rank, world) = (self.communicator.rank(), self.communicator.world());
        let part = self.counts.argument;
        match self.kind {
            Kind::AllReduce => T::from_whole(reduced(self.op, T::EXACT, seed, world, index)),
            Kind::ReduceScatter => T::from_whole(reduced(self.op, T::EXACT, seed, world, rank * part + index)),
            Kind::AllGather => self.given(seed, index / part, index % part),
            Kind::Broadcast => self.given(seed, self.root, index),
            Kind::AllToAll => self.given(seed, index / part, rank * part + index % part),
            Kind::SendRecv => self.given(seed, (rank + world - 1) % world, index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweft::comm::{Options, bootstrap};

    /// Wrong elements that rank 0 of 2 counts where rank 1 gives what `theirs` as a seed makes.
    fn wrong(kind: Kind, op: Op, in_place: bool, theirs: u64) -> u64 {
        let ranks = bootstrap::threads(2).expect("two ranks");
        let counts = kind.counts(4096, 4, 2);
        std::thread::scope(|scope| {
            let run = |bootstrap| {
                let communicator = Communicator::new(bootstrap, Options::default()).expect("connected");
                let case = Case { communicator: &communicator, kind, op, root: 1, counts, in_place };
                let seed = if communicator.rank() == 0 { 1 } else { theirs };
                let mut buffers = Buffers::<i32>::new(1024).expect("there is memory");
                case.check(&mut buffers, seed).expect("the call succeeds")
            };
            let handles: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || run(rank))).collect();
            handles.into_iter().map(|handle| handle.join().expect("a rank ends")).next().expect("rank 0")
        })
    }

    #[test]
    fn right_elements_pass_and_wrong_ones_are_counted() {
        for kind in Kind::ALL {
            for in_place in [false, true] {
                assert_eq!(wrong(kind, Op::Sum, in_place, 1), 0, "{kind}, in place {in_place}");
                let received = kind.counts(4096, 4, 2).recv as u64;
                // Half of what all_gather and all_to_all bring comes from the other rank; one value in a million or so
                // agrees by chance.
                let count = wrong(kind, Op::Sum, in_place, 2);
                assert!(
                    count > received / 3 && count <= received,
                    "{kind}, in place {in_place}: {count} of {received}"
                );
            }
        }
    }
}
