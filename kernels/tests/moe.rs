//! moe: the router within derived bounds of its reference, its gradients those of finite differences, orders and sums exact.
#![forbid(unsafe_code)]

mod common;

use common::{On, U, assert_gradient, assert_within, dot, f64s, finite_differences, integers, normal};
use warpweft_device::{Float, bf16};
use warpweft_kernels::matmul::{self, Activation, Epilogue};
use warpweft_kernels::moe::balance::{self, Sequences};
use warpweft_kernels::moe::dispatch::{self, NONE, Rows};
use warpweft_kernels::moe::router::{self, Margin, Options, Score};
use warpweft_kernels::moe::{Shape, grouped, reference};
use warpweft_kernels::{KernelError, Write};

const SCORES: [Score; 2] = [Score::Softmax, Score::Sigmoid];

struct Routed {
    scores: Vec<f32>,
    experts: Vec<u32>,
    weights: Vec<f32>,
    margin: Margin,
}

fn route<T: Float>(
    on: &On,
    shape: Shape,
    options: Options,
    logits: &[T],
    bias: Option<&[f32]>,
) -> Result<Routed, KernelError> {
    let Shape { rows, experts, top_k } = shape;
    let (logits, bias) = (on.up(logits), bias.map(|bias| on.up(bias)));
    let (mut scores, mut weights) = (on.garbage(rows * experts), on.garbage(rows * top_k));
    let mut chosen = on.up(&vec![NONE; rows * top_k]);
    let bias = bias.as_ref().map(|bias| bias.as_view());
    let (s, c, w) = (scores.as_view_mut(), chosen.as_view_mut(), weights.as_view_mut());
    let margin = router::forward(&on.stream, shape, options, logits.as_view(), bias, s, c, w)?;
    Ok(Routed { scores: on.down(&scores), experts: on.down(&chosen), weights: on.down(&weights), margin })
}

fn router_backward<T: Float>(
    on: &On,
    shape: Shape,
    options: Options,
    routed: &Routed,
    dweights: &[f32],
    dscores: Option<&[f32]>,
) -> Vec<T> {
    let (scores, experts, dweights) = (on.up(&routed.scores), on.up(&routed.experts), on.up(dweights));
    let dscores = dscores.map(|dscores| on.up(dscores));
    let mut dlogits = on.garbage(shape.rows * shape.experts);
    router::backward(
        &on.stream,
        shape,
        options,
        scores.as_view(),
        experts.as_view(),
        dweights.as_view(),
        dscores.as_ref().map(|dscores| dscores.as_view()),
        dlogits.as_view_mut(),
    )
    .unwrap();
    on.down(&dlogits)
}

fn options() -> impl Iterator<Item = Options> {
    SCORES.into_iter().flat_map(|score| {
        [false, true].map(|normalize| Options { score, normalize, scale: if normalize { 2.5 } else { 1.0 } })
    })
}

#[test]
fn it_chooses_and_weighs_as_the_reference_does() {
    let on = On::threads(1);
    for shape in [(7, 8, 2), (5, 3, 3), (64, 60, 6), (4, 4, 1), (3, 5, 0), (0, 4, 2)] {
        let shape = Shape { rows: shape.0, experts: shape.1, top_k: shape.2 };
        let logits: Vec<f32> = normal(shape.rows * shape.experts, 1);
        let bias: Vec<f32> = normal::<f32>(shape.experts, 2).iter().map(|x| 0.1 * x).collect();
        for options in options() {
            for bias in [vec![0.0; shape.experts], bias.clone()] {
                let routed = route(&on, shape, options, &logits, Some(&bias)).unwrap();
                let scores = reference::scores(shape, options.score, &f64s(&logits));
                assert_within("scores", &routed.scores, &scores, |i| U * scores[i]);
                let chosen = reference::choose(shape, &scores, &f64s(&bias));
                // No choice hangs on a rounding of score and sum.
                assert!(routed.margin.smallest > 4.0 * U as f32);
                assert_eq!(routed.experts, chosen.iter().map(|expert| *expert as u32).collect::<Vec<_>>());
                let weights = reference::weights(shape, options, &scores, &chosen);
                // The rounding of each score, of their sum's terms, and of the result.
                assert_within("weights", &routed.weights, &weights, |i| 3.0 * U * weights[i]);
            }
        }
    }
    let bf16s: Vec<bf16> = normal(48, 3);
    let shape = Shape { rows: 6, experts: 8, top_k: 2 };
    let wide: Vec<f32> = bf16s.iter().map(|x| x.to_f32()).collect();
    let (narrow, wide) =
        (route(&on, shape, Options::default(), &bf16s, None), route(&on, shape, Options::default(), &wide, None));
    assert_eq!(narrow.unwrap().weights, wide.unwrap().weights);
}

