//! The kernels of attention on the software device: what must be equal to the bit, exact integers, keys in parts, and
//! arguments that are refused.
#![forbid(unsafe_code)]

mod common;

use common::attention::{Case, Gradients, Output, largest, shape};
use common::attention_bounds::{Bounds, assert_like, round};
use common::ways::Ways;
use common::{On, U, assert_within, integers, normal};
use warpweft_device::{DType, Float, bf16, f16};
use warpweft_kernels::KernelError;
use warpweft_kernels::attention::{self, Dropout, Extra, Heads, Options, Saved, Shape, Starts, Window};

const DROPOUT: Dropout = Dropout { probability: 0.2, seed: 77, first_sequence: 0, first_head: 0 };

fn both<T: Float>(on: &On, case: &Case<T>) -> (Output<T>, Gradients<T>) {
    let saved = case.forward(on);
    let gradients = case.backward(on, &saved);
    (saved, gradients)
}

fn same<T: Float>(what: &str, a: &[T], b: &[T]) {
    assert!(bytemuck::cast_slice::<T, u8>(a) == bytemuck::cast_slice::<T, u8>(b), "{what} differs");
}

fn same_both<T: Float>(what: &str, on: &On, a: &Case<T>, b: &Case<T>) {
    let ((a, ga), (b, gb)) = (both(on, a), both(on, b));
    same(&format!("{what}: out"), &a.out, &b.out);
    assert_eq!(a.lse, b.lse, "{what}: lse");
    ga.iter().zip(&gb).for_each(|(a, b)| same(&format!("{what}: a gradient"), a, b));
}

fn causal_is_a_window<T: Float>() {
    let on = On::software();
    let window = Options { window: Window { left: None, right: Some(0) }, ..Options::FULL };
    let case = Case::<T>::new(shape(1, (70, 140), (2, 1), 64), Options::CAUSAL);
    same_both("causal and window", &on, &case, &Case { options: window, ..case.clone() });
    // Windows beyond all keys hide nothing.
    let wide = Options { window: Window { left: Some(usize::MAX), right: Some(1 << 40) }, ..Options::FULL };
    let full = Case { options: Options::FULL, ..case.clone() };
    same_both("no window and a wide one", &on, &full, &Case { options: wide, ..case });
}

#[test]
fn causal_equals_a_window_that_ends_at_the_query() {
    causal_is_a_window::<bf16>();
    causal_is_a_window::<f16>();
    causal_is_a_window::<f32>();
}

fn sequences_are_apart<T: Float>() {
    let on = On::software();
    let options = Options { dropout: Some(DROPOUT), ..Options::CAUSAL };
    let case = Case::<T>::of_lengths(&[(70, 70), (0, 3), (9, 40)], (2, 1), 40, options).alibi();
    let (saved, [dq, dk, dv]) = both(&on, &case);
    let (mut at, mut rows) = ([0; 2], 0);
    for (sequence, mut alone) in case.sequences() {
        alone.options.dropout = Some(Dropout { first_sequence: sequence as u32, ..DROPOUT });
        let (part, [q, k, v]) = both(&on, &alone);
        let whole = |all: &[T], part: &[T], of: usize| {
            same("a sequence alone", &all[at[of]..at[of] + part.len()], part);
        };
        whole(&saved.out, &part.out, 0);
        whole(&dq, &q, 0);
        whole(&dk, &k, 1);
        whole(&dv, &v, 1);
        for head in 0..2 {
            let queries = alone.shape.queries;
            assert_eq!(saved.lse[head * 79 + rows..][..queries], part.lse[head * queries..][..queries]);
        }
        (at, rows) = ([at[0] + q.len(), at[1] + k.len()], rows + alone.shape.queries);
    }
}

#[test]
fn sequences_of_unequal_length_are_those_alone() {
    sequences_are_apart::<bf16>();
    sequences_are_apart::<f16>();
    sequences_are_apart::<f32>();
}

