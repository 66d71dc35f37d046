//! Every collective by every algorithm, for many worlds and counts, against a local reference. The data are small
//! integers, so that every order of summation is exact and every comparison is for equality.
#![forbid(unsafe_code)]

mod common;

use common::{KINDS, options, ranks};
use warpweft_comm::transport::TransportKind;
use warpweft_comm::{Algorithm, Communicator, Op};
use warpweft_device::{Device, Element, bf16, f16};

/// A small integer as an element.
trait Sample: Element {
    fn of(value: u64) -> Self;
}

macro_rules! sample {
    ($($type:ty),*) => { $(impl Sample for $type { fn of(value: u64) -> Self { value as $type } })* };
}
sample!(f64, f32, i8, i16, i32, i64, u8, u16, u32, u64);

impl Sample for f16 {
    fn of(value: u64) -> Self {
        f16::from_f32(value as f32)
    }
}

impl Sample for bf16 {
    fn of(value: u64) -> Self {
        bf16::from_f32(value as f32)
    }
}

/// 0, 1 or 2: eight of them sum to at most 16 and multiply to at most 256 (which wraps to 0 in a byte here and there).
fn value(rank: usize, index: usize) -> u64 {
    ((rank * 7 + index * 5 + index / 11) % 3) as u64
}

fn data<T: Sample>(rank: usize, count: usize) -> Vec<T> {
    (0..count).map(|index| T::of(value(rank, index))).collect()
}

fn combined<T: Sample>(world: usize, index: usize, op: Op) -> T {
    let all = (0..world).map(|rank| value(rank, index));
    T::of(match op {
        Op::Prod => all.product(),
        Op::Min => all.min().unwrap_or(0),
        Op::Max => all.max().unwrap_or(0),
        _ => all.sum(),
    })
}

fn expected<T: Sample>(world: usize, count: usize, op: Op) -> Vec<T> {
    (0..count).map(|index| combined(world, index, op)).collect()
}

/// 0, 1, 2, 3, around the world size, primes, and one that needs several chunks.
fn counts(world: usize) -> Vec<usize> {
    let mut counts = vec![0, 1, 2, 3, 7, world.saturating_sub(1), world, world + 1, 1009];
    counts.sort_unstable();
    counts.dedup();
    counts
}

const ALGORITHMS: [Algorithm; 4] = Algorithm::ALL;

fn check_all_reduce<T: Sample>(comm: &Communicator, count: usize, op: Op) {
    let (rank, world) = (comm.rank(), comm.world());
    let want: Vec<T> = expected(world, count, op);
    let own: Vec<T> = data(rank, count);
    let mut inout = own.clone();
    comm.all_reduce(&mut inout, op).expect("all_reduce");
    assert_eq!(inout, want, "all_reduce {op} of {count} {} on {rank} of {world}", T::DTYPE);
    let mut recv = vec![T::of(77); count];
    comm.all_reduce_into(&own, &mut recv, op).expect("all_reduce_into");
    assert_eq!(recv, want, "all_reduce_into {op} of {count} {} on {rank} of {world}", T::DTYPE);
}

fn check_parts<T: Sample>(comm: &Communicator, counts: &[usize]) {
    let (rank, world) = (comm.rank(), comm.world());
    let total: usize = counts.iter().sum();
    let start: usize = counts[..rank].iter().sum();
    let own = start..start + counts[rank];
    let even = counts.iter().all(|count| *count == counts[0]);

    let all: Vec<T> = data(rank, total);
    let want = &expected::<T>(world, total, Op::Sum)[own.clone()];
    let mut recv = vec![T::of(77); counts[rank]];
    comm.reduce_scatter_v(&all, &mut recv, counts, Op::Sum).expect("reduce_scatter_v");
    assert_eq!(recv, want, "reduce_scatter_v {counts:?} on {rank}");
    let mut inout = all.clone();
    comm.reduce_scatter_v_in_place(&mut inout, counts, Op::Sum).expect("reduce_scatter_v_in_place");
    assert_eq!(&inout[own.clone()], want, "reduce_scatter_v_in_place {counts:?} on {rank}");

    let gathered: Vec<T> = (0..world).flat_map(|rank| data::<T>(rank, counts[rank])).collect();
    let part: Vec<T> = data(rank, counts[rank]);
    let mut recv = vec![T::of(77); total];
    comm.all_gather_v(&part, &mut recv, counts).expect("all_gather_v");
    assert_eq!(recv, gathered, "all_gather_v {counts:?} on {rank}");
    let mut inout = vec![T::of(77); total];
    inout[own.clone()].copy_from_slice(&part);
    comm.all_gather_v_in_place(&mut inout, counts).expect("all_gather_v_in_place");
    assert_eq!(inout, gathered, "all_gather_v_in_place {counts:?} on {rank}");

    if even {
        let mut recv = vec![T::of(77); counts[rank]];
        comm.reduce_scatter(&all, &mut recv, Op::Sum).expect("reduce_scatter");
        assert_eq!(recv, want, "reduce_scatter on {rank}");
        let mut inout = all.clone();
        comm.reduce_scatter_in_place(&mut inout, Op::Sum).expect("reduce_scatter_in_place");
        assert_eq!(&inout[own.clone()], want, "reduce_scatter_in_place on {rank}");
        let mut recv = vec![T::of(77); total];
        comm.all_gather(&part, &mut recv).expect("all_gather");
        assert_eq!(recv, gathered, "all_gather on {rank}");
        let mut inout = vec![T::of(77); total];
        inout[own].copy_from_slice(&part);
        comm.all_gather_in_place(&mut inout).expect("all_gather_in_place");
        assert_eq!(inout, gathered, "all_gather_in_place on {rank}");
    }
}

