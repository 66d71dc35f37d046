//! Data whose reduction is exact in every order of summation, so that a check needs no tolerance.
//!
//! All values are small whole numbers that the element type holds exactly, and so are all partial results: a sum or a
//! product of them is the same whatever the algorithm, and one wrong bit is a wrong element.

use warpweft::comm::Op;
use warpweft::device::{Element, bf16, f16};

/// An element type with its exact whole numbers.
pub(crate) trait Sample: Element {
    /// Every whole number from 0 to this one is exact.
    const EXACT: u32;
    /// The name in the column `type`, as NCCL has it.
    const NAME: &'static str;
    /// The whole number as an element.
    fn from_whole(value: u32) -> Self;
}

macro_rules! sample {
    ($($type:ty, $exact:expr, $name:literal, $from:expr;)*) => {
        $(impl Sample for $type {
            const EXACT: u32 = $exact;
            const NAME: &'static str = $name;
            fn from_whole(value: u32) -> Self {
                ($from)(value)
            }
        })*
    };
}

sample! {
    i8, 127, "int8", |value| value as i8;
    u8, 255, "uint8", |value| value as u8;
    i16, 0x7fff, "int16", |value| value as i16;
    u16, 0xffff, "uint16", |value| value as u16;
    i32, 1 << 20, "int32", |value| value as i32;
    u32, 1 << 20, "uint32", |value| value;
    i64, 1 << 20, "int64", i64::from;
    u64, 1 << 20, "uint64", u64::from;
    f16, 1 << 11, "half", |value| f16::from_f32(value as f32);
    bf16, 1 << 8, "bfloat16", |value| bf16::from_f32(value as f32);
    f32, 1 << 20, "float", |value| value as f32;
    f64, 1 << 20, "double", f64::from;
}

/// A well-mixed number of a seed and two indices (splitmix64's finaliser).
fn mixed(seed: u64, a: usize, b: usize) -> u64 {
    let mut z = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add((a as u64).wrapping_mul(0xd1b5_4a32_d192_ed03))
        .wrapping_add((b as u64).wrapping_mul(0x8cb9_2ba7_2f3d_8dd7));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What `rank` of `world` holds at `index` before a reduction by `op`, in a type whose whole numbers are exact to `exact`.
pub(crate) fn operand(op: Op, exact: u32, seed: u64, world: usize, rank: usize, index: usize) -> u32 {
    // With more ranks than the type can count, only the first ones add something.
    let share = |room: u32| if rank < room as usize { room / (world.min(room as usize) as u32) } else { 0 };
    let below = |limit: u32, rank: usize| (mixed(seed, rank, index) % (u64::from(limit) + 1)) as u32;
    match op {
        Op::Sum => below(share(exact), rank),
        // One rank in each index holds a factor; all factors are powers of two, so that any order is exact.
        Op::Prod => match mixed(seed, usize::MAX, index) {
            holder if (holder % world as u64) as usize == rank => 1 << (holder >> 32 & 3),
            _ => 1,
        },
        // The ranks' deviations from a common base cancel, so that the mean is the base, a whole number.
        Op::Avg => {
            let room = exact / 4 / world as u32;
            let base = room + mixed(seed, usize::MAX, index) as u32 % (room + 1);
            base + below(room, rank) - below(room, (rank + 1) % world)
        }
        _ => below(exact, rank),
    }
}

/// The reduction of all ranks' operands at `index`.
pub(crate) fn reduced(op: Op, exact: u32, seed: u64, world: usize, index: usize) -> u32 {
    let operands = (0..world).map(|rank| operand(op, exact, seed, world, rank, index));
    match op {
        Op::Prod => operands.product(),
        Op::Min => operands.min().unwrap_or(0),
        Op::Max => operands.max().unwrap_or(0),
        Op::Avg => operands.sum::<u32>() / world as u32,
        _ => operands.sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXACT: [u32; 5] = [127, 255, 256, 2048, 1 << 20];

    #[test]
    fn every_partial_result_is_exact() {
        for exact in EXACT {
            for world in [1, 2, 3, 4, 7, 8, 64, 127, 200, 300] {
                for index in 0..50 {
                    let of = |op| (0..world).map(move |rank| operand(op, exact, 5, world, rank, index));
                    assert!(of(Op::Sum).sum::<u32>() <= exact, "sum, world {world}, exact to {exact}");
                    assert!(of(Op::Prod).product::<u32>() <= exact.min(8), "prod, world {world}");
                    assert!(of(Op::Max).max() <= Some(exact));
                }
            }
        }
    }

    #[test]
    fn the_mean_is_a_whole_number() {
        for exact in EXACT {
            for world in [1usize, 2, 3, 7, 8, 31, 300] {
                for index in 0..50 {
                    let sum: u32 = (0..world).map(|rank| operand(Op::Avg, exact, 9, world, rank, index)).sum();
                    assert_eq!(sum % world as u32, 0, "world {world}, exact to {exact}");
                    assert!(sum <= exact, "sum {sum} of world {world}, exact to {exact}");
                }
            }
        }
    }

    #[test]
    fn a_missing_or_doubled_rank_shows() {
        for op in [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Avg] {
            for world in [2usize, 3, 8] {
                for missing in 0..world {
                    let shows = (0..200).any(|index| {
                        let all = reduced(op, 2048, 1, world, index);
                        let rest = (0..world).filter(|&rank| rank != missing);
                        let rest = rest.map(|rank| operand(op, 2048, 1, world, rank, index));
                        let without = match op {
                            Op::Prod => rest.product(),
                            Op::Min => rest.min().unwrap_or(0),
                            Op::Max => rest.max().unwrap_or(0),
                            Op::Avg => rest.sum::<u32>() / world as u32,
                            _ => rest.sum(),
                        };
                        all != without
                    });
                    assert!(shows, "{op:?} of {world} ranks does not miss rank {missing}");
                }
            }
        }
    }
}
