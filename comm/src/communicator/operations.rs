//! The operations on host slices, for a caller whose turn has come: argument checks, the local case, the run.

use warpweft_device::Element;

use super::Shared;
use crate::CommError;
use crate::collective::{Call, Descriptor, Memory, Operation, Parts, Shape, Told, hash_counts, plan};
use crate::reduce::{Op, Reduction};

/// An argument that cannot be served.
pub(super) fn argument(operation: Operation, what: String) -> CommError {
    CommError::Argument { operation: operation.name(), what }
}

/// A length that must be another one.
fn expect(operation: Operation, what: &str, given: usize, expected: usize) -> Result<(), CommError> {
    if given == expected {
        return Ok(());
    }
    Err(argument(operation, format!("{what} has {given} elements, {expected} are needed")))
}

/// What a call adds to its shape in the descriptor.
#[derive(Clone, Copy, Default)]
struct Details<'a> {
    op: Option<Op>,
    root: Option<usize>,
    count: usize,
    counts: Option<&'a [usize]>,
}

impl Shared {
    pub(super) fn all_reduce<T: Element>(&self, send: Option<&[T]>, recv: &mut [T], op: Op) -> Result<(), CommError> {
        let operation = Operation::AllReduce;
        if let Some(send) = send {
            expect(operation, "the region to send", send.len(), recv.len())?;
        }
        if self.world == 1 {
            if let Some(send) = send {
                recv.copy_from_slice(send);
            }
            return Ok(());
        }
        let count = recv.len();
        self.execute(
            operation,
            Shape::AllReduce { count },
            Details { op: Some(op), count, ..Details::default() },
            send,
            recv,
        )
    }

    pub(super) fn reduce_scatter<T: Element>(
        &self,
        send: Option<&[T]>,
        recv: &mut [T],
        counts: Option<&[usize]>,
        op: Op,
    ) -> Result<(), CommError> {
        let operation = if counts.is_some() { Operation::ReduceScatterV } else { Operation::ReduceScatter };
        let all = send.map_or(recv.len(), <[T]>::len);
        let parts = self.parts(operation, counts, "the whole region", all)?;
        let own = parts.range(self.rank);
        if send.is_some() {
            expect(operation, "the region to receive", recv.len(), own.len())?;
        }
        if self.world == 1 {
            if let Some(send) = send {
                recv.copy_from_slice(send);
            }
            return Ok(());
        }
        let details = Details { op: Some(op), counts, count: counts.map_or(own.len(), |_| all), ..Details::default() };
        self.execute(operation, Shape::ReduceScatter { parts }, details, send, recv)
    }

    pub(super) fn all_gather<T: Element>(
        &self,
        send: Option<&[T]>,
        recv: &mut [T],
        counts: Option<&[usize]>,
    ) -> Result<(), CommError> {
        let operation = if counts.is_some() { Operation::AllGatherV } else { Operation::AllGather };
        let all = recv.len();
        let parts = self.parts(operation, counts, "the whole region", all)?;
        let own = parts.range(self.rank).len();
        if let Some(send) = send {
            expect(operation, "the region to send", send.len(), own)?;
        }
        if self.world == 1 {
            if let Some(send) = send {
                recv.copy_from_slice(send);
            }
            return Ok(());
        }
        let details = Details { counts, count: counts.map_or(own, |_| all), ..Details::default() };
        self.execute(operation, Shape::AllGather { parts }, details, send, recv)
    }

    pub(super) fn broadcast<T: Element>(&self, inout: &mut [T], root: usize) -> Result<(), CommError> {
        let operation = Operation::Broadcast;
        if root >= self.world {
            return Err(argument(operation, format!("root {root} is no rank of {}", self.world)));
        }
        if self.world == 1 {
            return Ok(());
        }
        let count = inout.len();
        let details = Details { root: Some(root), count, ..Details::default() };
        self.execute(operation, Shape::Broadcast { count, root }, details, None, inout)
    }

