//! Ops that ranks do in parts: the parts put together are the whole.
#![forbid(unsafe_code)]

mod common;

use common::{On, U, assert_within, f64s, integers, normal, tokens};
use warpweft_device::{Float, bf16};
use warpweft_kernels::cross_entropy::{self, PARTS};
use warpweft_kernels::{KernelError, Write, embedding, residual};

/// Uneven parts of 19, one of them empty.
const PARTS_OF_19: [std::ops::Range<usize>; 4] = [0..7, 7..7, 7..18, 18..19];

#[test]
fn the_parts_of_an_embedding_sum_to_the_whole() -> Result<(), KernelError> {
    let on = On::threads(2);
    let (batch, tokens_each, channels, vocab) = (3, 5, 4, 19);
    let whole = embedding::Shape { batch, tokens: tokens_each, channels, vocab, positions: 0 };
    let (ids, table) = (tokens(batch * tokens_each, vocab as u32, 3), integers::<f32>(vocab * channels, 4));
    let dy = integers::<f32>(batch * tokens_each * channels, 5);
    let (ids_there, dy_there) = (on.up(&ids), on.up(&dy));
    let (mut y, mut expected) = (on.garbage::<f32>(dy.len()), on.garbage::<f32>(dy.len()));
    let mut dexpected = on.up(&vec![0.0f32; table.len()]);
    embedding::forward(&on.stream, whole, ids_there.as_view(), on.up(&table).as_view(), None, expected.as_view_mut())?;
    embedding::backward(&on.stream, whole, ids_there.as_view(), dy_there.as_view(), dexpected.as_view_mut(), None)?;
    let mut dtable = Vec::new();
    for (index, rows) in PARTS_OF_19.into_iter().enumerate() {
        let shape = embedding::Shape { vocab: rows.len(), ..whole };
        let shard = embedding::Shard { first: rows.start, vocab };
        let part = on.up(&table[rows.start * channels..rows.end * channels]);
        let write = if index == 0 { Write::Set } else { Write::Add };
        let (ids, dy) = (ids_there.as_view(), dy_there.as_view());
        embedding::forward_shard(&on.stream, shape, shard, ids, part.as_view(), write, y.as_view_mut())?;
        let mut gradient = on.up(&vec![0.0f32; part.len()]);
        embedding::backward_shard(&on.stream, shape, shard, ids, dy, gradient.as_view_mut())?;
        dtable.extend(on.down(&gradient));
    }
    assert_eq!(on.down(&y), on.down(&expected));
    assert_eq!(dtable, on.down(&dexpected));
    Ok(())
}

fn losses<T: Float>(tolerance: f64) -> Result<(), KernelError> {
    let on = On::threads(2);
    let (rows, vocab, ignore) = (6, 19, Some(u32::MAX));
    // One row far below the others, whose parts differ by 200.
    let mut logits = normal::<T>(rows * vocab, 7);
    (0..7).for_each(|column| logits[2 * vocab + column] = T::from_f32(-200.0 - column as f32));
    let mut targets = tokens(rows, vocab as u32, 8);
    targets[4] = u32::MAX;
    let reference = cross_entropy::Shape { rows, vocab };
    let (expected, _) = cross_entropy::reference::forward(reference, &f64s(&logits), &targets, ignore);
    let gradient = cross_entropy::reference::backward(reference, &f64s(&logits), &targets, ignore, 0.25);
    let targets_there = on.up(&targets);
    let columns = |range: &std::ops::Range<usize>| -> Vec<T> {
        (0..rows).flat_map(|row| logits[row * vocab..][range.clone()].iter().copied()).collect()
    };
    let mut parts = Vec::new();
    for range in &PARTS_OF_19 {
        let shape = cross_entropy::Shape { rows, vocab: range.len() };
        let shard = cross_entropy::Shard { first: range.start, vocab };
        let mut own = on.up(&vec![f64::NAN; rows * PARTS]);
        let here = on.up(&columns(range));
        let targets = targets_there.as_view();
        cross_entropy::forward_shard(&on.stream, shape, shard, here.as_view(), targets, ignore, own.as_view_mut())?;
        parts.extend(on.down(&own));
    }
    let (mut losses, mut normaliser) = (on.garbage::<f32>(rows), on.up(&vec![f64::NAN; rows * 2]));
    let (all, targets) = (on.up(&parts), targets_there.as_view());
    let (losses_there, normaliser_there) = (losses.as_view_mut(), normaliser.as_view_mut());
    let sum = cross_entropy::merge(&on.stream, 4, all.as_view(), targets, ignore, losses_there, normaliser_there)?;
    assert_eq!(sum.count, rows - 1);
    assert!((sum.loss - expected.iter().sum::<f64>()).abs() < 1e-5, "{} against {expected:?}", sum.loss);
    assert_within("losses", &on.down(&losses), &expected, |i| 8.0 * U * (1.0 + expected[i].abs()));
    for range in &PARTS_OF_19 {
        let shape = cross_entropy::Shape { rows, vocab: range.len() };
        let shard = cross_entropy::Shard { first: range.start, vocab };
        let mut here = on.up(&columns(range));
        let numbers = normaliser.as_view();
        let place = here.as_view_mut();
        cross_entropy::backward_shard(&on.stream, shape, shard, place, targets, ignore, numbers, 0.25)?;
        let expected: Vec<f64> =
            (0..rows).flat_map(|row| gradient[row * vocab..][range.clone()].iter().copied()).collect();
        assert_within("dlogits", &on.down(&here), &expected, |_| tolerance);
    }
    Ok(())
}

#[test]
fn the_parts_of_a_cross_entropy_are_the_whole() -> Result<(), KernelError> {
    losses::<f32>(16.0 * U)?;
    losses::<bf16>(16.0 * U)
}

#[test]
fn a_residual_sum_is_that_of_its_terms() -> Result<(), KernelError> {
    let on = On::threads(2);
    let shape = residual::Shape { rows: 7, channels: 5 };
    let [x, branch] = [1, 2].map(|seed| normal::<bf16>(35, seed));
    let bias = normal::<bf16>(5, 3);
    for with_bias in [true, false] {
        let there = on.up(&bias);
        let mut out = on.garbage::<bf16>(35);
        let given = with_bias.then(|| there.as_view());
        let (x_there, branch_there) = (on.up(&x), on.up(&branch));
        residual::forward(&on.stream, shape, x_there.as_view(), branch_there.as_view(), given, out.as_view_mut())?;
        let bias = f64s(&bias);
        let expected = residual::reference::forward(shape, &f64s(&x), &f64s(&branch), with_bias.then_some(&bias[..]));
        assert_within("out", &on.down(&out), &expected, |_| 4.0 * U * 4.0);
    }
    Ok(())
}

#[test]
fn more_rows_than_the_whole_has_are_refused() {
    let on = On::threads(1);
    let shape = embedding::Shape { batch: 1, tokens: 1, channels: 1, vocab: 3, positions: 0 };
    let (ids, table) = (on.up(&[0u32]), on.up(&[0.0f32; 3]));
    let mut y = on.garbage::<f32>(1);
    let shard = embedding::Shard { first: 17, vocab: 19 };
    let (ids, table, y) = (ids.as_view(), table.as_view(), y.as_view_mut());
    let error = embedding::forward_shard(&on.stream, shape, shard, ids, table, Write::Set, y).unwrap_err();
    assert!(error.to_string().contains("at most 2"), "{error}");
}