#[test]
fn ties_go_to_the_lower_expert_and_the_margin_is_the_smallest_of_all_rows() {
    let on = On::threads(1);
    let shape = Shape { rows: 3, experts: 4, top_k: 2 };
    let logits = [0.0f32, 0.0, 0.0, 0.0, 1.0, 3.0, 2.0, -9.0, 5.0, 1.0, 5.0, 1.0];
    for score in SCORES {
        let routed = route(&on, shape, Options { score, ..Options::default() }, &logits, None).unwrap();
        assert_eq!(routed.experts, [0, 1, 1, 2, 0, 2]);
        assert_eq!(routed.margin, Margin { smallest: 0.0, row: 0 });
        assert_eq!(routed.weights[..2], [0.5, 0.5]);
        assert_eq!(routed.weights[4..], [0.5, 0.5]);
    }
    // The choice is the bias's, the weight is not.
    let bias = [0.0f32, 0.0, 0.0, 1.0];
    let routed = route(&on, shape, Options { normalize: false, ..Options::default() }, &logits, Some(&bias)).unwrap();
    assert_eq!(routed.experts, [3, 0, 3, 1, 3, 0]);
    assert_eq!(routed.weights[0], 0.25);
    let whole = Shape { rows: 3, experts: 4, top_k: 4 };
    assert_eq!(route(&on, whole, Options::default(), &logits, None).unwrap().margin.smallest, f32::INFINITY);
    // A NaN is chosen last, and says so.
    let nan = Options { score: Score::Sigmoid, normalize: false, scale: 1.0 };
    let one = Shape { rows: 1, experts: 4, top_k: 4 };
    let routed = route(&on, one, nan, &[f32::NAN, -3.0, 2.0, f32::NAN], None).unwrap();
    assert_eq!(routed.experts, [2, 1, 0, 3]);
    assert!(routed.weights[2].is_nan() && routed.weights[1] < 0.1);
}

