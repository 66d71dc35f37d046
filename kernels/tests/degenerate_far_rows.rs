//! Rows behind 2^31 elements, of the ops that sum along rows: the bytes that the same rows have at the begin of an array.
#![forbid(unsafe_code)]

mod common;

use common::far::{Far, at};
use common::{normal, tokens};
use warpweft_device::{Arg, Buffer, Float, bf16, f16};
use warpweft_kernels::cross_entropy::{self, PARTS, Shard};
use warpweft_kernels::moe::router;
use warpweft_kernels::{Write, layernorm, moe, rmsnorm, softmax};

/// Elements of a row: whole 16 bytes, and more than a warp has.
const COLUMNS: usize = 1032;

/// The kernels' last arguments but for flags of their own: rows and columns.
fn sizes(far: &Far) -> [Arg; 2] {
    [far.rows().into(), (far.columns as u32).into()]
}

/// What is packed, and staged.
fn flags<const N: usize>() -> [Arg; N] {
    std::array::from_fn(|_| 1u32.into())
}

/// Two rows of numbers.
fn two<T: Float>(seed: u64) -> Vec<T> {
    normal(2 * COLUMNS, seed)
}

fn softmax_far<T: Float>() {
    let far = Far::new("softmax", COLUMNS, 1);
    let (on, shape, options) = (&far.on, softmax::Shape { rows: 2, columns: COLUMNS }, softmax::Options::default());
    let (x, dy) = (two::<T>(1), two::<T>(2));
    let (queries, scale) = (Arg::from(0u32), Arg::from(1f32));
    let y = far.room::<T>(COLUMNS);
    let one = || Arg::from(1u32);
    let forward = |hidden: Arg, y: &Buffer<T>| {
        let arrays = [at(&far.up(COLUMNS, &x)), hidden, at(y)];
        let numbers = [queries.clone(), one(), one(), scale.clone()];
        // Beside a row its mask's bytes are kept.
        let args = [&arrays, &sizes(&far)[..], &numbers, &flags::<2>()].concat();
        far.launch_rows::<T>("softmax_forward", 2, &args);
    };
    forward(Arg::pointer(0), &y);
    let mut near = on.garbage::<T>(x.len());
    softmax::forward(&on.stream, shape, options, on.up(&x).as_view(), near.as_view_mut()).unwrap();
    assert!(far.down(COLUMNS, &y) == on.down(&near));
    // Under a mask whose rows lie as far.
    let hidden: Vec<u8> = (0..2 * COLUMNS).map(|i| u8::from(i * i % 7 < 2)).collect();
    let masked = far.room::<T>(COLUMNS);
    forward(at(&far.up(COLUMNS, &hidden)), &masked);
    let (hidden, own, mut beside) =
        (on.up(&hidden), softmax::MaskShape { heads: 1, queries: 1 }, on.garbage::<T>(x.len()));
    let of_x = on.up(&x);
    let (hidden, of_x) = (hidden.as_view(), of_x.as_view());
    softmax::forward_masked(&on.stream, shape, options, own, hidden, of_x, beside.as_view_mut()).unwrap();
    assert!(far.down(COLUMNS, &masked) == on.down(&beside));
    let dx = far.up(COLUMNS, &x);
    let inputs = [at(&far.up(COLUMNS, &dy)), at(&y), at(&dx)];
    let add = Arg::from(1u32);
    let args = [&inputs, &sizes(&far)[..], &[queries, scale, add], &flags::<2>()];
    far.launch_rows::<T>("softmax_backward", 2, &args.concat());
    let mut sum = on.up(&x);
    let (dy, y) = (on.up(&dy), near.as_view());
    softmax::backward(&on.stream, shape, options, dy.as_view(), y, Write::Add, sum.as_view_mut()).unwrap();
    assert!(far.down(COLUMNS, &dx) == on.down(&sum));
}

#[test]
fn softmax_far_out() {
    softmax_far::<f32>();
    softmax_far::<bf16>();
    softmax_far::<f16>();
}

/// Threads of a block of partial sums; a tile has 32 runs of 16 bytes.
const PARTIALS: [u32; 3] = [32, 8, 1];

fn tiles<T: Float>() -> u32 {
    COLUMNS.div_ceil(32 * 16 / size_of::<T>()) as u32
}

const EPS: f32 = 1e-5;

