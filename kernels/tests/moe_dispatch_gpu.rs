//! The kernels that bring rows to experts and back, on the software device: the CPU's orders and bits.
#![forbid(unsafe_code)]

mod common;

use common::counters::{assert_bound_by_memory, profiles};
use common::dispatched::{Choice, Moving, outside, outside_sort};
use common::ways::Ways;
use common::{On, U, assert_like_the_cpu, assert_within, f64s, integers, normal, row_error};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::Write;
use warpweft_kernels::moe::Shape;
use warpweft_kernels::moe::dispatch::{self, NONE, Rows};

fn check_order(choice: &Choice, ways: Ways) {
    let expected = choice.all(&On::threads(1));
    let given = ways.same(|on| choice.all(on));
    assert!(given == expected, "{:?} of {} sequences", choice.shape, choice.sequences);
}

/// The CPU's bits, and of products the bound of a sum along a row.
fn check<T: Float>(case: &Moving<T>, ways: Ways) {
    let cpu = On::threads(2);
    assert_eq!(ways.same(|on| case.permute(on)), case.permute(&cpu));
    assert_eq!(ways.same(|on| case.combine(on)), case.combine(&cpu));
    let (given, [exact, sums]) = (ways.same(|on| case.backward_weights(on)), case.products());
    assert_within("dweights", &given, &exact, |i| (row_error::<T>(case.of.channels) + U) * sums[i]);
    assert_like_the_cpu("dweights", &given, &case.backward_weights(&cpu), &exact, 3.0);
}

#[test]
fn assignments_are_sorted_and_kept_as_on_the_cpu() {
    check_order(&Choice::new((6, 4, 2), 3), Ways::EVERY);
    check_order(&Choice::new((40, 7, 3), 2), Ways::EVERY);
    check_order(&Choice::new((37, 300, 1), 1), Ways::EVERY);
    // Several blocks, and keys of two digits and of three.
    check_order(&Choice::new((1500, 5, 4), 5), Ways::TWO);
    check_order(&Choice::new((2100, 256, 2), 7), Ways::TWO);
    check_order(&Choice::new((1024, 70_000, 2), 1), Ways::TWO);
}

#[test]
fn no_tokens_one_expert_and_all_tokens_to_one() {
    for (sizes, sequences) in [((0, 4, 2), 3), ((0, 4, 2), 0), ((5, 4, 0), 5), ((9, 1, 1), 3), ((12, 3, 3), 4)] {
        check_order(&Choice::new(sizes, sequences), Ways::TWO);
    }
    for expert in [0, 2, 4] {
        let choice = Choice::new((60, 5, 1), 2).to(expert);
        check_order(&choice, Ways::TWO);
        // The others have no token.
        let counts = choice.sort(&On::software(), false).counts;
        assert_eq!(counts, (0..5).map(|e| if e == expert { 60 } else { 0 }).collect::<Vec<_>>());
    }
}

#[test]
fn rows_are_moved_and_added_up_in_every_way() {
    check(&Moving::<f32>::new((5, 2, 12), 8, normal), Ways::EVERY);
    check(&Moving::<bf16>::new((9, 3, 37), 1, normal), Ways::EVERY);
    check(&Moving::<f16>::new((7, 1, 128), 8, normal), Ways::EVERY);
}

#[test]
fn large_rows_are_right() {
    check(&Moving::<f32>::new((40, 4, 1100), 8, normal), Ways::TWO);
    check(&Moving::<bf16>::new((9, 8, 4096), 0, normal), Ways::TWO);
    check(&Moving::<f16>::new((6, 2, 2051), 1, normal), Ways::TWO);
    // Longer than what a block stages, and more experts of a token than lanes.
    check(&Moving::<f32>::new((2, 2, 24_580), 8, normal), Ways::TWO);
    check(&Moving::<f32>::new((3, 70, 40), 8, normal), Ways::TWO);
}

#[test]
fn whole_numbers_are_exact() {
    for before in [8, 1] {
        let case = Moving::<f32>::new((20, 3, 300), before, integers);
        let given = Ways::TWO.same(|on| case.backward_weights(on));
        assert_eq!(f64s(&given), case.products()[0]);
    }
}

#[test]
fn nothing_is_nothing() {
    for sizes in [(0, 2, 4), (3, 2, 0), (4, 0, 3)] {
        let case = Moving::<f32>::new(sizes, 8, normal);
        let (cpu, on) = (On::threads(1), On::software());
        assert_eq!(case.permute(&on), case.permute(&cpu));
        assert_eq!(case.combine(&on), case.combine(&cpu));
        assert_eq!(case.backward_weights(&on), case.backward_weights(&cpu));
    }
}

