//! Degenerate inputs of a step: the optimizers, the norm of gradients and clipping by it.
#![forbid(unsafe_code)]

mod common;

use common::degenerate::{Op, in_every_type};
use common::optimizer::{From, LAST, run};
use common::{On, f64s, integers};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::KernelError;
use warpweft_kernels::norm::{self, clip_coefficient};
use warpweft_kernels::optimizer::{self, Adam, Control, Numbers, Options, Place, Rule, Sgd, Step, Tensor};

const ADAMW: Options = of(Rule::AdamW(Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8 }));
const SGD: Options = of(Rule::Sgd(Sgd { momentum: 0.9, dampening: 0.25, nesterov: false }));

const fn of(rule: Rule) -> Options {
    Options { rule, weight_decay: 0.1, rounding: optimizer::Rounding::Nearest }
}

struct Optimizers;

impl Op for Optimizers {
    /// A tensor of so many elements, and one without any behind it.
    fn check<T: Float>(rows: usize, columns: usize, before: usize) {
        let sizes = [(rows * columns, before, true), (0, before, true)];
        for options in [ADAMW, SGD] {
            for master in [false, true] {
                let steps = (From::Device, &[LAST][..]);
                let [given, right] =
                    [On::software(), On::threads(1)].map(|on| run::<T, f32>(&on, &sizes, master, options, steps));
                assert!(given == right, "{options:?}");
            }
        }
    }
}

#[test]
fn optimizer_no_elements() {
    in_every_type::<Optimizers>(0, 0, 8);
    let on = On::software();
    optimizer::step::<f32, f32>(&on.stream, ADAMW, LAST, &mut []).unwrap();
}

#[test]
fn optimizer_65_537_elements() {
    in_every_type::<Optimizers>(1, 65_537, 8);
}

#[test]
fn optimizer_off_by_one() {
    in_every_type::<Optimizers>(1, 320, 1);
}

#[test]
fn optimizer_between_nans() {
    in_every_type::<Optimizers>(1, 37, 8);
}

/// Parameters of 1, their gradients and state.
struct Ones<T> {
    w: warpweft_device::Buffer<T>,
    grad: warpweft_device::Buffer<f32>,
    m: warpweft_device::Buffer<f32>,
    v: warpweft_device::Buffer<f32>,
}

impl<T: Float> Ones<T> {
    fn new(on: &On, grads: &[f32]) -> Self {
        let zeros = vec![0f32; grads.len()];
        let [grad, m, v] = [grads, &zeros, &zeros].map(|values| on.up(values));
        Self { w: on.up(&vec![T::from_f32(1.0); grads.len()]), grad, m, v }
    }

    fn step(&mut self, on: &On, numbers: Numbers<'_>) -> Result<(), KernelError> {
        let (param, grad, place) = (self.w.as_view_mut(), self.grad.as_view(), Place::default());
        let (m, v) = (Some(self.m.as_view_mut()), Some(self.v.as_view_mut()));
        let tensor = Tensor { param, master: None, grad, m, v, decay: true, place };
        optimizer::step(&on.stream, ADAMW, numbers, &mut [tensor])
    }

    /// Parameters, m and v, one after the other.
    fn down(&self, on: &On) -> Vec<f64> {
        [f64s(&on.down(&self.w)), f64s(&on.down(&self.m)), f64s(&on.down(&self.v))].concat()
    }
}

