//! Elements and rows behind 2^31 elements, of the ops that take them one by one: the bytes that the same ones have at the begin of an
//! array.
#![forbid(unsafe_code)]

mod common;

use common::far::{Far, at};
use common::{On, f64s, normal, rounding};
use warpweft_device::{Arg, Buffer, Element, Float, bf16, f16};
use warpweft_kernels::moe::dispatch::{self, Rows};
use warpweft_kernels::philox::{self, Philox4x32};
use warpweft_kernels::residual::{self, Dropout, Shape};
use warpweft_kernels::{Write, cast, embedding, rope, transpose};

/// Elements of a row: whole 16 bytes, and more than a warp has.
const COLUMNS: usize = 1032;

/// The kernels' last arguments: rows, columns, and that 16 bytes are moved at a time.
fn sizes(far: &Far) -> [Arg; 3] {
    [far.rows().into(), (far.columns as u32).into(), 1u32.into()]
}

/// Two rows of numbers.
fn two<T: Float>(seed: u64) -> Vec<T> {
    normal(2 * COLUMNS, seed)
}

fn residual_far<T: Float>() {
    let far = Far::new("residual", COLUMNS, 1);
    let ([x, branch], on) = ([1, 2].map(two::<T>), &far.on);
    let (bias, out) = (on.up(&normal::<T>(COLUMNS, 3)), far.room::<T>(COLUMNS));
    let inputs = [at(&far.up(COLUMNS, &x)), at(&far.up(COLUMNS, &branch)), at(&bias), at(&out)];
    far.launch_rows::<T>("residual_forward", 0, &[&inputs, &sizes(&far)[..]].concat());
    let (x, branch, mut near) = (on.up(&x), on.up(&branch), on.garbage::<T>(2 * COLUMNS));
    let (shape, bias) = (Shape { rows: 2, channels: COLUMNS }, Some(bias.as_view()));
    residual::forward(&on.stream, shape, x.as_view(), branch.as_view(), bias, near.as_view_mut()).unwrap();
    assert!(far.down(COLUMNS, &out) == on.down(&near));
}

#[test]
fn residual_far_out() {
    residual_far::<f32>();
    residual_far::<bf16>();
    residual_far::<f16>();
}

fn dropout_far<T: Float>() {
    let far = Far::new("residual", COLUMNS, 1);
    let (on, [x, branch]) = (&far.on, [1, 2].map(two::<T>));
    let (bias, out, dbranch) = (on.up(&normal::<T>(COLUMNS, 3)), far.room::<T>(COLUMNS), far.room::<T>(COLUMNS));
    let far_branch = far.up(COLUMNS, &branch);
    // Half is dropped.
    let numbers = [7u64.into(), 9u64.into(), 0u64.into(), 32_768u32.into(), 2f32.into()];
    let inputs = [at(&far.up(COLUMNS, &x)), at(&far_branch), at(&bias), at(&out)];
    far.launch_rows::<T>("residual_dropout", 0, &[&inputs, &numbers[..], &sizes(&far)].concat());
    let back = [at(&far_branch), at(&dbranch)];
    far.launch_rows::<T>("residual_dropout_backward", 0, &[&back, &numbers[..], &sizes(&far)].concat());
    // The same elements of the whole.
    let drop = Dropout { probability: 0.5, seed: 7, sequence: 9, first: (far.before * COLUMNS) as u64 };
    let (x, branch, shape) = (on.up(&x), on.up(&branch), Shape { rows: 2, channels: COLUMNS });
    let [mut near, mut near_branch] = [0; 2].map(|_| on.garbage::<T>(2 * COLUMNS));
    let (stream, branch, bias) = (&on.stream, branch.as_view(), Some(bias.as_view()));
    residual::forward_dropout(stream, shape, drop, x.as_view(), branch, bias, near.as_view_mut()).unwrap();
    residual::backward_dropout(stream, shape, drop, branch, near_branch.as_view_mut()).unwrap();
    assert!(far.down(COLUMNS, &out) == on.down(&near));
    assert!(far.down(COLUMNS, &dbranch) == on.down(&near_branch));
}

#[test]
fn dropout_far_out() {
    dropout_far::<f32>();
    dropout_far::<bf16>();
    dropout_far::<f16>();
}

