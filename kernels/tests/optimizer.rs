//! The optimizers: AdamW, Adam and SGD against PyTorch's own numbers over six steps, against the f64 formula within the bound
//! of one step, every kind of parameter, and what wrong settings do.
#![forbid(unsafe_code)]

mod common;

use common::{On, U, assert_within, f64s, normal, same_bits_for_threads};
use warpweft_device::{Buffer, Float, bf16, f16};
use warpweft_kernels::optimizer::reference::{self, Element};
use warpweft_kernels::optimizer::{self, Adam, Options, Place, Rounding, Rule, Sgd, Step, Tensor};
use warpweft_kernels::philox::Philox4x32;

/// A tensor in buffers of its own.
struct Owned<T> {
    param: Buffer<T>,
    master: Option<Buffer<f32>>,
    grad: Buffer<f32>,
    m: Buffer<f32>,
    v: Buffer<f32>,
    decay: bool,
}

impl<T: Float> Owned<T> {
    /// A fresh tensor: no moments yet.
    fn new(on: &On, param: &[T], decay: bool) -> Self {
        let zeros = || on.device.zeros(param.len()).unwrap();
        Self { param: on.up(param), master: None, grad: zeros(), m: zeros(), v: zeros(), decay }
    }

    fn tensor(&mut self) -> Tensor<'_, T> {
        Tensor {
            param: self.param.as_view_mut(),
            master: self.master.as_mut().map(|master| master.as_view_mut()),
            grad: self.grad.as_view(),
            m: Some(self.m.as_view_mut()),
            v: Some(self.v.as_view_mut()),
            decay: self.decay,
            place: Place::default(),
        }
    }
}

/// `torch.optim.AdamW` of torch 2.15.0 on the CPU in float64, not foreach and not fused, with the settings and
/// gradients below: the parameter after each of six steps, and the moments after the last.
const PYTORCH: [[f64; 5]; 6] = [
    [0.4335939884176696, -1.1777344226836794, 1.9218750198682086, 0.06249988079093782, -0.0612646218385214],
    [0.36988293364449226, -1.1067681236274118, 1.844360391143697, 0.05784494175286277, -0.12096177544239545],
    [0.30710310098513155, -1.0379368738827828, 1.7674513454560954, 0.0784728695956165, -0.1797998548593518],
    [0.2446503498573829, -0.972525468554714, 1.6911431516879283, 0.0736931415825049, -0.2383643335675992],
    [0.18225343798900193, -0.9124759650986145, 1.615431115683575, 0.08605909087736816, -0.2969178102489339],
    [0.11977361453743232, -0.8605550492731604, 1.5403105799605057, 0.08122009551049286, -0.3555942579040183],
];
const PYTORCH_M: [f64; 5] =
    [0.5353918075561523, -0.2914152145385742, 1.6536140441894531, 0.018373489379882812, 0.000522843562066555];
const PYTORCH_V: [f64; 5] =
    [0.1714704799815081, 0.09438904415583238, 1.561030081473291, 0.043361946707591414, 1.6352699278021632e-07];
const START: [f32; 5] = [0.5, -1.25, 2.0, 0.0, 1e-3];

fn settings() -> Options {
    let rule = Rule::AdamW(Adam { beta1: 0.875, beta2: 0.96875, eps: 2f64.powi(-20) });
    Options { rule, weight_decay: 0.125, ..Options::default() }
}

fn sgd(sgd: Sgd) -> Options {
    Options { rule: Rule::Sgd(sgd), weight_decay: 0.125, ..Options::default() }
}

fn now(number: u64) -> Step {
    Step { lr: 0.0625, number, grad_scale: 1.0 }
}

fn gradients(step: u64) -> [f32; 5] {
    let (t, sign) = (step as f32, if step.is_multiple_of(2) { 0.5 } else { -0.5 });
    [0.25 * t, -1.5 + 0.25 * t, 3.0, sign, t / 4096.0]
}