/// Refused where the host has the number, noted and not done where the device has it.
fn at_step_0<T: Float>() {
    let (on, untouched) = (On::software(), [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    let mut ones = Ones::<T>::new(&on, &[1.0, 2.0, 3.0]);
    let step = Step { lr: 0.5, number: 0, grad_scale: 1.0 };
    let said = ones.step(&on, step.into()).unwrap_err().to_string();
    assert_eq!(said, "optimizer: `step` is 0; it must be at least 1: the first step is number 1");
    assert_eq!(ones.down(&on), untouched);
    let control = on.up(&Control { lr: 0.5, step: 0.0, grad_scale: 1.0, ..Control::default() }.to_array());
    ones.step(&on, Numbers::Device(control.as_view())).unwrap();
    let said = on.stream.synchronize().unwrap_err().to_string();
    assert!(said.contains("a step that is no whole number from 1 on") && said.contains("`control`"), "{said}");
    assert_eq!(ones.down(&on), untouched);
}

#[test]
fn optimizer_step_0() {
    at_step_0::<f32>();
    at_step_0::<bf16>();
    at_step_0::<f16>();
}

/// The norm, the clip and the step on the device: the control, and the parameters with their state.
fn clipped<T: Float>(on: &On, grads: &[f32]) -> (Control, Vec<f64>) {
    let mut ones = Ones::<T>::new(on, grads);
    let (mut control, mut sum) = (on.up(&[f64::MAX; Control::LEN]), on.up(&[f64::MAX]));
    let step = Step { lr: 0.25, number: 5, grad_scale: 1.0 };
    Control::begin(&on.stream, step, control.as_view_mut()).unwrap();
    norm::sum_of_squares_into(&on.stream, &[ones.grad.as_view()], sum.as_view_mut()).unwrap();
    norm::clip(&on.stream, sum.as_view(), 1.0, control.as_view_mut()).unwrap();
    ones.step(on, Numbers::Device(control.as_view())).unwrap();
    on.stream.synchronize().unwrap();
    let [lr, step, grad_scale, skip, norm] = on.down(&control)[..].try_into().unwrap();
    (Control { lr, step, grad_scale, skip, norm }, ones.down(on))
}

fn clip<T: Float>(value: f32) {
    let (control, given) = clipped::<T>(&On::software(), &[value; 4]);
    let norm = 2.0 * f64::from(value);
    assert_eq!((control.norm, control.grad_scale, control.skip), (norm, clip_coefficient(norm, 1.0), 0.0));
    assert!(given.iter().all(|x| x.is_finite()) && given[0] < 1.0);
    // m is a tenth of the clipped gradient, which is half of the largest norm, or 0.
    let m = 0.1 * f64::from(value) * control.grad_scale;
    assert!((given[4] - m).abs() <= 1e-6 * m, "{} {m}", given[4]);
    assert_eq!((control, given), clipped::<T>(&On::threads(1), &[value; 4]));
}

#[test]
fn clip_zero_gradients() {
    clip::<f32>(0.0);
    clip::<bf16>(0.0);
    clip::<f16>(0.0);
}

#[test]
fn clip_gradients_of_1e30() {
    clip::<f32>(1e30);
    clip::<bf16>(1e30);
    clip::<f16>(1e30);
}

/// Sum of squares and scaling of tensors of whole numbers, which are exact.
fn norm_of(sizes: &[(usize, usize)]) {
    let on = On::software();
    let values: Vec<Vec<f32>> = (0..).zip(sizes).map(|(seed, (len, _))| integers(*len, seed)).collect();
    let mut tensors: Vec<_> = values.iter().zip(sizes).map(|(of, (_, before))| on.padded(*before, of)).collect();
    let views: Vec<_> = tensors.iter().map(|tensor| tensor.view()).collect();
    let exact: f64 = values.iter().flatten().map(|x| f64::from(*x) * f64::from(*x)).sum();
    assert_eq!(norm::sum_of_squares(&on.stream, &views).unwrap(), exact);
    let mut views: Vec<_> = tensors.iter_mut().map(|tensor| tensor.view_mut()).collect();
    norm::scale(&on.stream, &mut views, 0.5).unwrap();
    for (tensor, of) in tensors.iter().zip(&values) {
        assert_eq!(tensor.down(&on), of.iter().map(|x| 0.5 * x).collect::<Vec<_>>());
    }
}

#[test]
fn norm_no_elements() {
    norm_of(&[]);
    norm_of(&[(0, 8), (0, 1)]);
}

#[test]
fn norm_65_537_elements() {
    norm_of(&[(65_537, 8)]);
}

#[test]
fn norm_off_by_one() {
    norm_of(&[(320, 1), (16_384, 1)]);
}

#[test]
fn norm_between_nans() {
    norm_of(&[(37, 8), (1, 8), (37, 0)]);
}