fn groups_repeat<T: Float>() {
    let on = On::software();
    let grouped = Case::<T>::new(shape(1, (70, 90), (4, 2), 64), Options::CAUSAL);
    let mut repeated = Case::<T>::new(shape(1, (70, 90), (4, 4), 64), Options::CAUSAL);
    let repeat = |x: &[T]| -> Vec<T> { x.chunks(64).flat_map(|head| head.repeat(2)).collect() };
    (repeated.k, repeated.v) = (repeat(&grouped.k), repeat(&grouped.v));
    let ((a, ga), (b, gb)) = (both(&on, &grouped), both(&on, &repeated));
    same("out", &a.out, &b.out);
    assert_eq!(a.lse, b.lse);
    same("dq", &ga[0], &gb[0]);
    for of in 1..3 {
        let sum = |i: usize| (0..2).map(|h| gb[of][(i / 64 * 2 + h) * 64 + i % 64].to_f64()).sum();
        let sums: Vec<f64> = (0..ga[of].len()).map(sum).collect();
        let most = sums.iter().fold(0.0f64, |most, sum| most.max(sum.abs()));
        // Each of the two is rounded, and their sum once; sums of 140 terms are in another order.
        let bound = 4.0 * common::rounding::<T>(most) + 140.0 * U * most;
        assert_within("a group's gradient", &ga[of], &sums, |_| bound);
    }
}

#[test]
fn grouped_heads_equal_repeated_heads() {
    groups_repeat::<bf16>();
    groups_repeat::<f16>();
    groups_repeat::<f32>();
}

fn packed_is_apart<T: Float>() {
    let on = On::software();
    let (size, case) = (40, Case::<T>::new(shape(2, (70, 70), (2, 1), 40), Options::CAUSAL));
    let pack = |q: &[T], k: &[T], v: &[T]| -> Vec<T> {
        let rows = q.chunks(2 * size).zip(k.chunks(size)).zip(v.chunks(size));
        rows.flat_map(|((q, k), v)| [q, k, v].concat()).collect()
    };
    let qkv = on.up(&pack(&case.q, &case.k, &case.v));
    let (mut out, mut lse) = (on.garbage(case.q.len()), on.garbage(2 * 2 * 70));
    let (o, l) = (out.as_view_mut(), lse.as_view_mut());
    attention::forward_packed(&on.stream, case.shape, case.options, qkv.as_view(), o, l).unwrap();
    let (saved, [dq, dk, dv]) = both(&on, &case);
    same("out", &on.down(&out), &saved.out);
    assert_eq!(on.down(&lse), saved.lse);
    let (dout, mut dqkv) = (on.up(&case.dout), on.garbage(qkv.len()));
    let (rows, out, lse, to) = (qkv.as_view(), out.as_view(), lse.as_view(), dqkv.as_view_mut());
    attention::backward_packed(&on.stream, case.shape, case.options, rows, out, lse, dout.as_view(), to).unwrap();
    same("dqkv", &on.down(&dqkv), &pack(&dq, &dk, &dv));
}

#[test]
fn packed_rows_give_the_same_bits_as_separate_arrays() {
    packed_is_apart::<bf16>();
    packed_is_apart::<f16>();
    packed_is_apart::<f32>();
}

#[test]
fn neighbours_in_the_batch_and_nan_between_rows_and_behind_sequences_change_no_bit() {
    let on = On::software();
    let case = Case::<bf16>::of_lengths(&[(70, 75), (10, 30)], (1, 1), 64, Options::CAUSAL);
    let (saved, _) = both(&on, &case);
    // Rows of 80 elements with the heads from 8 on, NaN around them, and 20 rows of NaN behind the last sequence.
    let nan = bf16::from_f32(f32::NAN);
    let wide = |x: &[bf16]| -> Vec<bf16> {
        let rows = x.chunks(64).flat_map(|row| [&[nan; 8][..], row, &[nan; 8]].concat());
        rows.chain([nan; 20 * 80]).collect()
    };
    let behind = |x: &[bf16]| -> Vec<bf16> { x.iter().copied().chain([nan; 20 * 64]).collect() };
    let [q, k, v] = [&case.q, &case.k, &case.v].map(|x| on.up(&wide(x)));
    let [starts_q, starts_k] = case.starts.as_ref().unwrap().each_ref().map(|starts| on.up(starts));
    let starts = Some(Starts { queries: starts_q.as_view(), keys: starts_k.as_view() });
    let extra = Extra { starts, ..Extra::default() };
    let inputs = [&q, &k, &v].map(|x| Heads { rows: x.as_view(), row: 80, first: 8 });
    let (mut out, mut lse) = (on.up(&behind(&saved.out)), on.up(&vec![f32::NAN; 100]));
    let (o, l) = (out.as_view_mut(), lse.as_view_mut());
    attention::forward_with(&on.stream, case.shape, case.options, extra, inputs, o, l).unwrap();
    same("out", &on.down(&out)[..80 * 64], &saved.out);
    assert!(on.down(&out)[80 * 64..].iter().all(|x| x.is_nan()), "nothing is written behind the last sequence");
    assert_eq!(on.down(&lse)[..80], saved.lse);
    let dout = on.up(&behind(&case.dout));
    let saved_on = Saved { out: out.as_view(), lse: lse.as_view(), dout: dout.as_view() };
    let mut gradients = [100, 125, 125].map(|rows| on.garbage::<bf16>(rows * 64));
    let to = gradients.each_mut().map(|x| x.as_view_mut());
    attention::backward_with(&on.stream, case.shape, case.options, extra, inputs, saved_on, to).unwrap();
    for (given, expected) in gradients.iter().zip(case.backward(&on, &saved)) {
        let given = on.down(given);
        same("a gradient", &given[..expected.len()], &expected);
        assert!(given[expected.len()..].iter().all(|x| x.is_nan()));
    }
    // The second of two sequences alone.
    let two = Case::<f16>::new(shape(2, (40, 50), (2, 1), 32), Options::CAUSAL);
    let half = |x: &[f16]| x[x.len() / 2..].to_vec();
    let alone = Case {
        shape: Shape { batch: 1, ..two.shape },
        q: half(&two.q),
        k: half(&two.k),
        v: half(&two.v),
        dout: half(&two.dout),
        ..two.clone()
    };
    let ((a, ga), (b, gb)) = (both(&on, &two), both(&on, &alone));
    same("out", &half(&a.out), &b.out);
    ga.iter().zip(&gb).for_each(|(a, b)| same("a gradient", &half(a), b));
}

