//! The kernels of the optimizers on the software device: the bits of the CPU's.
#![forbid(unsafe_code)]

mod common;

use common::On;
use common::counters::{assert_bound_by_memory, assert_bound_by_memory_but, profiles};
use common::optimizer::{From, LAST, Size, run, stochastic};
use common::trial::{Trial, Verdict, sample};
use common::ways::Ways;
use warpweft_device::{Buffer, DType, Float, ViewMut, bf16, f16};
use warpweft_kernels::norm::{self, clip_coefficient};
use warpweft_kernels::optimizer::{self, Adam, Control, Numbers, Options, Place, Rule, Sgd, Step, Tensor};
use warpweft_kernels::{KernelError, embedding};

/// Less than a warp and misaligned, nothing, a warp and more, one chunk, a chunk and more.
const SIZES: [Size; 6] =
    [(3, 1, true), (0, 8, true), (130, 8, false), (16_384, 8, true), (16_391, 1, false), (33_000, 8, true)];
const SMALL: &[Size] = &[(3, 1, true), (0, 8, true), (130, 8, false), (45, 8, true)];
/// So far that bf16 sees it.
const HALF: Step = Step { lr: 0.5, number: 1, grad_scale: 1.0 };
const TWO: [Step; 2] = [Step { lr: 0.02, number: 1, grad_scale: 1.0 }, LAST];

const fn of(rule: Rule) -> Options {
    Options { rule, weight_decay: 0.1, rounding: optimizer::Rounding::Nearest }
}

const ADAM: Adam = Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8 };
const ADAMW: Options = of(Rule::AdamW(ADAM));
const L2: Options = of(Rule::Adam(ADAM));
/// Without momentum, dampening is of nothing.
const PLAIN: Options = of(Rule::Sgd(Sgd { momentum: 0.0, dampening: 0.5, nesterov: false }));
const MOMENTUM: Options = of(Rule::Sgd(Sgd { momentum: 0.9, dampening: 0.25, nesterov: false }));
const NESTEROV: Options = of(Rule::Sgd(Sgd { momentum: 0.9, dampening: 0.0, nesterov: true }));

#[track_caller]
fn check<T: Float, M: Float>(sizes: &[Size], master: bool, options: Options, ways: Ways) {
    let right = run::<T, M>(&On::threads(1), sizes, master, options, (From::Host, &TWO));
    for from in [From::Host, From::Device] {
        assert!(ways.same(|on| run::<T, M>(on, sizes, master, options, (from, &TWO))) == right, "{options:?}");
    }
}

#[test]
fn steps_are_the_cpus_to_the_bit_in_every_way() {
    check::<f32, f32>(SMALL, false, ADAMW, Ways::EVERY);
    check::<bf16, bf16>(SMALL, true, L2, Ways::EVERY);
    check::<f16, f32>(SMALL, false, MOMENTUM, Ways::EVERY);
    check::<bf16, f32>(SMALL, false, stochastic(NESTEROV, 7), Ways::EVERY);
}

#[test]
fn steps_of_many_chunks_are_the_cpus_to_the_bit() {
    for options in [ADAMW, L2, PLAIN, MOMENTUM, NESTEROV] {
        check::<f32, f32>(&SIZES, false, options, Ways::TWO);
        check::<bf16, bf16>(&SIZES, true, options, Ways::TWO);
        check::<bf16, f32>(&SIZES, false, stochastic(options, 1 << 40 | 5), Ways::TWO);
    }
    check::<f32, bf16>(&SIZES, true, ADAMW, Ways::TWO);
    check::<f16, bf16>(&SIZES, false, ADAMW, Ways::TWO);
    check::<f16, f32>(&SIZES, true, NESTEROV, Ways::TWO);
}

#[test]
fn numbers_of_the_device_are_the_hosts_at_every_step() {
    let (on, cpu) = (On::software(), On::threads(1));
    for number in [1, 2, 3, 1000, 123_456, 1 << 40] {
        let steps = [Step { lr: 0.3, number, grad_scale: 1.7 }];
        for options in [ADAMW, L2, MOMENTUM] {
            let right = run::<f32, f32>(&cpu, SMALL, false, options, (From::Host, &steps));
            for on in [&on, &cpu] {
                for from in [From::Device, From::Kernel] {
                    assert_eq!(run::<f32, f32>(on, SMALL, false, options, (from, &steps)), right, "{number}");
                }
            }
        }
    }
}

/// One tensor of ones on a device, all of whose gradients are given.
struct Ones<T: Float> {
    w: Buffer<T>,
    grad: Buffer<f32>,
    m: Buffer<f32>,
    v: Buffer<f32>,
}

