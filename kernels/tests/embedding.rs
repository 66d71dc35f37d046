//! Embedding: exact against the reference (copies, one sum, and sums that are rounded once), gradients against finite
//! differences, and tokens outside the vocabulary.
#![forbid(unsafe_code)]

mod common;

use common::{On, assert_gradient, assert_within, dot, f64s, finite_differences, integers, normal, tokens};
use common::{rounding, same_bits_for_threads};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::KernelError;
use warpweft_kernels::embedding::{self, Shape, reference};

#[test]
fn the_reference_gradients_are_those_of_finite_differences() {
    let shape = Shape { batch: 2, tokens: 3, channels: 2, vocab: 4, positions: 5 };
    let ids = [3, 0, 3, 3, 1, 0];
    let (table, positions) = (f64s(&normal::<f32>(8, 1)), f64s(&normal::<f32>(10, 2)));
    let dy = f64s(&normal::<f32>(12, 3));
    let (dtable, dpositions) = reference::backward(shape, &ids, &dy);
    let loss = |table: &[f64], positions: &[f64]| dot(&dy, &reference::forward(shape, &ids, table, Some(positions)));
    assert_gradient("dtable", &dtable, &finite_differences(&table, |table| loss(table, &positions)));
    assert_gradient("dpositions", &dpositions, &finite_differences(&positions, |positions| loss(&table, positions)));
}

fn forward<T: Float>(on: &On, shape: Shape, ids: &[u32], table: &[T], positions: Option<&[T]>) -> Vec<T> {
    let (ids, table, positions) = (on.up(ids), on.up(table), positions.map(|values| on.up(values)));
    let mut y = on.garbage::<T>(ids.len() * shape.channels);
    let positions = positions.as_ref().map(|buffer| buffer.as_view());
    embedding::forward(&on.stream, shape, ids.as_view(), table.as_view(), positions, y.as_view_mut()).unwrap();
    on.down(&y)
}

/// `dtable`, and then `dpositions`, added to `before`.
fn backward<T: Float>(on: &On, shape: Shape, ids: &[u32], dy: &[T], before: &[f32]) -> Vec<f32> {
    let (ids, dy, mut gradients) = (on.up(ids), on.up(dy), on.up(before));
    let (dtable, dpositions) = gradients.as_view_mut().split_at(shape.vocab * shape.channels).unwrap();
    embedding::backward(&on.stream, shape, ids.as_view(), dy.as_view(), dtable, Some(dpositions)).unwrap();
    on.down(&gradients)
}

fn check<T: Float>(shape: Shape, ids: &[u32]) {
    let Shape { channels, vocab, positions, .. } = shape;
    let (table, position_table) = (normal::<T>(vocab * channels, 1), normal::<T>(positions * channels, 2));
    let y = same_bits_for_threads(|on| forward(on, shape, ids, &table, None));
    assert_eq!(f64s(&y), reference::forward(shape, ids, &f64s(&table), None), "a copy");
    let y = same_bits_for_threads(|on| forward(on, shape, ids, &table, Some(&position_table)));
    let exact = reference::forward(shape, ids, &f64s(&table), Some(&f64s(&position_table)));
    // One sum in f32, which for the 16-bit types is rounded again.
    assert_within("y", &y, &exact, |i| rounding::<f32>(exact[i]));

    let (dy, before) = (normal::<T>(ids.len() * channels, 3), normal::<f32>((vocab + positions) * channels, 4));
    let given = same_bits_for_threads(|on| backward(on, shape, ids, &dy, &before));
    let (dtable, dpositions) = reference::backward(shape, ids, &f64s(&dy));
    let sums: Vec<f64> = dtable.iter().chain(&dpositions).copied().collect();
    let exact: Vec<f64> = sums.iter().zip(&before).map(|(sum, before)| sum + f64::from(*before)).collect();
    // The same order in the same f64; only `before` is added last instead of first. 1e-12 is f64's rounding there.
    assert_within("gradients", &given, &exact, |i| 1e-12 * (1.0 + sums[i].abs()));
}

#[test]
fn every_shape_and_storage_is_right_and_the_same_for_every_thread_count() {
    let shapes = [
        [1, 1, 1, 1, 1],
        [12, 64, 128, 65, 64],
        [3, 100, 7, 1000, 128],
        [2, 9, 65_537, 5, 9],
        [500, 3, 40, 2, 4],
        [40, 100, 50, 300, 100],
    ];
    for [batch, tokens_, channels, vocab, positions] in shapes {
        let shape = Shape { batch, tokens: tokens_, channels, vocab, positions };
        let ids = tokens(batch * tokens_, vocab as u32, 9);
        check::<f32>(shape, &ids);
        check::<bf16>(shape, &ids);
        check::<f16>(shape, &ids);
    }
    // One token everywhere.
    let shape = Shape { batch: 50, tokens: 70, channels: 16, vocab: 9, positions: 70 };
    check::<f32>(shape, &[8; 3500]);
}