#[test]
fn the_reference_is_pytorch() {
    let mut elements = START.map(|w| Element { w: f64::from(w), m: 0.0, v: 0.0 });
    // PyTorch started from float64's own 1e-3.
    elements[4].w = 1e-3;
    for (step, expected) in (1..).zip(PYTORCH) {
        for ((element, grad), expected) in elements.iter_mut().zip(gradients(step)).zip(expected) {
            *element = reference::step(&settings(), &now(step), true, *element, f64::from(grad));
            assert!((element.w - expected).abs() <= 1e-14, "step {step}: {} for {expected}", element.w);
        }
    }
    for (i, element) in elements.iter().enumerate() {
        assert!((element.m - PYTORCH_M[i]).abs() <= 1e-14 && (element.v - PYTORCH_V[i]).abs() <= 1e-14);
    }
}

/// The same of the other rules in torch.optim (Adam, SGD): the parameter after six steps, and the mean or sum of gradients.
const OTHERS: [(Rule, [f64; 5], [f64; 5]); 4] = [
    (
        Rule::Adam(Adam { beta1: 0.875, beta2: 0.96875, eps: 1.0 / 1_048_576.0 }),
        [0.1324679205604755, -0.904436966658219, 1.6251091302539151, 0.0801522597015388, -0.0005696374761690118],
        [0.5576422417354151, -0.36548603927040213, 1.7789921819208945, 0.02282248056978703, 0.0009261891977858441],
    ),
    (
        Rule::Sgd(Sgd { momentum: 0.0, dampening: 0.0, nesterov: false }),
        [0.15312976154439184, -0.9647971251568492, 0.8048072039441649, -0.0007210816265796893, 0.0006377363572348607],
        [0.0; 5],
    ),
    (
        Rule::Sgd(Sgd { momentum: 0.75, dampening: 0.25, nesterov: false }),
        [-0.03733387180864878, -0.5853500920600214, -0.27284205625195, 0.05604806190582412, 0.0004305269717359943],
        [2.7630557092226145, -1.4019085237283173, 7.8755687313981255, 0.16105439707079938, 0.002853299521298099],
    ),
    (
        Rule::Sgd(Sgd { momentum: 0.75, dampening: 0.0, nesterov: true }),
        [-0.357181483774203, -0.3918031207679746, -1.243624540957232, 0.028359254355730945, 9.906934203760264e-05],
        [3.606553400182401, -1.695444963508895, 10.025596905888996, 0.2539613538398129, 0.00371934349396891],
    ),
];

#[test]
fn the_references_of_the_other_rules_are_pytorchs() {
    for (rule, weights, means) in OTHERS {
        let options = Options { rule, ..settings() };
        let mut elements = START.map(|w| Element { w: f64::from(w), m: 0.0, v: 0.0 });
        elements[4].w = 1e-3;
        for step in 1..=6 {
            for (element, grad) in elements.iter_mut().zip(gradients(step)) {
                *element = reference::step(&options, &now(step), true, *element, f64::from(grad));
            }
        }
        for ((element, w), m) in elements.iter().zip(weights).zip(means) {
            assert!((element.w - w).abs() <= 1e-14 && (element.m - m).abs() <= 4e-14, "{rule:?}: {element:?}");
        }
    }
}

