//! The blocking collectives.

use warpweft_device::Element;

use super::Communicator;
use crate::region::{Region, RegionMut};
use crate::{CommError, Op};

/// # Collectives
///
/// Every rank must make the same calls in the same order with the same counts, element type, operation and root. A rank
/// that does not is found out before anything is written where it should not be, and named with the field that differs.
/// A count of 0 is served like any other. A failed call leaves the regions that it writes in an unspecified state.
///
/// # Errors
/// All return [`CommError::Argument`] for arguments that cannot be served (nothing has been sent then),
/// [`CommError::Device`] for memory of a device that cannot be copied, and [`CommError::Failed`] for everything that went
/// wrong with others.
impl Communicator {
    /// Combines all ranks' elements, for all, in place. Length: the same on all ranks.
    pub fn all_reduce<'a, T: Element>(&self, inout: impl Into<RegionMut<'a, T>>, op: Op) -> Result<(), CommError> {
        inout.into().on_host(|inout| {
            let _turn = self.enter();
            self.shared.all_reduce(None, inout, op)
        })
    }

    /// Combines all ranks' elements, for all. `send` and `recv` have the same length.
    pub fn all_reduce_into<'a, 'b, T: Element>(
        &self,
        send: impl Into<Region<'a, T>>,
        recv: impl Into<RegionMut<'b, T>>,
        op: Op,
    ) -> Result<(), CommError> {
        let send = send.into().host()?;
        recv.into().on_host(|recv| {
            let _turn = self.enter();
            self.shared.all_reduce(Some(&send), recv, op)
        })
    }

    /// Combines all ranks' elements and gives each rank its part: `send` has world times the elements of `recv`.
    pub fn reduce_scatter<'a, 'b, T: Element>(
        &self,
        send: impl Into<Region<'a, T>>,
        recv: impl Into<RegionMut<'b, T>>,
        op: Op,
    ) -> Result<(), CommError> {
        let send = send.into().host()?;
        recv.into().on_host(|recv| {
            let _turn = self.enter();
            self.shared.reduce_scatter(Some(&send), recv, None, op)
        })
    }

    /// [`reduce_scatter`](Self::reduce_scatter) with parts of `counts[rank]` elements each, 0 among them.
    pub fn reduce_scatter_v<'a, 'b, T: Element>(
        &self,
        send: impl Into<Region<'a, T>>,
        recv: impl Into<RegionMut<'b, T>>,
        counts: &[usize],
        op: Op,
    ) -> Result<(), CommError> {
        let send = send.into().host()?;
        recv.into().on_host(|recv| {
            let _turn = self.enter();
            self.shared.reduce_scatter(Some(&send), recv, Some(counts), op)
        })
    }

    /// [`reduce_scatter`](Self::reduce_scatter) in place: the result lies where this rank's part of `inout` lay. The
    /// other parts are unspecified afterwards.
    pub fn reduce_scatter_in_place<'a, T: Element>(
        &self,
        inout: impl Into<RegionMut<'a, T>>,
        op: Op,
    ) -> Result<(), CommError> {
        inout.into().on_host(|inout| {
            let _turn = self.enter();
            self.shared.reduce_scatter(None, inout, None, op)
        })
    }

    /// [`reduce_scatter_v`](Self::reduce_scatter_v) in place: the result lies where this rank's part of `inout` lay. The
    /// other parts are unspecified afterwards.
    pub fn reduce_scatter_v_in_place<'a, T: Element>(
        &self,
        inout: impl Into<RegionMut<'a, T>>,
        counts: &[usize],
        op: Op,
    ) -> Result<(), CommError> {
        inout.into().on_host(|inout| {
            let _turn = self.enter();
            self.shared.reduce_scatter(None, inout, Some(counts), op)
        })
    }

    /// Gathers all ranks' elements in rank order, for all: `recv` has world times the elements of `send`.
    pub fn all_gather<'a, 'b, T: Element>(
        &self,
        send: impl Into<Region<'a, T>>,
        recv: impl Into<RegionMut<'b, T>>,
    ) -> Result<(), CommError> {
        let send = send.into().host()?;
        recv.into().on_host(|recv| {
            let _turn = self.enter();
            self.shared.all_gather(Some(&send), recv, None)
        })
    }

    /// [`all_gather`](Self::all_gather) of `counts[rank]` elements from each, 0 among them.
    pub fn all_gather_v<'a, 'b, T: Element>(
        &self,
        send: impl Into<Region<'a, T>>,
        recv: impl Into<RegionMut<'b, T>>,
        counts: &[usize],
    ) -> Result<(), CommError> {
        let send = send.into().host()?;
        recv.into().on_host(|recv| {
            let _turn = self.enter();
            self.shared.all_gather(Some(&send), recv, Some(counts))
        })
    }

    /// [`all_gather`](Self::all_gather) in place: this rank's part lies in its place of `inout` already.
    pub fn all_gather_in_place<'a, T: Element>(&self, inout: impl Into<RegionMut<'a, T>>) -> Result<(), CommError> {
        inout.into().on_host(|inout| {
            let _turn = self.enter();
            self.shared.all_gather(None, inout, None)
        })
    }

    /// [`all_gather_v`](Self::all_gather_v) in place: this rank's part lies in its place of `inout` already.
    pub fn all_gather_v_in_place<'a, T: Element>(
        &self,
        inout: impl Into<RegionMut<'a, T>>,
        counts: &[usize],
    ) -> Result<(), CommError> {
        inout.into().on_host(|inout| {
            let _turn = self.enter();
            self.shared.all_gather(None, inout, Some(counts))
        })
    }

    /// Gives all ranks the root's elements. The root returns once every rank has come to the operation.
    pub fn broadcast<'a, T: Element>(&self, inout: impl Into<RegionMut<'a, T>>, root: usize) -> Result<(), CommError> {
        inout.into().on_host(|inout| {
            let _turn = self.enter();
            self.shared.broadcast(inout, root)
        })
    }

    /// Sends part r of `send` to rank r, which gets it as part of this rank in its `recv`; all parts have the same length.
    pub fn all_to_all<'a, 'b, T: Element>(
        &self,
        send: impl Into<Region<'a, T>>,
        recv: impl Into<RegionMut<'b, T>>,
    ) -> Result<(), CommError> {
        let send = send.into().host()?;
        recv.into().on_host(|recv| {
            let _turn = self.enter();
            self.shared.all_to_all(&send, recv)
        })
    }

    /// [`all_to_all`](Self::all_to_all) with `send_counts[r]` elements to and `recv_counts[r]` from each rank r, 0 among
    /// them. What a rank sends must be what the other one expects.
    pub fn all_to_all_v<'a, 'b, T: Element>(
        &self,
        send: impl Into<Region<'a, T>>,
        send_counts: &[usize],
        recv: impl Into<RegionMut<'b, T>>,
        recv_counts: &[usize],
    ) -> Result<(), CommError> {
        let send = send.into().host()?;
        recv.into().on_host(|recv| {
            let _turn = self.enter();
            self.shared.all_to_all_v(&send, send_counts, recv, recv_counts)
        })
    }

    /// Returns once every rank has come here.
    pub fn barrier(&self) -> Result<(), CommError> {
        let _turn = self.enter();
        self.shared.barrier()
    }
}