fn layernorm_far<T: Float>() {
    let far = Far::new("layernorm", COLUMNS, 1);
    let (on, shape) = (&far.on, layernorm::Shape { rows: 2, channels: COLUMNS });
    let [x, branch, dy] = [1, 2, 3].map(two::<T>);
    let [w, b] = [4, 5].map(|seed| on.up(&normal::<T>(COLUMNS, seed)));
    let [sum, y, dx] = [0; 3].map(|_| far.room::<T>(COLUMNS));
    let [mean, rstd] = [0; 2].map(|_| far.room::<f32>(1));
    let inputs = [at(&far.up(COLUMNS, &x)), at(&far.up(COLUMNS, &branch)), at(&sum), at(&w), at(&b), at(&y)];
    let saved = [at(&mean), at(&rstd)];
    let args = [&inputs, &saved[..], &sizes(&far), &[EPS.into()], &flags::<2>()].concat();
    far.launch_rows::<T>("layernorm_forward", 1, &args);
    let [mut near_sum, mut near_y, mut near_dx] = [0; 3].map(|_| on.garbage::<T>(x.len()));
    let [mut near_mean, mut near_rstd] = [0; 2].map(|_| on.garbage::<f32>(2));
    let (x, branch, of_y) = (on.up(&x), on.up(&branch), near_y.as_view_mut());
    let (stream, out) = (&on.stream, (near_mean.as_view_mut(), near_rstd.as_view_mut()));
    let (x, branch, of_sum) = (x.as_view(), branch.as_view(), near_sum.as_view_mut());
    let (w_in, b) = (w.as_view(), b.as_view());
    layernorm::forward_residual(stream, shape, EPS, x, branch, w_in, b, of_sum, of_y, out.0, out.1).unwrap();
    assert!(far.down(COLUMNS, &sum) == on.down(&near_sum) && far.down(COLUMNS, &y) == on.down(&near_y));
    assert!(far.down(1, &mean) == on.down(&near_mean) && far.down(1, &rstd) == on.down(&near_rstd));

    let far_dy = far.up(COLUMNS, &dy);
    let inputs = [at(&far_dy), at(&sum), at(&w), at(&mean), at(&rstd), at(&dx)];
    let add = Arg::from(0u32);
    far.launch_rows::<T>("layernorm_backward_input", 2, &[&inputs, &sizes(&far)[..], &[add], &flags::<2>()].concat());
    let (dy, mean_in, rstd_in) = (on.up(&dy), near_mean.as_view(), near_rstd.as_view());
    let (dy, x, out) = (dy.as_view(), near_sum.as_view(), near_dx.as_view_mut());
    layernorm::backward_input(stream, shape, dy, x, w_in, mean_in, rstd_in, Write::Set, out).unwrap();
    assert!(far.down(COLUMNS, &dx) == on.down(&near_dx));

    let parts = Far::new("layernorm", COLUMNS, 128);
    let partials = parts.on.device.uninitialized::<f32>((far.before / 128 + 1) * 2 * COLUMNS).unwrap();
    let [dy_in, x_in] = [on.down(&on.up(&two::<T>(3))), on.down(&near_sum)].map(|values| parts.up(COLUMNS, &values));
    let [mean_in, rstd_in] = [on.down(&near_mean), on.down(&near_rstd)].map(|values| parts.up(1, &values));
    let inputs = [at(&dy_in), at(&x_in), at(&mean_in), at(&rstd_in), at(&partials)];
    let kernel = format!("layernorm_backward_weight_{}", T::DTYPE);
    let args = [&inputs, &sizes(&far)[..], &flags::<1>()].concat();
    parts.launch(&kernel, [1, tiles::<T>(), 1], PARTIALS, 0, &args);
    let sums = partials.view(far.before / 128 * 2 * COLUMNS..).unwrap().download(&parts.on.stream).unwrap();
    let [mut dw, mut db] = [0; 2].map(|_| on.up(&[0f32; COLUMNS]));
    let (mean, rstd, out) = (near_mean.as_view(), near_rstd.as_view(), (dw.as_view_mut(), db.as_view_mut()));
    layernorm::backward_weight(stream, shape, dy, x, mean, rstd, out.0, out.1).unwrap();
    assert!(sums == [on.down(&dw), on.down(&db)].concat());
}

#[test]
fn layernorm_far_out() {
    layernorm_far::<f32>();
    layernorm_far::<bf16>();
    layernorm_far::<f16>();
}

