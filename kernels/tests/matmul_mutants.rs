//! The kernels of the matrix products broken on purpose: what they compute, or what the software device says, must show it.
#![forbid(unsafe_code)]

mod common;

use common::counters::wide_sectors;
use common::mutants::{Verdict, try_mutants_on};
use common::products::{Case, Inside, PLAIN, With};
use common::{On, normal};
use warpweft_device::{Float, bf16};
use warpweft_kernels::matmul::{self, Activation, Shape, Through};
use warpweft_kernels::moe::grouped;
use warpweft_kernels::{Write, programs};

/// A part of the mutants is tried unless time is no matter.
const STEP: usize = if cfg!(feature = "long-tests") { 1 } else { 11 };

/// Where arguments lie and what their sizes are: units of 16 bytes that are whole and aligned, or anything.
#[derive(Clone, Copy)]
enum Operands {
    Units,
    Any,
}

impl Operands {
    fn offset(self) -> usize {
        usize::from(matches!(self, Self::Any))
    }

    /// A multiple of eight, or one more.
    fn size(self, size: usize) -> usize {
        size + self.offset()
    }
}

/// Every way through a kernel: one step, more than the pipeline holds, the last rows and columns, bands of tiles, a tile that is
/// full, columns that are no multiple of four, results that are not aligned, each part of an epilogue.
fn forward<T: Float>(on: &On, of: Operands) -> Vec<Vec<T>> {
    let all = With { scale: 0.5, bias: true, activation: Activation::GeluTanh, pre: true, residual: true };
    let swiglu = With { activation: Activation::SwiGlu, ..all };
    let cases = [
        ((5, 12, 96), swiglu),
        ((70, 72, 200), all),
        ((66, 136, 40), With { bias: false, pre: false, ..swiglu }),
        ((3, 21, 8), With { activation: Activation::GeluErf, ..all }),
        ((3, 23, 8), With { activation: Activation::Relu, residual: false, ..all }),
        ((2, 128, 32), With { activation: Activation::Relu, ..PLAIN }),
        ((3, 10, 8), With { activation: Activation::SwiGlu, ..PLAIN }),
        ((3, 5, 8), With { activation: Activation::GeluErf, ..PLAIN }),
        ((3, 5, 0), With { bias: true, ..PLAIN }),
        ((129, 1032, 8), PLAIN),
    ];
    let mut found = Vec::new();
    for ((m, n, k), with) in cases {
        let k = if k == 0 { 0 } else { of.size(k) };
        let (y, pre) = Case::<T> { offset: of.offset(), ..Case::new((m, n, k), normal) }.forward(on, with);
        found.extend([y, pre]);
    }
    let (counts, n, k) = ([3, 0, 70], 24, of.size(16));
    let (x, w) = (normal::<T>(73 * k, 1), normal::<T>(3 * n * k, 2));
    let [x, w] = [&x, &w].map(|values| Inside::new(on, values, of.offset()));
    // Results of whole fours that are not aligned.
    let [mut y, mut pre] = [73 * n / 2, 73 * n].map(|len| Inside::new(on, &vec![T::from_f32(0.0); len], 1));
    let (shape, keep) = (grouped::Shape { counts: &counts, n, k }, Some(pre.view_mut()));
    grouped::forward(&on.stream, shape, x.view(), w.view(), Activation::SwiGlu, keep, y.view_mut()).unwrap();
    found.extend([y.down(on), pre.down(on)]);
    found
}

fn input<T: Float>(on: &On, of: Operands) -> (Vec<Vec<T>>, Vec<Vec<f32>>) {
    let cases = [
        ((5, 96, 8), Activation::None, Write::Add, 1),
        ((70, 200, 72), Activation::SwiGlu, Write::Add, 0),
        ((70, 8, 72), Activation::SwiGlu, Write::Set, 1),
        ((3, 8, 8), Activation::SwiGlu, Write::Set, 0),
        ((3, 0, 8), Activation::Relu, Write::Add, 0),
        ((3, 8, 24), Activation::GeluTanh, Write::Set, 0),
        ((3, 40, 26), Activation::GeluErf, Write::Set, 1),
        ((3, 8, 128), Activation::Relu, Write::Set, 0),
        ((129, 8, 1032), Activation::None, Write::Set, 0),
    ];
    let (mut found, mut sums) = (Vec::new(), Vec::new());
    for ((m, n, k), activation, write, offset) in cases {
        let (n, k) = match of {
            Operands::Units => (n, usize::next_multiple_of(k, 8)),
            Operands::Any if n == 0 => (0, k),
            Operands::Any => (n + 1, k - offset),
        };
        let case = Case::<T>::new((m, n, k), normal);
        let width = if activation == Activation::SwiGlu { 2 * k } else { k };
        let (pre, before) = (normal::<T>(m * width, 7), normal::<T>(m * width, 8));
        let [dy, w] = [&case.dy, &case.w].map(|values| Inside::new(on, values, of.offset()));
        let (pre, mut dx) = (Inside::new(on, &pre, offset), Inside::new(on, &before, offset));
        let pre = (activation != Activation::None).then(|| pre.view());
        let mut db = Inside::new(on, &normal::<f32>(width, 9), offset);
        let given = write == Write::Set;
        let through = Through { scale: 0.5, activation, pre, db: given.then(|| db.view_mut()) };
        let shape = Shape { m, n, k };
        matmul::backward_input_through(&on.stream, shape, dy.view(), w.view(), through, write, dx.view_mut()).unwrap();
        found.push(dx.down(on));
        sums.push(db.down(on));
    }
    let (counts, n, k) = ([3, 0, 70], of.size(16), 24);
    let (dy, w) = (normal::<T>(73 * n, 1), normal::<T>(3 * n * k, 2));
    let [dy, w] = [&dy, &w].map(|values| Inside::new(on, values, of.offset()));
    let (mut dx, shape) = (on.garbage::<T>(73 * k), grouped::Shape { counts: &counts, n, k });
    grouped::backward_input(&on.stream, shape, dy.view(), w.view(), Write::Set, dx.as_view_mut()).unwrap();
    found.push(on.down(&dx));
    (found, sums)
}