/// Query i has all its weight on key i modulo 32: results are sums of whole numbers.
fn one_key_each<T: Float>() {
    let on = On::software();
    let options = Options { scale: Some(1.0), ..Options::FULL };
    let mut case = Case::<T>::new(shape(1, (100, 32), (1, 1), 40), options);
    let unit = |i: usize| T::from_f32(if i / 40 % 32 == i % 40 { 16.0 } else { 0.0 });
    case.q = (0..case.q.len()).map(unit).collect();
    case.k = (0..case.k.len()).map(unit).collect();
    (case.v, case.dout) = (integers(case.v.len(), 5), integers(case.dout.len(), 6));
    let (saved, [dq, dk, dv]) = both(&on, &case);
    let expected: Vec<T> = (0..100 * 40).map(|i| case.v[i / 40 % 32 * 40 + i % 40]).collect();
    same("out", &saved.out, &expected);
    assert!(dq.iter().chain(&dk).all(|x| x.to_f32() == 0.0));
    let sum = |i: usize| (i / 40..100).step_by(32).map(|row| case.dout[row * 40 + i % 40].to_f32()).sum();
    same("dv", &dv, &(0..32 * 40).map(|i| T::from_f32(sum(i))).collect::<Vec<_>>());
}

#[test]
fn whole_numbers_are_exact() {
    one_key_each::<bf16>();
    one_key_each::<f16>();
    one_key_each::<f32>();
    let on = On::software();
    for keys in [1, 64, 128, 256] {
        let mut case = Case::<bf16>::new(shape(1, (3, keys), (1, 1), 128), Options::FULL);
        case.q.fill(bf16::from_f32(0.0));
        case.v = integers(case.v.len(), 5);
        let out = case.forward(&on).out;
        for (i, out) in out.iter().enumerate() {
            let sum: f32 = (0..keys).map(|key| case.v[key * 128 + i % 128].to_f32()).sum();
            assert_eq!(*out, bf16::from_f32(sum / keys as f32));
        }
    }
}

/// Where the two parts of the keys begin and end.
const PARTS: [std::ops::Range<usize>; 2] = [0..60, 60..150];

/// Whether a query sees a key: of each part so many of the first.
fn sees(query: usize, key: usize) -> bool {
    if key < 60 { key < query / 3 } else { key - 60 < 60.min(query) }
}