/// A step of SGD or of Adam with L2 within its bound: tensors of several lengths, with and without decay.
fn check_other<T: Float>(rule: Rule, step: u64) {
    let options = Options { rule, weight_decay: 0.1, ..Options::default() };
    let now = Step { lr: 0.01, number: step, grad_scale: 0.75 };
    let len = 20_000;
    let [w, grad, m, v] = [1, 2, 3, 4].map(|seed| normal::<f32>(len, seed));
    let v: Vec<f32> = v.iter().map(|v| v * v).collect();
    let (has_m, has_v) = match rule {
        Rule::Sgd(sgd) => (sgd.momentum != 0.0, false),
        _ => (true, true),
    };
    for decay in [false, true] {
        let results = same_bits_for_threads(|on| {
            let params: Vec<T> = w.iter().map(|w| T::from_f32(*w)).collect();
            let (mut param, grad, mut m, mut v) = (on.up(&params), on.up(&grad), on.up(&m), on.up(&v));
            let (m_view, v_view) = (has_m.then(|| m.as_view_mut()), has_v.then(|| v.as_view_mut()));
            let (param_view, place) = (param.as_view_mut(), Place::default());
            let tensor =
                Tensor { param: param_view, master: None, grad: grad.as_view(), m: m_view, v: v_view, decay, place };
            optimizer::step(&on.stream, options, now, &mut [tensor]).unwrap();
            let param: Vec<f32> = on.down(&param).into_iter().map(T::to_f32).collect();
            [param, on.down(&m)].concat()
        });
        let (param, sums) = results.split_at(len);
        let param: Vec<T> = param.iter().map(|w| T::from_f32(*w)).collect();
        let before = |i: usize| Element { w: T::from_f32(w[i]).to_f64(), m: f64::from(m[i]), v: f64::from(v[i]) };
        let after: Vec<Element> =
            (0..len).map(|i| reference::step(&options, &now, decay, before(i), f64::from(grad[i]))).collect();
        // The gradient: its factor and product, decay's factor and the sum: of magnitude a.
        let magnitude = |i: usize| (0.75 * f64::from(grad[i])).abs() + (0.1 * before(i).w).abs();
        let m_error = |i: usize| U * (6.0 * magnitude(i) + 4.0 * f64::from(m[i]).abs());
        let w_error = |i: usize| match rule {
            // The direction's error from those of m and v, 12 of its own operations, and the sum.
            Rule::AdamW(adam) | Rule::Adam(adam) => {
                let corrected = |beta: f64| 1.0 - beta.powf(step as f64);
                let denominator = (after[i].v / corrected(adam.beta2)).sqrt() + adam.eps;
                let v_error = U * (10.0 * (1.0 - adam.beta2) * magnitude(i).powi(2) + 4.0 * after[i].v);
                let relative = v_error / (2.0 * after[i].v) + 12.0 * U;
                let step_size = now.lr / corrected(adam.beta1) / denominator;
                step_size * (m_error(i) + after[i].m.abs() * relative) + U * (before(i).w.abs() + after[i].w.abs())
            }
            // The sum of gradients, once more times the momentum, and two operations.
            Rule::Sgd(_) => {
                let direction = magnitude(i) + f64::from(m[i]).abs();
                now.lr * (2.0 * m_error(i) + 6.0 * U * direction) + U * after[i].w.abs()
            }
        };
        let column = |field: fn(&Element) -> f64| after.iter().map(field).collect::<Vec<_>>();
        assert_within("param", &param, &column(|e| e.w), w_error);
        assert_within("m", sums, &column(|e| e.m), |i| if has_m { m_error(i) } else { 0.0 });
    }
}

#[test]
fn other_rules_are_within_their_bounds() {
    for (rule, ..) in OTHERS {
        for step in [1, 2, 1000] {
            check_other::<f32>(rule, step);
            check_other::<bf16>(rule, step);
        }
    }
}

#[test]
fn six_steps_are_pytorchs() {
    let on = On::threads(2);
    let mut owned = Owned::new(&on, &START, true);
    for (step, expected) in (1..).zip(PYTORCH) {
        owned.grad = on.up(&gradients(step));
        optimizer::step(&on.stream, settings(), now(step), &mut [owned.tensor()]).unwrap();
        // A step adds roundings of 3 U |w| and of 14 U lr |m / v^(1/2)| (`one_step_error` below), and the moments carry
        // at most 6 U a step over from the steps before; the corrected |m / v^(1/2)| is about 1 here, and below 3.
        assert_within("w", &on.down(&owned.param), &expected, |i| {
            let t = step as f64;
            t * U * (3.0 * START[i].abs().max(1.0) as f64 + 3.0 * now(step).lr * (14.0 + 6.0 * t))
        });
    }
    // All but the fourth element have gradients of one sign, so relative errors only add up: 4 U a step in m, 5 U in v.
    let m_scale = |i: usize| if i == 3 { 0.5 } else { PYTORCH_M[i].abs() };
    assert_within("m", &on.down(&owned.m), &PYTORCH_M, |i| 6.0 * 4.0 * U * (m_scale(i) + 1.5 * f64::from(i == 1)));
    assert_within("v", &on.down(&owned.v), &PYTORCH_V, |i| 6.0 * 5.0 * U * PYTORCH_V[i]);
}

