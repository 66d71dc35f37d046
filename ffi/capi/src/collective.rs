//! Collectives and point-to-point calls.

use warpweft_comm::Communicator;

use crate::arguments::Arguments;
use crate::communicator::for_all;
use crate::element::{op as reduction, with_element};
use crate::fault::{Fault, guard};
use crate::pointer::{Input, Output, Ref};

/// Bytes before this rank's part of an array; a number too large for an array is refused when that is looked at.
fn before<T>(comm: &Communicator, count: usize) -> usize {
    comm.rank().wrapping_mul(count).wrapping_mul(size_of::<T>())
}

/// Reduction, in place where `send` is `recv`.
#[unsafe(no_mangle)]
pub extern "C" fn ww_all_reduce(
    comm: Ref<Communicator>,
    send: Input,
    recv: Output,
    count: usize,
    dtype: i32,
    op: i32,
) -> i32 {
    guard("ww_all_reduce", || {
        let mut args = Arguments::of("comm", &comm)?;
        let comm = args.handle;
        let op = reduction(op)?;
        with_element!(dtype, T => {
            if send.address() == recv.address() {
                comm.all_reduce(args.slice_mut::<T>("recv", recv, count)?, op)?;
                return Ok(());
            }
            comm.all_reduce_into(args.slice::<T>("send", send, count)?, args.slice_mut::<T>("recv", recv, count)?, op)?;
            Ok(())
        })
    })
}

/// Everyone's elements, in place where `send` is this rank's part of `recv`.
#[unsafe(no_mangle)]
pub extern "C" fn ww_all_gather(comm: Ref<Communicator>, send: Input, recv: Output, count: usize, dtype: i32) -> i32 {
    guard("ww_all_gather", || {
        let mut args = Arguments::of("comm", &comm)?;
        let comm = args.handle;
        let total = for_all(comm, "recv", count)?;
        with_element!(dtype, T => {
            if send.address() == recv.address().wrapping_add(before::<T>(comm, count)) {
                comm.all_gather_in_place(args.slice_mut::<T>("recv", recv, total)?)?;
                return Ok(());
            }
            comm.all_gather(args.slice::<T>("send", send, count)?, args.slice_mut::<T>("recv", recv, total)?)?;
            Ok(())
        })
    })
}

/// A part of the reduction, in place where `recv` is this rank's part of `send`.
#[unsafe(no_mangle)]
pub extern "C" fn ww_reduce_scatter(
    comm: Ref<Communicator>,
    send: Input,
    recv: Output,
    count: usize,
    dtype: i32,
    op: i32,
) -> i32 {
    guard("ww_reduce_scatter", || {
        let mut args = Arguments::of("comm", &comm)?;
        let comm = args.handle;
        let op = reduction(op)?;
        let total = for_all(comm, "send", count)?;
        with_element!(dtype, T => {
            if recv.address() == send.address().wrapping_add(before::<T>(comm, count)) {
                // The caller gives both pointers into one array of `total` elements that it lets us write.
                let whole = recv.back(before::<T>(comm, count));
                comm.reduce_scatter_in_place(args.slice_mut::<T>("send", whole, total)?, op)?;
                return Ok(());
            }
            comm.reduce_scatter(args.slice::<T>("send", send, total)?, args.slice_mut::<T>("recv", recv, count)?, op)?;
            Ok(())
        })
    })
}

/// The root's elements.
#[unsafe(no_mangle)]
pub extern "C" fn ww_broadcast(comm: Ref<Communicator>, buffer: Output, count: usize, dtype: i32, root: usize) -> i32 {
    guard("ww_broadcast", || {
        let mut args = Arguments::of("comm", &comm)?;
        let comm = args.handle;
        with_element!(dtype, T => Ok(comm.broadcast(args.slice_mut::<T>("buffer", buffer, count)?, root)?))
    })
}

/// A block for each rank.
#[unsafe(no_mangle)]
pub extern "C" fn ww_all_to_all(comm: Ref<Communicator>, send: Input, recv: Output, count: usize, dtype: i32) -> i32 {
    guard("ww_all_to_all", || {
        let mut args = Arguments::of("comm", &comm)?;
        let comm = args.handle;
        let total = for_all(comm, "send", count)?;
        with_element!(dtype, T => {
            comm.all_to_all(args.slice::<T>("send", send, total)?, args.slice_mut::<T>("recv", recv, total)?)?;
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
        let mut args = Arguments::of("comm", &comm)?;
        let comm = args.handle;
        with_element!(dtype, T => Ok(comm.send(args.slice::<T>("buffer", buffer, count)?, peer)?))
    })
}

/// From one rank.
#[unsafe(no_mangle)]
pub extern "C" fn ww_recv(comm: Ref<Communicator>, buffer: Output, count: usize, dtype: i32, peer: usize) -> i32 {
    guard("ww_recv", || {
        let mut args = Arguments::of("comm", &comm)?;
        let comm = args.handle;
        with_element!(dtype, T => Ok(comm.recv(args.slice_mut::<T>("buffer", buffer, count)?, peer)?))
    })
}

/// To one rank and from one rank at once.
#[unsafe(no_mangle)]
pub extern "C" fn ww_sendrecv(
    comm: Ref<Communicator>,
    send: Input,
    send_count: usize,
    to: usize,
    recv: Output,
    recv_count: usize,
    from: usize,
    dtype: i32,
) -> i32 {
    guard("ww_sendrecv", || {
        let mut args = Arguments::of("comm", &comm)?;
        let comm = args.handle;
        with_element!(dtype, T => {
            let given = args.slice::<T>("send", send, send_count)?;
            comm.sendrecv(given, to, args.slice_mut::<T>("recv", recv, recv_count)?, from)?;
            Ok(())
        })
    })
}
