//! Calls that do not fit, ranks that do not come, aborts: every rank learns why, and nothing hangs.
#![forbid(unsafe_code)]

mod common;

use std::time::{Duration, Instant};

use common::{KINDS, failure, mismatch, options, ranks};
use warpweft_comm::transport::TransportKind;
use warpweft_comm::{Algorithm, Cause, CommError, Communicator, Op, Options};

const ALGORITHMS: [Algorithm; 4] = Algorithm::ALL;

/// What each rank says where the last one makes another call than the others. A rank whose own part could be completed
/// says it in its next operation.
fn disagreement(
    kind: TransportKind,
    world: usize,
    algorithm: Algorithm,
    call: fn(&Communicator, bool) -> Result<(), CommError>,
) -> Vec<String> {
    ranks(world, options(kind, algorithm), move |comm| {
        let odd = comm.rank() == comm.world() - 1;
        let result = call(&comm, odd).and_then(|()| comm.barrier());
        let text = mismatch(&result);
        // Once it has failed, it stays failed, at once and with the same sentence.
        let again = comm.barrier().expect_err("a failed communicator stays failed");
        assert_eq!(again.to_string(), result.expect_err("it failed").to_string());
        text
    })
}

fn everybody_says(call: fn(&Communicator, bool) -> Result<(), CommError>, said: &str) {
    for kind in KINDS {
        for world in [2, 3, 4] {
            for algorithm in ALGORITHMS {
                let texts = disagreement(kind, world, algorithm, call);
                for text in &texts {
                    assert!(text.contains(said), "{kind} {world} {algorithm}: {text}");
                }
            }
        }
    }
}

#[test]
fn another_count_is_named() {
    let call = |comm: &Communicator, odd: bool| {
        comm.all_reduce(&mut vec![1.0f32; if odd { 409_598 } else { 409_600 }], Op::Sum)
    };
    everybody_says(call, "409600");
    everybody_says(call, "409598");
}

#[test]
fn a_count_on_the_other_side_of_a_threshold_is_named() {
    everybody_says(|comm, odd| comm.all_reduce(&mut vec![1.0f32; if odd { 3 } else { 100_000 }], Op::Sum), "count");
    everybody_says(
        |comm, odd| comm.all_gather_in_place(&mut vec![0u8; comm.world() * if odd { 0 } else { 5 }]),
        "count",
    );
}

#[test]
fn another_element_type_is_named() {
    everybody_says(
        |comm, odd| {
            if odd { comm.all_reduce(&mut [1i32; 100], Op::Sum) } else { comm.all_reduce(&mut [1.0f32; 100], Op::Sum) }
        },
        "element type",
    );
}

#[test]
fn another_op_is_named() {
    everybody_says(|comm, odd| comm.all_reduce(&mut [1.0f32; 100], if odd { Op::Max } else { Op::Sum }), "op ");
}

#[test]
fn another_root_is_named() {
    everybody_says(|comm, odd| comm.broadcast(&mut [1.0f32; 100], usize::from(odd)), "root");
}

#[test]
fn another_collective_is_named() {
    everybody_says(
        |comm, odd| if odd { comm.barrier() } else { comm.all_reduce(&mut [1.0f32; 100], Op::Sum) },
        "operation",
    );
    everybody_says(
        |comm, odd| {
            let (send, mut recv) = (vec![1u8; comm.world()], vec![0; comm.world()]);
            if odd { comm.all_to_all(&send, &mut recv) } else { comm.broadcast(&mut recv, 0) }
        },
        "operation",
    );
}

#[test]
fn other_counts_of_a_list_are_named() {
    everybody_says(
        |comm, odd| {
            let mut counts = vec![4; comm.world()];
            if odd {
                counts[0] = 5;
                counts[1] = 3;
            }
            comm.all_gather_v_in_place(&mut vec![0u16; 4 * comm.world()], &counts)
        },
        "counts (hash)",
    );
}

#[test]
fn an_all_to_all_that_sends_more_than_is_expected_is_found_before_it_is_written() {
    ranks(2, options(TransportKind::Thread, Algorithm::Auto), |comm| {
        let mut recv = [7u32; 2];
        let result = if comm.rank() == 0 {
            comm.all_to_all_v(&[1, 2, 3], &[1, 2], &mut recv, &[1, 1])
        } else {
            comm.all_to_all_v(&[4, 5], &[1, 1], &mut recv, &[1, 1])
        };
        let text = mismatch(&result.and_then(|()| comm.barrier()));
        assert!(text.contains("count"), "{text}");
        if comm.rank() == 1 {
            assert_eq!(recv[0], 7, "what did not fit was not written");
        }
    });
}

#[test]
fn messages_that_do_not_fit_are_named() {
    ranks(2, options(TransportKind::Thread, Algorithm::Auto), |comm| {
        if comm.rank() == 0 {
            comm.send(&[1.0f32; 4], 1).expect("a short message fits the link");
            // The receiver's notice comes with the next operation.
            assert!(mismatch(&comm.barrier()).contains("element type"));
        } else {
            let text = mismatch(&comm.recv(&mut [0i32; 4], 0));
            assert_eq!(text, "element type i32 here, f32 there");
        }
    });
}

fn short(kind: TransportKind, algorithm: Algorithm, milliseconds: u64) -> Options {
    Options { transport: kind, algorithm, timeout: Some(Duration::from_millis(milliseconds)) }
}

