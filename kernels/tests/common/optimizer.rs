//! Lists of tensors to optimize, and everything that a few steps write to them.

use warpweft_device::Float;
use warpweft_kernels::optimizer::{self, Control, Numbers, Options, Place, Rounding, Rule, Step, Tensor};

use super::padded::Padded;
use super::{On, f64s, normal};

/// A tensor: its elements, how many lie before it in its allocation, and whether decay applies.
pub(crate) type Size = (usize, usize, bool);

/// The second of two steps.
pub(crate) const LAST: Step = Step { lr: 0.01, number: 2, grad_scale: 0.37 };

struct State<T, M> {
    param: Padded<T>,
    master: Option<Padded<f32>>,
    grad: Padded<f32>,
    m: Option<Padded<M>>,
    v: Option<Padded<f32>>,
}

fn state<T: Float, M: Float>(on: &On, options: &Options, size: Size, master: bool, seed: u64) -> State<T, M> {
    let (len, before, decay) = size;
    let [mut w, grad, m] = [1, 2, 3].map(|of| normal::<f32>(len, 10 * seed + of));
    if !decay || matches!(options.rule, Rule::AdamW(_)) {
        // Infinite weights stay so, and nothing else comes of them.
        w.iter_mut().skip(1).step_by(5).for_each(|w| *w = f32::INFINITY.copysign(*w));
    }
    let v: Vec<f32> = m.iter().map(|m| 0.1 * m * m).collect();
    let param: Vec<T> = w.iter().map(|w| T::from_f32(*w)).collect();
    let mean: Vec<M> = m.iter().map(|m| M::from_f32(*m)).collect();
    let (has_m, has_v) = match options.rule {
        Rule::Sgd(sgd) => (sgd.momentum != 0.0, false),
        _ => (true, true),
    };
    State {
        param: on.padded(before, &param),
        master: master.then(|| on.padded(before, &w)),
        grad: on.padded(before, &grad),
        m: has_m.then(|| on.padded(before, &mean)),
        v: has_v.then(|| on.padded(before, &v)),
    }
}

/// Where the numbers of a step come from.
#[derive(Clone, Copy)]
pub(crate) enum From {
    Host,
    /// The device's memory, written by the host.
    Device,
    /// The same, written by the kernel.
    Kernel,
}

/// The steps one after another: everything that they write.
pub(crate) fn run<T: Float, M: Float>(
    on: &On,
    sizes: &[Size],
    master: bool,
    options: Options,
    (from, steps): (From, &[Step]),
) -> Vec<f64> {
    let mut states: Vec<State<T, M>> =
        (0..).zip(sizes).map(|(seed, size)| state(on, &options, *size, master, seed)).collect();
    for step in steps {
        let mut tensors = Vec::new();
        for (number, (state, (_, before, decay))) in (3..).zip(states.iter_mut().zip(sizes)) {
            // Parts of tensors, some of which begin at multiples of 4.
            let first = if *before == 8 { 8 * u64::from(number) } else { (1 << 40) + 3 };
            tensors.push(Tensor {
                param: state.param.view_mut(),
                master: state.master.as_mut().map(Padded::view_mut),
                grad: state.grad.view(),
                m: state.m.as_mut().map(Padded::view_mut),
                v: state.v.as_mut().map(Padded::view_mut),
                decay: *decay,
                place: Place { tensor: number, first },
            });
        }
        let Step { lr, number, grad_scale } = *step;
        let mut control = match from {
            From::Kernel => on.up(&[f64::MAX; Control::LEN]),
            _ => on.up(&Control { lr, step: number as f64, grad_scale, ..Control::default() }.to_array()),
        };
        if let From::Kernel = from {
            Control::begin(&on.stream, *step, control.as_view_mut()).unwrap();
        }
        let numbers = match from {
            From::Host => Numbers::Host(*step),
            _ => Numbers::Device(control.as_view()),
        };
        optimizer::step(&on.stream, options, numbers, &mut tensors).unwrap();
    }
    let mut all = Vec::new();
    for state in &states {
        all.extend(f64s(&state.param.down(on)));
        all.extend(state.m.iter().flat_map(|m| f64s(&m.down(on))));
        for floats in [&state.v, &state.master].into_iter().flatten() {
            all.extend(f64s(&floats.down(on)));
        }
    }
    all
}

/// Stochastic rounding of what the options say else.
pub(crate) fn stochastic(options: Options, seed: u64) -> Options {
    Options { rounding: Rounding::Stochastic { seed }, ..options }
}
