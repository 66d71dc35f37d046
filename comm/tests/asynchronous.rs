//! Non-blocking operations, groups, sub-communicators: order, ownership, and what becomes of dropped handles.
#![forbid(unsafe_code)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{KINDS, failure, options, ranks};
use warpweft_comm::transport::TransportKind;
use warpweft_comm::{Algorithm, CommError, Communicator, Op, OwnedRegion, Region, RegionMut};
use warpweft_device::Device;

fn auto(kind: TransportKind) -> warpweft_comm::Options {
    options(kind, Algorithm::Auto)
}

#[test]
fn owning_operations_run_in_order_and_give_their_memory_back() {
    for kind in KINDS {
        for world in [1, 2, 3] {
            ranks(world, auto(kind), move |comm| {
                let world = comm.world() as f32;
                let pending: Vec<_> =
                    (0..20).map(|i| comm.start_all_reduce(vec![i as f32; 1 + 997 * i], Op::Sum)).collect();
                // A blocking call waits its turn behind them.
                let mut last = [1.0f32];
                comm.all_reduce(&mut last, Op::Sum).expect("all_reduce");
                assert_eq!(last, [world]);
                assert!(pending.iter().all(|pending| pending.is_done()));
                let mut before = None;
                for (i, pending) in pending.into_iter().enumerate() {
                    let done = pending.wait().expect("all_reduce");
                    assert_eq!(done.buffer, vec![i as f32 * world; 1 + 997 * i]);
                    assert!(done.started <= done.finished);
                    assert!(before.is_none_or(|before| before <= done.started), "one after the other");
                    before = Some(done.finished);
                }
            });
        }
    }
}

#[test]
fn every_owning_form() {
    ranks(3, auto(TransportKind::Thread), |comm| {
        let (rank, world) = (comm.rank(), comm.world());
        let device = Device::cpu_with_threads(1).expect("the CPU");
        let buffer = device.upload(&[rank as i32; 5]).expect("memory");
        let reduced = comm.start_all_reduce(buffer, Op::Max);
        let scattered = comm.start_reduce_scatter(vec![1i64; 6], vec![0i64; 2], Op::Sum);
        let in_place = comm.start_reduce_scatter_in_place(vec![1u8; 6], Op::Sum);
        let gathered = comm.start_all_gather(vec![rank as u16], vec![0u16; world]);
        let mut own = vec![9u32; world];
        own[rank] = rank as u32;
        let gathered_in_place = comm.start_all_gather_in_place(own);
        let told = comm.start_broadcast(vec![rank as f64; 3], 2);
        let swapped = comm.start_all_to_all(vec![rank as f32; world], vec![0.0f32; world]);
        let wrong = comm.start_all_gather(vec![0u8; 2], vec![0u8; 3]);
        let stream = device.stream();
        assert_eq!(reduced.wait().expect("max").buffer.download(&stream).expect("host"), [2; 5]);
        assert_eq!(scattered.wait().expect("sum").buffer, (vec![1; 6], vec![3, 3]));
        assert_eq!(in_place.wait().expect("sum").buffer[2 * rank..2 * rank + 2], [3, 3]);
        assert_eq!(gathered.wait().expect("gather").buffer.1, [0, 1, 2]);
        assert_eq!(gathered_in_place.wait().expect("gather").buffer, [0, 1, 2]);
        assert_eq!(told.wait().expect("broadcast").buffer, [2.0; 3]);
        assert_eq!(swapped.wait().expect("all to all").buffer.1, [0.0, 1.0, 2.0]);
        let error = wrong.wait().expect_err("lengths do not fit");
        assert!(matches!(error.error, CommError::Argument { .. }), "{error}");
        assert_eq!(error.buffer, Some((vec![0; 2], vec![0; 3])), "the memory comes back");
    });
}

#[test]
fn dropped_and_forgotten_handles_change_nothing() {
    ranks(2, auto(TransportKind::Thread), |comm| {
        drop(comm.start_all_reduce(vec![1.0f32; 100_000], Op::Sum));
        std::mem::forget(comm.start_all_reduce(vec![1.0f32; 100_000], Op::Sum));
        let mut x = [2.0f32];
        comm.all_reduce(&mut x, Op::Sum).expect("all_reduce");
        assert_eq!(x, [4.0]);
        // The communicator goes with operations under way: they finish first.
        drop(comm.start_all_reduce(vec![1.0f32; 100_000], Op::Sum));
    });
}