    pub(super) fn all_to_all<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), CommError> {
        let operation = Operation::AllToAll;
        expect(operation, "the region to send", send.len(), recv.len())?;
        let parts = self.parts(operation, None, "the region", recv.len())?;
        if self.world == 1 {
            recv.copy_from_slice(send);
            return Ok(());
        }
        let details = Details { count: recv.len() / self.world, ..Details::default() };
        self.execute(operation, Shape::AllToAll { sent: parts, received: parts }, details, Some(send), recv)
    }

    pub(super) fn all_to_all_v<T: Element>(
        &self,
        send: &[T],
        send_counts: &[usize],
        recv: &mut [T],
        recv_counts: &[usize],
    ) -> Result<(), CommError> {
        let operation = Operation::AllToAllV;
        let sent = self.parts(operation, Some(send_counts), "the region to send", send.len())?;
        let received = self.parts(operation, Some(recv_counts), "the region to receive", recv.len())?;
        let (from, to) = (sent.range(self.rank).len(), received.range(self.rank).len());
        if from != to {
            let rank = self.rank;
            let what = format!("rank {rank} sends {from} elements to itself and receives {to} of itself");
            return Err(argument(operation, what));
        }
        if self.world == 1 {
            recv.copy_from_slice(send);
            return Ok(());
        }
        self.execute(operation, Shape::AllToAll { sent, received }, Details::default(), Some(send), recv)
    }

    pub(super) fn barrier(&self) -> Result<(), CommError> {
        if self.world == 1 {
            return Ok(());
        }
        self.execute::<u8>(Operation::Barrier, Shape::Barrier, Details::default(), None, &mut [])
    }

    /// How `all` elements are shared out: by the list of counts, or equally.
    fn parts<'c>(
        &self,
        operation: Operation,
        counts: Option<&'c [usize]>,
        what: &str,
        all: usize,
    ) -> Result<Parts<'c>, CommError> {
        let Some(counts) = counts else {
            if !all.is_multiple_of(self.world) {
                let world = self.world;
                return Err(argument(operation, format!("{what} has {all} elements, not a multiple of {world} ranks")));
            }
            return Ok(Parts::Equal { each: all / self.world, parts: self.world });
        };
        if counts.len() != self.world {
            let (given, world) = (counts.len(), self.world);
            return Err(argument(operation, format!("{given} counts were given for {world} ranks")));
        }
        let total = counts.iter().try_fold(0usize, |sum, &count| sum.checked_add(count));
        match total {
            Some(total) => expect(operation, what, all, total).map(|()| Parts::Listed(counts)),
            None => Err(argument(operation, "the counts add up to more than memory can hold".into())),
        }
    }

    /// Runs a collective. Without `send`, `recv` is read and overwritten.
    fn execute<T: Element>(
        &self,
        operation: Operation,
        shape: Shape<'_>,
        details: Details<'_>,
        send: Option<&[T]>,
        recv: &mut [T],
    ) -> Result<(), CommError> {
        self.usable()?;
        let Some(mut live) = self.live() else { return Ok(()) };
        let live = &mut *live;
        let call = Call { shape, in_place: send.is_none(), size: size_of::<T>() };
        let algorithm = call.algorithm(self.algorithm, self.world);
        plan(&mut live.engine.plan, &call, self.algorithm, algorithm, self.rank, self.world);
        live.sequence += 1;
        let told = Descriptor {
            operation,
            dtype: T::DTYPE,
            op: details.op,
            algorithm,
            root: details.root.map(|root| root as u32),
            count: details.count as u64,
            counts: details.counts.map_or(0, hash_counts),
            sequence: live.sequence,
        };
        let reduction = Reduction { dtype: T::DTYPE, op: details.op.unwrap_or(Op::Sum), world: self.world };
        let input: &[u8] = send.map_or(&[], bytemuck::cast_slice);
        let memory = Memory { inputs: &[input], outputs: &mut [bytemuck::cast_slice_mut(recv)] };
        let around = self.circumstances();
        let result = live.engine.run(Told::Same(told), reduction, size_of::<T>(), memory, &around);
        result.map_err(|failure| self.fail(failure))
    }
}