/// The roundings of one step, as errors of (w, m, v): each operation's U times what it rounds, each coefficient's U.
fn one_step_error(adam: Adam, now: Step, decay: bool, before: Element, after: Element, grad: f64) -> [f64; 3] {
    let (Adam { beta1, beta2, eps }, Step { lr, number: step, grad_scale }) = (adam, now);
    let g = (grad * grad_scale).abs();
    // g scaled (2: the factor, the product), the difference with m, the coefficient, the sum.
    let m = U * ((1.0 - beta1) * (4.0 * g + 2.0 * before.m.abs()) + after.m.abs());
    // g scaled and squared (5), the coefficient, the sum; all are positive.
    let v = U * 7.0 * after.v;
    let corrected = |beta: f64| 1.0 - beta.powf(step as f64);
    let denominator = (after.v / corrected(beta2)).sqrt() + eps;
    let step_size = lr / corrected(beta1);
    // The root of v (7 / 2, 1), its correction (1) and division, eps, the sum: 8.5; then a quotient and its factor.
    let move_by = step_size / denominator * (m + 10.5 * U * after.m.abs());
    let keep = if decay { 2.0 * U * before.w.abs() } else { 0.0 };
    [move_by + keep + U * after.w.abs(), m, v]
}

const LENGTHS: [usize; 5] = [1, 0, 70_000, 37, 16_384];

/// One step at `step` of tensors of several lengths with and without decay, from moments as after many steps.
fn check<T: Float>(with_master: bool, step: u64, grad_scale: f64) {
    let (options, adam) = (Options { weight_decay: 0.1, ..Options::default() }, Adam::default());
    let now = Step { lr: 0.01, number: step, grad_scale };
    let decays = |index: usize| index != 3;
    let inputs = LENGTHS.map(|len| {
        let weights = normal::<f32>(len, 1);
        let v: Vec<f32> = normal::<f32>(len, 4).iter().map(|v| v * v).collect();
        (weights, normal::<f32>(len, 2), normal::<f32>(len, 3), v)
    });
    // The parameters, masters and moments, one after another as f32 (which holds them all).
    let run = |on: &On| {
        let mut owned: Vec<Owned<T>> = Vec::new();
        for (index, (weights, grad, m, v)) in inputs.iter().enumerate() {
            let param: Vec<T> = weights.iter().map(|w| T::from_f32(*w)).collect();
            let master = with_master.then(|| on.up(weights));
            let param = on.up(&param);
            owned.push(Owned { param, master, grad: on.up(grad), m: on.up(m), v: on.up(v), decay: decays(index) });
        }
        let mut tensors: Vec<_> = owned.iter_mut().map(Owned::tensor).collect();
        optimizer::step(&on.stream, options, now, &mut tensors).unwrap();
        let parts = owned.iter().map(|o| {
            let param: Vec<f32> = on.down(&o.param).into_iter().map(T::to_f32).collect();
            let master = o.master.as_ref().map_or_else(Vec::new, |master| on.down(master));
            [param, master, on.down(&o.m), on.down(&o.v)].concat()
        });
        parts.collect::<Vec<_>>().concat()
    };
    let results = same_bits_for_threads(run);
    let mut rest = results.as_slice();
    let mut take = |len: usize| {
        let (taken, left) = rest.split_at(len);
        rest = left;
        taken
    };
    for (index, (weights, grad, m, v)) in inputs.iter().enumerate() {
        let len = weights.len();
        let param: Vec<T> = take(len).iter().map(|w| T::from_f32(*w)).collect();
        let master = with_master.then(|| take(len));
        let (new_m, new_v) = (take(len), take(len));
        let decay = decays(index);
        let before = |i: usize| {
            let w = if with_master { f64::from(weights[i]) } else { T::from_f32(weights[i]).to_f64() };
            Element { w, m: f64::from(m[i]), v: f64::from(v[i]) }
        };
        let after: Vec<Element> =
            (0..len).map(|i| reference::step(&options, &now, decay, before(i), f64::from(grad[i]))).collect();
        let error = |i: usize| one_step_error(adam, now, decay, before(i), after[i], f64::from(grad[i]));
        let [w64, m64, v64] = [|e: &Element| e.w, |e: &Element| e.m, |e: &Element| e.v]
            .map(|field| after.iter().map(field).collect::<Vec<_>>());
        assert_within("m", new_m, &m64, |i| error(i)[1]);
        assert_within("v", new_v, &v64, |i| error(i)[2]);
        assert_within("param", &param, &w64, |i| error(i)[0]);
        if let Some(master) = master {
            assert_within("master", master, &w64, |i| error(i)[0]);
            let rounded: Vec<T> = master.iter().map(|w| T::from_f32(*w)).collect();
            assert_eq!(f64s(&param), f64s(&rounded), "the parameter is the master's rounding");
        }
    }
    assert!(rest.is_empty());
}