#[test]
fn the_routers_gradients_are_the_finite_differences() {
    let on = On::threads(1);
    let shape = Shape { rows: 4, experts: 6, top_k: 3 };
    let of = Sequences { shape, sequences: 2, tokens: 2 };
    let logits: Vec<f32> = normal(24, 5);
    let dweights: Vec<f32> = normal(12, 6);
    let coefficient = 0.75;
    for options in options() {
        let routed = route(&on, shape, options, &logits, None).unwrap();
        let chosen: Vec<usize> = routed.experts.iter().map(|expert| *expert as usize).collect();
        let loss = |logits: &[f64]| {
            let scores = reference::scores(shape, options.score, logits);
            let weights = reference::weights(shape, options, &scores, &chosen);
            dot(&weights, &f64s(&dweights)) + coefficient * reference::balance_loss(of, options.score, &scores, &chosen)
        };
        let (scores, experts) = (on.up(&routed.scores), on.up(&routed.experts));
        let mut sums = on.device.zeros(of.sequences * 2 * shape.experts).unwrap();
        balance::sums(&on.stream, of, options.score, scores.as_view(), experts.as_view(), sums.as_view_mut()).unwrap();
        let mut dscores = on.garbage(24);
        let (c, s) = (coefficient as f32, scores.as_view());
        balance::backward(&on.stream, of, options.score, c, s, sums.as_view(), dscores.as_view_mut()).unwrap();
        let dlogits: Vec<f32> = router_backward(&on, shape, options, &routed, &dweights, Some(&on.down(&dscores)));
        let differences = finite_differences(&f64s(&logits), loss);
        // Scores and dscores are rounded to f32: each term within 8 U of the largest factor.
        let largest = dweights.iter().fold(0.0f64, |a, b| a.max(f64::from(b.abs()))) * 2.5 * 6.0;
        assert_within("dlogits", &dlogits, &differences, |_| 8.0 * U * largest + 1e-8);

        let total = balance::loss(&on.stream, of, sums.as_view()).unwrap();
        let scores = reference::scores(shape, options.score, &f64s(&logits));
        let expected = reference::balance_loss(of, options.score, &scores, &chosen);
        assert!((total - expected).abs() <= 4.0 * U * expected, "{total} and {expected}");
    }
    // The reference's weights against differences of their own: the sum of the weights is the scale, whose gradient is 0.
    let options = Options { score: Score::Softmax, normalize: true, scale: 1.0 };
    let routed = route(&on, shape, options, &logits, None).unwrap();
    let dlogits: Vec<f32> = router_backward(&on, shape, options, &routed, &[1.0; 12], None);
    assert_gradient("the sum of normalised weights", &f64s(&dlogits), &[0.0; 24]);
}

#[test]
fn even_use_costs_one_and_the_parts_of_a_sequence_add_up() {
    let on = On::threads(1);
    // Four tokens, each of four experts chosen once, all shares 1/4.
    let shape = Shape { rows: 4, experts: 4, top_k: 1 };
    let of = Sequences { shape, sequences: 1, tokens: 4 };
    let (scores, experts) = (vec![0.25f32; 16], [0u32, 1, 2, 3]);
    let sums_of = |of: Sequences, scores: &[f32], experts: &[u32]| {
        let mut sums = on.device.zeros(of.sequences * 2 * of.shape.experts).unwrap();
        let (scores, experts) = (on.up(scores), on.up(experts));
        balance::sums(&on.stream, of, Score::Softmax, scores.as_view(), experts.as_view(), sums.as_view_mut()).unwrap();
        on.down(&sums)
    };
    let sums = sums_of(of, &scores, &experts);
    assert_eq!(sums, [1.0; 8]);
    assert_eq!(balance::loss(&on.stream, of, on.up(&sums).as_view()).unwrap(), 1.0);
    // All to one expert that has every share: E.
    let one: Vec<f32> = [1.0, 0.0, 0.0, 0.0].repeat(4);
    let worst = sums_of(of, &one, &[0; 4]);
    assert_eq!(balance::loss(&on.stream, of, on.up(&worst).as_view()).unwrap(), 4.0);
    // Two halves of a sequence, each on a rank of its own.
    let half = Sequences { shape: Shape { rows: 2, ..shape }, sequences: 1, tokens: 4 };
    let halves = [sums_of(half, &one[..8], &[0, 0]), sums_of(half, &one[8..], &[0, 0])];
    assert_eq!(halves[0].iter().zip(&halves[1]).map(|(a, b)| a + b).collect::<Vec<_>>(), worst);
}

#[test]
fn the_bias_moves_towards_even_counts() {
    let on = On::threads(1);
    let mut bias = on.up(&[0.5f32, 0.0, -0.25, 0.0]);
    balance::move_bias(&on.stream, 0.125, on.up(&[7.0f64, 3.0, 0.0, 2.0]).as_view(), bias.as_view_mut()).unwrap();
    assert_eq!(on.down(&bias), [0.375, 0.0, -0.125, 0.125], "the mean is 3, which expert 1 has");
}

struct Sorted {
    counts: Vec<u32>,
    order: Vec<u32>,
    places: Vec<u32>,
    len: usize,
}