/// Results with keys in two parts that join: out, LSE, dq, then dk and dv of each part. Backward has `out` for the output, and
/// adds to ones (dq), halves (dk) and zeros (dv).
fn joined<T: Float>(on: &On, whole: &Case<T>, of_out: &[T]) -> Vec<Vec<f32>> {
    let size = whole.shape.head_size;
    let [q, of_out, dout] = [&whole.q[..], of_out, &whole.dout].map(|x| on.up(x));
    let kv = PARTS.map(|keys| [&whole.k, &whole.v].map(|x| on.up(&x[keys.start * size..keys.end * size])));
    let seen = PARTS.map(|keys| {
        let of = |query: usize| keys.clone().filter(|&key| sees(query, key)).count() as u32;
        on.up(&(0..whole.shape.queries).map(of).collect::<Vec<_>>())
    });
    let inputs = |part: usize| {
        let [k, v] = &kv[part];
        [(&q, 2), (k, 1), (v, 1)].map(|(x, heads)| Heads::whole(x.as_view(), heads, size))
    };
    let of = |part: usize| Shape { keys: PARTS[part].len(), ..whole.shape };
    let (mut out, mut lse) = (on.garbage::<f32>(whole.q.len()), on.up(&[f32::NEG_INFINITY; 140]));
    for part in 0..2 {
        let (seen, out, lse) = (Some(seen[part].as_view()), out.as_view_mut(), lse.as_view_mut());
        attention::forward_onto(&on.stream, of(part), Options::FULL, seen, inputs(part), out, lse).unwrap();
    }
    let (mut dq, mut of_keys) = (on.up(&vec![1.0f32; whole.q.len()]), Vec::new());
    for part in 0..2 {
        let len = PARTS[part].len() * size;
        let (mut dk, mut dv) = (on.up(&vec![0.5f32; len]), on.up(&vec![0.0f32; len]));
        let saved = (of_out.as_view(), lse.as_view(), dout.as_view());
        let seen = Some(seen[part].as_view());
        let (q, k, v) = (dq.as_view_mut(), dk.as_view_mut(), dv.as_view_mut());
        attention::backward_onto(&on.stream, of(part), Options::FULL, seen, inputs(part), saved, q, k, v).unwrap();
        of_keys.extend([on.down(&dk), on.down(&dv)]);
    }
    [on.down(&out), on.down(&lse), on.down(&dq)].into_iter().chain(of_keys).collect()
}

/// A part's weights are at most those of the whole, so each part is within the bound of the whole; joining rounds means and LSE a
/// few times more, and what gradients are added to once.
fn parts<T: Float>(size: usize, ways: Ways) {
    let whole = Case::<T>::new(shape(1, (70, 150), (2, 1), size), Options::FULL);
    let (bounds, joins) = (Bounds::of(&whole), 8.0 * U);
    let (exact, lses, gradients) = by_hand(&whole, sees, |x| x);
    let (low, _, low_gradients) = by_hand(&whole, sees, round::<T>);
    let rounded: Vec<T> = exact.iter().map(|&x| T::from_f64(x)).collect();
    let given = ways.same(|on| joined(on, &whole, &rounded));
    // In f32 the roundings of weights say nothing of the sums.
    let like = |what: &str, given: &[f32], exact: &[f64], low: &[f64], times: f64| {
        if T::DTYPE != DType::F32 {
            assert_like(what, given, exact, low, times);
        }
    };
    // Query 0 has seen nothing, and what was there in its place is gone.
    assert_within("out", &given[0], &exact, |_| 2.0 * bounds.out + joins * largest(&whole.v));
    assert_within("lse", &given[1], &lses, |i| 2.0 * bounds.lse + joins * (1.0 + lses[i].abs()));
    like("out", &given[0], &exact, &low, 2.0);
    let gradient = |what: &str, given: &[f32], one: usize, keys: std::ops::Range<usize>, to: f64, bound: f64| {
        let added = |of: &[f64]| of[keys.clone()].iter().map(|x| x + to).collect::<Vec<_>>();
        let (exact, low) = (added(&gradients[one]), added(&low_gradients[one]));
        assert_within(what, given, &exact, |i| bound + joins * (1.0 + exact[i].abs()));
        like(what, given, &exact, &low, 3.0);
    };
    gradient("dq", &given[2], 0, 0..whole.q.len(), 1.0, 2.0 * bounds.dq);
    for (part, keys) in PARTS.into_iter().enumerate() {
        let elements = keys.start * size..keys.end * size;
        gradient("dk", &given[3 + 2 * part], 1, elements.clone(), 0.5, bounds.dk);
        gradient("dv", &given[4 + 2 * part], 2, elements, 0.0, bounds.dv);
    }
}