fn weight<T: Float>(on: &On, of: Operands) -> Vec<Vec<f32>> {
    let mut found = Vec::new();
    for ((m, n, k), offset) in
        [((96, 8, 8), 1), ((200, 72, 136), 0), ((8, 128, 128), 1), ((8, 136, 1032), 0), ((1, 24, 16), 0)]
    {
        // A tile that is full stays so.
        let (n, k) = if k == 128 { (n, k) } else { (of.size(n), of.size(k) + of.offset() * (n % 3)) };
        let case = Case::<T>::new((m + of.offset(), n, k), normal);
        let [x, dy] = [&case.x, &case.dy].map(|values| Inside::new(on, values, of.offset()));
        let mut dw = Inside::new(on, &normal::<f32>(n * k, 4), offset);
        matmul::backward_weight(&on.stream, case.shape, x.view(), dy.view(), dw.view_mut()).unwrap();
        found.push(dw.down(on));
    }
    let (counts, n, k) = ([3, 0, 70], 16, of.size(24));
    let (dy, x) = (normal::<T>(73 * n, 1), normal::<T>(73 * k, 2));
    let [dy, x] = [&dy, &x].map(|values| Inside::new(on, values, of.offset()));
    let (mut dw, shape) = (on.up(&normal::<f32>(3 * n * k, 3)), grouped::Shape { counts: &counts, n, k });
    grouped::backward_weight(&on.stream, shape, x.view(), dy.view(), dw.as_view_mut()).unwrap();
    found.push(on.down(&dw));
    found
}

/// Tries the mutants of one kernel: `settings` make the device choose it. What moves less in wide accesses than it did is as wrong
/// as what computes something else.
fn verdict<R: PartialEq + Sync>(kernel: &str, step: usize, settings: &str, run: impl Fn(&On) -> R + Sync) -> Verdict {
    let program = programs().iter().find(|program| program.op == "matmul").unwrap();
    let counted = |on: &On| {
        let (found, profiles) = on.stream.profile(|| run(on)).unwrap();
        (found, wide_sectors(&profiles))
    };
    let right = counted(&On::open(&format!("software?check=all{settings}")));
    try_mutants_on(settings, program, kernel, &[kernel, "matmul_add_parts"], step, |on| counted(on) == right)
}

const LARGE: &str = "&multiprocessors=1";
const SMALL: &str = "&multiprocessors=1024";

fn of_forward() -> Verdict {
    let both = |on: &On| [forward::<f32>(on, Operands::Units), forward::<f32>(on, Operands::Any)];
    verdict("matmul_forward_large_bf16", 2 * STEP, LARGE, |on| forward::<bf16>(on, Operands::Units))
        .and(verdict("matmul_forward_small_bf16", STEP, SMALL, |on| forward::<bf16>(on, Operands::Units)))
        .and(verdict("matmul_forward_any_bf16", STEP, SMALL, |on| forward::<bf16>(on, Operands::Any)))
        .and(verdict("matmul_forward_large_f32", 2 * STEP, LARGE, both))
        .and(verdict("matmul_forward_small_f32", 2 * STEP, SMALL, both))
}

fn of_the_inputs_gradient() -> Verdict {
    let both = |on: &On| [input::<f32>(on, Operands::Units), input::<f32>(on, Operands::Any)];
    verdict("matmul_backward_input_large_bf16", 2 * STEP, LARGE, |on| input::<bf16>(on, Operands::Units))
        .and(verdict("matmul_backward_input_small_bf16", STEP, SMALL, |on| input::<bf16>(on, Operands::Units)))
        .and(verdict("matmul_backward_input_any_bf16", STEP, SMALL, |on| input::<bf16>(on, Operands::Any)))
        .and(verdict("matmul_backward_input_large_f32", 2 * STEP, LARGE, both))
        .and(verdict("matmul_backward_input_small_f32", 2 * STEP, SMALL, both))
}

fn of_the_weights_gradient() -> Verdict {
    let both = |on: &On| [weight::<f32>(on, Operands::Units), weight::<f32>(on, Operands::Any)];
    verdict("matmul_backward_weight_large_bf16", 2 * STEP, LARGE, |on| weight::<bf16>(on, Operands::Units))
        .and(verdict("matmul_backward_weight_small_bf16", STEP, SMALL, |on| weight::<bf16>(on, Operands::Units)))
        .and(verdict("matmul_backward_weight_any_bf16", STEP, SMALL, |on| weight::<bf16>(on, Operands::Any)))
        .and(verdict("matmul_backward_weight_large_f32", 2 * STEP, LARGE, both))
        .and(verdict("matmul_backward_weight_small_f32", 2 * STEP, SMALL, both))
}

/// Those that survive choose the way for aligned results where they are, or the other one, which give the same bits; read an
/// element past a row whose value goes nowhere; or move a border that no thread of a block comes to.
#[test]
fn mutants_are_killed() {
    of_forward().and(of_the_inputs_gradient()).and(of_the_weights_gradient()).assert_killed();
}