fn cast_far<A: Float, B: Float>() {
    // Elements of a block of 256 threads, twice.
    let of_a_block = 256 * 16 / size_of::<A>().max(size_of::<B>());
    let far = Far::new("cast", of_a_block, 1);
    let from = normal::<A>(2 * of_a_block, 1);
    let to = far.room::<B>(of_a_block);
    let len = u64::from(far.rows()) * of_a_block as u64;
    let args = [at(&far.up(of_a_block, &from)), at(&to), len.into(), 1u32.into()];
    far.launch(&format!("cast_{}_{}", A::DTYPE, B::DTYPE), [2, 1, 1], [256, 1, 1], 0, &args);
    let mut near = far.on.garbage::<B>(from.len());
    cast::convert(&far.on.stream, far.on.up(&from).as_view(), near.as_view_mut()).unwrap();
    assert!(far.down(of_a_block, &to) == far.on.down(&near));
}

#[test]
fn cast_far_out() {
    cast_far::<f32, bf16>();
    cast_far::<bf16, f16>();
    cast_far::<f16, f32>();
}

fn transpose_far<T: Float>(kernel: &str) {
    // A matrix is a tile of the kernel; a row of `Far` is a matrix.
    let (rows, columns) = (32 * 16 / size_of::<T>(), 8 * 16 / size_of::<T>());
    let far = Far::new("transpose", rows * columns, 1);
    let x = normal::<T>(2 * rows * columns, 1);
    let y = far.room::<T>(rows * columns);
    let [rows_arg, columns_arg] = [rows as u32, columns as u32].map(Arg::from);
    let sizes = [rows_arg.clone(), columns_arg.clone(), 1u32.into(), rows_arg, columns_arg];
    let args = [&[at(&far.up(rows * columns, &x)), at(&y)], &sizes[..]].concat();
    far.launch(kernel, [2, 1, 1], [256, 1, 1], 0, &args);
    let shape = transpose::Shape { batch: 2, rows, columns };
    assert!(far.down(rows * columns, &y) == transpose::reference::transpose(shape, &x));
}

#[test]
fn transpose_far_out() {
    transpose_far::<f32>("transpose_32");
    transpose_far::<bf16>("transpose_16");
    transpose_far::<f16>("transpose_16");
}

fn philox_far<T: Float>() {
    let (of_a_block, generator) = (256 * 16 / size_of::<T>(), Philox4x32::new(5, 9));
    let far = Far::new("philox", of_a_block, 1);
    let len = u64::from(far.rows()) * of_a_block as u64;
    let fill = |kernel: &str, of: [Arg; 2]| {
        let out = far.room::<T>(of_a_block);
        let numbers = [5u64.into(), 9u64.into(), 0u64.into()];
        let args = [&numbers[..], &of, &[at(&out), len.into(), 1u32.into()]].concat();
        far.launch(&format!("philox_{kernel}_{}", T::DTYPE), [2, 1, 1], [256, 1, 1], 0, &args);
        far.down(of_a_block, &out)
    };
    let (uniform, normal) =
        (fill("uniform", [(-1f32).into(), 4.5f32.into()]), fill("normal", [0.25.into(), 1.5.into()]));
    // The numbers of these elements, as the CPU has them.
    let (cpu, first) = (On::threads(1), (far.before * of_a_block) as u64);
    let mut right = cpu.garbage::<T>(2 * of_a_block);
    philox::uniform(&cpu.stream, generator, first, (-1.0, 3.5), right.as_view_mut()).unwrap();
    assert!(uniform == cpu.down(&right));
    philox::normal(&cpu.stream, generator, first, (0.25, 1.5), right.as_view_mut()).unwrap();
    // A last bit of f64 may decide which way a number is rounded.
    let near = |(given, right): (&f64, &f64)| (given - right).abs() <= 2.0 * rounding::<T>(*right);
    assert!(f64s(&normal).iter().zip(&f64s(&cpu.down(&right))).all(near));
}

#[test]
fn philox_far_out() {
    philox_far::<f32>();
    philox_far::<bf16>();
    philox_far::<f16>();
}