/// Keys that no query sees, between others: what there is stays, and lanes that read it are not in the way of those that write.
fn unseen_part<T: Float>(size: usize) {
    let case = Case::<T>::new(shape(1, (40, 24), (2, 1), size), Options::FULL);
    let lses: Vec<f32> =
        (0..80).map(|row| if row % 7 == 0 { f32::NEG_INFINITY } else { row as f32 / 8.0 - 4.0 }).collect();
    let means = normal::<f32>(case.q.len(), 9);
    let same = |on: &On| {
        let (q, k, v, seen) = (on.up(&case.q), on.up(&case.k), on.up(&case.v), on.up(&[0u32; 40]));
        let (mut out, mut lse) = (on.up(&means), on.up(&lses));
        let inputs = [
            Heads::whole(q.as_view(), 2, size),
            Heads::whole(k.as_view(), 1, size),
            Heads::whole(v.as_view(), 1, size),
        ];
        let (seen, o, l) = (Some(seen.as_view()), out.as_view_mut(), lse.as_view_mut());
        attention::forward_onto(&on.stream, case.shape, Options::FULL, seen, inputs, o, l).unwrap();
        (on.down(&out), on.down(&lse))
    };
    let (out, lse) = Ways::TWO.same(same);
    // To the powers of 2 and back are two roundings.
    let near = |(a, b): (&f32, &f32)| a == b || (a - b).abs() <= 4.0 * U as f32 * b.abs();
    assert!(lse.iter().zip(&lses).all(near), "{lse:?}");
    for (index, (given, before)) in out.iter().zip(&means).enumerate() {
        let (query, head) = (index / size / 2, index / size % 2);
        let stood_for_nothing = lses[head * 40 + query] == f32::NEG_INFINITY;
        assert_eq!(*given, if stood_for_nothing { 0.0 } else { *before }, "query {query}, head {head}");
    }
}

#[test]
fn a_part_that_no_query_sees_changes_nothing() {
    unseen_part::<f32>(32);
    unseen_part::<f32>(200);
    unseen_part::<bf16>(64);
    unseen_part::<f16>(128);
    unseen_part::<bf16>(136);
}

/// out, LSE and gradients in f64 with a mask that is no run of keys. Weights and the gradients of scores pass through `round`
/// before they meet a vector, and out before it meets its gradient.
fn by_hand<T: Float>(
    case: &Case<T>,
    sees: impl Fn(usize, usize) -> bool,
    round: impl Fn(f64) -> f64,
) -> (Vec<f64>, Vec<f64>, [Vec<f64>; 3]) {
    let Shape { queries, keys, heads, head_size: size, .. } = case.shape;
    let [q, k, v, dout] = [&case.q, &case.k, &case.v, &case.dout].map(|x| common::f64s(x));
    let (mut out, mut lse) = (vec![0.0; q.len()], vec![f64::NEG_INFINITY; heads * queries]);
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    let scale = 1.0 / (size as f64).sqrt();
    for (head, query) in (0..heads).flat_map(|head| (0..queries).map(move |query| (head, query))) {
        let at = (query * heads + head) * size;
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let seen: Vec<usize> = (0..keys).filter(|&key| sees(query, key)).collect();
        let of = |x: &[f64], key: usize| x[key * size..(key + 1) * size].to_vec();
        let scores: Vec<f64> = seen.iter().map(|&key| scale * dot(&q[at..at + size], &of(&k, key))).collect();
        let sum: f64 = scores.iter().map(|score| score.exp()).sum();
        if seen.is_empty() {
            continue;
        }
        lse[head * queries + query] = sum.ln();
        let weights: Vec<f64> = scores.iter().map(|score| score.exp() / sum).collect();
        let dweights: Vec<f64> = seen.iter().map(|&key| dot(&dout[at..at + size], &of(&v, key))).collect();
        for (&key, weight) in seen.iter().zip(&weights) {
            (0..size).for_each(|d| out[at + d] += round(*weight) * v[key * size + d]);
        }
        let stored: Vec<f64> = out[at..at + size].iter().map(|&x| round(x)).collect();
        let mean = dot(&stored, &dout[at..at + size]);
        for ((&key, weight), dweight) in seen.iter().zip(&weights).zip(&dweights) {
            let dscore = scale * round(weight * (dweight - mean));
            for d in 0..size {
                dq[at + d] += dscore * k[key * size + d];
                dk[key * size + d] += dscore * q[at + d];
                dv[key * size + d] += round(*weight) * dout[at + d];
            }
        }
    }
    (out, lse, [dq, dk, dv])
}