#[test]
fn one_step_of_every_kind_of_parameter_is_within_its_bound_and_the_same_for_every_thread_count() {
    for step in [1, 2, 1000, 1 << 40] {
        check::<f32>(false, step, 1.0);
    }
    check::<f32>(true, 3, 0.37);
    check::<bf16>(true, 3, 1.0);
    check::<bf16>(false, 3, 1e-3);
    check::<f16>(true, 10, 1.0);
}

#[test]
fn zero_gradients_only_decay_and_without_decay_change_nothing() {
    let on = On::threads(1);
    let options = Options { weight_decay: 0.25, ..Options::default() };
    let now = Step { lr: 0.5, ..Step::default() };
    for (decay, expected) in [(true, [0.875f32, -1.75]), (false, [1.0, -2.0])] {
        let mut owned = Owned::new(&on, &[1.0f32, -2.0], decay);
        optimizer::step(&on.stream, options, now, &mut [owned.tensor()]).unwrap();
        assert_eq!(on.down(&owned.param), expected);
        assert_eq!((on.down(&owned.m), on.down(&owned.v)), (vec![0.0; 2], vec![0.0; 2]));
    }
}

#[test]
fn a_square_beyond_f32_stops_its_element_and_a_clipped_one_does_not() {
    let on = On::threads(1);
    let mut owned = Owned::new(&on, &[1.0f32, 1.0], false);
    owned.grad = on.up(&[1e30f32, 1.0]);
    optimizer::step(&on.stream, Options::default(), Step { lr: 0.5, ..Step::default() }, &mut [owned.tensor()])
        .unwrap();
    // The other element's first step is lr in its gradient's direction, up to the bound of a step at |m / v^(1/2)| = 1.
    let param = on.down(&owned.param);
    assert_eq!(param[0], 1.0);
    assert_within("w", &param[1..], &[0.5], |_| 0.5 * 20.0 * U);
    assert_eq!(on.down(&owned.v)[0], f32::INFINITY);
    // With the clip coefficient the gradient is 1.
    let mut owned = Owned::new(&on, &[1.0f32, 1.0], false);
    owned.grad = on.up(&[1e30f32, 0.0]);
    let now = Step { lr: 0.5, grad_scale: 1e-30, ..Step::default() };
    optimizer::step(&on.stream, Options::default(), now, &mut [owned.tensor()]).unwrap();
    assert_within("w", &on.down(&owned.param), &[0.5, 1.0], |_| 0.5 * 20.0 * U);
}

