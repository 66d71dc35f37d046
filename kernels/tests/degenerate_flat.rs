//! Degenerate inputs of the ops that take elements one by one, pairs of them or whole rows: the residual sum with and without
//! dropout, conversion, transpose, random numbers, rotary positions, the embedding.
#![forbid(unsafe_code)]

mod common;

use common::degenerate::{Op, degenerate_inputs, in_every_type};
use common::{On, U, assert_within, f64s, normal, rounding, tokens};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::philox::{self, Philox4x32};
use warpweft_kernels::residual::{self, Dropout as Drop};
use warpweft_kernels::{Write, cast, embedding, rope, transpose};

/// Asserts that the software device writes what the CPU does.
#[track_caller]
fn as_on_the_cpu(work: impl Fn(&On) -> Vec<f64>) {
    assert!(work(&On::software()) == work(&On::threads(1)));
}

/// Asserts that the software device writes this, and that the CPU does.
#[track_caller]
fn on_both(work: impl Fn(&On) -> Vec<f64>, right: &[f64]) {
    for (on, name) in [(On::software(), "software"), (On::threads(1), "cpu")] {
        assert!(work(&on) == right, "{name}");
    }
}

struct Residual;

degenerate_inputs!(Residual: residual_no_rows, residual_no_columns, residual_rows_of_65_537, residual_off_by_one, residual_between_nans);

/// Whole numbers: x, a branch and a bias.
fn terms<T: Float>(rows: usize, columns: usize) -> [Vec<T>; 3] {
    [(1, rows), (2, rows), (3, 1)].map(|(seed, rows)| common::integers(rows * columns, seed))
}

impl Op for Residual {
    fn check<T: Float>(rows: usize, columns: usize, before: usize) {
        let run = |on: &On| {
            let [x, branch, bias] = terms::<T>(rows, columns).map(|values| on.padded(before, &values));
            let mut out = on.padded_garbage::<T>(before, rows * columns);
            let shape = residual::Shape { rows, channels: columns };
            residual::forward(&on.stream, shape, x.view(), branch.view(), Some(bias.view()), out.view_mut()).unwrap();
            f64s(&out.down(on))
        };
        let [x, branch, bias] = terms::<T>(rows, columns).map(|values| f64s(&values));
        on_both(
            run,
            &residual::reference::forward(residual::Shape { rows, channels: columns }, &x, &branch, Some(&bias)),
        );
    }
}

struct Dropout;

degenerate_inputs!(Dropout: dropout_no_rows, dropout_no_columns, dropout_rows_of_65_537, dropout_off_by_one, dropout_between_nans);

impl Op for Dropout {
    fn check<T: Float>(rows: usize, columns: usize, before: usize) {
        // Half is dropped, so that the factor is 2 and whole numbers stay whole.
        let (shape, drop) =
            (residual::Shape { rows, channels: columns }, Drop { probability: 0.5, seed: 7, sequence: 9, first: 16 });
        let run = |on: &On| {
            let [x, branch, bias] = terms::<T>(rows, columns).map(|values| on.padded(before, &values));
            let [mut out, mut dbranch] = [0; 2].map(|_| on.padded_garbage::<T>(before, rows * columns));
            let bias = Some(bias.view());
            residual::forward_dropout(&on.stream, shape, drop, x.view(), branch.view(), bias, out.view_mut()).unwrap();
            residual::backward_dropout(&on.stream, shape, drop, branch.view(), dbranch.view_mut()).unwrap();
            [f64s(&out.down(on)), f64s(&dbranch.down(on))].concat()
        };
        let [x, branch, bias] = terms::<T>(rows, columns).map(|values| f64s(&values));
        let out = residual::reference::forward_dropout(shape, drop, &x, &branch, Some(&bias));
        on_both(run, &[out, residual::reference::backward_dropout(drop, &branch)].concat());
    }
}

struct Cast;

impl Op for Cast {
    fn check<T: Float>(rows: usize, columns: usize, before: usize) {
        fn to<T: Float, B: Float>(len: usize, before: usize) {
            let from = normal::<T>(len, 1);
            let run = |on: &On| {
                let mut to = on.padded_garbage::<B>(before, len);
                cast::convert(&on.stream, on.padded(before, &from).view(), to.view_mut()).unwrap();
                f64s(&to.down(on))
            };
            on_both(run, &from.iter().map(|x| B::from_f64(x.to_f64()).to_f64()).collect::<Vec<_>>());
        }
        to::<T, f32>(rows * columns, before);
        to::<T, bf16>(rows * columns, before);
        to::<T, f16>(rows * columns, before);
    }
}

#[test]
fn cast_no_elements() {
    in_every_type::<Cast>(0, 0, 8);
}

#[test]
fn cast_65_537_elements() {
    in_every_type::<Cast>(1, 65_537, 8);
}