fn sort(on: &On, shape: Shape, experts: &[u32], keep: Option<&[u32]>) -> Sorted {
    let all = experts.len();
    let (mut counts, mut order, mut places) =
        (on.up(&vec![9u32; shape.experts]), on.up(&vec![9u32; all]), on.up(&vec![9u32; all]));
    let (experts, keep) = (on.up(experts), keep.map(|keep| on.up(keep)));
    let (c, o, p) = (counts.as_view_mut(), order.as_view_mut(), places.as_view_mut());
    let keep = keep.as_ref().map(|keep| keep.as_view());
    let len = dispatch::sort(&on.stream, shape, experts.as_view(), keep, c, o, p).unwrap();
    Sorted { counts: on.down(&counts), order: on.down(&order), places: on.down(&places), len }
}

#[test]
fn assignments_lie_by_expert_in_their_own_order() {
    let on = On::threads(1);
    let shape = Shape { rows: 3, experts: 4, top_k: 2 };
    let sorted = sort(&on, shape, &[2, 0, 2, 3, 0, 2], None);
    assert_eq!(sorted.counts, [2, 0, 3, 1]);
    assert_eq!(sorted.order, [1, 4, 0, 2, 5, 3]);
    assert_eq!(sorted.places, [2, 0, 3, 5, 1, 4]);
    assert_eq!(sorted.len, 6);
    let sorted = sort(&on, shape, &[2, 0, 2, 3, 0, 2], Some(&[1, 1, 0, 1, 0, 1]));
    assert_eq!(sorted.counts, [1, 0, 2, 1]);
    assert_eq!(sorted.order, [1, 0, 5, 3, NONE, NONE]);
    assert_eq!(sorted.places, [1, 0, NONE, 3, NONE, 2]);
    assert_eq!(sorted.len, 4);
}

#[test]
fn capacity_counts_in_each_sequence_and_names_what_it_drops() {
    let on = On::threads(1);
    let shape = Shape { rows: 6, experts: 3, top_k: 1 };
    let mut keep = on.up(&[9u32; 6]);
    let experts = on.up(&[1u32, 1, 1, 1, 0, 1]);
    for (capacity, kept, expected) in
        [(2, [1, 1, 0, 1, 1, 1], 1), (1, [1, 0, 0, 1, 1, 0], 3), (0, [0; 6], 6), (9, [1; 6], 0)]
    {
        let dropped = dispatch::within_capacity(&on.stream, shape, 2, capacity, experts.as_view(), keep.as_view_mut());
        assert_eq!((dropped.unwrap(), on.down(&keep)), (expected, kept.to_vec()), "capacity {capacity}");
    }
}

