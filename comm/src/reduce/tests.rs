//! Reductions against slow references: exact for every type, and rounding checked where it can show.

use super::*;

fn reduction(dtype: DType, op: Op, world: usize) -> Reduction {
    Reduction { dtype, op, world }
}

/// Folds the parts of three ranks with the own part at each position, in place and apart: all must agree bit for bit.
fn folded<T: warpweft_device::Element>(op: Op, parts: [&[T]; 3]) -> Vec<T> {
    let mut results = Vec::new();
    for position in 0..3 {
        let others: Vec<T> = (0..3).filter(|&i| i != position).flat_map(|i| parts[i].to_vec()).collect();
        for in_place in [false, true] {
            let mut out = if in_place { parts[position].to_vec() } else { vec![T::zeroed(); parts[0].len()] };
            let own = (!in_place).then(|| bytemuck::cast_slice(parts[position]));
            let contributions = Contributions { own, position, others: bytemuck::cast_slice(&others) };
            fold(reduction(T::DTYPE, op, 3), bytemuck::cast_slice_mut(&mut out), contributions);
            results.push(out);
        }
    }
    assert!(results.iter().all(|result| result == &results[0]), "the own part's place changes nothing");
    results.swap_remove(0)
}

#[test]
fn bf16_average_of_three_is_rounded_once() {
    // 1 + 2^-7 is the next bf16 after 1, so that rounding after each addition would lose what a sum in f32 keeps.
    let (a, b, c) = (256.0, 1.0, 1.0);
    let part = |x: f32| vec![bf16::from_f32(x); 700];
    let sum = folded(Op::Sum, [&part(a), &part(b), &part(c)]);
    assert!(sum.iter().all(|x| *x == bf16::from_f32(258.0)), "{:?}", sum[0]);
    let average = folded(Op::Avg, [&part(a), &part(b), &part(c)]);
    assert!(average.iter().all(|x| *x == bf16::from_f32((a + b + c) / 3.0)));
    let mut stepwise = part(a);
    for _ in 0..2 {
        combine(
            reduction(DType::BF16, Op::Sum, 3),
            bytemuck::cast_slice_mut(&mut stepwise),
            None,
            bytemuck::cast_slice(&part(1.0)),
            false,
        );
    }
    assert!(stepwise.iter().all(|x| *x == bf16::from_f32(256.0)), "one rounding a step is what a chain does");
}

#[test]
fn f16_goes_through_f32() {
    let part = |x: f32| vec![f16::from_f32(x); 300];
    let sum = folded(Op::Sum, [&part(60000.0), &part(60000.0), &part(-60000.0)]);
    assert!(sum.iter().all(|x| *x == f16::from_f32(60000.0)), "a sum in f16 would have overflowed");
    let mut pair = part(1.5);
    combine(
        reduction(DType::F16, Op::Prod, 2),
        bytemuck::cast_slice_mut(&mut pair),
        None,
        bytemuck::cast_slice(&part(-2.0)),
        true,
    );
    assert!(pair.iter().all(|x| *x == f16::from_f32(-3.0)));
}

#[test]
fn min_and_max_keep_nan_and_order_zeros() {
    let minus = folded(Op::Min, [&[0.0f32, f32::INFINITY], &[-0.0, 1.0], &[0.0, 2.0]]);
    assert_eq!(minus.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [(-0.0f32).to_bits(), 1.0f32.to_bits()]);
    let plus = folded(Op::Max, [&[-0.0f64, f64::NEG_INFINITY], &[0.0, 1.0], &[-0.0, 2.0]]);
    assert_eq!(plus.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [0.0f64.to_bits(), 2.0f64.to_bits()]);
    for op in [Op::Min, Op::Max, Op::Sum, Op::Prod, Op::Avg] {
        for place in 0..3 {
            let mut parts = [[1.0f32], [2.0], [3.0]];
            parts[place] = [f32::NAN];
            let mut out = parts[0];
            let others: Vec<f32> = parts[1..].iter().map(|part| part[0]).collect();
            let contributions = Contributions { own: None, position: 0, others: bytemuck::cast_slice(&others) };
            fold(reduction(DType::F32, op, 3), bytemuck::cast_slice_mut(&mut out), contributions);
            assert!(out[0].is_nan(), "{op} with a NaN at {place}");
        }
    }
}

#[test]
fn integers_wrap_and_averages_drop_the_fraction() {
    assert_eq!(folded(Op::Sum, [&[100i8], &[100], &[1]]), [-55]);
    assert_eq!(folded(Op::Avg, [&[-7i8, 7], &[-1, 1], &[0, 0]]), [-2, 2]);
    assert_eq!(folded(Op::Prod, [&[u64::MAX], &[2], &[1]]), [u64::MAX - 1]);
    assert_eq!(folded(Op::Max, [&[u64::MAX], &[2], &[1]]), [u64::MAX]);
    assert_eq!(folded(Op::Min, [&[i64::MIN], &[2], &[1]]), [i64::MIN]);
    // More ranks than the type can hold: the division is made in a wider one.
    let mut out = [-128i8];
    combine(reduction(DType::I8, Op::Avg, 200), bytemuck::cast_slice_mut(&mut out), None, &[0], true);
    assert_eq!(out, [0]);
}

#[test]
fn every_type_and_operation_agrees_with_f64_on_small_integers() {
    for dtype in DType::ALL {
        for op in Op::ALL {
            for_type!(dtype, N => check_small::<N>(op));
        }
    }
}

fn check_small<N: warpweft_device::Element + Small>(op: Op) {
    let values = |seed: usize| (0..515).map(|i| ((i * seed) % 5 + 1) as u8).collect::<Vec<_>>();
    let (a, b, c) = (values(1), values(2), values(3));
    let typed = |values: &[u8]| values.iter().map(|&x| N::small(x)).collect::<Vec<N>>();
    let result = folded(op, [&typed(&a), &typed(&b), &typed(&c)]);
    for i in 0..a.len() {
        let all = [a[i], b[i], c[i]];
        let expected = match op {
            Op::Sum => all.iter().sum(),
            Op::Prod => all.iter().product(),
            Op::Min => *all.iter().min().unwrap_or(&0),
            Op::Max => *all.iter().max().unwrap_or(&0),
            // A multiple of three is an average that every type holds exactly.
            Op::Avg if all.iter().sum::<u8>() % 3 == 0 => all.iter().sum::<u8>() / 3,
            Op::Avg => continue,
        };
        assert_eq!(result[i], N::small(expected), "{} {op} of {all:?}", N::DTYPE);
    }
}

/// A value that every type holds exactly.
trait Small {
    fn small(value: u8) -> Self;
}

macro_rules! small {
    ($($type:ty),*) => { $(impl Small for $type { fn small(value: u8) -> Self { value as $type } })* };
}
small!(f64, f32, i8, i16, i32, i64, u8, u16, u32, u64);

impl Small for f16 {
    fn small(value: u8) -> Self {
        f16::from_f32(f32::from(value))
    }
}

impl Small for bf16 {
    fn small(value: u8) -> Self {
        bf16::from_f32(f32::from(value))
    }
}