#[test]
fn nan_stays_in_its_element() {
    let on = On::threads(1);
    let mut owned = Owned::new(&on, &[1.0f32, 2.0], true);
    owned.grad = on.up(&[f32::NAN, 0.0]);
    optimizer::step(&on.stream, Options::default(), Step { lr: 0.0, ..Step::default() }, &mut [owned.tensor()])
        .unwrap();
    let param = on.down(&owned.param);
    assert!(param[0].is_nan() && on.down(&owned.m)[0].is_nan() && on.down(&owned.v)[0].is_nan());
    assert_eq!(param[1], 2.0);
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    let on = On::threads(1);
    let mut first = Owned::new(&on, &[1.0f32, 2.0], true);
    let mut second = Owned::new(&on, &[1.0f32, 2.0], true);
    first.grad = on.up(&[1.0f32, 1.0]);
    let mut refused = |options, now, second: &mut Owned<f32>| {
        let error = optimizer::step(&on.stream, options, now, &mut [first.tensor(), second.tensor()]).unwrap_err();
        assert_eq!((on.down(&first.param), on.down(&first.m)), (vec![1.0, 2.0], vec![0.0; 2]));
        error.to_string()
    };
    let (good, step, adam) = (Options::default(), Step::default(), Adam::default());
    let zero = Step { number: 0, ..step };
    let text = "optimizer: `step` is 0; it must be at least 1: the first step is number 1";
    assert_eq!(refused(good, zero, &mut second), text);
    let of = |adam| Options { rule: Rule::Adam(adam), ..good };
    let cases = [
        (good, Step { lr: -1.0, ..step }, "`lr` is -1; it must be finite and at least 0"),
        (of(Adam { beta1: 1.0, ..adam }), step, "`beta1` is 1; it must be at least 0 and less than 1"),
        (of(Adam { beta2: f64::NAN, ..adam }), step, "`beta2` is NaN; it must be at least 0 and less than 1"),
        (of(Adam { eps: f64::INFINITY, ..adam }), step, "`eps` is inf; it must be finite and at least 0"),
        (Options { weight_decay: -0.5, ..good }, step, "`weight_decay` is -0.5; it must be finite and at least 0"),
        (
            good,
            Step { grad_scale: f64::NAN, ..step },
            "`grad_scale` is NaN; it must be finite; skip a step of NaN gradients",
        ),
        (
            Options { rounding: Rounding::Stochastic { seed: 1 }, ..good },
            step,
            "`rounding` is to nearest but for bf16 parameters without master",
        ),
        (
            sgd(Sgd { momentum: -0.5, ..Sgd::default() }),
            step,
            "`momentum` is -0.5; it must be at least 0 and less than 1",
        ),
        (
            sgd(Sgd { momentum: 0.5, dampening: 2.0, nesterov: false }),
            step,
            "`dampening` is 2; it must be at least 0 and at most 1",
        ),
        (sgd(Sgd { nesterov: true, ..Sgd::default() }), step, "`nesterov` needs momentum and no dampening"),
        (sgd(Sgd::default()), step, "`m` is nothing that this rule keeps"),
        (sgd(Sgd { momentum: 0.5, ..Sgd::default() }), step, "`v` is nothing that this rule keeps"),
    ];
    for (options, now, text) in cases {
        assert_eq!(refused(options, now, &mut second), format!("optimizer: {text}"));
    }
    second.v = on.up(&[0.0f32; 3]);
    assert_eq!(refused(good, step, &mut second), "optimizer: `v` has 3 elements; its shape 2 needs 2");
    second.master = Some(on.up(&[0.0f32]));
    assert_eq!(refused(good, step, &mut second), "optimizer: `master` has 1 elements; its shape 2 needs 2");
}