fn rope_far<T: Float>() {
    let far = Far::new("rope", COLUMNS, 1);
    let (heads, head_size, position, on) = (4, 256, 100, &far.on);
    let options = rope::Options { position: far.before + position, ..rope::Options::default() };
    let angle = |pair| rope::reference::angle(head_size, options.base, 1, pair) / std::f64::consts::PI;
    let frequencies = on.up(&(0..head_size / 2).map(angle).collect::<Vec<f64>>());
    let x = far.up(COLUMNS, &two::<T>(1));
    let args = [
        at(&x),
        Arg::pointer(0),
        at(&frequencies),
        far.rows().into(),
        (heads as u32).into(),
        (head_size as u32 / 2).into(),
        (COLUMNS as u64).into(),
        (position as u64).into(),
        1f32.into(),
        0u32.into(),
        1u32.into(),
    ];
    // A thread has a run of 16 bytes of half a head.
    let beside = (head_size / 2 * size_of::<T>() / 16) as u32;
    let (block, table) = ([beside, 128 / beside, 1], head_size * size_of::<f32>());
    far.launch(&format!("rope_rotate_{}", T::DTYPE), [2, 1, 1], block, table, &args);
    let mut near = on.up(&two::<T>(1));
    let shape = rope::Shape { batch: 1, tokens: 2, heads, head_size, row_stride: COLUMNS };
    rope::forward(&on.stream, shape, options, None, near.as_view_mut()).unwrap();
    assert!(far.down(COLUMNS, &x) == on.down(&near));
}

#[test]
fn rope_far_out() {
    rope_far::<f32>();
    rope_far::<bf16>();
    rope_far::<f16>();
}

/// A sparse buffer of `rows` rows, two of which have values.
fn sparse<T: Element>(on: &On, rows: usize, first: usize, values: &[T]) -> Buffer<T> {
    let mut buffer = on.device.uninitialized::<T>(rows * COLUMNS).unwrap();
    buffer.view_mut(first * COLUMNS..(first + 2) * COLUMNS).unwrap().copy_from_host(&on.stream, values).unwrap();
    buffer
}

/// Rows of the table, of its gradient, and of what comes out of it.
fn embedding_far<T: Float>() {
    let far = Far::new("embedding", COLUMNS, 1);
    let (on, vocab, last) = (&far.on, far.before + 2, far.before as u32);
    let (values, dy, ids) = (two::<T>(1), two::<T>(2), [last + 1, last]);
    let swapped = [&values[COLUMNS..], &values[..COLUMNS]].concat();
    let shape = embedding::Shape { batch: 1, tokens: 2, channels: COLUMNS, vocab, positions: 0 };
    let (table, near_ids, word) = (far.up(COLUMNS, &values), on.up(&ids), on.up(&[0u64; 4]));
    let (mut near, stream) = (on.garbage::<T>(2 * COLUMNS), &on.stream);
    embedding::forward(stream, shape, near_ids.as_view(), table.as_view(), None, near.as_view_mut()).unwrap();
    assert!(on.down(&near) == swapped);
    let y = far.room::<T>(COLUMNS);
    let rows = far.rows();
    let [columns, vocab_arg] = [COLUMNS as u32, vocab as u32].map(Arg::from);
    let inputs = [at(&far.up(1, &ids)), at(&table), Arg::pointer(0), at(&y), rows.into(), columns.clone(), rows.into()];
    let numbers = [0u32.into(), vocab_arg.clone(), vocab_arg.clone(), 0u32.into(), 1u32.into(), at(&word), 1u64.into()];
    far.launch_rows::<T>("embedding_forward", 0, &[&inputs, &numbers[..]].concat());
    assert!(far.down(COLUMNS, &y) == swapped);

    // A rank that has the rows before these as well: more of them than the sum of a key has bits for is no matter.
    let before: Vec<f32> = normal(2 * COLUMNS, 3);
    let sums = |dy: &[T]| -> Vec<f32> { before.iter().zip(dy).map(|(sum, dy)| sum + dy.to_f32()).collect() };
    let mut dtable = far.up(COLUMNS, &before);
    embedding::backward(stream, shape, near_ids.as_view(), on.up(&dy).as_view(), dtable.as_view_mut(), None).unwrap();
    let turned = [&dy[COLUMNS..], &dy[..COLUMNS]].concat();
    assert!(far.down(COLUMNS, &dtable) == sums(&turned));
    // dy behind 2^31 elements: two rows of it, by the kernel alone, whose blocks are not moved.
    let program = warpweft_kernels::programs().iter().find(|program| program.op == "embedding").unwrap();
    let module = warpweft_device::Module::load(&on.device, program.ptx).unwrap();
    let (keys, at_rows, gradient) = (on.up(&[0u32, 1]), on.up(&[last, last + 1]), on.up(&before));
    let args = [
        at(&keys),
        at(&at_rows),
        at(&far.up(COLUMNS, &dy)),
        at(&gradient),
        2u32.into(),
        columns,
        2u32.into(),
        1u32.into(),
    ];
    // A thread has four columns.
    let tiles = COLUMNS.div_ceil(128 * 4) as u32;
    let kernel = module.kernel(&format!("embedding_backward_table_{}", T::DTYPE)).unwrap();
    kernel.launch(stream, [2, tiles, 1], [128, 1, 1], 0, &args).unwrap();
    assert!(on.down(&gradient) == sums(&dy));
}

