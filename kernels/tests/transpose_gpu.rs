//! The transpose on the CPU and by its kernels on the software device: every bit in its place.
#![forbid(unsafe_code)]

mod common;

use common::counters::{assert_bound_by_memory, assert_moved_once, profiles};
use common::far::from_block;
use common::mutants::try_mutants;
use common::ways::Ways;
use common::{On, normal, same_bits_for_threads};
use warpweft_device::{Arg, Float, Module, bf16, f16};
use warpweft_kernels::transpose::{Shape, reference, transpose};
use warpweft_kernels::{KernelError, programs};

const fn shape(batch: usize, rows: usize, columns: usize) -> Shape {
    Shape { batch, rows, columns }
}

fn run<T: Float>(on: &On, shape: Shape, before: usize) -> Vec<T> {
    let x = normal::<T>(shape.batch * shape.rows * shape.columns, 1);
    let (x, mut y) = (on.padded(before, &x), on.padded_garbage::<T>(before, x.len()));
    transpose(&on.stream, shape, x.view(), y.view_mut()).unwrap();
    y.down(on)
}

fn right<T: Float>(shape: Shape) -> Vec<T> {
    reference::transpose(shape, &normal::<T>(shape.batch * shape.rows * shape.columns, 1))
}

/// Nothing, one element, odd sizes, misaligned, whole tiles, a tile and a little more both ways, many matrices.
const SHAPES: [(Shape, usize); 17] = [
    (shape(0, 3, 4), 8),
    (shape(2, 0, 5), 8),
    (shape(1, 1, 1), 8),
    (shape(3, 7, 13), 8),
    (shape(2, 8, 16), 1),
    (shape(2, 16, 8), 8),
    (shape(1, 128, 32), 8),
    (shape(3, 136, 72), 8),
    (shape(1, 264, 8), 8),
    (shape(2, 256, 64), 8),
    (shape(2, 512, 128), 8),
    // Through shared memory: short sides, whole tiles and a little more both ways.
    (shape(2, 12, 352), 8),
    (shape(2, 352, 12), 8),
    (shape(2, 12, 700), 3),
    (shape(2, 700, 12), 3),
    (shape(2, 131, 67), 8),
    (shape(1, 130, 65), 1),
];

fn check<T: Float>() {
    for (shape, before) in SHAPES {
        assert!(same_bits_for_threads(|on| run::<T>(on, shape, before)) == right::<T>(shape), "{shape:?} on the CPU");
        let ways = if shape.rows * shape.columns < 200 { Ways::EVERY } else { Ways::TWO };
        assert!(ways.same(|on| run::<T>(on, shape, before)) == right::<T>(shape), "{shape:?}");
    }
}

#[test]
fn every_element_finds_its_place_in_every_way() {
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

#[test]
fn long_rows_and_columns() {
    for shape in [shape(1, 1, 65_537), shape(1, 65_537, 1), shape(1, 4, 65_540), shape(1, 65_544, 8)] {
        assert!(Ways::TWO.same(|on| run::<f32>(on, shape, 8)) == right::<f32>(shape), "{shape:?}");
    }
}

#[test]
fn every_byte_is_moved_once_and_no_shared_memory() {
    let counted = profiles(|on| drop(run::<f32>(on, shape(2, 256, 96), 0)));
    assert_bound_by_memory("f32", &counted, 0);
    let counted = profiles(|on| drop(run::<bf16>(on, shape(2, 256, 192), 0)));
    assert_bound_by_memory("bf16", &counted, 0);
    // The counters have nothing of shared memory: there are no conflicts.
    assert!(counted.iter().all(|profile| profile.wavefronts == (0, 0)));
    // Rows that are no whole sectors: a run of neighbours through shared memory.
    for shape in [shape(1, 12, 4096), shape(1, 4096, 12), shape(1, 7, 4096), shape(2, 24, 1024)] {
        let of = [profiles(|on| drop(run::<f32>(on, shape, 0))), profiles(|on| drop(run::<bf16>(on, shape, 0)))];
        for (what, counted) in ["f32", "bf16"].into_iter().zip(of) {
            assert_moved_once(&format!("{what} {shape:?}"), &counted);
        }
    }
}

/// The last matrix of 2^18 + 1 of 128 by 64 lies behind 2^31 elements.
#[test]
fn offsets_have_64_bits() {
    let on = On::open("software?check=all&memory=68719476736");
    let (rows, columns, before) = (128, 64, 1usize << 18);
    let (len, at) = ((before + 1) * rows * columns, before * rows * columns);
    let values = normal::<bf16>(rows * columns, 1);
    let [mut x, y] = [0; 2].map(|_| on.device.uninitialized::<bf16>(len).unwrap());
    x.view_mut(at..).unwrap().copy_from_host(&on.stream, &values).unwrap();
    let program = programs().iter().find(|program| program.op == "transpose").unwrap();
    // A matrix is a tile of the kernel.
    let module = Module::load(&on.device, &from_block(program.ptx, before)).unwrap();
    let sizes = [128u32, 64, 1, 0, 0].map(Arg::from);
    let args: Vec<Arg> = [&x, &y].map(|buffer| buffer.try_into().unwrap()).into_iter().chain(sizes).collect();
    module.kernel("transpose_16").unwrap().launch(&on.stream, [1, 1, 1], [256, 1, 1], 0, &args).unwrap();
    let far = y.view(at..).unwrap().download(&on.stream).unwrap();
    assert!(far == reference::transpose(shape(1, rows, columns), &values));
}

#[test]
fn wrong_arguments_are_named() {
    let on = On::software();
    let (x, mut y) = (on.up(&[1.0f32; 12]), on.up(&[2.0f32; 12]));
    let error = transpose(&on.stream, shape(2, 2, 4), x.as_view(), y.as_view_mut()).unwrap_err();
    assert!(matches!(error, KernelError::Length { argument: "x", given: 12, .. }), "{error}");
    let error = transpose(&on.stream, shape(2, 2, 3), x.as_view(), y.view_mut(1..).unwrap()).unwrap_err();
    assert!(matches!(error, KernelError::Length { argument: "y", given: 11, .. }), "{error}");
    let (wide, mut out) = (on.up(&[1.0f64; 4]), on.up(&[2.0f64; 4]));
    let error = transpose(&on.stream, shape(1, 2, 2), wide.as_view(), out.as_view_mut()).unwrap_err().to_string();
    assert_eq!(error, "transpose: `x` is f32, bf16 or f16 on a GPU");
    let other = On::threads(1);
    let error = transpose(&other.stream, shape(1, 3, 4), x.as_view(), y.as_view_mut()).unwrap_err().to_string();
    assert!(error.contains('x'), "{error}");
    assert_eq!(on.down(&y), [2.0; 12]);
}

#[test]
fn mutants_are_killed() {
    let program = programs().iter().find(|program| program.op == "transpose").unwrap();
    let half = try_mutants(program, "transpose_16", 1, proves::<bf16>);
    half.and(try_mutants(program, "transpose_32", 1, proves::<f32>)).assert_killed();
}

fn proves<T: Float>(on: &On) -> bool {
    SHAPES.iter().all(|(shape, before)| run::<T>(on, *shape, *before) == right::<T>(*shape))
}