#[test]
fn cast_off_by_one() {
    in_every_type::<Cast>(1, 320, 1);
}

#[test]
fn cast_between_nans() {
    in_every_type::<Cast>(1, 37, 8);
}

struct Transpose;

degenerate_inputs!(Transpose: transpose_no_rows, transpose_no_columns, transpose_rows_of_65_537, transpose_off_by_one, transpose_between_nans);

impl Op for Transpose {
    fn check<T: Float>(rows: usize, columns: usize, before: usize) {
        for (batch, rows, columns) in [(2, rows, columns), (1, columns, rows)] {
            let (shape, x) = (transpose::Shape { batch, rows, columns }, normal::<T>(batch * rows * columns, 1));
            let run = |on: &On| {
                let mut y = on.padded_garbage::<T>(before, x.len());
                transpose::transpose(&on.stream, shape, on.padded(before, &x).view(), y.view_mut()).unwrap();
                f64s(&y.down(on))
            };
            on_both(run, &f64s(&transpose::reference::transpose(shape, &x)));
        }
    }
}

struct Random;

impl Op for Random {
    fn check<T: Float>(rows: usize, columns: usize, before: usize) {
        let (generator, len) = (Philox4x32::new(5, 9), rows * columns);
        as_on_the_cpu(|on| {
            let mut out = on.padded_garbage::<T>(before, len);
            philox::uniform(&on.stream, generator, 8, (-1.0, 3.5), out.view_mut()).unwrap();
            f64s(&out.down(on))
        });
        let [given, right] = [On::software(), On::threads(1)].map(|on| {
            let mut out = on.padded_garbage::<T>(before, len);
            philox::normal(&on.stream, generator, 8, (0.25, 1.5), out.view_mut()).unwrap();
            f64s(&out.down(&on))
        });
        assert_eq!(given.len(), len);
        // A last bit of f64 may decide which way a number is rounded.
        let near = |(given, right): (&f64, &f64)| (given - right).abs() <= 2.0 * rounding::<T>(*right);
        assert!(given.iter().zip(&right).all(near));
    }
}

#[test]
fn philox_no_elements() {
    in_every_type::<Random>(0, 0, 8);
}

#[test]
fn philox_65_537_elements() {
    in_every_type::<Random>(1, 65_537, 8);
}

#[test]
fn philox_off_by_one() {
    in_every_type::<Random>(1, 320, 1);
}

#[test]
fn philox_between_nans() {
    in_every_type::<Random>(1, 37, 8);
}

/// Rows of heads and of what must not be touched behind them, NaN here: its heads turned at the positions from `position` on.
fn turned<T: Float>(heads: [usize; 2], [rows, columns]: [usize; 2], before: usize, position: usize) {
    let [count, head_size] = heads;
    let shape = rope::Shape { batch: 1, tokens: rows, heads: count, head_size, row_stride: columns };
    let turned = |i: &usize| i % columns < count * head_size;
    let mut x = normal::<T>(rows * columns, 1);
    (0..x.len()).filter(|i| !turned(i)).for_each(|i| x[i] = T::from_f32(f32::NAN));
    let seen = |values: &[T]| -> Vec<T> { (0..x.len()).filter(turned).map(|i| values[i]).collect() };
    let largest = f64s(&seen(&x)).into_iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    for interleaved in [false, true] {
        for (back, sign) in [(false, 1.0), (true, -1.0)] {
            let turn = if back { rope::backward } else { rope::forward };
            let (on, options) = (On::software(), rope::Options { position, interleaved, ..rope::Options::default() });
            let mut given = on.padded(before, &x);
            turn(&on.stream, shape, options, None, given.view_mut()).unwrap();
            let given = given.down(&on);
            let behind = given.iter().zip(0..).filter(|(_, i)| !turned(i));
            assert!(behind.into_iter().all(|(x, _)| x.to_f64().is_nan()), "what is behind the heads");
            let mut exact = f64s(&x);
            rope::reference::rotate(shape, options, None, sign, &mut exact);
            let exact: Vec<f64> = (0..x.len()).filter(turned).map(|i| exact[i]).collect();
            // Cosine and sine rounded, one product and one fused sum, each of at most twice the largest element.
            assert_within("x", &seen(&given), &exact, |_| 4.0 * U * largest);
        }
    }
}

struct Rope;

degenerate_inputs!(Rope: rope_no_rows, rope_no_columns, rope_rows_of_65_537, rope_off_by_one, rope_between_nans);

impl Op for Rope {
    fn check<T: Float>(rows: usize, columns: usize, before: usize) {
        let head_size = if columns > 1000 { 64 } else { 8 };
        turned::<T>([columns / head_size, head_size], [rows, columns], before, 0);
    }
}

struct RopeInLongerRows;