#[test]
fn dropping_a_communicator_whose_operations_cannot_finish_ends_at_the_deadline() {
    ranks(2, auto(TransportKind::Thread), |comm| {
        comm.barrier().expect("all are here");
        if comm.rank() == 0 {
            comm.set_timeout(Duration::from_millis(300));
            let begun = std::time::Instant::now();
            let pending = comm.start_all_reduce(vec![1.0f32; 100], Op::Sum);
            let behind = comm.start_all_reduce(vec![1.0f32; 100], Op::Sum);
            drop(comm);
            assert!(begun.elapsed() < Duration::from_secs(10));
            let error = pending.wait().expect_err("the peer never called");
            assert_eq!(error.buffer.map(|buffer| buffer.len()), Some(100));
            assert!(behind.wait().is_err());
        } else {
            std::thread::sleep(Duration::from_millis(1200));
        }
    });
}

/// Memory that panics when it is looked at.
struct Broken;

impl OwnedRegion<f32> for Broken {
    fn region(&self) -> Region<'_, f32> {
        panic!("no memory")
    }
    fn region_mut(&mut self) -> RegionMut<'_, f32> {
        panic!("no memory")
    }
}

#[test]
fn a_panic_on_the_progress_thread_is_an_error_everywhere() {
    ranks(2, auto(TransportKind::Thread), |comm| {
        let pending = comm.start_all_reduce(Broken, Op::Sum);
        let behind = comm.start_all_reduce(vec![1.0f32], Op::Sum);
        assert!(pending.wait().is_err_and(|error| error.buffer.is_none()));
        assert!(behind.wait().is_err());
        assert!(comm.barrier().is_err());
    });
}

#[test]
fn scopes_borrow_and_join() {
    for world in [1, 2, 3] {
        ranks(world, auto(TransportKind::Thread), move |comm| {
            let world = comm.world();
            let (mut a, mut b, mut c) = (vec![1.0f32; 50_000], vec![2i32; 3], vec![0u8; world]);
            let own = [comm.rank() as u8];
            let value = comm
                .scope(|scope| {
                    let first = scope.all_reduce(&mut a, Op::Sum);
                    scope.all_reduce(&mut b, Op::Prod);
                    scope.all_gather(&own, &mut c);
                    let done = first.wait().expect("all_reduce");
                    assert!(done.started <= done.finished);
                    7
                })
                .expect("nothing failed");
            assert_eq!(value, 7);
            assert_eq!(a, vec![world as f32; 50_000]);
            assert_eq!(b, [2i32.pow(world as u32); 3]);
            assert_eq!(c, (0..world as u8).collect::<Vec<_>>());
            // What is on its way can be read meanwhile, and what was sent is counted.
            let (rank, before) = (comm.rank(), comm.sent_bytes());
            let (own, mut theirs) = (vec![rank as u32; 1000], vec![0u32; 1000]);
            let sum = comm
                .scope(|scope| {
                    scope.sendrecv(&own, (rank + 1) % world, &mut theirs, (rank + world - 1) % world);
                    own.iter().sum::<u32>()
                })
                .expect("nothing failed");
            assert_eq!(sum, 1000 * rank as u32);
            assert_eq!(theirs, vec![((rank + world - 1) % world) as u32; 1000]);
            assert_eq!(comm.sent_bytes() - before, if world > 1 { 4000 } else { 0 });
            // A failure that nobody waits for comes from the scope.
            let mut odd = [0u8; 7];
            let result = comm.scope(|scope| {
                scope.all_gather(&[1u8, 2], &mut odd);
            });
            assert!(matches!(result, Err(CommError::Argument { .. })), "{result:?}");
        });
    }
}

