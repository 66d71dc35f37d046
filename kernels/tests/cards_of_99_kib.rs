//! Cards whose blocks have 99 KiB of shared memory (compute capability 8.6), where cards of 8.0 have 163: every kernel that asks for
//! much of it runs there too, under every check, with the same bytes.
#![forbid(unsafe_code)]

mod common;

use common::attention::{Case, shape};
use common::dispatched::Moving;
use common::products::{self, PLAIN};
use common::routing::{Routing, SIGMOID};
use common::{On, f64s, normal};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::attention::Options;
use warpweft_kernels::{Write, rmsnorm, rope, softmax};

/// Asserts that a small card writes what a large one does.
#[track_caller]
fn alike(settings: &str, work: impl Fn(&On) -> Vec<f64>) {
    let [small, large] = [86, 80].map(|sm| On::open(&format!("software?sm={sm}&check=all{settings}")));
    assert_eq!(small.device.properties().unwrap().shared_bytes, 99 << 10);
    assert!(work(&small) == work(&large), "other bytes");
}

/// Rows that fill what a block stages.
fn rows<T: Float>() {
    let columns = (96 << 10) / size_of::<T>();
    alike("", |on| {
        let shape = softmax::Shape { rows: 1, columns };
        let (x, mut y) = (on.up(&normal::<T>(columns, 1)), on.garbage::<T>(columns));
        softmax::forward(&on.stream, shape, softmax::Options::default(), x.as_view(), y.as_view_mut()).unwrap();
        f64s(&on.down(&y))
    });
    alike("", |on| {
        let shape = rmsnorm::Shape { rows: 1, channels: columns / 2 };
        let [dy, x, w] = [1, 2, 3].map(|seed| on.up(&normal::<T>(columns / 2, seed)));
        let (rstd, mut dx) = (on.up(&[0.5f32]), on.garbage::<T>(columns / 2));
        let (dy, x, w, rstd) = (dy.as_view(), x.as_view(), w.as_view(), rstd.as_view());
        rmsnorm::backward_input(&on.stream, shape, dy, x, w, rstd, Write::Set, dx.as_view_mut()).unwrap();
        f64s(&on.down(&dx))
    });
    alike("", |on| {
        let shape = rope::Shape { batch: 1, tokens: 1, heads: 1, head_size: 8192, row_stride: 8192 };
        let mut x = on.up(&normal::<T>(8192, 1));
        let options = rope::Options { position: 3, ..rope::Options::default() };
        rope::forward(&on.stream, shape, options, None, x.as_view_mut()).unwrap();
        f64s(&on.down(&x))
    });
}

#[test]
fn rows_that_fill_it() {
    rows::<f32>();
    rows::<bf16>();
    rows::<f16>();
}

/// The tiles that a device of one multiprocessor chooses, which are the large ones, in all three products.
fn large_tiles<T: Float>() {
    let case = products::Case::<T>::new((130, 136, 72), normal);
    alike("&multiprocessors=1", |on| {
        let (y, _) = case.forward(on, PLAIN);
        let dx = case.backward_input(on, Write::Set, T::ZERO);
        [f64s(&y), f64s(&dx), f64s(&case.backward_weight(on, 0.0))].concat()
    });
}

#[test]
fn large_tiles_of_products() {
    large_tiles::<f32>();
    large_tiles::<bf16>();
    large_tiles::<f16>();
}

/// Head sizes at the end of each range that has a kernel.
fn heads<T: Float>() {
    for size in [64, 128, 256] {
        let case = Case::<T>::new(shape(1, (17, 70), (1, 1), size), Options::default());
        alike("", |on| {
            let saved = case.forward(on);
            let gradients = case.backward(on, &saved).concat();
            [f64s(&saved.out), f64s(&saved.lse), f64s(&gradients)].concat()
        });
    }
}

#[test]
fn every_range_of_head_sizes() {
    heads::<f32>();
    heads::<bf16>();
    heads::<f16>();
}

/// As many experts of a token as a block holds, and rows of experts that fill what it stages.
fn experts<T: Float>() {
    let case = Moving::<T>::new((1, 3072, 8), 8, normal);
    alike("", |on| case.combine(on));
    let case = Routing::<T>::new((4, (22 << 10) / (4 + size_of::<T>()), 2), SIGMOID, 8);
    alike("", |on| {
        let routed = case.forward(on);
        [f64s(&routed.scores), f64s(&routed.weights), case.backward(on, &routed)].concat()
    });
}

#[test]
fn experts_that_fill_it() {
    experts::<f32>();
    experts::<bf16>();
    experts::<f16>();
}
