//! The gradient of the bias before an activation, made in the epilogue of the input's gradient: on the software device and on the
//! CPU.
#![forbid(unsafe_code)]

mod common;

use common::products::{Case, Inside};
use common::ways::{same_bits_in_every_way, same_bits_in_two_ways};
use common::{On, U, assert_within, f64s, integers, normal};
use warpweft_device::{Element, Float, bf16, f16};
use warpweft_kernels::matmul::{self, Activation, Shape, Through, reference};
use warpweft_kernels::{KernelError, Write};

/// Shapes for each kind of tile: less than a part of 64 rows, whole ones, more than a tile; columns that end within four.
const SHAPES: [(usize, usize, usize); 7] =
    [(1, 8, 8), (3, 5, 7), (65, 16, 24), (128, 8, 128), (129, 24, 136), (200, 8, 72), (192, 1, 1)];

const LARGE: &str = "&multiprocessors=1";

fn open(settings: &str) -> On {
    On::open(&format!("software?check=all{settings}"))
}

/// dx, and db onto what stood there.
fn run<T: Float>(on: &On, case: &Case<T>, activation: Activation, db: f32) -> (Vec<T>, Vec<f32>) {
    let Shape { m, k, .. } = case.shape;
    let width = if activation == Activation::SwiGlu { 2 * k } else { k };
    let pre = integers::<T>(m * width, 7);
    let [dy, w, pre] = [&case.dy, &case.w, &pre].map(|values| Inside::new(on, values, case.offset));
    let mut dx = Inside::new(on, &vec![T::from_f32(f32::NAN); m * width], case.offset);
    let mut sums = Inside::new(on, &vec![db; width], case.offset);
    let pre = (activation != Activation::None).then(|| pre.view());
    let through = Through { scale: 0.5, activation, pre, db: Some(sums.view_mut()) };
    let (dy, w) = (dy.view(), w.view());
    matmul::backward_input_through(&on.stream, case.shape, dy, w, through, Write::Set, dx.view_mut()).unwrap();
    (dx.down(on), sums.down(on))
}

/// The sums of the columns of `dx [m, width]` and of their magnitudes.
fn columns<T: Float>(dx: &[T], m: usize, width: usize) -> (Vec<f64>, Vec<f64>) {
    let shape = Shape { m, n: width, k: 0 };
    let dx = f64s(dx);
    let sums = reference::backward_bias(shape, &dx);
    (sums, reference::backward_bias(shape, &dx.iter().map(|dx| dx.abs()).collect::<Vec<_>>()))
}

#[test]
fn integers_are_summed_exactly_with_every_tile() {
    fn check<T: Float>() {
        for on in [On::threads(2), open(""), open(LARGE)] {
            for sizes in SHAPES {
                for (activation, offset) in [(Activation::None, 0), (Activation::Relu, 1)] {
                    let case = Case::<T> { offset, ..Case::new(sizes, integers) };
                    let (dx, db) = run(&on, &case, activation, 5.0);
                    let expected: Vec<f64> =
                        columns(&dx, sizes.0, sizes.2).0.into_iter().map(|sum| sum + 5.0).collect();
                    assert_eq!(f64s(&db), expected, "{} {sizes:?} {activation:?} {}", T::DTYPE, on.device);
                    assert!(db.iter().any(|db| *db != 5.0), "{sizes:?}: nothing was summed");
                }
            }
        }
    }
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

/// dx and db as one array of bits.
fn bits<T: Float>((dx, db): (Vec<T>, Vec<f32>)) -> Vec<u8> {
    [bytemuck::cast_slice::<T, u8>(&dx), bytemuck::cast_slice(&db)].concat()
}

/// Of 64 rows each sum of eight rows and of eight such sums, the product's own rounding being none of theirs; then f64.
fn assert_sums<T: Float>(what: &str, db: &[f32], dx: &[T], m: usize, before: f64) {
    let (exact, sums) = columns(dx, m, db.len());
    let exact: Vec<f64> = exact.iter().map(|db| db + before).collect();
    assert_within(what, db, &exact, |i| 17.0 * U * sums[i] + U * exact[i].abs());
}

#[test]
fn sums_are_of_what_is_stored_whichever_the_tile_and_the_way() {
    fn check<T: Float + Element>() {
        for (activation, sizes) in [(Activation::None, (20, 16, 24)), (Activation::SwiGlu, (70, 9, 7))] {
            let case = Case::<T>::new(sizes, normal);
            same_bits_in_every_way(|on| bits(run(on, &case, activation, 0.25)));
        }
        for activation in [Activation::GeluTanh, Activation::SwiGlu] {
            for sizes in [(129, 40, 72), (200, 24, 133)] {
                let case = Case::<T>::new(sizes, normal);
                let what = format!("{} {sizes:?} {activation:?}", T::DTYPE);
                let small = same_bits_in_two_ways(|on| bits(run(on, &case, activation, 0.25)));
                let (dx, db) = run(&open(LARGE), &case, activation, 0.25);
                assert_sums(&what, &db, &dx, sizes.0, 0.25);
                assert!(bits((dx, db)) == small, "{what}: large tiles");
            }
        }
    }
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

#[test]
fn without_rows_nothing_is_added() {
    for on in [On::threads(1), open("")] {
        let case = Case::<bf16>::new((0, 8, 16), normal);
        assert_eq!(run(&on, &case, Activation::Relu, 3.0), (vec![], vec![3.0; 16]));
        // Without columns of dy, dx is 0.
        let case = Case::<f32>::new((2, 0, 3), normal);
        assert_eq!(run(&on, &case, Activation::None, 3.0), (vec![0.0; 6], vec![3.0; 3]));
    }
}

#[test]
fn a_wrong_db_is_refused_by_name_and_nothing_is_written() {
    for on in [On::threads(1), open("")] {
        let (dy, w) = (on.up(&[1.0f32; 6]), on.up(&[1.0f32; 9]));
        let (mut dx, mut db) = (on.up(&[7.0f32; 6]), on.up(&[7.0f32; 3]));
        let mut refused = |len: usize, write: Write| {
            let through = Through { db: Some(db.view_mut(..len).unwrap()), ..Through::default() };
            let shape = Shape { m: 2, n: 3, k: 3 };
            let (dy, w) = (dy.as_view(), w.as_view());
            matmul::backward_input_through(&on.stream, shape, dy, w, through, write, dx.as_view_mut()).unwrap_err()
        };
        let added = refused(3, Write::Add);
        assert!(matches!(added, KernelError::Combination { argument: "db", .. }), "{added}");
        let short = refused(2, Write::Set);
        assert!(short.to_string().contains("`db` has 2 elements; its shape 3 needs 3"), "{short}");
        assert_eq!((on.down(&dx), on.down(&db)), (vec![7.0; 6], vec![7.0; 3]));
    }
}