impl<T: Float> Ones<T> {
    fn new(on: &On, grads: &[f32]) -> Self {
        let zeros = vec![0f32; grads.len()];
        let [grad, m, v] = [grads, &zeros, &zeros].map(|values| on.up(values));
        Self { w: on.up(&vec![T::from_f32(1.0); grads.len()]), grad, m, v }
    }

    fn step(&mut self, on: &On, options: Options, numbers: Numbers<'_>) -> Result<(), KernelError> {
        let adam = !matches!(options.rule, Rule::Sgd(_));
        let (param, grad, place) = (self.w.as_view_mut(), self.grad.as_view(), Place::default());
        let (m, v) = (Some(self.m.as_view_mut()), adam.then(|| self.v.as_view_mut()));
        optimizer::step(
            &on.stream,
            options,
            numbers,
            &mut [Tensor { param, master: None, grad, m, v, decay: false, place }],
        )
    }
}

/// A step by numbers on the device: the parameters, and what the device says then.
fn controlled<T: Float>(on: &On, options: Options, control: &Buffer<f64>, grads: &[f32]) -> (Vec<T>, Option<String>) {
    let mut ones = Ones::new(on, grads);
    let done = ones.step(on, options, Numbers::Device(control.as_view())).map_err(|error| error.to_string());
    let said = done.and_then(|()| on.stream.synchronize().map_err(|error| error.to_string())).err();
    (on.down(&ones.w), said)
}

#[test]
fn the_device_skips_a_step_and_notes_one_that_cannot_be() {
    let good = Control { lr: 0.5, step: 3.0, grad_scale: 1.0, skip: 0.0, norm: f64::NAN };
    let numbers = [
        (good, true, None),
        (Control { skip: 1.0, ..good }, false, None),
        (Control { grad_scale: f64::NAN, ..good }, false, None),
        (Control { grad_scale: f64::NEG_INFINITY, ..good }, false, None),
        (Control { step: 0.0, ..good }, false, Some("step")),
        (Control { step: 1.5, ..good }, false, Some("step")),
        (Control { step: f64::NAN, ..good }, false, Some("step")),
        (Control { step: -1.0, ..good }, false, Some("step")),
        (Control { lr: -0.5, ..good }, false, Some("rate")),
        (Control { lr: f64::INFINITY, ..good }, false, Some("rate")),
        (Control { lr: 0.0, ..good }, false, None),
    ];
    for (control, moves, word) in numbers {
        let on = On::software_with_nans();
        let buffer = on.up(&control.to_array());
        let (w, said) = controlled::<bf16>(&on, ADAMW, &buffer, &[1.0; 5]);
        assert_eq!(w != [bf16::ONE; 5], moves, "{control:?}");
        match (&said, word) {
            (None, None) => {}
            (Some(said), Some(word)) => assert!(said.contains("`control`") && said.contains(word), "{said}"),
            _ => panic!("{control:?}: {said:?}"),
        }
        // The CPU says it at once.
        let cpu = On::threads(1);
        let (same, at_once) = controlled(&cpu, ADAMW, &cpu.up(&control.to_array()), &[1.0; 5]);
        assert_eq!((same, at_once.is_some()), (w, said.is_some()), "{control:?}");
    }
}

/// The norm, the factor and the step, without a look of the host between them: the parameters and the control.
fn chain(on: &On, grads: &[f32], grad_scale: f64, max_norm: f64) -> (Vec<bf16>, Control) {
    let (mut control, mut sum) = (on.up(&[f64::MAX; Control::LEN]), on.up(&[f64::MAX]));
    let grad = on.up(grads);
    let step = Step { lr: 0.25, number: 5, grad_scale };
    Control::begin(&on.stream, step, control.as_view_mut()).unwrap();
    norm::sum_of_squares_into(&on.stream, &[grad.as_view()], sum.as_view_mut()).unwrap();
    norm::clip(&on.stream, sum.as_view(), max_norm, control.as_view_mut()).unwrap();
    let (w, said) = controlled(on, ADAMW, &control, grads);
    assert_eq!(said, None);
    (w, Control::from_slice(&on.down(&control)))
}

#[test]
fn norm_clip_and_step_need_no_host_between_them() {
    let whole = common::integers::<f32>(20_000, 3);
    let norm_of =
        |grads: &[f32], scale: f64| (grads.iter().map(|g| f64::from(*g) * f64::from(*g)).sum::<f64>()).sqrt() * scale;
    let infinity = f64::INFINITY;
    for (grads, scale, most) in [
        (whole.clone(), 1.0, 1.0),
        (whole.clone(), 1.0 / 1024.0, 1.0),
        (whole, 1.0, infinity),
        (vec![0.0; 7], 1.0, 1.0),
        (vec![1e30; 4], 1.0, 1.0),
        (vec![2.0; 4], 1.0, 0.0),
    ] {
        let (w, control) = chain(&On::software(), &grads, scale, most);
        let norm = norm_of(&grads, scale);
        assert_eq!((control.norm, control.skip), (norm, 0.0));
        assert_eq!(control.grad_scale, scale * clip_coefficient(norm, most));
        assert_eq!((w, control), chain(&On::threads(1), &grads, scale, most));
    }
    for bad in [f32::NAN, f32::INFINITY] {
        let (w, control) = chain(&On::software_with_nans(), &[1.0, bad], 1.0, 1.0);
        assert_eq!((w, control.skip), (vec![bf16::ONE; 2], 1.0));
    }
}