#[test]
fn rows_go_to_experts_and_come_back_exactly() {
    let on = On::threads(1);
    let (shape, channels) = (Shape { rows: 9, experts: 5, top_k: 3 }, 7);
    let experts: Vec<u32> = (0..27).map(|i| ((i * i + i / 3) % 5) as u32).collect();
    let keep: Vec<u32> = (0..27).map(|i| u32::from(i % 4 != 1)).collect();
    let sorted = sort(&on, shape, &experts, Some(&keep));
    let of = Rows { rows: 9, top_k: 3, channels, len: sorted.len };
    let (x, weights) = (integers::<f32>(9 * channels, 1), integers::<f32>(27, 2));
    let (order, places) = (on.up(&sorted.order[..sorted.len]), on.up(&sorted.places));
    let (dx, dw) = (on.up(&x), on.up(&weights));
    let mut y = on.garbage::<f32>(sorted.len * channels);
    dispatch::permute(&on.stream, of, order.as_view(), None, dx.as_view(), y.as_view_mut()).unwrap();
    let moved = on.down(&y);
    for (place, assignment) in sorted.order[..sorted.len].iter().enumerate() {
        let row = *assignment as usize / 3;
        assert_eq!(moved[place * channels..][..channels], x[row * channels..][..channels]);
    }
    // The sum of each row's places, by an integer loop.
    let kept = |assignment: usize| i64::from(keep[assignment]);
    let expected = |weighted: bool, there: i64| -> Vec<f32> {
        let of = |row: usize, c: usize| {
            let weight = |a: usize| if weighted { weights[a] as i64 } else { 1 };
            (there + (row * 3..row * 3 + 3).map(|a| kept(a) * weight(a) * x[row * channels + c] as i64).sum::<i64>())
                as f32
        };
        (0..9).flat_map(|row| (0..channels).map(move |c| (row, c))).map(|(row, c)| of(row, c)).collect()
    };
    for (weighted, write, there) in [(false, Write::Set, 0), (true, Write::Set, 0), (true, Write::Add, 5)] {
        let mut back = on.up(&vec![if write == Write::Add { 5.0f32 } else { f32::NAN }; 9 * channels]);
        let weights = weighted.then(|| dw.as_view());
        dispatch::combine(&on.stream, of, places.as_view(), weights, y.as_view(), write, back.as_view_mut()).unwrap();
        assert_eq!(on.down(&back), expected(weighted, there));
    }
    // The gradients: weighted rows to the experts' outputs, products to the weights.
    let mut weighted = on.garbage::<f32>(sorted.len * channels);
    dispatch::permute(&on.stream, of, order.as_view(), Some(dw.as_view()), dx.as_view(), weighted.as_view_mut())
        .unwrap();
    let given = on.down(&weighted);
    for (place, assignment) in sorted.order[..sorted.len].iter().enumerate() {
        for c in 0..channels {
            assert_eq!(given[place * channels + c], weights[*assignment as usize] * moved[place * channels + c]);
        }
    }
    let mut dweights = on.garbage::<f32>(27);
    dispatch::backward_weights(&on.stream, of, places.as_view(), y.as_view(), dx.as_view(), dweights.as_view_mut())
        .unwrap();
    for (assignment, dweight) in on.down(&dweights).iter().enumerate() {
        let row = &x[assignment / 3 * channels..][..channels];
        let product: i64 = row.iter().map(|x| (*x as i64) * (*x as i64)).sum();
        assert_eq!(*dweight, (kept(assignment) * product) as f32);
    }
}

#[test]
fn grouped_products_are_those_of_each_expert() {
    let on = On::threads(2);
    let (counts, n, k) = ([3usize, 0, 5, 1], 6, 4);
    let rows = 9;
    let shape = grouped::Shape { counts: &counts, n, k };
    let (x, w) = (integers::<f32>(rows * k, 1), integers::<f32>(4 * n * k, 2));
    let dy = integers::<f32>(rows * n, 3);
    let (dx, dw, ddy) = (on.up(&x), on.up(&w), on.up(&dy));
    for activation in [Activation::None, Activation::SwiGlu] {
        let outputs = activation.outputs(n);
        let (mut y, mut pre) = (on.garbage::<f32>(rows * outputs), on.garbage::<f32>(rows * n));
        let kept = (activation != Activation::None).then(|| pre.as_view_mut());
        grouped::forward(&on.stream, shape, dx.as_view(), dw.as_view(), activation, kept, y.as_view_mut()).unwrap();
        let mut row = 0;
        for (expert, m) in counts.into_iter().enumerate() {
            let product = matmul::Shape { m, n, k };
            let x = dx.view(row * k..(row + m) * k).unwrap();
            let w = dw.view(expert * n * k..(expert + 1) * n * k).unwrap();
            let mut expected = on.garbage::<f32>(m * outputs);
            let epilogue = Epilogue { activation, ..Epilogue::default() };
            matmul::forward(&on.stream, product, x, w, epilogue, expected.as_view_mut()).unwrap();
            assert_eq!(on.down(&y)[row * outputs..(row + m) * outputs], on.down(&expected));
            row += m;
        }
    }
    let expert_of = |row: usize| [0, 0, 0, 2, 2, 2, 2, 2, 3][row];
    let mut dxs = on.up(&vec![1.0f32; rows * k]);
    grouped::backward_input(&on.stream, shape, ddy.as_view(), dw.as_view(), Write::Add, dxs.as_view_mut()).unwrap();
    let mut dws = on.up(&vec![2.0f32; 4 * n * k]);
    grouped::backward_weight(&on.stream, shape, dx.as_view(), ddy.as_view(), dws.as_view_mut()).unwrap();
    let (mut expected_dx, mut expected_dw) = (vec![1.0f32; rows * k], vec![2.0f32; 4 * n * k]);
    for row in 0..rows {
        for output in 0..n {
            for input in 0..k {
                let weight = (expert_of(row) * n + output) * k + input;
                expected_dx[row * k + input] += dy[row * n + output] * w[weight];
                expected_dw[weight] += dy[row * n + output] * x[row * k + input];
            }
        }
    }
    assert_eq!(on.down(&dxs), expected_dx);
    assert_eq!(on.down(&dws), expected_dw);
}

