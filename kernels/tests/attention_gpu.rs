//! The kernels of attention on the software device, under every check: within the derived bounds and the twofold error of the
//! formula at their own precision, with every switch and all of them together.
#![forbid(unsafe_code)]

mod common;

use common::attention::{Case, shape};
use common::attention_bounds::{Bounds, assert_like, round};
use common::ways::{same_bits_in_every_way, same_bits_in_two_ways};
use common::{On, U, assert_within, f64s};
use warpweft_device::{DType, Float, bf16, f16};
use warpweft_kernels::attention::{Dropout, Options, Window};

const LONG: bool = cfg!(feature = "long-tests");

const DROPOUT: Option<Dropout> =
    Some(Dropout { probability: 0.3, seed: 0x1234_5678_9abc, first_sequence: 3, first_head: 5 });

fn window(left: usize, right: usize) -> Window {
    Window { left: Some(left), right: Some(right) }
}

/// out and the gradients at the kernels' precision: of 16-bit storage the formula with their roundings, of f32 the CPU's path.
fn at_its_precision<T: Float>(case: &Case<T>) -> (Vec<f64>, [Vec<f64>; 3]) {
    if T::DTYPE != DType::F32 {
        return (case.reference(Some(round::<T>)).0, case.reference_gradients(Some(round::<T>)));
    }
    let on = On::threads(1);
    let saved = case.forward(&on);
    (f64s(&saved.out), case.backward(&on, &saved).map(|gradient| f64s(&gradient)))
}

/// Runs in every way or in two, and compares all bytes.
fn run<T: Float>(all: bool, lengths: &[usize], work: impl Fn(&On) -> Vec<Vec<T>>) -> Vec<Vec<T>> {
    let joined = |on: &On| work(on).concat();
    let mut rest = &(if all { same_bits_in_every_way(joined) } else { same_bits_in_two_ways(joined) })[..];
    let parts = lengths.iter().map(|&len| {
        let (part, after) = rest.split_at(len);
        rest = after;
        part.to_vec()
    });
    parts.collect()
}

fn check<T: Float>(case: &Case<T>, all: bool) {
    let what = |name: &str| format!("{name} of {:?} {:?} {}", case.shape, case.options, T::DTYPE);
    let bounds = Bounds::of(case);
    let lengths = [&case.q, &case.q, &case.k, &case.v].map(Vec::len);
    let lses = std::sync::Mutex::new(Vec::new());
    let mut given = run(all, &lengths, |on| {
        let saved = case.forward(on);
        let [dq, dk, dv] = case.backward(on, &saved);
        lses.lock().unwrap().push(saved.lse.clone());
        vec![saved.out, dq, dk, dv]
    });
    let lses = lses.into_inner().unwrap();
    assert!(lses.iter().all(|lse| *lse == lses[0]), "{}", what("lse"));
    let (out, lse) = case.reference(None);
    let (low, low_gradients) = at_its_precision(case);
    assert_within(&what("lse"), &lses[0], &lse, |i| bounds.lse + 4.0 * U * lse[i].abs());
    assert_within(&what("out"), &given[0], &out, |_| bounds.out);
    assert_like(&what("out"), &given[0], &out, &low, 2.0);
    let exact = case.reference_gradients(None);
    let names = [("dq", bounds.dq), ("dk", bounds.dk), ("dv", bounds.dv)];
    for (((name, bound), given), (exact, low)) in
        names.into_iter().zip(given.drain(1..)).zip(exact.iter().zip(&low_gradients))
    {
        assert_within(&what(name), &given, exact, |_| bound);
        assert_like(&what(name), &given, exact, low, 3.0);
    }
}

#[test]
fn tiles_are_right_in_every_way() {
    check(&Case::<bf16>::new(shape(1, (70, 75), (2, 1), 64), Options::CAUSAL), true);
    let all = Options { window: window(40, 3), softcap: Some(5.0), dropout: DROPOUT, ..Options::FULL };
    check(&Case::<f16>::of_lengths(&[(33, 50), (20, 7)], (1, 1), 40, all).alibi(), true);
    check(&Case::<f32>::new(shape(1, (40, 41), (2, 1), 24), Options::CAUSAL), true);
}

#[test]
fn other_sizes_of_tiles_are_right_in_every_way() {
    check(&Case::<bf16>::new(shape(1, (20, 100), (1, 1), 128), Options::CAUSAL), true);
    check(&Case::<f16>::new(shape(1, (70, 40), (1, 1), 256), Options::FULL), true);
    check(&Case::<f32>::new(shape(1, (20, 24), (1, 1), 136), Options::CAUSAL), true);
    if LONG {
        check(&Case::<f16>::new(shape(1, (40, 75), (2, 1), 128), Options::CAUSAL), true);
        check(&Case::<bf16>::new(shape(1, (40, 75), (1, 1), 256), Options::CAUSAL), true);
        check(&Case::<f32>::new(shape(1, (40, 41), (1, 1), 256), Options::FULL), true);
    }
}

