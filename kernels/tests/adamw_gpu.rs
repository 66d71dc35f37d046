//! The kernel of AdamW on the software device: the bits of the CPU's.
#![forbid(unsafe_code)]

mod common;

use common::mutants::try_mutants;
use common::padded::Padded;
use common::ways::Ways;
use common::{On, f64s, normal};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::adamw::{self, Options, Tensor};
use warpweft_kernels::{KernelError, embedding, programs};

/// Lengths, elements before the begin, and whether decay applies.
const SIZES: [(usize, usize, bool); 6] =
    [(3, 1, true), (0, 8, true), (130, 8, false), (16_384, 8, true), (16_391, 1, false), (33_000, 8, true)];

struct State<T> {
    param: Padded<T>,
    master: Option<Padded<f32>>,
    grad: Padded<f32>,
    m: Padded<f32>,
    v: Padded<f32>,
}

fn states<T: Float>(on: &On, sizes: &[(usize, usize, bool)], master: bool) -> Vec<State<T>> {
    let make = |(seed, &(len, before, _)): (u64, &(usize, usize, bool))| {
        let [w, grad, m] = [1, 2, 3].map(|of| normal::<f32>(len, 10 * seed + of));
        let v: Vec<f32> = m.iter().map(|m| 0.1 * m * m).collect();
        let param: Vec<T> = w.iter().map(|w| T::from_f32(*w)).collect();
        let [grad, m, v] = [&grad, &m, &v].map(|values| on.padded(before, values));
        State { param: on.padded(before, &param), master: master.then(|| on.padded(before, &w)), grad, m, v }
    };
    (0..).zip(sizes).map(make).collect()
}

/// Two steps; everything that they write.
fn run<T: Float>(on: &On, sizes: &[(usize, usize, bool)], master: bool) -> Vec<f64> {
    let mut states = states::<T>(on, sizes, master);
    for step in [1, 2] {
        let mut tensors: Vec<Tensor<'_, T>> = states
            .iter_mut()
            .zip(sizes)
            .map(|(state, (_, _, decay))| Tensor {
                param: state.param.view_mut(),
                master: state.master.as_mut().map(Padded::view_mut),
                grad: state.grad.view(),
                m: state.m.view_mut(),
                v: state.v.view_mut(),
                decay: *decay,
            })
            .collect();
        let options = Options { lr: 0.01, step, grad_scale: 0.37, weight_decay: 0.1, ..Options::default() };
        adamw::step(&on.stream, options, &mut tensors).unwrap();
    }
    let mut all = Vec::new();
    for state in &states {
        all.extend(f64s(&state.param.down(on)));
        for floats in [Some(&state.m), Some(&state.v), state.master.as_ref()].into_iter().flatten() {
            all.extend(f64s(&floats.down(on)));
        }
    }
    all
}

#[test]
fn steps_are_the_cpus_to_the_bit_in_every_way() {
    let cpu = On::threads(1);
    let small = &SIZES[..3];
    assert_eq!(Ways::EVERY.same(|on| run::<f32>(on, small, false)), run::<f32>(&cpu, small, false));
    assert_eq!(Ways::EVERY.same(|on| run::<bf16>(on, small, true)), run::<bf16>(&cpu, small, true));
    assert_eq!(Ways::TWO.same(|on| run::<f32>(on, &SIZES, false)), run::<f32>(&cpu, &SIZES, false));
    for master in [false, true] {
        assert_eq!(Ways::TWO.same(|on| run::<bf16>(on, &SIZES, master)), run::<bf16>(&cpu, &SIZES, master));
        assert_eq!(Ways::TWO.same(|on| run::<f16>(on, &SIZES, master)), run::<f16>(&cpu, &SIZES, master));
    }
}

/// One step after a kernel before it has found a token outside its vocabulary: the error, and everything as it is then.
fn after_wrong_data(on: &On) -> (String, Vec<bf16>) {
    let shape = embedding::Shape { batch: 1, tokens: 1, vocab: 4, channels: 2, positions: 0 };
    let (ids, table, mut y) = (on.up(&[9u32]), on.up(&[bf16::ZERO; 8]), on.up(&[bf16::ZERO; 2]));
    let mut w = on.up(&[bf16::ONE; 5]);
    let (grad, mut m, mut v) = (on.up(&[1f32; 5]), on.up(&[0f32; 5]), on.up(&[0f32; 5]));
    // The last before the step: a copy to the device waits for it, and would be the one to report.
    embedding::forward(&on.stream, shape, ids.as_view(), table.as_view(), None, y.as_view_mut()).unwrap();
    let (param, m, v) = (w.as_view_mut(), m.as_view_mut(), v.as_view_mut());
    let tensor = Tensor { param, master: None, grad: grad.as_view(), m, v, decay: false };
    adamw::step(&on.stream, Options { lr: 0.5, ..Options::default() }, &mut [tensor]).unwrap();
    let error = on.stream.synchronize().unwrap_err().to_string();
    (error, on.down(&w))
}

#[test]
fn a_step_on_wrong_data_is_skipped() {
    let (error, w) = after_wrong_data(&On::software());
    assert!(error.contains("9 in row 0") && error.contains("less than 4"), "{error}");
    assert_eq!(w, [bf16::ONE; 5]);
}

#[test]
fn nothing_to_do_and_step_0() {
    let on = On::software();
    adamw::step::<f32>(&on.stream, Options::default(), &mut []).unwrap();
    let error = adamw::step::<f32>(&on.stream, Options { step: 0, ..Options::default() }, &mut []).unwrap_err();
    assert!(matches!(error, KernelError::Size { argument: "step", given: 0, .. }), "{error}");
}

#[test]
fn mutants_are_killed() {
    let program = programs().iter().find(|program| program.op == "adamw").unwrap();
    let (cpu, few) = (On::threads(1), [SIZES[0], SIZES[2], (16_391, 1, false), (16_400, 8, true)]);
    let right = [false, true].map(|master| run::<bf16>(&cpu, &few, master));
    let proof = |on: &On| {
        let steps = [false, true].map(|master| run::<bf16>(on, &few, master)) == right;
        steps && after_wrong_data(on).1 == [bf16::ONE; 5]
    };
    try_mutants(program, "adamw_step_bf16", 1, proof).assert_killed();
}