#[test]
fn wrong_controls_and_norms_are_named() {
    let on = On::software();
    let (mut control, sum) = (on.up(&[7.0; Control::LEN]), on.up(&[1.0, 2.0]));
    let begin = |step, control: ViewMut<'_, f64>| Control::begin(&on.stream, step, control).unwrap_err().to_string();
    let zero = Step { number: 0, ..Step::default() };
    assert!(begin(zero, control.as_view_mut()).contains("`step` is 0"));
    let rate = Step { lr: f64::NAN, ..Step::default() };
    assert!(begin(rate, control.as_view_mut()).contains("`lr` is NaN"));
    assert!(begin(Step::default(), control.view_mut(..4).unwrap()).contains("`control` has 4 elements"));
    let one = sum.view(..1).unwrap();
    let error = norm::clip(&on.stream, one, f64::NAN, control.as_view_mut()).unwrap_err().to_string();
    assert_eq!(error, "norm clip: `max_norm` is NaN; it must be at least 0");
    let error = norm::clip(&on.stream, sum.as_view(), 1.0, control.as_view_mut()).unwrap_err().to_string();
    assert!(error.contains("`sum` has 2 elements"), "{error}");
    assert_eq!(on.down(&control), [7.0; Control::LEN]);
}

/// One step after a kernel before it has found a token outside its vocabulary: the error, and the parameters as they are then.
fn after_wrong_data<T: Float>(on: &On, options: Options, numbers: Numbers<'_>) -> (String, Vec<T>) {
    let shape = embedding::Shape { batch: 1, tokens: 1, vocab: 4, channels: 2, positions: 0 };
    let (ids, table, mut y) = (on.up(&[9u32]), on.up(&[bf16::ZERO; 8]), on.up(&[bf16::ZERO; 2]));
    let mut ones = Ones::new(on, &[1.0; 5]);
    // The last before the step: a copy to the device waits for it, and would be the one to report.
    embedding::forward(&on.stream, shape, ids.as_view(), table.as_view(), None, y.as_view_mut()).unwrap();
    ones.step(on, options, numbers).unwrap();
    let error = on.stream.synchronize().unwrap_err().to_string();
    (error, on.down(&ones.w))
}

/// Neither that step nor one that is to be skipped is taken.
fn skips<T: Float>(on: &On, options: Options) -> bool {
    let skip = on.up(&Control { lr: 0.5, step: 3.0, grad_scale: 1.0, skip: 1.0, norm: 0.0 }.to_array());
    let untouched = [T::from_f32(1.0); 5];
    after_wrong_data::<T>(on, options, Numbers::Host(HALF)).1 == untouched
        && controlled::<T>(on, options, &skip, &[1.0; 5]).0 == untouched
}

#[test]
fn a_step_on_wrong_data_is_skipped() {
    let on = On::software();
    // The first that is found stays noted.
    let none = on.up(&[0.0; Control::LEN]);
    for numbers in [Numbers::Host(HALF), Numbers::Device(none.as_view())] {
        let (error, w) = after_wrong_data::<bf16>(&on, ADAMW, numbers);
        assert!(error.contains("9 in row 0") && error.contains("less than 4"), "{error}");
        assert_eq!(w, [bf16::ONE; 5]);
    }
}

#[test]
fn every_byte_is_moved_once() {
    let sizes = [(65_536, 8, true), (16_384, 8, false)];
    let count = |master, rule| {
        let steps = (From::Host, &TWO[..1]);
        let f32s = profiles(|on| drop(run::<f32, f32>(on, &sizes, false, rule, steps)));
        assert_bound_by_memory("f32", &f32s, 0);
        // Of 30 bytes an element with master, or 24 without it, 2 or 4 are of bf16, which go 8 bytes at a time.
        let bf16s = profiles(|on| drop(run::<bf16, f32>(on, &sizes, master, rule, steps)));
        assert_bound_by_memory_but("bf16", &bf16s, 0, 30);
    };
    count(true, ADAMW);
    count(false, L2);
    count(true, MOMENTUM);
}

