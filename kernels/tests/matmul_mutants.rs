//! The kernels of the matrix products broken on purpose: what they compute, or what the software device says, must show it.
#![forbid(unsafe_code)]

mod common;

use common::products::{ACTIVATIONS, Case, Inside, PLAIN, With, activate, arguments, backward_activation};
use common::trial::{Judge, Trial, Verdict, sample};
use common::{On, normal};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::Write;
use warpweft_kernels::matmul::{self, Activation, Shape, Through};
use warpweft_kernels::moe::grouped;

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

/// Lengths of a sum that leave every number of zeros in front of its first step of 32.
fn lengths(of: Operands) -> impl Iterator<Item = usize> {
    (1..=32).filter(move |length| matches!(of, Operands::Any) || length % 8 == 0)
}

/// Every way through a kernel: one step, more than the pipeline holds, the last rows and columns, bands of tiles, a tile that is
/// full, columns that are no multiple of four, results that are not aligned, each part of an epilogue.
fn forward<T: Float>(on: &On, judge: &mut Judge<'_>, of: Operands) {
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
        ((2, 136, 128), With { activation: Activation::SwiGlu, ..PLAIN }),
        ((129, 1032, 8), PLAIN),
    ];
    for k in lengths(of) {
        judge.see(&Case::<T> { offset: of.offset(), ..Case::new((3, 8, k), normal) }.forward(on, PLAIN).0);
    }
    for ((m, n, k), with) in cases {
        let k = if k == 0 { 0 } else { of.size(k) };
        let (y, pre) = Case::<T> { offset: of.offset(), ..Case::new((m, n, k), normal) }.forward(on, with);
        judge.see(&y);
        judge.see(&pre);
    }
    ends_of_rows::<T>(on, judge, of);
    // A group that ends with a tile, while another has one more.
    let (counts, n, k) = ([128, 0, 129], 24, of.size(16));
    let rows = counts.iter().sum::<usize>();
    let (x, w) = (normal::<T>(rows * k, 1), normal::<T>(3 * n * k, 2));
    let [x, w] = [&x, &w].map(|values| Inside::new(on, values, of.offset()));
    // Results of whole fours that are not aligned.
    let [mut y, mut pre] = [rows * n / 2, rows * n].map(|len| Inside::new(on, &vec![T::from_f32(0.0); len], 1));
    let (shape, keep) = (grouped::Shape { counts: &counts, n, k }, Some(pre.view_mut()));
    grouped::forward(&on.stream, shape, x.view(), w.view(), Activation::SwiGlu, keep, y.view_mut()).unwrap();
    judge.see(&y.down(on));
    judge.see(&pre.down(on));
}

/// Rows of results that end behind one, two, three and four elements of those that a thread has, and none of which is aligned.
fn ends_of_rows<T: Float>(on: &On, judge: &mut Judge<'_>, of: Operands) {
    for (columns, bias) in [5, 6, 7, 8].into_iter().flat_map(|columns| [(columns, false), (columns, true)]) {
        for (activation, n) in [(Activation::GeluErf, columns), (Activation::SwiGlu, 2 * columns)] {
            let case = Case::<T> { offset: of.offset(), beside: 1, ..Case::new((2, n, 8), normal) };
            let (y, pre) = case.forward(on, With { bias, activation, pre: true, residual: true, ..PLAIN });
            judge.see(&y);
            judge.see(&pre);
        }
    }
}

