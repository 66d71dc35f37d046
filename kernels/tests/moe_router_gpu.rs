//! The router's kernels on the software device: the CPU's choices, and its numbers to the bit, as both round f64 once.
#![forbid(unsafe_code)]

mod common;

use common::counters::{assert_bound_by_memory_but, profiles};
use common::routing::{
    PLAIN, PLAIN_SIGMOID, Routing, SIGMOID, SOFTMAX, balanced, bits, outside_backward, outside_sums,
};
use common::ways::Ways;
use common::{On, U, assert_within, f64s, rounding};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::moe::balance::{self, Sequences};
use warpweft_kernels::moe::router::{self, Options, Score};
use warpweft_kernels::moe::{Shape, reference};

/// The CPU's bits, and the reference's numbers within what one rounding makes.
fn check<T: Float>(case: &Routing<T>, ways: Ways) {
    let cpu = On::threads(1);
    let (routed, expected) = (ways.same(|on| case.forward(on)), case.forward(&cpu));
    assert_eq!(routed.bits(), expected.bits());
    let (shape, options) = (case.shape, case.options);
    let scores = reference::scores(shape, options.score, &f64s(&case.logits));
    // Sums of f64, powers within 1 unit of it.
    let f64_error = (shape.experts as f64 + 8.0) * 2f64.powi(-53);
    assert_within("scores", &routed.scores, &scores, |i| f64_error * scores[i]);
    let bias = case.bias.as_ref().map_or(vec![0.0; shape.experts], |bias| f64s(bias));
    let chosen: Vec<usize> = routed.experts.iter().map(|expert| *expert as usize).collect();
    // Where no choice hangs on the rounding of score and sum.
    if f32::from_bits(routed.margin.0) > 4.0 * U as f32 {
        assert_eq!(chosen, reference::choose(shape, &scores, &bias));
    }
    let weights = reference::weights(shape, options, &scores, &chosen);
    assert_within("weights", &routed.weights, &weights, |i| 3.0 * U * weights[i]);
    let (given, expected) = (ways.same(|on| case.backward(on, &routed)), case.backward(&cpu, &expected));
    // The same but for one rounding, where the order of a sum of f64 decides it.
    for (i, (given, expected)) in given.iter().zip(&expected).enumerate() {
        let (distance, row) = ((given - expected).abs(), i % case.logits.len() / shape.experts * shape.top_k);
        let largest = case.dweights[row..row + shape.top_k].iter().fold(8.0f32, |a, b| a.max(b.abs()));
        let sum_error = f64::from(largest * options.scale) * shape.experts as f64 * 2f64.powi(-50);
        let allowed = 2.0 * rounding::<T>(*expected) + sum_error;
        assert!(distance <= allowed, "dlogits[{i}]: {given:e}, {expected:e}, allowed {allowed:e}");
    }
}

#[test]
fn tiles_are_right_in_every_way() {
    for (options, before) in [(SOFTMAX, 8), (SIGMOID, 1), (PLAIN, 0), (PLAIN_SIGMOID, 3)] {
        check(&Routing::<f32>::new((5, 8, 2), options, before), Ways::EVERY);
        check(&Routing::<bf16>::new((9, 37, 3), options, before).biased(), Ways::EVERY);
        check(&Routing::<f16>::new((2, 64, 6), options, before).biased(), Ways::EVERY);
    }
}

#[test]
fn large_shapes_are_right() {
    check(&Routing::<f32>::new((1030, 60, 6), SOFTMAX, 8), Ways::TWO);
    check(&Routing::<bf16>::new((70, 256, 8), SIGMOID, 8).biased(), Ways::TWO);
    check(&Routing::<f16>::new((3, 2050, 40), PLAIN, 1), Ways::TWO);
}

/// Beyond what shared memory holds of a row, and 16 bytes at a time.
#[test]
fn rows_longer_than_shared_memory_are_right() {
    check(&Routing::<f32>::new((2, 3104, 3), SOFTMAX, 0).biased(), Ways::TWO);
    check(&Routing::<bf16>::new((2, 6200, 3), SIGMOID, 1), Ways::TWO);
}

#[test]
fn every_byte_is_moved_once() {
    fn check<T: Float>(options: Options) {
        let case = Routing::<T>::new((128, 256, 8), options, 0);
        let mut routed = None;
        let counted = profiles(|on| routed = Some(case.forward(on)));
        // Choices, weights and margins are few, and of four bytes.
        assert_bound_by_memory_but(&format!("{} {options:?}", T::DTYPE), &counted, 0, 8);
        let counted = profiles(|on| drop(case.backward(on, &routed.unwrap())));
        assert_bound_by_memory_but(&format!("{} {options:?} backward", T::DTYPE), &counted, 0, 8);
    }
    for options in [SOFTMAX, SIGMOID] {
        check::<f32>(options);
        check::<bf16>(options);
        check::<f16>(options);
    }
}