#[test]
fn nothing_to_do_and_step_0() {
    let on = On::software();
    optimizer::step::<f32, f32>(&on.stream, ADAMW, Step::default(), &mut []).unwrap();
    let zero = Step { number: 0, ..Step::default() };
    let error = optimizer::step::<f32, f32>(&on.stream, ADAMW, zero, &mut []).unwrap_err();
    assert!(matches!(error, KernelError::Size { argument: "step", given: 0, .. }), "{error}");
}

/// What takes every path of a step's kernel but for wrong data: aligned and not, shorter and longer than a block has threads, with
/// decay and without, every kind of state, more than a chunk.
fn paths<T: Float>(on: &On, rules: [Options; 2]) -> Vec<Vec<f64>> {
    let few = [(3, 1, true), (300, 3, true), (130, 8, true), (301, 3, false), (45, 8, false)];
    let chunks = [(16_391, 1, true), (16_400, 8, false)];
    let mut all = Vec::new();
    for rule in rules {
        for master in [true, false] {
            all.push(run::<T, f32>(on, &few, master, rule, (From::Host, &TWO)));
            all.push(run::<T, bf16>(on, &few, master, rule, (From::Host, &TWO)));
        }
        all.push(run::<T, f32>(on, &chunks, true, rule, (From::Host, &TWO[1..])));
        if T::DTYPE == DType::BF16 {
            all.push(run::<T, f32>(on, &few, false, stochastic(rule, 9), (From::Host, &TWO[1..])));
            all.push(run::<T, bf16>(on, &few, false, stochastic(rule, 9), (From::Host, &TWO[..1])));
        }
    }
    all
}

/// Tries the mutants of a rule's kernel: the bits of the CPU are what all must have.
fn mutants<T: Float>(rule: &str, options: &[[Options; 2]], most: usize) -> Verdict {
    let right: Vec<_> = options.iter().map(|rules| paths::<T>(&On::threads(1), *rules)).collect();
    Trial::of("optimizer", &format!("optimizer_{rule}_{}", T::DTYPE), most).verdict(|on, judge| {
        options.iter().zip(&right).for_each(|(rules, right)| judge.holds(paths::<T>(on, *rules) == *right));
        judge.holds(skips::<T>(on, options[0][0]));
    })
}

#[test]
fn mutants_of_adam_are_killed() {
    let of = [[ADAMW, L2]];
    let few = sample(8, usize::MAX);
    let all = mutants::<bf16>("adam", &of, sample(30, usize::MAX));
    all.and(mutants::<f32>("adam", &of, few)).and(mutants::<f16>("adam", &of, few)).assert_killed();
}

#[test]
fn mutants_of_sgd_are_killed() {
    let of = [[MOMENTUM, NESTEROV], [PLAIN, MOMENTUM]];
    let few = sample(8, usize::MAX);
    let all = mutants::<bf16>("sgd", &of, sample(30, usize::MAX));
    all.and(mutants::<f32>("sgd", &of, few)).and(mutants::<f16>("sgd", &of, few)).assert_killed();
}

#[test]
fn mutants_of_the_control_are_killed() {
    let good = Control { lr: 0.5, step: 3.0, grad_scale: 1.0, skip: 0.0, norm: 0.0 };
    let bad = [
        Control { step: 0.0, ..good },
        Control { step: 1.5, ..good },
        Control { step: 2f64.powi(53), ..good },
        Control { lr: -0.5, ..good },
        Control { lr: f64::INFINITY, ..good },
        Control { lr: 0.0, ..good },
        Control { skip: 1.0, ..good },
        Control { grad_scale: f64::INFINITY, ..good },
    ];
    let all = |on: &On| {
        let told = bad.map(|control| controlled::<bf16>(on, ADAMW, &on.up(&control.to_array()), &[1.0; 5]));
        let steps = [1, 2, 3, 1000].map(|number| {
            let steps = [Step { lr: 0.3, number, grad_scale: 1.7 }];
            let kernel = (From::Kernel, &steps[..]);
            (run::<f32, f32>(on, SMALL, false, ADAMW, kernel), run::<f32, f32>(on, SMALL, false, MOMENTUM, kernel))
        });
        let none = on.up(&[0.0; Control::LEN]);
        let wrong = after_wrong_data::<bf16>(on, ADAMW, Numbers::Device(none.as_view()));
        (told, steps, chain(on, &[3.0; 40], 0.5, 1.0), wrong)
    };
    let right = all(&On::software());
    let verdict = ["optimizer_prepare", "optimizer_begin"]
        .map(|kernel| Trial::of("optimizer", kernel, usize::MAX).verdict(|on, judge| judge.holds(all(on) == right)));
    let [prepare, begin] = verdict;
    prepare.and(begin).assert_killed();
}
