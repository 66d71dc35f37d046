//! AdamW: against PyTorch's own numbers over six steps, against the f64 formula within the bound of one step, every
//! kind of parameter, and what wrong settings do.
#![forbid(unsafe_code)]

mod common;

use common::{On, U, assert_within, f64s, normal, same_bits_for_threads};
use warpweft_device::{Buffer, Float, bf16, f16};
use warpweft_kernels::adamw::reference::{self, Element};
use warpweft_kernels::adamw::{self, Options, Tensor};

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
            m: self.m.as_view_mut(),
            v: self.v.as_view_mut(),
            decay: self.decay,
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

fn settings(step: u64) -> Options {
    let eps = 2f64.powi(-20);
    Options { lr: 0.0625, beta1: 0.875, beta2: 0.96875, eps, weight_decay: 0.125, step, grad_scale: 1.0 }
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
            *element = reference::step(&settings(step), true, *element, f64::from(grad));
            assert!((element.w - expected).abs() <= 1e-14, "step {step}: {} for {expected}", element.w);
        }
    }
    for (i, element) in elements.iter().enumerate() {
        assert!((element.m - PYTORCH_M[i]).abs() <= 1e-14 && (element.v - PYTORCH_V[i]).abs() <= 1e-14);
    }
}

#[test]
fn six_steps_are_pytorchs() {
    let on = On::threads(2);
    let mut owned = Owned::new(&on, &START, true);
    for (step, expected) in (1..).zip(PYTORCH) {
        owned.grad = on.up(&gradients(step));
        adamw::step(&on.stream, settings(step), &mut [owned.tensor()]).unwrap();
        // A step adds roundings of 3 U |w| and of 14 U lr |m / v^(1/2)| (`one_step_error` below), and the moments carry
        // at most 6 U a step over from the steps before; the corrected |m / v^(1/2)| is about 1 here, and below 3.
        assert_within("w", &on.down(&owned.param), &expected, |i| {
            let t = step as f64;
            t * U * (3.0 * START[i].abs().max(1.0) as f64 + 3.0 * settings(step).lr * (14.0 + 6.0 * t))
        });
    }
    // All but the fourth element have gradients of one sign, so relative errors only add up: 4 U a step in m, 5 U in v.
    let m_scale = |i: usize| if i == 3 { 0.5 } else { PYTORCH_M[i].abs() };
    assert_within("m", &on.down(&owned.m), &PYTORCH_M, |i| 6.0 * 4.0 * U * (m_scale(i) + 1.5 * f64::from(i == 1)));
    assert_within("v", &on.down(&owned.v), &PYTORCH_V, |i| 6.0 * 5.0 * U * PYTORCH_V[i]);
}

/// The roundings of one step, as errors of (w, m, v): each operation's U times what it rounds, each coefficient's U.
fn one_step_error(options: &Options, decay: bool, before: Element, after: Element, grad: f64) -> [f64; 3] {
    let Options { lr, beta1, beta2, eps, step, grad_scale, .. } = *options;
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
    let options = Options { lr: 0.01, weight_decay: 0.1, step, grad_scale, ..Options::default() };
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
        adamw::step(&on.stream, options, &mut tensors).unwrap();
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
            (0..len).map(|i| reference::step(&options, decay, before(i), f64::from(grad[i]))).collect();
        let error = |i: usize| one_step_error(&options, decay, before(i), after[i], f64::from(grad[i]));
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
    let options = Options { lr: 0.5, weight_decay: 0.25, ..Options::default() };
    for (decay, expected) in [(true, [0.875f32, -1.75]), (false, [1.0, -2.0])] {
        let mut owned = Owned::new(&on, &[1.0f32, -2.0], decay);
        adamw::step(&on.stream, options, &mut [owned.tensor()]).unwrap();
        assert_eq!(on.down(&owned.param), expected);
        assert_eq!((on.down(&owned.m), on.down(&owned.v)), (vec![0.0; 2], vec![0.0; 2]));
    }
}

#[test]
fn a_square_beyond_f32_stops_its_element_and_a_clipped_one_does_not() {
    let on = On::threads(1);
    let mut owned = Owned::new(&on, &[1.0f32, 1.0], false);
    owned.grad = on.up(&[1e30f32, 1.0]);
    adamw::step(&on.stream, Options { lr: 0.5, ..Options::default() }, &mut [owned.tensor()]).unwrap();
    // The other element's first step is lr in its gradient's direction, up to the bound of a step at |m / v^(1/2)| = 1.
    let param = on.down(&owned.param);
    assert_eq!(param[0], 1.0);
    assert_within("w", &param[1..], &[0.5], |_| 0.5 * 20.0 * U);
    assert_eq!(on.down(&owned.v)[0], f32::INFINITY);
    // With the clip coefficient the gradient is 1.
    let mut owned = Owned::new(&on, &[1.0f32, 1.0], false);
    owned.grad = on.up(&[1e30f32, 0.0]);
    let options = Options { lr: 0.5, grad_scale: 1e-30, ..Options::default() };
    adamw::step(&on.stream, options, &mut [owned.tensor()]).unwrap();
    assert_within("w", &on.down(&owned.param), &[0.5, 1.0], |_| 0.5 * 20.0 * U);
}

#[test]
fn nan_stays_in_its_element() {
    let on = On::threads(1);
    let mut owned = Owned::new(&on, &[1.0f32, 2.0], true);
    owned.grad = on.up(&[f32::NAN, 0.0]);
    adamw::step(&on.stream, Options { lr: 0.0, ..Options::default() }, &mut [owned.tensor()]).unwrap();
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
    let mut refused = |options, second: &mut Owned<f32>| {
        let error = adamw::step(&on.stream, options, &mut [first.tensor(), second.tensor()]).unwrap_err();
        assert_eq!((on.down(&first.param), on.down(&first.m)), (vec![1.0, 2.0], vec![0.0; 2]));
        error.to_string()
    };
    let good = Options::default();
    let zero = Options { step: 0, ..good };
    assert_eq!(refused(zero, &mut second), "adamw: `step` is 0; it must be at least 1: the first step is number 1");
    let cases = [
        (Options { lr: -1.0, ..good }, "`lr` is -1; it must be finite and at least 0"),
        (Options { beta1: 1.0, ..good }, "`beta1` is 1; it must be at least 0 and less than 1"),
        (Options { beta2: f64::NAN, ..good }, "`beta2` is NaN; it must be at least 0 and less than 1"),
        (Options { eps: f64::INFINITY, ..good }, "`eps` is inf; it must be finite and at least 0"),
        (Options { weight_decay: -0.5, ..good }, "`weight_decay` is -0.5; it must be finite and at least 0"),
        (
            Options { grad_scale: f64::NAN, ..good },
            "`grad_scale` is NaN; it must be finite; skip a step of NaN gradients",
        ),
    ];
    for (options, text) in cases {
        assert_eq!(refused(options, &mut second), format!("adamw: {text}"));
    }
    second.v = on.up(&[0.0f32; 3]);
    assert_eq!(refused(good, &mut second), "adamw: `v` has 3 elements; its shape 2 needs 2");
    second.master = Some(on.up(&[0.0f32]));
    assert_eq!(refused(good, &mut second), "adamw: `master` has 1 elements; its shape 2 needs 2");
}