#[test]
fn one_expert_all_experts_no_expert_and_no_tokens() {
    for options in [SOFTMAX, SIGMOID, PLAIN] {
        for sizes in [(7, 1, 1), (5, 3, 3), (4, 40, 40), (3, 5, 0), (0, 4, 2), (3, 0, 0), (2, 33, 32)] {
            check(&Routing::<f32>::new(sizes, options, 8), Ways::TWO);
        }
    }
}

#[test]
fn ties_go_to_the_lower_expert_as_on_the_cpu() {
    for options in [SOFTMAX, SIGMOID] {
        let mut case = Routing::<f32>::new((6, 70, 5), options, 0);
        // Few values, so that most choices are among equals, across lanes and within them; of one row all are equal.
        case.logits.iter_mut().enumerate().for_each(|(i, x)| *x = if i < 70 { 0.5 } else { ((i * i) % 4) as f32 });
        check(&case, Ways::EVERY);
        let routed = case.forward(&On::software());
        assert_eq!(routed.experts[..5], [0, 1, 2, 3, 4]);
        assert_eq!(routed.margin, (0f32.to_bits(), 0));
    }
    // The first of equal margins is the row that is named, and of rows beyond a block's threads too.
    let mut case = Routing::<f32>::new((2100, 3, 1), SOFTMAX, 0);
    let row = |row: usize| if [1500, 2060].contains(&row) { [1.0, 1.0, 0.0] } else { [3.0, 1.0, 0.0] };
    case.logits = (0..2100).flat_map(row).collect();
    assert_eq!(case.forward(&On::software()).margin, (0f32.to_bits(), 1500));
}

/// Rows of what is no number, or has none beside it.
fn strange(options: Options) -> Routing<f32> {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let rows = [
        [nan, -3.0, 2.0, nan, 0.0],
        [nan; 5],
        [-inf; 5],
        [-inf, 1.0, -inf, 2.0, -inf],
        [inf, 1.0, 2.0, 3.0, 4.0],
        [800.0, -800.0, 0.0, 30.0, -30.0],
        [3e38, -3e38, 3e38, 0.0, 1.0],
    ];
    let mut case = Routing::<f32>::new((7, 5, 3), options, 0);
    case.logits = rows.concat();
    case
}

#[test]
fn nans_and_infinities_are_as_on_the_cpu() {
    let (cpu, on) = (On::threads(1), On::software_with_nans());
    for options in [SOFTMAX, SIGMOID, PLAIN, PLAIN_SIGMOID] {
        for bias in [None, Some(vec![0.0, f32::INFINITY, -0.5, f32::NAN, f32::NEG_INFINITY])] {
            let mut case = strange(options);
            case.bias = bias;
            let (given, expected) = (case.forward(&on), case.forward(&cpu));
            assert_eq!(given.bits(), expected.bits(), "{options:?}, {:?}", case.bias);
            assert_eq!(bits(&case.backward(&on, &given)), bits(&case.backward(&cpu, &given)));
        }
    }
}

#[test]
fn wrong_arguments_are_refused_before_anything_runs() {
    let on = On::software();
    let shape = Shape { rows: 2, experts: 3, top_k: 2 };
    let says = |shape: Shape, options: Options, logits: usize| {
        let (logits, mut scores) = (on.up(&vec![0.0f32; logits]), on.up(&[7.0f32; 6]));
        let (mut experts, mut weights) = (on.up(&[9u32; 4]), on.up(&[7.0f32; 4]));
        let (s, e, w) = (scores.as_view_mut(), experts.as_view_mut(), weights.as_view_mut());
        let said = router::forward(&on.stream, shape, options, logits.as_view(), None, s, e, w).unwrap_err();
        assert_eq!((on.down(&scores), on.down(&experts)), (vec![7.0; 6], vec![9; 4]));
        said.to_string()
    };
    let many = says(Shape { top_k: 4, ..shape }, SOFTMAX, 6);
    assert_eq!(many, "moe::router::forward: `top_k` is 4; it must be at most 3, the experts there are");
    assert!(says(shape, SOFTMAX, 5).contains("`logits` has 5 elements"));
    assert!(says(shape, Options { scale: f32::NAN, ..SOFTMAX }, 6).contains("`scale` is NaN"));
    let cpu = On::threads(1);
    let elsewhere = cpu.up(&[0.0f32; 6]);
    let (mut scores, mut experts, mut weights) = (on.up(&[7.0f32; 6]), on.up(&[9u32; 4]), on.up(&[7.0f32; 4]));
    let (s, e, w) = (scores.as_view_mut(), experts.as_view_mut(), weights.as_view_mut());
    let said = router::forward(&on.stream, shape, SOFTMAX, elsewhere.as_view(), None, s, e, w).unwrap_err();
    assert!(said.to_string().contains("logits"), "{said}");
}