#[test]
fn embedding_far_out() {
    embedding_far::<f32>();
    embedding_far::<bf16>();
    embedding_far::<f16>();
}

/// Rows that are fetched from behind 2^31 elements, and rows that are written there.
fn dispatch_far<T: Float>() {
    let far = Far::new("moe_dispatch", COLUMNS, 1);
    let (on, rows, last) = (&far.on, far.before + 2, far.before as u32);
    let (x, dy, stream, word) = (two::<T>(1), two::<T>(2), &far.on.stream, on.up(&[0u64; 4]));
    let swapped = [&x[COLUMNS..], &x[..COLUMNS]].concat();
    let (order, wide) = (on.up(&[last + 1, last]), sparse(on, rows, far.before, &x));
    let mut near = on.garbage::<T>(2 * COLUMNS);
    let from_far = Rows { rows, top_k: 1, channels: COLUMNS, len: 2 };
    dispatch::permute(stream, from_far, order.as_view(), None, wide.as_view(), near.as_view_mut()).unwrap();
    assert!(on.down(&near) == swapped);
    let (from_far, places) = (Rows { rows: 2, top_k: 1, channels: COLUMNS, len: rows }, order.as_view());
    let mut near = on.garbage::<T>(2 * COLUMNS);
    dispatch::combine(stream, from_far, places, None, wide.as_view(), Write::Set, near.as_view_mut()).unwrap();
    assert!(on.down(&near) == swapped);
    let (mut dweights, near_dy) = (on.garbage::<f32>(2), on.up(&dy));
    let out = dweights.as_view_mut();
    dispatch::backward_weights(stream, from_far, places, wide.as_view(), near_dy.as_view(), out).unwrap();
    // The same by rows that are near.
    let (mut expected, near_x, near_places) = (on.garbage::<f32>(2), on.up(&x), on.up(&[1u32, 0]));
    let near_of = Rows { rows: 2, top_k: 1, channels: COLUMNS, len: 2 };
    let (places, out) = (near_places.as_view(), expected.as_view_mut());
    dispatch::backward_weights(stream, near_of, places, near_x.as_view(), near_dy.as_view(), out).unwrap();
    assert!(on.down(&dweights) == on.down(&expected));

    let far_places = far.up(1, &[1u32, 0]);
    let [columns, one, two] = [COLUMNS as u32, 1, 2].map(Arg::from);
    let (many, fault) = (Arg::from(far.rows()), [at(&word), 1u64.into()]);
    let y = far.room::<T>(COLUMNS);
    let inputs = [at(&far_places), Arg::pointer(0), at(&near_x), at(&y), many.clone(), columns.clone()];
    let numbers = [2u64.into(), one.clone(), one.clone()];
    far.launch_rows::<T>("moe_dispatch_permute", 0, &[&inputs, &numbers[..], &fault].concat());
    assert!(far.down(COLUMNS, &y) == swapped);
    let y = far.room::<T>(COLUMNS);
    let inputs = [at(&far_places), Arg::pointer(0), at(&near_x), at(&y), many.clone(), columns.clone()];
    let numbers = [one.clone(), two.clone(), 0u32.into(), one.clone()];
    let shared_rows = 1;
    far.launch_rows::<T>("moe_dispatch_combine", shared_rows, &[&inputs, &numbers[..], &fault].concat());
    assert!(far.down(COLUMNS, &y) == swapped);
    let dweights = far.room::<f32>(1);
    let inputs = [at(&far_places), at(&near_x), at(&far.up(COLUMNS, &dy)), at(&dweights), many, columns];
    let numbers = [one.clone(), two, one.clone(), one];
    far.launch_rows::<T>("moe_dispatch_backward_weights", 1, &[&inputs, &numbers[..], &fault].concat());
    assert!(far.down(1, &dweights) == on.down(&expected));
}

#[test]
fn dispatch_far_out() {
    dispatch_far::<f32>();
    dispatch_far::<bf16>();
    dispatch_far::<f16>();
}