#[test]
fn nans_come_through_where_they_are_and_nowhere_else() {
    let mut case = Moving::<f32>::new((6, 2, 40), 8, normal);
    case.moved[40..80].fill(f32::NAN);
    case.wide[..40].fill(f32::INFINITY);
    let bits = |values: &[f64]| -> Vec<u64> {
        values.iter().map(|x| if x.is_nan() { u64::MAX } else { x.to_bits() }).collect()
    };
    let (cpu, on) = (On::threads(1), On::software_with_nans());
    assert_eq!(bits(&case.permute(&on)), bits(&case.permute(&cpu)));
    assert_eq!(bits(&case.combine(&on)), bits(&case.combine(&cpu)));
    let nans = |values: Vec<f32>| -> Vec<bool> { values.iter().map(|x| x.is_finite()).collect() };
    assert_eq!(nans(case.backward_weights(&on)), nans(case.backward_weights(&cpu)));
}

#[test]
fn numbers_that_there_are_not_name_their_row() {
    let on = On::software();
    let ((moved, written), (sorted, [keep, counts, order, places])) = (outside::<f32>(&on), outside_sort(&on));
    let expected = [
        ("moe::dispatch::permute: `order`", ["8 in row 2", "9 in row 3"], "less than 8"),
        ("moe::dispatch::combine: `places`", ["6 in row 1", "7 in row 3"], "less than 6"),
        ("moe::dispatch::backward_weights: `places`", ["6 in row 1", "7 in row 3"], "less than 6"),
        ("moe::dispatch::within_capacity: `experts`", ["4 in row 2", "9 in row 3"], "less than 4"),
        ("moe::dispatch::sort: `experts`", ["4 in row 2", "9 in row 3"], "less than 4"),
    ];
    for (said, (call, rows, limit)) in moved.iter().chain(&sorted).zip(expected) {
        let row = rows.iter().any(|row| said.contains(row));
        assert!(said.contains(call) && row && said.contains(limit), "{said}");
    }
    let (permuted, summed, dweights) = (&written[..24], &written[24..40], &written[40..]);
    let rows = |values: &[f64], width: usize| -> Vec<bool> {
        values.chunks(width).map(|row| row.iter().all(|x| *x == 0.5)).collect()
    };
    assert_eq!(rows(permuted, 4), [false, false, true, true, false, false]);
    assert_eq!(rows(summed, 4), [false, true, false, true]);
    assert_eq!(rows(dweights, 1), [false, false, false, true, false, false, true, false]);
    assert_eq!(dweights[2], 0.0);
    assert_eq!((keep[4], keep[7], places[4], places[7]), (7, 7, NONE, NONE));
    assert_eq!((counts.iter().sum::<u32>(), &order[6..]), (6, &[NONE, NONE][..]));
}

#[test]
fn wrong_arguments_are_refused_before_anything_runs() {
    let on = On::software();
    let of = Rows { rows: 2, top_k: 2, channels: 4, len: 4 };
    let (order, x) = (on.up(&[0u32; 4]), on.up(&[1.0f32; 16]));
    let mut y = on.up(&[7.0f32; 16]);
    let mut says = |of: Rows, x| {
        let said = dispatch::combine(&on.stream, of, order.as_view(), None, x, Write::Set, y.as_view_mut());
        said.unwrap_err().to_string()
    };
    assert!(says(of, x.view(..15).unwrap()).contains("`x` has 15 elements; its shape 4 x 4 needs 16"));
    assert!(says(of, x.as_view()).contains("`y` has 16 elements; its shape 2 x 4 needs 8"));
    assert_eq!(on.down(&y), [7.0; 16]);
    let many = Rows { rows: 1, top_k: 3073, channels: 1, len: 1 };
    let (places, mut y) = (on.up(&vec![NONE; 3073]), on.up(&[7.0f32]));
    let (x, p) = (x.view(..1).unwrap(), places.as_view());
    let said = dispatch::combine(&on.stream, many, p, None, x, Write::Set, y.as_view_mut()).unwrap_err().to_string();
    assert_eq!(said, "moe::dispatch::combine: `top_k` is 3073; it must be at most 3072 on a GPU");
    let shape = Shape { rows: 4, experts: 3, top_k: 1 };
    let (experts, mut keep) = (on.up(&[0u32; 4]), on.up(&[9u32; 4]));
    let said = dispatch::within_capacity(&on.stream, shape, 3, 1, experts.as_view(), keep.as_view_mut()).unwrap_err();
    assert!(said.to_string().contains("`sequences` is 3; it must be a divisor of the 4 rows"), "{said}");
    assert_eq!(on.down(&keep), [9; 4]);
}

#[test]
fn every_byte_is_moved_once() {
    let case = Moving::<bf16>::new((64, 2, 2048), 0, normal);
    let row = 2048 * size_of::<bf16>();
    let counted = profiles(|on| drop(case.permute(on)));
    // A row is read for each of its experts.
    let mut seen = vec![0; 64];
    case.sorted.order[..case.of.len].iter().for_each(|assignment| seen[*assignment as usize / 2] += 1);
    let again: usize = seen.iter().filter(|times| **times > 1).map(|times| times - 1).sum();
    assert_bound_by_memory("permute", &counted, 2 * again * row);
    let counted = profiles(|on| drop(case.combine(on)));
    assert_bound_by_memory("combine", &counted, 0);
    let counted = profiles(|on| drop(case.backward_weights(on)));
    assert_bound_by_memory("backward_weights", &counted, 0);
}