fn check_all_to_all<T: Sample>(comm: &Communicator, each: usize) {
    let (rank, world) = (comm.rank(), comm.world());
    // What rank a sends to rank b begins with 10 a + b.
    let part =
        |from: usize, to: usize, count: usize| (0..count).map(move |i| T::of(((from * 10 + to + i) % 100) as u64));
    let send: Vec<T> = (0..world).flat_map(|to| part(rank, to, each)).collect();
    let want: Vec<T> = (0..world).flat_map(|from| part(from, rank, each)).collect();
    let mut recv = vec![T::of(77); send.len()];
    comm.all_to_all(&send, &mut recv).expect("all_to_all");
    assert_eq!(recv, want, "all_to_all {each} on {rank}");

    // Uneven, with pairs that exchange nothing.
    let count = |from: usize, to: usize| if (from + to).is_multiple_of(3) { 0 } else { each + from * to };
    let send_counts: Vec<usize> = (0..world).map(|to| count(rank, to)).collect();
    let recv_counts: Vec<usize> = (0..world).map(|from| count(from, rank)).collect();
    let send: Vec<T> = (0..world).flat_map(|to| part(rank, to, count(rank, to))).collect();
    let want: Vec<T> = (0..world).flat_map(|from| part(from, rank, count(from, rank))).collect();
    let mut recv = vec![T::of(77); want.len()];
    comm.all_to_all_v(&send, &send_counts, &mut recv, &recv_counts).expect("all_to_all_v");
    assert_eq!(recv, want, "all_to_all_v {each} on {rank}");
}

fn check_everything<T: Sample>(comm: &Communicator, count: usize) {
    let (rank, world) = (comm.rank(), comm.world());
    for op in [Op::Sum, Op::Prod, Op::Min, Op::Max] {
        check_all_reduce::<T>(comm, count, op);
    }
    check_parts::<T>(comm, &vec![count; world]);
    let uneven: Vec<usize> = (0..world).map(|rank| if rank % 3 == 1 { 0 } else { count + rank }).collect();
    check_parts::<T>(comm, &uneven);
    check_all_to_all::<T>(comm, count);
    for root in [0, world - 1, world / 2] {
        let mut inout: Vec<T> = if rank == root { data(root, count) } else { vec![T::of(77); count] };
        comm.broadcast(&mut inout, root).expect("broadcast");
        assert_eq!(inout, data::<T>(root, count), "broadcast {count} from {root} on {rank}");
    }
    comm.barrier().expect("barrier");
}

fn every_world(kind: TransportKind, worlds: impl Iterator<Item = usize>) {
    for world in worlds {
        for algorithm in ALGORITHMS {
            ranks(world, options(kind, algorithm), move |comm| {
                for count in counts(world) {
                    check_everything::<f32>(&comm, count);
                }
            });
        }
    }
}

#[test]
fn every_collective_between_threads() {
    every_world(TransportKind::Thread, 1..=8);
}

#[test]
fn every_collective_over_shared_memory() {
    every_world(TransportKind::Shm, [2, 3, 5, 8].into_iter());
}

#[test]
fn every_collective_over_tcp() {
    every_world(TransportKind::Tcp, [2, 3, 4].into_iter());
}