#[test]
fn keys_in_parts_join_to_the_whole() {
    parts::<f32>(24, Ways::EVERY);
    parts::<f32>(136, Ways::TWO);
    parts::<bf16>(64, Ways::EVERY);
    parts::<f16>(128, Ways::EVERY);
    parts::<bf16>(256, Ways::TWO);
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    let on = On::software();
    let attempt = |shape: Shape, options: Options| -> KernelError {
        let count = shape.queries * shape.heads * shape.head_size;
        let x = on.up(&normal::<bf16>(count, 1));
        let x = x.as_view();
        let (mut out, mut lse) =
            (on.up(&vec![bf16::from_f32(7.0); count]), on.up(&vec![7.0f32; shape.queries * shape.heads]));
        let (o, l) = (out.as_view_mut(), lse.as_view_mut());
        let error = attention::forward(&on.stream, shape, options, x, x, x, o, l).unwrap_err();
        assert!(on.down(&out).iter().all(|x| x.to_f32() == 7.0) && on.down(&lse).iter().all(|&x| x == 7.0));
        error
    };
    let good = shape(1, (4, 4), (2, 2), 8);
    let text = |options| attempt(good, options).to_string();
    let dropped = |probability| Options { dropout: Some(Dropout { probability, ..DROPOUT }), ..Options::FULL };
    for probability in [1.0, -0.1, f32::NAN] {
        assert!(text(dropped(probability)).contains("`dropout` is"));
    }
    for cap in [0.0, -1.0, f32::INFINITY] {
        assert!(text(Options { softcap: Some(cap), ..Options::FULL }).contains("`softcap` is"));
    }
    let (x, mut out, mut lse) = (on.up(&normal::<bf16>(64, 1)), on.garbage::<f32>(64), on.garbage::<f32>(8));
    let inputs = [Heads::whole(x.as_view(), 2, 8); 3];
    let (o, l) = (out.as_view_mut(), lse.as_view_mut());
    let error = attention::forward_onto(&on.stream, good, dropped(0.5), None, inputs, o, l).unwrap_err();
    assert!(error.to_string().contains("`dropout` counts keys of the whole"));
}

#[test]
fn starts_that_are_wrong_on_the_device_are_found_there() {
    for (starts, row, value) in [([0, 4, 3], 2, 3), ([0, 3, 99], 2, 99), ([0, 12, 12], 1, 12)] {
        let on = On::software();
        let mut case = Case::<bf16>::of_lengths(&[(5, 5), (8, 8)], (1, 1), 16, Options::CAUSAL);
        case.starts = Some([vec![0, 5, 13], starts.to_vec()]);
        let (x, k) = (on.up(&case.q), on.up(&case.k));
        let (mut out, mut lse) = (on.garbage::<bf16>(case.q.len()), on.garbage::<f32>(13));
        let [q_starts, k_starts] = case.starts.as_ref().unwrap().each_ref().map(|starts| on.up(starts));
        let starts = Some(Starts { queries: q_starts.as_view(), keys: k_starts.as_view() });
        let extra = Extra { starts, ..Extra::default() };
        let inputs = [x.as_view(), k.as_view(), k.as_view()].map(|rows| Heads::whole(rows, 1, 16));
        let (o, l) = (out.as_view_mut(), lse.as_view_mut());
        attention::forward_with(&on.stream, case.shape, case.options, extra, inputs, o, l).unwrap();
        let error = on.stream.synchronize().unwrap_err().to_string();
        assert!(error.contains(&format!("`starts.keys`: {value} in row {row};")), "{error}");
        // The same on the CPU, before anything runs.
        let cpu = On::threads(1);
        let [q_starts, k_starts] = case.starts.as_ref().unwrap().each_ref().map(|starts| cpu.up(starts));
        let starts = Some(Starts { queries: q_starts.as_view(), keys: k_starts.as_view() });
        let extra = Extra { starts, ..Extra::default() };
        let (x, k) = (cpu.up(&case.q), cpu.up(&case.k));
        let inputs = [x.as_view(), k.as_view(), k.as_view()].map(|rows| Heads::whole(rows, 1, 16));
        let (mut out, mut lse) = (cpu.garbage::<bf16>(case.q.len()), cpu.garbage::<f32>(13));
        let (o, l) = (out.as_view_mut(), lse.as_view_mut());
        let error = attention::forward_with(&cpu.stream, case.shape, case.options, extra, inputs, o, l).unwrap_err();
        assert!(error.to_string().contains("`starts.keys`"), "{error}");
    }
}
