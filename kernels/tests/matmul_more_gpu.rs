//! What goes with the matrix products on the software device: activations by themselves, groups of rows with weights of their
//! own, offsets beyond 2^31, wrong arguments.
#![forbid(unsafe_code)]

mod common;

use bytemuck::Zeroable;
use common::products::{ACTIVATIONS, activate, arguments, backward_activation, derivative_error, own_error};
use common::ways::{same_bits_in_every_way, same_bits_in_two_ways};
use common::{On, assert_within, f64s, normal};
use warpweft_device::{Arg, Buffer, DType, Element, Float, Module, bf16, f16};
use warpweft_kernels::matmul::{self, Activation, Epilogue, Shape, reference};
use warpweft_kernels::moe::grouped;
use warpweft_kernels::{Write, programs};

const LONG: bool = cfg!(feature = "long-tests");

/// Infinite where the type makes them so.
fn stored<T: Float>(exact: &[f64]) -> Vec<f64> {
    let stored = |exact: f64| Some(T::from_f64(exact).to_f64()).filter(|stored| stored.is_infinite()).unwrap_or(exact);
    exact.iter().map(|exact| stored(*exact)).collect()
}

#[test]
fn activations_by_themselves_are_right_at_ordinary_and_extreme_arguments() {
    fn check<T: Float>() {
        for activation in ACTIVATIONS {
            for (at, (m, n)) in [(9, 32), (7, 34), (65, 200)].into_iter().enumerate() {
                let shape = Shape { m, n, k: 0 };
                let pre = arguments::<T>(m * n);
                let outputs = activation.outputs(n);
                let dy: Vec<T> = normal(m * outputs, 8);
                let ways = |work: &dyn Fn(&On) -> Vec<T>| {
                    if at == 1 { same_bits_in_every_way(work) } else { same_bits_in_two_ways(work) }
                };
                let (pre64, dy64) = (f64s(&pre), f64s(&dy));
                let what = format!("{activation:?} {} {m} {n}", T::DTYPE);
                // What is below the smallest normal number may be flushed in between.
                let smallest = f64::from(f32::MIN_POSITIVE) * 4.0;
                let y = ways(&|on| activate(on, shape, activation, &pre));
                let exact = reference::activate(shape, activation, &pre64);
                assert_within(&what, &y, &stored::<T>(&exact), |i| {
                    let x = pre64[i / outputs * n + i % outputs];
                    // The f64 reference cancels in 1 + tanh and 1 + erf.
                    own_error(activation, x, exact[i]) + 2f64.powi(-52) * x.abs() + smallest
                });
                let dpre = ways(&|on| backward_activation(on, shape, activation, &pre, &dy));
                let exact = reference::backward_activation(shape, activation, &pre64, &dy64);
                assert_within(&what, &dpre, &stored::<T>(&exact), |i| {
                    let first = i / n * n + i % n % outputs;
                    let up = if activation == Activation::SwiGlu { pre64[first + outputs] } else { 0.0 };
                    let errors =
                        derivative_error(activation, pre64[first], up, dy64[i / n * outputs + i % n % outputs]);
                    errors[i % n / outputs] + smallest
                });
            }
        }
    }
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

#[test]
fn an_activation_by_itself_gives_the_bits_of_an_epilogue() {
    let on = On::software();
    for activation in ACTIVATIONS.into_iter().filter(|activation| *activation != Activation::None) {
        let case = common::products::Case::<f32>::new((33, 40, 24), normal);
        let with = common::products::With { bias: true, activation, pre: true, ..common::products::PLAIN };
        let (y, pre) = case.forward(&on, with);
        assert_eq!(activate(&on, case.shape, activation, &pre), y, "{activation:?}");
    }
}

/// All three products of a grouped layer, one after another.
fn grouped_products<T: Float>(on: &On, shape: grouped::Shape<'_>, activation: Activation) -> Vec<f64> {
    let (rows, experts) = (shape.counts.iter().sum::<usize>(), shape.counts.len());
    let outputs = activation.outputs(shape.n);
    let (x, w) = (on.up(&normal::<T>(rows * shape.k, 1)), on.up(&normal::<T>(experts * shape.n * shape.k, 2)));
    let (dy, mut dx) = (on.up(&normal::<T>(rows * shape.n, 3)), on.up(&normal::<T>(rows * shape.k, 4)));
    let (mut y, mut pre) = (on.garbage::<T>(rows * outputs), on.garbage::<T>(rows * shape.n));
    let mut dw = on.up(&normal::<f32>(w.len(), 5));
    let keep = (activation != Activation::None).then(|| pre.as_view_mut());
    grouped::forward(&on.stream, shape, x.as_view(), w.as_view(), activation, keep, y.as_view_mut()).unwrap();
    grouped::backward_input(&on.stream, shape, dy.as_view(), w.as_view(), Write::Add, dx.as_view_mut()).unwrap();
    grouped::backward_weight(&on.stream, shape, x.as_view(), dy.as_view(), dw.as_view_mut()).unwrap();
    let pre = if activation == Activation::None { Vec::new() } else { f64s(&on.down(&pre)) };
    [f64s(&on.down(&y)), pre, f64s(&on.down(&dx)), f64s(&on.down(&dw))].concat()
}

/// The same by a product an expert.
fn single_products<T: Float>(on: &On, shape: grouped::Shape<'_>, activation: Activation) -> Vec<f64> {
    let (rows, experts, n, k) = (shape.counts.iter().sum::<usize>(), shape.counts.len(), shape.n, shape.k);
    let outputs = activation.outputs(n);
    let (x, w) = (on.up(&normal::<T>(rows * k, 1)), on.up(&normal::<T>(experts * n * k, 2)));
    let (dy, mut dx) = (on.up(&normal::<T>(rows * n, 3)), on.up(&normal::<T>(rows * k, 4)));
    let (mut y, mut pre) = (on.garbage::<T>(rows * outputs), on.garbage::<T>(rows * n));
    let mut dw = on.up(&normal::<f32>(w.len(), 5));
    let mut row = 0;
    for (expert, &m) in shape.counts.iter().enumerate() {
        let (of, shape) = (|width: usize| row * width..(row + m) * width, Shape { m, n, k });
        let of_w = expert * n * k..(expert + 1) * n * k;
        let keep = (activation != Activation::None).then(|| pre.view_mut(of(n)).unwrap());
        let epilogue = Epilogue { activation, pre: keep, ..Epilogue::default() };
        let (x, w, dy) = (x.view(of(k)).unwrap(), w.view(of_w.clone()).unwrap(), dy.view(of(n)).unwrap());
        matmul::forward(&on.stream, shape, x, w, epilogue, y.view_mut(of(outputs)).unwrap()).unwrap();
        matmul::backward_input(&on.stream, shape, dy, w, Write::Add, dx.view_mut(of(k)).unwrap()).unwrap();
        matmul::backward_weight(&on.stream, shape, x, dy, dw.view_mut(of_w).unwrap()).unwrap();
        row += m;
    }
    let pre = if activation == Activation::None { Vec::new() } else { f64s(&on.down(&pre)) };
    [f64s(&on.down(&y)), pre, f64s(&on.down(&dx)), f64s(&on.down(&dw))].concat()
}

#[test]
fn groups_of_rows_in_one_launch_are_a_product_each() {
    fn check<T: Float>() {
        let devices = [On::software(), On::open("software?check=all&multiprocessors=1")];
        let many: Vec<usize> = (0..300).map(|expert| expert % 3).collect();
        for (counts, n, k) in [
            (&[3, 0, 70, 1, 0, 9][..], 24, 40),
            (&[0, 130, 2][..], 72, 16),
            (&[5, 4][..], 6, 7),
            (&[0, 0][..], 8, 8),
            (&[][..], 8, 8),
            (&many[..], 4, 8),
        ] {
            // More groups than one launch takes: the code is the same in every type.
            if counts.len() > 100 && T::DTYPE != DType::BF16 && !LONG {
                continue;
            }
            let shape = grouped::Shape { counts, n, k };
            for activation in [Activation::None, Activation::SwiGlu] {
                for on in &devices {
                    let (given, expected) =
                        (grouped_products::<T>(on, shape, activation), single_products::<T>(on, shape, activation));
                    assert!(given == expected, "{} {counts:?} {n} {k} {activation:?}", T::DTYPE);
                }
            }
        }
    }
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

/// A sparse buffer of `len` elements, of which a few have values.
fn sparse<T: Element>(on: &On, len: usize, at: usize, values: &[T]) -> Buffer<T> {
    let mut buffer = on.device.uninitialized::<T>(len).unwrap();
    buffer.view_mut(at..at + values.len()).unwrap().copy_from_host(&on.stream, values).unwrap();
    buffer
}

/// The last of 256 experts has its weight behind 2^31 elements; the others have no rows.
#[test]
fn weights_beyond_two_to_the_31_elements_are_found() {
    let on = On::open("software?check=all&memory=68719476736");
    let (n, k) = (2928, 2880);
    let mut counts = [0; 256];
    counts[255] = 2;
    let (first, shape) = (255 * n * k, Shape { m: 2, n, k });
    assert!(first > 1 << 31);
    let (x, w, dy) = (normal::<bf16>(2 * k, 1), normal::<bf16>(n * k, 2), normal::<bf16>(2 * n, 3));
    let (x, near, dy) = (on.up(&x), on.up(&w), on.up(&dy));
    let far = sparse(&on, 256 * n * k, first, &w);
    let shapes = grouped::Shape { counts: &counts, n, k };
    let (mut y, mut expected) = (on.garbage::<bf16>(2 * n), on.garbage::<bf16>(2 * n));
    grouped::forward(&on.stream, shapes, x.as_view(), far.as_view(), Activation::None, None, y.as_view_mut()).unwrap();
    let epilogue = Epilogue::default();
    matmul::forward(&on.stream, shape, x.as_view(), near.as_view(), epilogue, expected.as_view_mut()).unwrap();
    assert!(on.down(&y) == on.down(&expected));
    let (mut dx, mut expected) = (on.garbage::<bf16>(2 * k), on.garbage::<bf16>(2 * k));
    grouped::backward_input(&on.stream, shapes, dy.as_view(), far.as_view(), Write::Set, dx.as_view_mut()).unwrap();
    matmul::backward_input(&on.stream, shape, dy.as_view(), near.as_view(), Write::Set, expected.as_view_mut())
        .unwrap();
    assert!(on.down(&dx) == on.down(&expected));
}

/// The kernels' groups: one, of `count` rows that begin at row `begin`.
fn one_group(begin: u32, count: u32) -> Arg {
    let mut begins = [0u32; 257];
    (begins[0], begins[1]) = (begin, begin + count);
    Arg::bytes(bytemuck::cast_slice(&begins))
}

/// Rows of x, y, pre and residual that lie behind 2^31 elements: a launch of a group that begins there.
#[test]
fn rows_beyond_two_to_the_31_elements_are_found() {
    fn check<T: Float + Zeroable>(variant: &str, threads: u32) {
        let on = On::open("software?check=all&memory=137438953472");
        let program = programs().iter().find(|program| program.op == "matmul").unwrap();
        let module = Module::load(&on.device, program.ptx).unwrap();
        let (m, n, k, begin) = (3, 32, 40, (1usize << 26) + 1000);
        assert!(begin * n > 1 << 31);
        let (x, w, residual) = (normal::<T>(m * k, 1), normal::<T>(n * k, 2), normal::<T>(m * n, 3));
        let total = begin + m;
        let far = [sparse(&on, total * k, begin * k, &x), sparse(&on, total * n, begin * n, &residual)];
        let w = on.up(&w);
        let [y, pre] = [0; 2].map(|_| on.device.uninitialized::<T>(total * n).unwrap());
        let args = [
            (&far[0]).try_into().unwrap(),
            (&w).try_into().unwrap(),
            Arg::pointer(0),
            (&pre).try_into().unwrap(),
            (&far[1]).try_into().unwrap(),
            (&y).try_into().unwrap(),
            one_group(begin as u32, m as u32),
            (total as u32).into(),
            (n as u32).into(),
            (k as u32).into(),
            1f32.into(),
            3u32.into(),
            1u32.into(),
        ];
        let kernel = module.kernel(&format!("matmul_forward_{variant}_{}", T::DTYPE)).unwrap();
        kernel.launch(&on.stream, [1, 1, 1], [threads, 1, 1], 96 << 10, &args).unwrap();
        let (x, near) = (on.up(&x), on.up(&residual));
        let (mut expected, mut expected_pre) = (on.garbage::<T>(m * n), on.garbage::<T>(m * n));
        let epilogue = Epilogue {
            activation: Activation::Relu,
            pre: Some(expected_pre.as_view_mut()),
            residual: Some(near.as_view()),
            ..Epilogue::default()
        };
        let shape = Shape { m, n, k };
        matmul::forward(&on.stream, shape, x.as_view(), w.as_view(), epilogue, expected.as_view_mut()).unwrap();
        let tail = |buffer: &Buffer<T>| buffer.view(begin * n..).unwrap().download(&on.stream).unwrap();
        assert!(tail(&y) == on.down(&expected) && tail(&pre) == on.down(&expected_pre), "{variant} {}", T::DTYPE);
    }
    for (variant, threads) in [("large", 128), ("small", 128), ("any", 128)] {
        check::<bf16>(variant, threads);
        check::<f16>(variant, threads);
    }
    check::<f32>("large", 256);
    check::<f32>("small", 64);
}

#[test]
fn wrong_arguments_launch_nothing_on_a_gpu_either() {
    let on = On::software();
    let x = on.up(&[0.0f32; 12]);
    let mut y = on.up(&[7.0f32; 6]);
    let (view, shape) = (|len: usize| x.view(..len).unwrap(), Shape { m: 2, n: 3, k: 3 });
    let said = matmul::forward(&on.stream, shape, view(6), view(8), Epilogue::default(), y.as_view_mut()).unwrap_err();
    assert_eq!(said.to_string(), "matmul::forward: `w` has 8 elements; its shape 3 x 3 needs 9");
    let infinite = Epilogue { scale: f32::INFINITY, ..Epilogue::default() };
    let said = matmul::forward(&on.stream, shape, view(6), view(9), infinite, y.as_view_mut()).unwrap_err();
    assert_eq!(said.to_string(), "matmul::forward: `scale` is inf; it must be finite");
    let alone = matmul::Through { activation: Activation::Relu, ..Default::default() };
    let said = matmul::backward_input_through(&on.stream, shape, view(6), view(9), alone, Write::Set, y.as_view_mut());
    assert!(said.unwrap_err().to_string().contains("give both or neither"));
    let elsewhere = On::software().up(&[0.0f32; 6]);
    let said = matmul::forward(&on.stream, shape, elsewhere.as_view(), view(9), Epilogue::default(), y.as_view_mut());
    assert!(said.unwrap_err().to_string().contains("x is on device"));
    // Sizes that a kernel's numbers do not hold; no element is there.
    let none = on.up::<f32>(&[]);
    let far = Shape { m: 1 << 40, n: 0, k: 0 };
    let said = matmul::backward_bias(&on.stream, far, none.as_view(), on.up(&[]).as_view_mut());
    assert!(said.is_ok());
    let said = matmul::forward(
        &on.stream,
        far,
        none.as_view(),
        none.as_view(),
        Epilogue::default(),
        on.up::<f32>(&[]).as_view_mut(),
    );
    let said = said.unwrap_err().to_string();
    assert_eq!(said, format!("matmul::forward: `m` is {}; it must be at most {} on a GPU", 1usize << 40, i32::MAX));
    assert_eq!(on.down(&y), [7.0; 6]);
}
