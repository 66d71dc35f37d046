//! Collectives and point-to-point calls.

use warpweft_comm::Communicator;

use crate::communicator::for_all;
use crate::element::{op as reduction, with_element};
use crate::fault::{Fault, guard};
use crate::pointer::{Input, Output, Ref, disjoint};

/// Reduction, in place where `send` is `recv`.
#[unsafe(no_mangle)]
pub extern "C" fn ww_all_reduce(
    comm: Ref<Communicator>,
    send: Input,
    mut recv: Output,
    count: usize,
    dtype: i32,
    op: i32,
) -> i32 {
    guard("ww_all_reduce", || {
        let comm = comm.get("comm")?;
        let op = reduction(op)?;
        with_element!(dtype, T => {
            if send.address() == recv.address() {
                comm.all_reduce(recv.slice::<T>("recv", count)?, op)?;
                return Ok(());
            }
            disjoint(&[recv.extent::<T>("recv", count)?], &[send.extent::<T>("send", count)?])?;
            comm.all_reduce_into(send.slice::<T>("send", count)?, recv.slice::<T>("recv", count)?, op)?;
            Ok(())
        })
    })
}

/// Everyone's elements, in place where `send` is this rank's part of `recv`.
#[unsafe(no_mangle)]
pub extern "C" fn ww_all_gather(
    comm: Ref<Communicator>,
    send: Input,
    mut recv: Output,
    count: usize,
    dtype: i32,
) -> i32 {
    guard("ww_all_gather", || {
        let comm = comm.get("comm")?;
        let total = for_all(comm, "recv", count)?;
        with_element!(dtype, T => {
            let (_, extent) = recv.extent::<T>("recv", total)?;
            let own = extent.as_ref().map(|extent| extent.start + comm.rank() * count * size_of::<T>());
            if own == Some(send.address()) {
                comm.all_gather_in_place(recv.slice::<T>("recv", total)?)?;
                return Ok(());
            }
            disjoint(&[("recv", extent)], &[send.extent::<T>("send", count)?])?;
            comm.all_gather(send.slice::<T>("send", count)?, recv.slice::<T>("recv", total)?)?;
            Ok(())
        })
    })
}

/// A part of the reduction, in place where `recv` is this rank's part of `send`.
#[unsafe(no_mangle)]
pub extern "C" fn ww_reduce_scatter(
    comm: Ref<Communicator>,
    send: Input,
    mut recv: Output,
    count: usize,
    dtype: i32,
    op: i32,
) -> i32 {
    guard("ww_reduce_scatter", || {
        let comm = comm.get("comm")?;
        let op = reduction(op)?;
        let total = for_all(comm, "send", count)?;
        with_element!(dtype, T => {
            let (_, extent) = send.extent::<T>("send", total)?;
            let own = extent.as_ref().map(|extent| extent.start + comm.rank() * count * size_of::<T>());
            if own == Some(recv.address()) {
                // The caller gives both pointers into one array of `total` elements that it lets us write.
                let mut whole = recv.back(comm.rank() * count * size_of::<T>());
                comm.reduce_scatter_in_place(whole.slice::<T>("send", total)?, op)?;
                return Ok(());
            }
            disjoint(&[recv.extent::<T>("recv", count)?], &[("send", extent)])?;
            comm.reduce_scatter(send.slice::<T>("send", total)?, recv.slice::<T>("recv", count)?, op)?;
            Ok(())
        })
    })
}

/// The root's elements.
#[unsafe(no_mangle)]
pub extern "C" fn ww_broadcast(
    comm: Ref<Communicator>,
    mut buffer: Output,
    count: usize,
    dtype: i32,
    root: usize,
) -> i32 {
    guard("ww_broadcast", || {
        let comm = comm.get("comm")?;
        with_element!(dtype, T => Ok(comm.broadcast(buffer.slice::<T>("buffer", count)?, root)?))
    })
}

/// A block for each rank.
#[unsafe(no_mangle)]
pub extern "C" fn ww_all_to_all(
    comm: Ref<Communicator>,
    send: Input,
    mut recv: Output,
    count: usize,
    dtype: i32,
) -> i32 {
    guard("ww_all_to_all", || {
        let comm = comm.get("comm")?;
        let total = for_all(comm, "send", count)?;
        with_element!(dtype, T => {
            disjoint(&[recv.extent::<T>("recv", total)?], &[send.extent::<T>("send", total)?])?;
            comm.all_to_all(send.slice::<T>("send", total)?, recv.slice::<T>("recv", total)?)?;
            Ok(())
        })
    })
}

/// Waits for every rank.
#[unsafe(no_mangle)]
pub extern "C" fn ww_barrier(comm: Ref<Communicator>) -> i32 {
    guard("ww_barrier", || Ok(comm.get("comm")?.barrier()?))
}

/// To one rank.
#[unsafe(no_mangle)]
pub extern "C" fn ww_send(comm: Ref<Communicator>, buffer: Input, count: usize, dtype: i32, peer: usize) -> i32 {
    guard("ww_send", || {
        let comm = comm.get("comm")?;
        with_element!(dtype, T => Ok(comm.send(buffer.slice::<T>("buffer", count)?, peer)?))
    })
}

/// From one rank.
#[unsafe(no_mangle)]
pub extern "C" fn ww_recv(comm: Ref<Communicator>, mut buffer: Output, count: usize, dtype: i32, peer: usize) -> i32 {
    guard("ww_recv", || {
        let comm = comm.get("comm")?;
        with_element!(dtype, T => Ok(comm.recv(buffer.slice::<T>("buffer", count)?, peer)?))
    })
}

/// To one rank and from one rank at once.
#[unsafe(no_mangle)]
pub extern "C" fn ww_sendrecv(
    comm: Ref<Communicator>,
    send: Input,
    send_count: usize,
    to: usize,
    mut recv: Output,
    recv_count: usize,
    from: usize,
    dtype: i32,
) -> i32 {
    guard("ww_sendrecv", || {
        let comm = comm.get("comm")?;
        with_element!(dtype, T => {
            disjoint(&[recv.extent::<T>("recv", recv_count)?], &[send.extent::<T>("send", send_count)?])?;
            let given = send.slice::<T>("send", send_count)?;
            comm.sendrecv(given, to, recv.slice::<T>("recv", recv_count)?, from)?;
            Ok(())
        })
    })
}