#[test]
fn wrong_arguments_are_named() {
    let on = On::threads(1);
    let shape = Shape { rows: 2, experts: 3, top_k: 2 };
    let logits = [0.0f32; 6];
    let says = |result: Result<Routed, KernelError>| result.err().unwrap().to_string();
    let many = says(route(&on, Shape { top_k: 4, ..shape }, Options::default(), &logits, None));
    assert_eq!(many, "moe::router::forward: `top_k` is 4; it must be at most 3, the experts there are");
    assert!(says(route(&on, shape, Options::default(), &logits[1..], None)).contains("`logits` has 5 elements"));
    let scale = Options { scale: f32::NAN, ..Options::default() };
    assert!(says(route(&on, shape, scale, &logits, None)).contains("`scale` is NaN"));

    let experts = on.up(&[0u32, 1, 3, 0]);
    let [mut counts, mut order, mut places] = [on.up(&[0u32; 3]), on.up(&[0u32; 4]), on.up(&[0u32; 4])];
    let (c, o, p) = (counts.as_view_mut(), order.as_view_mut(), places.as_view_mut());
    let error = dispatch::sort(&on.stream, shape, experts.as_view(), None, c, o, p).unwrap_err().to_string();
    assert_eq!(error, "moe::dispatch::sort: `experts` is 3; it must be below 3, the experts there are");

    let of = Rows { rows: 2, top_k: 2, channels: 1, len: 2 };
    let (x, mut y) = (on.up(&[1.0f32, 2.0]), on.up(&[7.0f32; 2]));
    let wild = on.up(&[0u32, 4]);
    let error = dispatch::permute(&on.stream, of, wild.as_view(), None, x.as_view(), y.as_view_mut()).unwrap_err();
    assert_eq!(error.to_string(), "moe::dispatch::permute: `order` is 4; it must be below 4");
    let wild = on.up(&[0u32, NONE, 2, 0]);
    let error = dispatch::combine(&on.stream, of, wild.as_view(), None, x.as_view(), Write::Set, y.as_view_mut());
    assert_eq!(error.unwrap_err().to_string(), "moe::dispatch::combine: `places` is 2; it must be below 2");
    assert_eq!(on.down(&y), [7.0; 2]);

    let of = Sequences { shape, sequences: 3, tokens: 1 };
    let error = balance::loss(&on.stream, of, on.up(&[0.0f64; 18]).as_view()).unwrap_err().to_string();
    assert_eq!(error, "moe::balance::loss: `sequences` is 3; it must be a divisor of the 2 rows");
    let counts = [usize::MAX, 1];
    let shape = grouped::Shape { counts: &counts, n: 1, k: 1 };
    let error = grouped::backward_input(&on.stream, shape, x.as_view(), x.as_view(), Write::Set, y.as_view_mut());
    assert!(error.unwrap_err().to_string().contains("`counts`"));
}