#[test]
fn small_integers_are_bitwise_exact() {
    let shape = Shape { batch: 40, tokens: 50, channels: 24, vocab: 11, positions: 60 };
    let ids = tokens(2000, 11, 1);
    let (dy, before) = (integers::<bf16>(2000 * 24, 2), integers::<f32>((11 + 60) * 24, 3));
    let given = same_bits_for_threads(|on| backward(on, shape, &ids, &dy, &before));
    let (dtable, dpositions) = reference::backward(shape, &ids, &f64s(&dy));
    for (i, (sum, before)) in dtable.iter().chain(&dpositions).zip(&before).enumerate() {
        assert_eq!(f64::from(given[i]), sum + f64::from(*before), "{i}");
    }
}

#[test]
fn nan_goes_to_its_own_rows_only() {
    let shape = Shape { batch: 1, tokens: 3, channels: 2, vocab: 3, positions: 3 };
    let dy = [1.0, 2.0, f32::NAN, f32::INFINITY, 3.0, 4.0];
    let given = backward(&On::threads(1), shape, &[2, 0, 2], &dy, &[0.0; 12]);
    assert!(given[0].is_nan() && given[8].is_nan());
    assert_eq!(given[1..8], [f32::INFINITY, 0.0, 0.0, 4.0, 6.0, 1.0, 2.0]);
    assert_eq!(given[9..], [f32::INFINITY, 3.0, 4.0]);
}

#[test]
fn nothing_to_do_is_done() {
    let on = On::threads(2);
    for (batch, tokens, channels) in [(0, 3, 2), (3, 0, 2), (0, 0, 0)] {
        let shape = Shape { batch, tokens, channels, vocab: 2, positions: 3 };
        let before = vec![5.0; 5 * channels];
        assert_eq!(forward::<f32>(&on, shape, &[], &vec![1.0; 2 * channels], None), []);
        assert_eq!(backward::<f32>(&on, shape, &[], &[], &before), before);
    }
    let shape = Shape { batch: 1, tokens: 2, channels: 0, vocab: 2, positions: 3 };
    assert_eq!(forward::<f32>(&on, shape, &[0, 1], &[], Some(&[])), []);
    assert_eq!(backward::<f32>(&on, shape, &[0, 1], &[], &[]), []);
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    let on = On::threads(1);
    let shape = Shape { batch: 2, tokens: 3, channels: 2, vocab: 4, positions: 2 };
    let (ids, table, positions) = (on.up(&[0u32, 1, 2, 3, 4, 9]), on.up(&[1.0f32; 8]), on.up(&[1.0f32; 4]));
    let (dy, mut y) = (on.up(&[1.0f32; 12]), on.up(&[7.0f32; 12]));
    let mut dtable = on.up(&[7.0f32; 8]);
    let (ids, table, dy) = (ids.as_view(), table.as_view(), dy.as_view());
    let error = embedding::forward(&on.stream, shape, ids, table, None, y.as_view_mut()).unwrap_err();
    assert_eq!(error, KernelError::OutOfVocabulary { op: "embedding forward", row: 4, token: 4, vocab: 4 });
    assert_eq!(error.to_string(), "embedding forward: row 4 holds token 4; the vocabulary has 4 entries (0 to 3)");
    let error = embedding::backward(&on.stream, shape, ids, dy, dtable.as_view_mut(), None).unwrap_err();
    assert_eq!(error, KernelError::OutOfVocabulary { op: "embedding backward", row: 4, token: 4, vocab: 4 });
    let error = embedding::forward(&on.stream, shape, ids, table, Some(positions.as_view()), y.as_view_mut());
    let text = "embedding forward: `positions` is 2; it must be at least the 3 tokens of a sequence";
    assert_eq!(error.unwrap_err().to_string(), text);
    let error = embedding::forward(&on.stream, shape, ids, dy, None, y.as_view_mut()).unwrap_err();
    assert_eq!(error.to_string(), "embedding forward: `table` has 12 elements; its shape 4 x 2 needs 8");
    let error = embedding::backward(&on.stream, shape, ids, table, dtable.as_view_mut(), None).unwrap_err();
    assert_eq!(error.to_string(), "embedding backward: `dy` has 8 elements; its shape 2 x 3 x 2 needs 12");
    assert_eq!((on.down(&y), on.down(&dtable)), (vec![7.0; 12], vec![7.0; 8]));
}