#[test]
fn every_element_type() {
    for (world, algorithm) in
        [(2, Algorithm::Direct), (3, Algorithm::Ring), (5, Algorithm::RecursiveDoubling), (4, Algorithm::Direct)]
    {
        ranks(world, options(TransportKind::Thread, algorithm), |comm| {
            for count in [1, 3, 515] {
                check_everything::<f64>(&comm, count);
                check_everything::<f16>(&comm, count);
                check_everything::<bf16>(&comm, count);
                check_everything::<i8>(&comm, count);
                check_everything::<i16>(&comm, count);
                check_everything::<i32>(&comm, count);
                check_everything::<i64>(&comm, count);
                check_everything::<u8>(&comm, count);
                check_everything::<u16>(&comm, count);
                check_everything::<u32>(&comm, count);
                check_everything::<u64>(&comm, count);
            }
        });
    }
}

#[test]
fn counts_of_many_chunks_and_frames() {
    for kind in KINDS {
        for (world, algorithm) in [(2, Algorithm::RecursiveDoubling), (3, Algorithm::Direct), (3, Algorithm::Ring)] {
            ranks(world, options(kind, algorithm), |comm| {
                check_everything::<f32>(&comm, 300_007);
                check_all_reduce::<bf16>(&comm, 400_003, Op::Sum);
            });
        }
    }
}

#[test]
fn averages_are_rounded_once_by_the_direct_algorithm() {
    for world in [2, 3, 5] {
        for count in [5, 5000] {
            ranks(world, options(TransportKind::Thread, Algorithm::Direct), move |comm| {
                let rank = comm.rank();
                let own: Vec<bf16> = (0..count).map(|i| bf16::from_f32((1 + i % 50 + 97 * rank) as f32)).collect();
                let mut average = own;
                comm.all_reduce(&mut average, Op::Avg).expect("all_reduce");
                for (index, result) in average.iter().enumerate() {
                    let sum: f32 = (0..world).map(|r| bf16::from_f32((1 + index % 50 + 97 * r) as f32).to_f32()).sum();
                    assert_eq!(*result, bf16::from_f32(sum / world as f32));
                }
                let mut integers = vec![-7i32, 7, 8];
                comm.all_reduce(&mut integers, Op::Avg).expect("all_reduce");
                assert_eq!(integers, [-7, 7, 8]);
            });
        }
    }
}

/// Values whose sum depends on the order: the bits must be the same on all ranks and in every run, and those of the direct
/// algorithm those of a sum in rank order, whatever the count.
#[test]
fn results_are_the_same_bits_on_all_ranks_and_in_every_run() {
    let inexact = |rank: usize, i: usize| ((rank * 31 + i * 17 + 1) as f32).sqrt() * 1e3f32.powi((i % 5) as i32 - 2);
    for world in [3, 4, 7] {
        for algorithm in [Algorithm::Ring, Algorithm::RecursiveDoubling, Algorithm::Direct] {
            for count in [10, 70_001] {
                let run = || {
                    ranks(world, options(TransportKind::Thread, algorithm), move |comm| {
                        let mut x: Vec<f32> = (0..count).map(|i| inexact(comm.rank(), i)).collect();
                        comm.all_reduce(&mut x, Op::Sum).expect("all_reduce");
                        x.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
                    })
                };
                let (first, second) = (run(), run());
                assert!(first.iter().chain(&second).all(|bits| *bits == first[0]), "{algorithm} {world} {count}");
                if algorithm == Algorithm::Direct {
                    for (i, bits) in first[0].iter().enumerate() {
                        let sum = (1..world).fold(inexact(0, i), |sum, rank| sum + inexact(rank, i));
                        assert_eq!(*bits, sum.to_bits(), "element {i} of {count} among {world}");
                    }
                }
            }
        }
    }
}

#[test]
fn regions_of_buffers_are_taken_like_slices() {
    ranks(2, options(TransportKind::Thread, Algorithm::Auto), |comm| {
        let device = Device::cpu_with_threads(1).expect("the CPU");
        let mut buffer = device.upload(&data::<f32>(comm.rank(), 100)).expect("memory");
        comm.all_reduce(buffer.view_mut(10..60).expect("inside"), Op::Sum).expect("all_reduce");
        let host = buffer.download(&device.stream()).expect("download");
        assert_eq!(&host[10..60], &expected::<f32>(2, 100, Op::Sum)[10..60]);
        assert_eq!(&host[..10], &data::<f32>(comm.rank(), 100)[..10]);
        assert_eq!(&host[60..], &data::<f32>(comm.rank(), 100)[60..]);
        comm.all_reduce(&mut buffer, Op::Max).expect("all_reduce");
    });
}