#[test]
fn sixty_four_communicators_are_used_by_many_threads() {
    let world = 2;
    ranks(world, auto(TransportKind::Thread), move |parent| {
        let parts: Vec<Communicator> =
            (0..64).map(|_| parent.split(Some(0), 0).expect("split").expect("in the group")).collect();
        let parts = Arc::new(parts);
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let parts = parts.clone();
                std::thread::spawn(move || {
                    for (index, part) in parts.iter().enumerate().filter(|(index, _)| index % 8 == thread) {
                        for round in 0..5 {
                            let mut x = vec![index as i32 + round; 100];
                            part.all_reduce(&mut x, Op::Sum).expect("all_reduce");
                            assert_eq!(x, vec![world as i32 * (index as i32 + round); 100]);
                        }
                    }
                })
            })
            .collect();
        // The parent works meanwhile.
        for _ in 0..20 {
            parent.barrier().expect("barrier");
        }
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

#[test]
fn split_groups_by_color_and_orders_by_key() {
    for kind in KINDS {
        ranks(5, auto(kind), |comm| {
            let rank = comm.rank();
            // Ranks 0, 2, 4 backwards; 1 alone; 3 in none.
            let (color, key) = match rank {
                1 => (Some(9), 0),
                3 => (None, 0),
                _ => (Some(7), -(rank as i64)),
            };
            let part = comm.split(color, key).expect("split");
            match (rank, part) {
                (3, None) => {}
                (1, Some(part)) => {
                    assert_eq!((part.rank(), part.world()), (0, 1));
                    part.barrier().expect("alone");
                }
                (_, Some(part)) => {
                    assert_eq!((part.rank(), part.world()), ((4 - rank) / 2, 3));
                    assert_eq!(part.transport(), comm.transport());
                    let mut all = [0usize as u64; 3];
                    part.all_gather(&[rank as u64], &mut all).expect("all_gather");
                    assert_eq!(all, [4, 2, 0]);
                    // And a part of the part.
                    let pair = part.split((part.rank() < 2).then_some(0), 0).expect("split");
                    assert_eq!(pair.map(|pair| pair.world()), (part.rank() < 2).then_some(2));
                }
                (_, None) => panic!("rank {rank} has no group"),
            }
            comm.barrier().expect("the parent works as before");
        });
    }
}

#[test]
fn aborting_a_part_leaves_the_whole_alone_and_aborting_the_whole_ends_the_part() {
    ranks(2, auto(TransportKind::Thread), |comm| {
        let part = comm.split(Some(0), 0).expect("split").expect("a group");
        let other = comm.split(Some(0), 0).expect("split").expect("a group");
        part.abort("only this one");
        assert!(part.barrier().is_err());
        comm.barrier().expect("the parent is well");
        other.barrier().expect("the other part is well");
        comm.barrier().expect("all have come so far");
        comm.abort("everything");
        let error = other.all_reduce(&mut [0u8; 4], Op::Sum).and_then(|()| comm.barrier()).expect_err("aborted");
        assert!(failure(&error).cause.clone() != failure(&part.barrier().expect_err("aborted")).cause);
    });
}

#[test]
fn groups_move_any_number_of_messages_at_once() {
    for kind in KINDS {
        for world in [1, 2, 4] {
            ranks(world, auto(kind), move |comm| {
                let (rank, world) = (comm.rank(), comm.world());
                // Two messages of different types and lengths to and from everybody, the own rank too.
                let floats: Vec<Vec<f32>> =
                    (0..world).map(|to| vec![(10 * rank + to) as f32; 1 + 70_000 * to]).collect();
                let bytes = [rank as u8; 3];
                let mut got: Vec<Vec<f32>> = (0..world).map(|_| vec![0.0; 1 + 70_000 * rank]).collect();
                let mut got_bytes = vec![[9u8; 3]; world];
                comm.group(|group| {
                    for (to, floats) in floats.iter().enumerate() {
                        group.send(floats, to).send(&bytes, to);
                    }
                    for (from, (floats, bytes)) in got.iter_mut().zip(&mut got_bytes).enumerate() {
                        group.recv(floats, from).recv(bytes, from);
                    }
                })
                .expect("group");
                for from in 0..world {
                    assert!(got[from].iter().all(|x| *x == (10 * from + rank) as f32));
                    assert_eq!(got_bytes[from], [from as u8; 3]);
                }
            });
        }
    }
}

#[test]
fn messages_pass_around_a_ring_and_leave_others_alone() {
    for kind in KINDS {
        ranks(3, auto(kind), |comm| {
            let (rank, world) = (comm.rank(), comm.world());
            let mut x = [0u64];
            comm.sendrecv(&[rank as u64], (rank + 1) % world, &mut x, (rank + world - 1) % world).expect("sendrecv");
            assert_eq!(x, [((rank + world - 1) % world) as u64]);
            // Two of three talk; the collective that follows is number one for all.
            if rank == 0 {
                comm.send(&[5i8; 5], 2).expect("send");
            } else if rank == 2 {
                let mut y = [0i8; 5];
                comm.recv(&mut y, 0).expect("recv");
                assert_eq!(y, [5; 5]);
            }
            comm.barrier().expect("barrier");
            comm.send::<f32>(&[], (rank + 1) % world).expect("an empty message");
            comm.recv::<f32>(&mut [], (rank + world - 1) % world).expect("an empty message");
        });
    }
}

#[test]
fn a_scope_that_panics_does_not_wait_for_the_others() {
    ranks(2, auto(TransportKind::Thread), |comm| {
        if comm.rank() == 0 {
            let start = std::time::Instant::now();
            let scope = || {
                let mut x = [1.0f32; 4];
                comm.scope(|scope| {
                    scope.all_reduce(&mut x, Op::Sum);
                    panic!("on purpose");
                })
            };
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(scope));
            assert!(panicked.is_err(), "the panic goes on");
            assert!(start.elapsed() < Duration::from_secs(20), "a third of the deadline: {:?}", start.elapsed());
        } else {
            // Comes late. Whether the operation is then already aborted or can still be completed, nothing follows it.
            std::thread::sleep(Duration::from_millis(100));
            let error = comm.all_reduce(&mut [1.0f32; 4], Op::Sum).and_then(|()| comm.barrier());
            let error = error.expect_err("rank 0 has aborted");
            assert!(error.to_string().contains("panicked with operations under way"), "{error}");
        }
    });
}