impl Op for RopeInLongerRows {
    fn check<T: Float>(rows: usize, columns: usize, before: usize) {
        // The queries of a packed row of q, k and v.
        turned::<T>([2, 16], [rows, columns], before, 5);
    }
}

#[test]
fn rope_strided() {
    in_every_type::<RopeInLongerRows>(3, 96, 8);
    in_every_type::<RopeInLongerRows>(3, 99, 8);
}

struct RopeFarOut;

impl Op for RopeFarOut {
    fn check<T: Float>(rows: usize, columns: usize, before: usize) {
        turned::<T>([1, columns], [rows, columns], before, 131_072 - rows);
    }
}

#[test]
fn rope_position_131_071() {
    in_every_type::<RopeFarOut>(2, 128, 8);
}

struct Embedding;

degenerate_inputs!(Embedding: embedding_no_rows, embedding_no_columns, embedding_rows_of_65_537, embedding_off_by_one, embedding_between_nans);

impl Op for Embedding {
    fn check<T: Float>(rows: usize, columns: usize, before: usize) {
        let shape = embedding::Shape { batch: 1, tokens: rows, channels: columns, vocab: 6, positions: rows };
        let (held, shard) = (embedding::Shape { vocab: 3, ..shape }, embedding::Shard { first: 2, vocab: 6 });
        as_on_the_cpu(|on| {
            let ids = on.up(&tokens(rows, 6, 4));
            let [table, part, positions, dy] = [(1, 6), (2, 3), (3, rows), (4, rows)]
                .map(|(seed, rows)| on.padded(before, &normal::<T>(rows * columns, seed)));
            let [mut y, mut own] = [0; 2].map(|_| on.padded_garbage::<T>(before, rows * columns));
            let (stream, ids, at) = (&on.stream, ids.as_view(), Some(positions.view()));
            embedding::forward(stream, shape, ids, table.view(), at, y.view_mut()).unwrap();
            embedding::forward_shard(stream, held, shard, ids, part.view(), Write::Set, own.view_mut()).unwrap();
            let mut all = [f64s(&y.down(on)), f64s(&own.down(on))].concat();
            let [mut dtable, mut dpart, mut dpositions] =
                [6, 3, rows].map(|rows| on.padded(before, &normal::<f32>(rows * columns, 5)));
            let (d, p) = (dtable.view_mut(), Some(dpositions.view_mut()));
            embedding::backward(stream, shape, ids, dy.view(), d, p).unwrap();
            embedding::backward_shard(stream, held, shard, ids, dy.view(), dpart.view_mut()).unwrap();
            for gradient in [&dtable, &dpart, &dpositions] {
                all.extend(f64s(&gradient.down(on)));
            }
            all
        });
    }
}

/// What every call says of a token outside the vocabulary in row 2, which the others do not suffer from.
fn token_out_of_range<T: Float>() {
    let on = On::software();
    let shape = embedding::Shape { batch: 1, tokens: 4, channels: 8, vocab: 6, positions: 0 };
    let shard = embedding::Shard { first: 0, vocab: 6 };
    let (ids, table) = (on.up(&[0u32, 5, 6, 1]), on.up(&normal::<T>(48, 1)));
    let dy = table.view(..32).unwrap();
    let mut y = on.up(&[T::from_f32(0.5); 32]);
    let mut dtable = on.up(&[0.25f32; 48]);
    let (ids, stream) = (ids.as_view(), &on.stream);
    let told = |call: &str| {
        let said = on.stream.synchronize().unwrap_err().to_string();
        assert!(said.contains(&format!("embedding {call}: `ids`")) && said.contains("6 in row 2"), "{said}");
    };
    embedding::forward(stream, shape, ids, table.as_view(), None, y.as_view_mut()).unwrap();
    told("forward");
    let given = on.down(&y);
    assert!(given[16..24].iter().all(|x| x.to_f64() == 0.5), "written");
    assert_eq!(f64s(&given[24..]), f64s(&normal::<T>(48, 1)[8..16]));
    embedding::forward_shard(stream, shape, shard, ids, table.as_view(), Write::Set, y.as_view_mut()).unwrap();
    told("forward_shard");
    embedding::backward(stream, shape, ids, dy, dtable.as_view_mut(), None).unwrap();
    told("backward");
    embedding::backward_shard(stream, shape, shard, ids, dy, dtable.as_view_mut()).unwrap();
    told("backward_shard");
    // Twice the row of the only token 1, and nothing of row 2.
    let (dtable, dy) = (on.down(&dtable), normal::<T>(48, 1));
    assert!((0..8).all(|c| dtable[8 + c] == (0.25 + dy[24 + c].to_f32()) + dy[24 + c].to_f32()));
    assert_eq!(dtable[16..40], [0.25; 24]);
}

#[test]
fn embedding_token_out_of_range() {
    token_out_of_range::<f32>();
    token_out_of_range::<bf16>();
    token_out_of_range::<f16>();
}