fn rmsnorm_far<T: Float>() {
    let far = Far::new("rmsnorm", COLUMNS, 1);
    let (on, shape) = (&far.on, rmsnorm::Shape { rows: 2, channels: COLUMNS });
    let [x, branch, dy] = [1, 2, 3].map(two::<T>);
    let w = on.up(&normal::<T>(COLUMNS, 4));
    let [sum, y, dx] = [0; 3].map(|_| far.room::<T>(COLUMNS));
    let rstd = far.room::<f32>(1);
    let inputs = [at(&far.up(COLUMNS, &x)), at(&far.up(COLUMNS, &branch)), at(&sum), at(&w), at(&y), at(&rstd)];
    far.launch_rows::<T>("rmsnorm_forward", 1, &[&inputs, &sizes(&far)[..], &[EPS.into()], &flags::<2>()].concat());
    let [mut near_sum, mut near_y, mut near_dx] = [0; 3].map(|_| on.garbage::<T>(x.len()));
    let mut near_rstd = on.garbage::<f32>(2);
    let (stream, x, branch, w_in) = (&on.stream, on.up(&x), on.up(&branch), w.as_view());
    let (x, branch, of_sum) = (x.as_view(), branch.as_view(), near_sum.as_view_mut());
    let (of_y, out) = (near_y.as_view_mut(), near_rstd.as_view_mut());
    rmsnorm::forward_residual(stream, shape, EPS, x, branch, w_in, of_sum, of_y, out).unwrap();
    assert!(far.down(COLUMNS, &sum) == on.down(&near_sum) && far.down(COLUMNS, &y) == on.down(&near_y));
    assert!(far.down(1, &rstd) == on.down(&near_rstd));

    let inputs = [at(&far.up(COLUMNS, &dy)), at(&sum), at(&w), at(&rstd), at(&dx)];
    let add = Arg::from(0u32);
    far.launch_rows::<T>("rmsnorm_backward_input", 2, &[&inputs, &sizes(&far)[..], &[add], &flags::<2>()].concat());
    let (of_dy, x, saved) = (on.up(&dy), near_sum.as_view(), near_rstd.as_view());
    let (of_dy, out) = (of_dy.as_view(), near_dx.as_view_mut());
    rmsnorm::backward_input(stream, shape, of_dy, x, w_in, saved, Write::Set, out).unwrap();
    assert!(far.down(COLUMNS, &dx) == on.down(&near_dx));

    let parts = Far::new("rmsnorm", COLUMNS, 128);
    let partials = parts.on.device.uninitialized::<f32>((far.before / 128 + 1) * COLUMNS).unwrap();
    let [dy_in, x_in] = [dy, on.down(&near_sum)].map(|values| parts.up(COLUMNS, &values));
    let inputs = [at(&dy_in), at(&x_in), at(&parts.up(1, &on.down(&near_rstd))), at(&partials)];
    let kernel = format!("rmsnorm_backward_weight_{}", T::DTYPE);
    let args = [&inputs, &sizes(&far)[..], &flags::<1>()].concat();
    parts.launch(&kernel, [1, tiles::<T>(), 1], PARTIALS, 0, &args);
    let sums = partials.view(far.before / 128 * COLUMNS..).unwrap().download(&parts.on.stream).unwrap();
    let mut dw = on.up(&[0f32; COLUMNS]);
    rmsnorm::backward_weight(stream, shape, of_dy, x, saved, dw.as_view_mut()).unwrap();
    assert!(sums == on.down(&dw));
}

#[test]
fn rmsnorm_far_out() {
    rmsnorm_far::<f32>();
    rmsnorm_far::<bf16>();
    rmsnorm_far::<f16>();
}

fn cross_entropy_far<T: Float>() {
    let far = Far::new("cross_entropy", COLUMNS, 1);
    let (on, shape) = (&far.on, cross_entropy::Shape { rows: 2, vocab: COLUMNS });
    let (logits, targets, word) = (two::<T>(1), tokens(2, COLUMNS as u32, 2), on.up(&[0u64; 4]));
    let (far_logits, parts, far_targets) = (far.up(COLUMNS, &logits), far.room::<f64>(PARTS), far.up(1, &targets));
    let of_targets = [at(&far_targets), 0u32.into(), 0u32.into(), (COLUMNS as u32).into()];
    let (first, fault) = (Arg::from(0u32), [at(&word), 1u64.into()]);
    let options = [first.clone(), 0f32.into(), 0f32.into()];
    let args = [&[at(&far_logits)], &of_targets[..], &[at(&parts)], &sizes(&far), &options, &flags::<1>(), &fault];
    far.launch_rows::<T>("cross_entropy_parts", 0, &args.concat());
    let (stream, shard) = (&on.stream, Shard { first: 0, vocab: COLUMNS });
    let (mut near, of_near) = (on.up(&logits), on.up(&targets));
    let (mut near_parts, of_near) = (on.up(&[0f64; 2 * PARTS]), of_near.as_view());
    let out = near_parts.as_view_mut();
    cross_entropy::forward_shard(stream, shape, shard, near.as_view(), of_near, None, out).unwrap();
    assert!(far.down(PARTS, &parts) == on.down(&near_parts));

    let normaliser: Vec<f64> = on.down(&near_parts).chunks(PARTS).flat_map(|of| of[..2].to_vec()).collect();
    let of_rows = [Arg::pointer(0), at(&far.up(2, &normaliser))];
    let options = [first, 0.5f32.into(), 0f32.into(), 0f32.into(), 0f32.into()];
    let args = [&[at(&far_logits)], &of_targets[..], &of_rows, &sizes(&far), &options, &flags::<1>(), &fault];
    far.launch_rows::<T>("cross_entropy_backward", 0, &args.concat());
    let (saved, out) = (on.up(&normaliser), near.as_view_mut());
    cross_entropy::backward_shard(stream, shape, shard, out, of_near, None, saved.as_view(), 0.5).unwrap();
    assert!(far.down(COLUMNS, &far_logits) == on.down(&near));
}