#[test]
fn one_rank_alone_does_everything_locally() {
    let comm = Communicator::alone();
    let mut x = [3.0f32, 4.0];
    comm.all_reduce(&mut x, Op::Avg).expect("all_reduce");
    assert_eq!(x, [3.0, 4.0]);
    let mut y = [0.0f32; 2];
    comm.all_reduce_into(&x, &mut y, Op::Sum).expect("all_reduce_into");
    comm.reduce_scatter(&y, &mut x, Op::Sum).expect("reduce_scatter");
    comm.all_gather(&x, &mut y).expect("all_gather");
    comm.all_to_all(&y, &mut x).expect("all_to_all");
    comm.broadcast(&mut x, 0).expect("broadcast");
    comm.barrier().expect("barrier");
    comm.sendrecv(&x, 0, &mut y, 0).expect("sendrecv");
    assert_eq!((x, y), ([3.0, 4.0], [3.0, 4.0]));
    assert_eq!(comm.start_all_reduce(vec![5u8], Op::Sum).wait().expect("done").buffer, [5]);
    assert_eq!(comm.start_sendrecv(vec![5u8], 0, vec![0u8], 0).wait().expect("done").buffer.1, [5]);
    assert!(comm.split(None, 0).expect("split").is_none());
    assert_eq!(comm.split(Some(1), 0).expect("split").map(|part| part.world()), Some(1));
    assert!(matches!(comm.broadcast(&mut y, 1), Err(CommError::Argument { .. })));
}

#[test]
fn owned_messages_go_both_ways_and_around() {
    for kind in KINDS {
        ranks(3, auto(kind), |comm| {
            let (rank, world) = (comm.rank(), comm.world());
            // One direction a communicator: long messages to and from the same peer do not wait for each other.
            let back = comm.split(Some(0), 0).expect("split").expect("a group");
            let long = 300_000;
            if rank < 2 {
                let peer = 1 - rank;
                let (there, here) = if rank == 0 { (&comm, &back) } else { (&back, &comm) };
                let sent = there.start_send(vec![rank as f32; long], peer);
                let got = here.start_recv(vec![9.0f32; long], peer);
                assert_eq!(got.wait().expect("recv").buffer, vec![peer as f32; long]);
                assert_eq!(sent.wait().expect("send").buffer, vec![rank as f32; long], "the memory comes back");
            }
            // Several rounds of a ring, started at once, in order behind each other and before the barrier.
            let (next, before) = ((rank + 1) % world, (rank + world - 1) % world);
            let rounds: Vec<_> = (0..4usize)
                .map(|i| {
                    comm.start_sendrecv(
                        vec![(10 * rank + i) as u32; 1 + 50_000 * i],
                        next,
                        vec![0u32; 1 + 50_000 * i],
                        before,
                    )
                })
                .collect();
            comm.barrier().expect("barrier");
            assert!(rounds.iter().all(|round| round.is_done()));
            for (i, round) in rounds.into_iter().enumerate() {
                let done = round.wait().expect("sendrecv");
                assert!(done.started <= done.finished);
                assert_eq!(done.buffer.1, vec![(10 * before + i) as u32; 1 + 50_000 * i]);
            }
        });
    }
}

#[test]
fn owned_messages_that_cannot_be_are_refused_and_their_memory_comes_back() {
    ranks(2, auto(TransportKind::Thread), |comm| {
        let error = comm.start_send(vec![1u8; 3], 2).wait().expect_err("no such rank");
        assert!(error.to_string().contains("rank 2 is no rank of 2"), "{error}");
        assert_eq!(error.buffer, Some(vec![1; 3]));
        let error = comm.start_recv(vec![1u8; 3], comm.rank()).wait().expect_err("nothing is sent");
        assert!(error.to_string().contains("0 messages to the own rank and 1 from it"), "{error}");
        // To oneself both ends must be in one call.
        let done = comm.start_sendrecv(vec![7u8; 3], comm.rank(), vec![0u8; 3], comm.rank()).wait().expect("a copy");
        assert_eq!(done.buffer.1, [7; 3]);
        // A message of another length is found out by both.
        let result = if comm.rank() == 0 {
            comm.start_send(vec![0f32; 5], 1).wait()
        } else {
            comm.start_recv(vec![0f32; 6], 0).wait()
        };
        let failed = result.err().map(CommError::from).or_else(|| comm.barrier().err()).expect("5 are not 6");
        assert!(failed.to_string().contains('5') && failed.to_string().contains('6'), "{failed}");
    });
}