#[test]
fn an_expert_that_there_is_not_names_its_row() {
    let on = On::software();
    let ((backward, dlogits), (told, sums)) = (outside_backward::<f32>(&on, SOFTMAX), outside_sums(&on));
    for (said, call) in [(backward, "moe::router::backward: `experts`"), (told, "moe::balance::sums: `experts`")] {
        let row = ["3 in row 2", "4 in row 3"].iter().any(|row| said.contains(row));
        assert!(said.contains(call) && row && said.contains("less than 3"), "{said}");
    }
    assert_eq!(dlogits[6..], [0.5; 6]);
    assert!(dlogits[..6].iter().all(|x| *x != 0.5));
    // Of the second sequence's four choices two count for none.
    assert_eq!(sums[6..9].iter().sum::<f64>(), 2.0);
}

#[test]
fn balance_is_right_in_every_way() {
    let cpu = On::threads(1);
    for options in [SOFTMAX, SIGMOID] {
        for (sizes, sequences, ways) in
            [((6, 5, 2), 2, Ways::EVERY), ((390, 70, 3), 3, Ways::TWO), ((1, 300, 1), 1, Ways::TWO)]
        {
            let case = Routing::<f32>::new(sizes, options, 0);
            let routed = case.forward(&cpu);
            let (given, expected) =
                (ways.same(|on| balanced(on, sequences, &case, &routed)), balanced(&cpu, sequences, &case, &routed));
            let columns = sizes.1;
            for (i, (given, expected)) in given[0].iter().zip(&expected[0]).enumerate() {
                // Counts are whole numbers; of shares each has a sum below it, and a place in one over tokens.
                let shares = i % (2 * columns) >= columns;
                let bound = if shares { (sizes.0 + columns) as f64 * 2f64.powi(-52) * expected } else { 0.0 };
                assert!((given - expected).abs() <= bound, "sums[{i}]: {given}, {expected}");
            }
            let near = |given: f64, expected: f64| (given - expected).abs() <= 1e-13 * expected.abs();
            assert!(near(given[1][0], expected[1][0]));
            let chosen: Vec<usize> = routed.experts.iter().map(|expert| *expert as usize).collect();
            let of = Sequences { shape: case.shape, sequences, tokens: sizes.0 / sequences };
            let whole = reference::balance_loss(of, options.score, &f64s(&routed.scores), &chosen);
            assert!((given[1][0] - whole).abs() <= 1e-12 * whole, "{}, not {whole}", given[1][0]);
            // The f64 below a rounding decides it seldom: not here.
            assert_eq!(given[2..], expected[2..]);
        }
    }
}

#[test]
fn no_tokens_and_no_experts_have_even_use() {
    let on = On::software();
    for (rows, experts) in [(0, 3), (4, 0)] {
        let of = Sequences { shape: Shape { rows, experts, top_k: 0 }, sequences: 2, tokens: rows / 2 };
        let (scores, none) = (on.up(&vec![0.5f32; rows * experts]), on.up(&[]));
        let mut sums = on.up(&vec![7.0f64; 4 * experts]);
        balance::sums(&on.stream, of, Score::Sigmoid, scores.as_view(), none.as_view(), sums.as_view_mut()).unwrap();
        assert!(on.down(&sums).iter().all(|sum| *sum == 0.0));
        assert_eq!(balance::loss(&on.stream, of, sums.as_view()).unwrap(), 0.0);
        let mut d = on.up(&vec![7.0f32; rows * experts]);
        let s = (scores.as_view(), sums.as_view());
        balance::backward(&on.stream, of, Score::Sigmoid, 1.0, s.0, s.1, d.as_view_mut()).unwrap();
    }
    balance::move_bias(&on.stream, 1.0, on.up(&[]).as_view(), on.up(&[]).as_view_mut()).unwrap();
}