/// A plain step of SGD by stochastic rounding on parts of a tensor of ones, each with its first element's number.
fn chances(on: &On, seed: u64, number: u64, tensor: u32, grads: &[f32], parts: &[usize]) -> Vec<bf16> {
    let rounding = Rounding::Stochastic { seed };
    let options = Options { rounding, weight_decay: 0.0, ..sgd(Sgd::default()) };
    let mut all = Vec::new();
    let mut first = 1000;
    for part in parts {
        let (mut param, grad) = (on.up(&vec![bf16::ONE; *part]), on.up(&grads[all.len()..][..*part]));
        let (param_view, place) = (param.as_view_mut(), Place { tensor, first });
        let grad = grad.as_view();
        let tensor = Tensor::<_, f32> { param: param_view, master: None, grad, m: None, v: None, decay: false, place };
        optimizer::step(&on.stream, options, Step { lr: 1.0, number, grad_scale: 1.0 }, &mut [tensor]).unwrap();
        all.extend(on.down(&param));
        first += *part as u64;
    }
    all
}

#[test]
fn stochastic_rounding_has_the_right_mean_and_is_a_function_of_seed_step_tensor_and_element() {
    let (on, len) = (On::threads(2), 1 << 16);
    // A quarter of the way from 1 to the next bf16 below it, 2^-8 away.
    let grads = vec![2f32.powi(-10); len];
    let whole = chances(&on, 5, 9, 3, &grads, &[len]);
    let below = bf16::from_f32(1.0 - 2f32.powi(-8));
    assert!(whole.iter().all(|w| *w == bf16::ONE || *w == below));
    let count = whole.iter().filter(|w| **w == below).count() as f64;
    // Six standard deviations of a count.
    assert!((count - 0.25 * len as f64).abs() < 6.0 * (len as f64 * 0.1875).sqrt(), "{count} of {len}");
    // The low 16 bits of 1 - 2^-10 as f32 are 0xc000: it is up where the random bits reach 0x4000.
    let generator = Philox4x32::new(5, 3 << 32 | 9);
    let up = |i: usize| generator.word(1000 + i as u64) & 0xffff >= 0x4000;
    assert!(whole.iter().enumerate().all(|(i, w)| (*w == bf16::ONE) == up(i)));
    assert_eq!(chances(&on, 5, 9, 3, &grads, &[1, 16_390, 7, len - 16_398]), whole);
    for (seed, step, tensor) in [(6, 9, 3), (5, 10, 3), (5, 9, 4), (5 | 1 << 32, 9, 3)] {
        assert_ne!(chances(&on, seed, step, tensor, &grads, &[len]), whole);
    }
    // Neither what is exact in bf16, nor what is infinite, has two neighbours.
    let exact = chances(&on, 5, 9, 3, &[0.0, f32::INFINITY, f32::NEG_INFINITY, 0.5], &[4]);
    assert_eq!(exact, [1.0, f32::NEG_INFINITY, f32::INFINITY, 0.5].map(bf16::from_f32));
}

#[test]
fn missing_state_and_means_in_other_types_are_named() {
    let on = On::threads(1);
    let (mut param, grad) = (on.up(&[1.0f32; 4]), on.up(&[1.0f32; 4]));
    let mut m = on.up(&[f16::ZERO; 4]);
    let mut v = on.up(&[0.0f32; 4]);
    let mut refused = |with_m: bool, with_v: bool| {
        let (param, grad, place) = (param.as_view_mut(), grad.as_view(), Place::default());
        let (m, v) = (with_m.then(|| m.as_view_mut()), with_v.then(|| v.as_view_mut()));
        let tensor = Tensor::<'_, f32, f16> { param, master: None, grad, m, v, decay: true, place };
        optimizer::step(&on.stream, Options::default(), Step::default(), &mut [tensor]).unwrap_err().to_string()
    };
    assert_eq!(refused(false, false), "optimizer: `m` is missing, which this rule keeps");
    assert_eq!(refused(true, false), "optimizer: `v` is missing, which this rule keeps");
    assert_eq!(refused(true, true), "optimizer: `m` is kept in f32 or bf16");
}