/// One channel in a thousand, over all heads, is a hundred times as large, as in the activations of large models.
fn with_outliers<T: Float>(length: usize, heads: usize, head_size: usize) -> Case<T> {
    let mut case = Case::<T>::new(shape(1, (length, length), (heads, heads), head_size), Options::CAUSAL);
    let channels = heads * head_size;
    for (x, channel) in [(&mut case.k, channels / 3), (&mut case.v, channels / 2), (&mut case.dout, channels - 1)] {
        x.iter_mut().skip(channel).step_by(channels).for_each(|x| *x = T::from_f32(100.0 * x.to_f32()));
    }
    case
}

#[test]
fn outliers_among_channels_are_right() {
    check(&with_outliers::<bf16>(40, 8, 128), false);
    check(&with_outliers::<f16>(40, 16, 64), false);
    check(&with_outliers::<f32>(20, 16, 64), false);
}

#[test]
fn every_head_size_is_right() {
    for head_size in [8, 32, 40, 64, 80, 96, 128, 256] {
        check(&Case::<bf16>::new(shape(1, (40, 75), (1, 1), head_size), Options::CAUSAL), false);
        check(&Case::<f32>::new(shape(1, (33, 35), (1, 1), head_size), Options::CAUSAL), false);
        if LONG {
            check(&Case::<bf16>::new(shape(1, (70, 150), (1, 1), head_size), Options::CAUSAL), false);
            check(&Case::<f16>::new(shape(1, (33, 65), (2, 1), head_size), Options::FULL), false);
            check(&Case::<bf16>::new(shape(2, (100, 170), (4, 2), head_size), Options::CAUSAL), false);
        }
    }
}

#[test]
fn queries_and_keys_may_differ_in_number() {
    let few = [(1, 239), (113, 203), (0, 5), (5, 0), (5, 3), (1, 1)];
    let more = [(127, 512), (300, 7), (3, 799)];
    for lengths in few.into_iter().chain(more.into_iter().filter(|_| LONG)) {
        check(&Case::<bf16>::new(shape(1, lengths, (1, 1), 64), Options::CAUSAL), false);
        if LONG {
            check(&Case::<f16>::new(shape(1, lengths, (1, 1), 72), Options::FULL), false);
            check(&Case::<f16>::new(shape(1, lengths, (2, 1), 256), Options::CAUSAL), false);
        }
        if LONG || lengths.1 < 100 {
            check(&Case::<f32>::new(shape(1, lengths, (1, 1), 16), Options::CAUSAL), false);
        }
    }
    // More tiles than one in every kernel, in each direction.
    check(&Case::<f16>::new(shape(1, (3, 300), (1, 1), 128), Options::CAUSAL), false);
    check(&Case::<bf16>::new(shape(1, (140, 7), (1, 1), 64), Options::FULL), false);
    if LONG {
        check(&Case::<bf16>::new(shape(1, (1023, 1024), (1, 1), 128), Options::CAUSAL), false);
        check(&Case::<f16>::new(shape(1, (1023, 1024), (1, 1), 64), Options::FULL), false);
    }
}

/// Each switch alone, and together.
fn switches() -> Vec<Options> {
    let full = Options::FULL;
    vec![
        Options { window: window(20, 5), ..full },
        Options { window: Window { left: Some(17), right: None }, ..Options::CAUSAL },
        Options { window: Window { left: None, right: Some(30) }, ..full },
        Options { window: window(200, 0), ..full },
        Options { softcap: Some(2.0), ..full },
        Options { scale: Some(-0.2), ..full },
        Options { scale: Some(0.0), ..Options::CAUSAL },
        Options { dropout: DROPOUT, ..full },
        Options { window: window(40, 3), softcap: Some(5.0), dropout: DROPOUT, scale: Some(0.3), causal: true },
    ]
}

#[test]
fn every_switch_is_right() {
    for (i, options) in switches().into_iter().enumerate() {
        for alibi in [false, true] {
            let with = |case: Case<bf16>| if alibi { case.alibi() } else { case };
            if alibi == (i % 2 == 1) {
                check(&with(Case::new(shape(1, (60, 140), (1, 1), 64), options)), false);
            }
            if LONG || (i % 3 == 2 && alibi) {
                let case = Case::<f16>::new(shape(2, (40, 90), (2, 1), 80), options);
                check(&if alibi { case.alibi() } else { case }, false);
                let case = Case::<f32>::new(shape(2, (35, 40), (2, 1), 40), options);
                check(&if alibi { case.alibi() } else { case }, false);
            }
            if LONG {
                check(&with(Case::new(shape(1, (140, 160), (1, 1), 64), options)), false);
                check(&with(Case::new(shape(1, (100, 90), (2, 1), 160), options)), false);
            }
        }
    }
}

#[test]
fn sequences_of_unequal_length_are_right() {
    let lengths = [(5, 9), (0, 4), (130, 131), (7, 0), (0, 0), (64, 200)];
    check(&Case::<bf16>::of_lengths(&lengths, (4, 2), 64, Options::CAUSAL), false);
    let all = Options { window: window(60, 3), softcap: Some(5.0), dropout: DROPOUT, ..Options::FULL };
    check(&Case::<f16>::of_lengths(&lengths, (2, 1), 128, all).alibi(), false);
    check(&Case::<f32>::of_lengths(&lengths, (2, 1), 24, all).alibi(), false);
}