#[test]
fn cross_entropy_far_out() {
    cross_entropy_far::<f32>();
    cross_entropy_far::<bf16>();
    cross_entropy_far::<f16>();
}

/// What a row of the router keeps in shared memory, of four in a block, and the arguments that say so.
fn staged(arrays: &[usize]) -> (usize, [Arg; 2]) {
    let bytes: usize = arrays.iter().map(|bytes| bytes.next_multiple_of(16)).sum();
    (4 * bytes, [(bytes as u32).into(), 1u32.into()])
}

fn router_far<T: Float>() {
    const TOP_K: usize = 2;
    const ROW: usize = COLUMNS * size_of::<f32>();
    const CHOSEN: usize = TOP_K * size_of::<f32>();
    // A block has a warp for each of four rows.
    let far = Far::new("moe_router", COLUMNS, 4);
    let (on, shape) = (&far.on, moe::Shape { rows: 2, experts: COLUMNS, top_k: TOP_K });
    let (logits, dweights, word) = (two::<T>(1), normal::<f32>(2 * TOP_K, 2), on.up(&[0u64; 4]));
    let (scores, chosen, weights) = (far.room::<f32>(COLUMNS), far.room::<u32>(TOP_K), far.room::<f32>(TOP_K));
    let options = router::Options::default();
    let numbers = [(TOP_K as u32).into(), options.scale.into(), 0u32.into(), 1u32.into()];
    let (margins, dlogits) = (far.room::<f32>(1), far.room::<T>(COLUMNS));
    let inputs = [at(&far.up(COLUMNS, &logits)), Arg::pointer(0)];
    let out = [at(&scores), at(&chosen), at(&weights), at(&margins)];
    let (shared, staging) = staged(&[COLUMNS * size_of::<T>(), ROW, CHOSEN, CHOSEN]);
    let args = [&inputs, &out[..], &sizes(&far), &numbers, &staging].concat();
    far.launch(&format!("moe_router_forward_{}", T::DTYPE), [1, 1, 1], [32, 4, 1], shared, &args);
    let (mut near_scores, mut near_chosen) = (on.garbage::<f32>(2 * COLUMNS), on.up(&[0u32; 2 * TOP_K]));
    let mut near_weights = on.garbage::<f32>(2 * TOP_K);
    let (s, c, w) = (near_scores.as_view_mut(), near_chosen.as_view_mut(), near_weights.as_view_mut());
    router::forward(&on.stream, shape, options, on.up(&logits).as_view(), None, s, c, w).unwrap();
    assert!(far.down(COLUMNS, &scores) == on.down(&near_scores) && far.down(TOP_K, &chosen) == on.down(&near_chosen));
    assert!(far.down(TOP_K, &weights) == on.down(&near_weights));
    let inputs = [at(&scores), at(&chosen), at(&far.up(TOP_K, &dweights)), Arg::pointer(0), at(&dlogits)];
    let (shared, staging) = staged(&[ROW, CHOSEN, CHOSEN, CHOSEN, COLUMNS * size_of::<T>()]);
    let args = [&inputs, &sizes(&far)[..], &numbers, &[at(&word), 1u64.into()], &staging].concat();
    far.launch(&format!("moe_router_backward_{}", T::DTYPE), [1, 1, 1], [32, 4, 1], shared, &args);
    let (mut near, s, c) = (on.garbage::<T>(2 * COLUMNS), near_scores.as_view(), near_chosen.as_view());
    let (d, out) = (on.up(&dweights), near.as_view_mut());
    router::backward(&on.stream, shape, options, s, c, d.as_view(), None, out).unwrap();
    assert!(far.down(COLUMNS, &dlogits) == on.down(&near));
}

#[test]
fn router_far_out() {
    router_far::<f32>();
    router_far::<bf16>();
    router_far::<f16>();
}