#[test]
fn a_rank_that_never_calls_is_named_by_all() {
    for kind in KINDS {
        for algorithm in [Algorithm::Ring, Algorithm::Direct, Algorithm::RecursiveDoubling] {
            let absent = 2;
            ranks(4, Options { timeout: Some(Duration::from_secs(60)), ..short(kind, algorithm, 0) }, move |comm| {
                comm.barrier().expect("all are here");
                if comm.rank() == absent {
                    // Longer than the others wait, with its links open.
                    std::thread::sleep(Duration::from_millis(1500));
                    let error = comm.all_reduce(&mut vec![1.0f32; 1000], Op::Sum).expect_err("the others gave up");
                    assert!(error.to_string().contains("this rank did not answer"), "{error}");
                    return;
                }
                comm.set_timeout(Duration::from_millis(400));
                let begun = Instant::now();
                let error = comm.all_reduce(&mut vec![1.0f32; 1000], Op::Sum).expect_err("one rank is missing");
                let found = failure(&error);
                assert_eq!(found.cause, Cause::TimedOut { after: Duration::from_millis(400) }, "{error}");
                assert_eq!(found.peer, Some(absent), "{kind} {algorithm}: {error}");
                assert_eq!((found.operation, found.sequence), ("all_reduce", 2));
                assert!(begun.elapsed() >= Duration::from_millis(400));
                assert!(error.to_string().contains("rank 2"), "{error}");
            });
        }
    }
}

#[test]
fn two_sends_at_each_other_end_at_the_deadline() {
    ranks(2, short(TransportKind::Thread, Algorithm::Auto, 300), |comm| {
        let peer = 1 - comm.rank();
        let data = vec![1u8; 64 << 20];
        let error = comm.send(&data, peer).expect_err("nobody receives");
        assert_eq!(failure(&error).peer, Some(peer), "{error}");
    });
}

#[test]
fn abort_from_another_thread_ends_the_operation_on_every_rank() {
    for kind in KINDS {
        ranks(3, options(kind, Algorithm::Auto), |comm| {
            let begun = Instant::now();
            match comm.rank() {
                0 => {
                    // Waits in an operation that never completes, and is aborted meanwhile.
                    let error = std::thread::scope(|scope| {
                        let waiting = scope.spawn(|| comm.all_reduce(&mut vec![0u8; 10_000], Op::Sum));
                        std::thread::sleep(Duration::from_millis(100));
                        comm.abort("the user said so");
                        comm.abort("a second time");
                        waiting.join().expect("no panic").expect_err("aborted")
                    });
                    assert!(error.to_string().contains("aborted: the user said so"), "{error}");
                    assert!(comm.health().check().is_err());
                }
                1 => {
                    let error = comm.all_reduce(&mut vec![0u8; 10_000], Op::Sum).expect_err("rank 0 aborted");
                    assert!(error.to_string().contains("rank 0"), "{error}");
                    assert!(error.to_string().contains("the user said so"), "{error}");
                }
                _ => {
                    // Comes only after the abort.
                    std::thread::sleep(Duration::from_millis(500));
                    let error = comm.all_reduce(&mut vec![0u8; 10_000], Op::Sum).expect_err("rank 0 aborted");
                    assert!(error.to_string().contains("the user said so"), "{error}");
                }
            }
            assert!(begun.elapsed() < Duration::from_secs(10), "long before the deadline");
        });
    }
}

#[test]
fn abort_between_operations_reaches_the_others_in_their_next_one() {
    ranks(2, options(TransportKind::Thread, Algorithm::Auto), |comm| {
        comm.barrier().expect("all are here");
        if comm.rank() == 0 {
            comm.abort("enough");
        }
        let error = comm.all_reduce(&mut [1.0f32; 8], Op::Sum).expect_err("aborted");
        assert!(error.to_string().contains("enough"), "{error}");
    });
}

#[test]
fn a_peer_that_leaves_is_not_waited_for_until_the_deadline() {
    for kind in KINDS {
        ranks(3, options(kind, Algorithm::Auto), |comm| {
            comm.barrier().expect("all are here");
            if comm.rank() == 1 {
                return;
            }
            let begun = Instant::now();
            let error = comm.all_reduce(&mut vec![1.0f32; 100_000], Op::Sum).expect_err("rank 1 has left");
            assert!(matches!(failure(&error).cause, Cause::Died { .. }), "{error}");
            assert_eq!(failure(&error).peer, Some(1), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(10), "long before the deadline");
        });
    }
}

#[test]
fn arguments_that_cannot_be_served_are_refused_before_anything_is_sent() {
    ranks(2, options(TransportKind::Thread, Algorithm::Auto), |comm| {
        let refused = |result: Result<(), CommError>, said: &str| match result {
            Err(CommError::Argument { what, .. }) => assert!(what.contains(said), "{what}"),
            other => panic!("not refused: {other:?}"),
        };
        let mut three = [0.0f32; 3];
        refused(comm.all_reduce_into(&[0.0f32; 2], &mut three, Op::Sum), "2 elements, 3 are needed");
        refused(comm.all_gather_in_place(&mut three), "not a multiple of 2 ranks");
        refused(comm.all_gather_v_in_place(&mut three, &[1, 1, 1]), "3 counts were given for 2 ranks");
        refused(comm.all_gather_v_in_place(&mut three, &[usize::MAX, 2]), "add up to more");
        refused(comm.reduce_scatter(&[0.0f32; 4], &mut three, Op::Sum), "3 elements, 2 are needed");
        refused(comm.broadcast(&mut three, 2), "root 2 is no rank of 2");
        refused(comm.send(&three, 5), "rank 5 is no rank of 2");
        refused(comm.send(&three, comm.rank()), "must match");
        // And it still works.
        comm.all_reduce(&mut three, Op::Sum).expect("nothing had been sent");
    });
}