fn input<T: Float>(on: &On, judge: &mut Judge<'_>, of: Operands) {
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
    for n in lengths(of) {
        let case = Case::<T> { offset: of.offset(), ..Case::new((3, n, 8), normal) };
        judge.see(&case.backward_input(on, Write::Set, T::from_f32(0.0)));
    }
    // Rows that end behind one, two, three and four elements of those that a thread has, and are not aligned.
    let ends = (if let Operands::Any = of { 6..=9 } else { 9..=9 }).flat_map(|k| {
        let activations = [Activation::None, Activation::GeluErf, Activation::SwiGlu];
        activations
            .into_iter()
            .flat_map(move |activation| [Write::Set, Write::Add].map(|write| ((2, 8, k), activation, write, 1)))
    });
    for ((m, n, k), activation, write, offset) in cases.into_iter().chain(ends) {
        let (n, k) = match of {
            Operands::Units => (n, usize::next_multiple_of(k - offset, 8)),
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
        judge.see(&dx.down(on));
        judge.see(&db.down(on));
    }
    let (counts, n, k) = ([3, 0, 70], of.size(16), 24);
    let (dy, w) = (normal::<T>(73 * n, 1), normal::<T>(3 * n * k, 2));
    let [dy, w] = [&dy, &w].map(|values| Inside::new(on, values, of.offset()));
    let (mut dx, shape) = (on.garbage::<T>(73 * k), grouped::Shape { counts: &counts, n, k });
    grouped::backward_input(&on.stream, shape, dy.view(), w.view(), Write::Set, dx.as_view_mut()).unwrap();
    judge.see(&on.down(&dx));
}

fn weight<T: Float>(on: &On, judge: &mut Judge<'_>, of: Operands) {
    for m in lengths(of) {
        let case = Case::<T> { offset: of.offset(), ..Case::new((m, 8, 8), normal) };
        judge.see(&case.backward_weight(on, 0.25));
    }
    let cases = [
        ((96, 8, 8), 1),
        ((200, 72, 136), 0),
        ((8, 128, 128), 1),
        ((8, 128, 128), 0),
        ((8, 136, 1032), 0),
        ((1, 24, 16), 0),
        // Rows of whole fours that are aligned, whatever the operands are.
        ((1, 24, 12), 0),
    ];
    for ((m, n, k), offset) in cases {
        // A tile that is full stays so.
        let (n, k) = match (k, of) {
            (128, _) | (12, Operands::Any) => (n, k),
            (12, Operands::Units) => (n, 16),
            _ => (of.size(n), of.size(k) + of.offset() * (n % 3)),
        };
        let case = Case::<T>::new((m + of.offset(), n, k), normal);
        let [x, dy] = [&case.x, &case.dy].map(|values| Inside::new(on, values, of.offset()));
        let mut dw = Inside::new(on, &normal::<f32>(n * k, 4), offset);
        matmul::backward_weight(&on.stream, case.shape, x.view(), dy.view(), dw.view_mut()).unwrap();
        judge.see(&dw.down(on));
    }
    let (counts, n, k) = ([3, 0, 70], 16, of.size(24));
    let (dy, x) = (normal::<T>(73 * n, 1), normal::<T>(73 * k, 2));
    let [dy, x] = [&dy, &x].map(|values| Inside::new(on, values, of.offset()));
    // To what a group without rows has nothing is added, not even to -0.
    let mut before = normal::<f32>(3 * n * k, 3);
    before[n * k..2 * n * k].fill(-0.0);
    let (mut dw, shape) = (on.up(&before), grouped::Shape { counts: &counts, n, k });
    grouped::backward_weight(&on.stream, shape, x.view(), dy.view(), dw.as_view_mut()).unwrap();
    judge.see(&on.down(&dw));
}

/// Activations by themselves, of whole units of 16 bytes and of any number, from places that are aligned and not.
fn activations<T: Float>(on: &On, judge: &mut Judge<'_>) {
    for activation in ACTIVATIONS {
        for (m, n) in [(3, 48), (3, 26), (1, 2 * 1032), (9, 514)] {
            let shape = Shape { m, n, k: 0 };
            let (pre, dy) = (arguments::<T>(m * n), normal::<T>(m * activation.outputs(n), 8));
            judge.see(&activate(on, shape, activation, &pre));
            judge.see(&backward_activation(on, shape, activation, &pre, &dy));
        }
    }
}

/// Bias gradients of one part of the rows and of more, of columns that end in a block and that do not.
fn bias<T: Float>(on: &On, judge: &mut Judge<'_>) {
    for ((m, n), offset) in [((3, 40), 0), ((130, 136), 0), ((129, 33), 1), ((1030, 5), 0), ((2, 520), 0)] {
        judge.see(&Case::<T> { offset, ..Case::new((m, n, 0), normal) }.backward_bias(on, 0.25));
    }
}

/// A device for which products choose large tiles, and one for which they choose small ones.
const LARGE: &str = "&multiprocessors=1";
const SMALL: &str = "&multiprocessors=1024";

type Proof = fn(&On, &mut Judge<'_>, Operands);

/// Tries the mutants of the kernels of one product in one type.
fn products<T: Float>(call: &str, most: usize, proof: Proof) -> Verdict {
    let units = |on: &On, judge: &mut Judge<'_>| proof(on, judge, Operands::Units);
    let any = |on: &On, judge: &mut Judge<'_>| proof(on, judge, Operands::Any);
    let name = |tile: &str| format!("matmul_{call}_{tile}_{}", T::DTYPE);
    let trial = |tile: &str, settings, proof: &(dyn Fn(&On, &mut Judge<'_>) + Sync)| {
        let kernel = name(tile);
        let beside = [kernel.as_str(), "matmul_add_parts"];
        Trial { settings, beside: &beside, ..Trial::of("matmul", &kernel, most) }.verdict(proof)
    };
    if size_of::<T>() == 2 {
        let tiles = trial("large", LARGE, &units).and(trial("small", SMALL, &units));
        return tiles.and(trial("any", SMALL, &any));
    }
    let both = |on: &On, judge: &mut Judge<'_>| {
        units(on, judge);
        any(on, judge);
    };
    trial("large", LARGE, &both).and(trial("small", SMALL, &both))
}

fn of_type<T: Float>(most: usize) -> Verdict {
    let all = products::<T>("forward", most, forward::<T>);
    let all = all.and(products::<T>("backward_input", most, input::<T>));
    all.and(products::<T>("backward_weight", most, weight::<T>))
}

#[test]
fn mutants_of_products_by_tensor_cores_are_killed() {
    of_type::<bf16>(sample(10, 60)).and(of_type::<f16>(sample(3, 20))).assert_killed();
}

#[test]
fn mutants_of_products_in_f32_are_killed() {
    of_type::<f32>(sample(6, 40)).assert_killed();
}

#[test]
fn mutants_beside_the_products_are_killed() {
    fn tried<T: Float>(most: usize) -> Verdict {
        let [alone, gradient, sums] =
            ["activate", "backward_activation", "backward_bias"].map(|call| format!("matmul_{call}_{}", T::DTYPE));
        let of = |kernel: &str, proof: fn(&On, &mut Judge<'_>)| {
            let beside = [alone.as_str(), &gradient, &sums, "matmul_add_parts"];
            Trial { beside: &beside, ..Trial::of("matmul", kernel, most) }.verdict(proof)
        };
        let verdict = of(&alone, activations::<T>).and(of(&gradient, activations::<T>)).and(of(&sums, bias::<T>));
        if size_of::<T>() == 4 { verdict.and(of("matmul_add_parts", bias::<T>)) } else { verdict }
    }
    let few = sample(8, 40);
    tried::<f32>(few).and(tried::<bf16>(few)).and(tried::<f16>(few / 2)).assert_killed();
}
