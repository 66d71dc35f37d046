//! Cases of ops that go through elements one by one: the optimizers, the global norm, rotary positions.

use warpweft::device::{Buffer, Device, Float, Stream, bf16, f16};
use warpweft::kernels::optimizer::{self, Adam, Control, Numbers, Options, Place, Rounding, Rule, Sgd, Step, Tensor};
use warpweft::kernels::{KernelError, norm, rope};

use super::super::case::{Arrays, Case, Size, Work, normal};

/// A case over `elements` elements, with `stored` arrays of the storage type and `floats` of f32, the last ones of which
/// are written.
struct Sizes {
    elements: usize,
    stored: usize,
    floats: usize,
    written: [usize; 2],
}

fn case<T: Float>(
    op: &'static str,
    what: String,
    bytes: usize,
    sizes: Sizes,
    arrays: super::super::case::Call<T>,
) -> Case {
    let make = move |device: &Device| -> Result<Box<dyn Work>, KernelError> {
        let Sizes { elements, stored, floats, written } = sizes;
        let all = (1..).take(stored).map(|seed| normal::<T>(device, elements, seed));
        let stored = all.collect::<Result<Vec<Buffer<T>>, _>>()?;
        let positive = |seed| -> Result<Buffer<f32>, KernelError> {
            let values = normal::<f32>(device, elements, seed)?.download(&device.stream())?;
            Ok(device.upload(&values.into_iter().map(f32::abs).collect::<Vec<_>>())?)
        };
        let floats = (11..).take(floats).map(positive).collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(Arrays { stored, floats, written, call: arrays }))
    };
    Case { op, what, dtype: T::DTYPE, bytes: bytes as u64, flops: 0, roundings: 8.0, make: Box::new(make) }
}

fn step<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let ([param], [grad, master, m, v]) = (&mut all.stored[..], &mut all.floats[..]) else { return Ok(()) };
    let master = (size_of::<T>() < size_of::<f32>()).then(|| master.as_view_mut());
    let (param, m, v) = (param.as_view_mut(), Some(m.as_view_mut()), Some(v.as_view_mut()));
    let tensor = Tensor { param, master, grad: grad.as_view(), m, v, decay: true, place: Place::default() };
    optimizer::step(stream, Options::default(), STEP, &mut [tensor])
}

const STEP: Step = Step { lr: 1e-3, number: 3, grad_scale: 1.0 };

/// Adam with L2, whose mean of gradients is bf16.
fn short_mean(stream: &Stream, all: &mut Arrays<bf16>) -> Result<(), KernelError> {
    let ([param, m], [grad, v]) = (&mut all.stored[..], &mut all.floats[..]) else { return Ok(()) };
    let (param, m, v) = (param.as_view_mut(), Some(m.as_view_mut()), Some(v.as_view_mut()));
    let tensor = Tensor { param, master: None, grad: grad.as_view(), m, v, decay: true, place: Place::default() };
    let options = Options { rule: Rule::Adam(Adam::default()), ..Options::default() };
    optimizer::step(stream, options, STEP, &mut [tensor])
}

fn sgd(stream: &Stream, all: &mut Arrays<f32>) -> Result<(), KernelError> {
    let ([param], [grad, m]) = (&mut all.stored[..], &mut all.floats[..]) else { return Ok(()) };
    let (param, m) = (param.as_view_mut(), Some(m.as_view_mut()));
    let tensor = Tensor { param, master: None, grad: grad.as_view(), m, v: None, decay: true, place: Place::default() };
    let rule = Rule::Sgd(Sgd { momentum: 0.9, dampening: 0.0, nesterov: true });
    optimizer::step(stream, Options { rule, ..Options::default() }, STEP, &mut [tensor])
}

/// AdamW of bf16 without master, rounded by chance, by numbers that norm and clip leave on the device.
fn controlled(stream: &Stream, all: &mut Arrays<bf16>) -> Result<(), KernelError> {
    let ([param], [grad, m, v]) = (&mut all.stored[..], &mut all.floats[..]) else { return Ok(()) };
    let (mut control, mut sum) = (stream.device().zeros::<f64>(Control::LEN)?, stream.device().zeros::<f64>(1)?);
    Control::begin(stream, STEP, control.as_view_mut())?;
    norm::sum_of_squares_into(stream, &[grad.as_view()], sum.as_view_mut())?;
    norm::clip(stream, sum.as_view(), 1.0, control.as_view_mut())?;
    let (param, m, v) = (param.as_view_mut(), Some(m.as_view_mut()), Some(v.as_view_mut()));
    let tensor = Tensor { param, master: None, grad: grad.as_view(), m, v, decay: true, place: Place::default() };
    let options = Options { rounding: Rounding::Stochastic { seed: 7 }, ..Options::default() };
    optimizer::step(stream, options, Numbers::Device(control.as_view()), &mut [tensor])
}

/// The other rules and ways, with the bytes that must move: what is read and written twice, and the gradient once.
fn optimizer_cases(elements: usize) -> [Case; 3] {
    let sizes = |stored, floats, written| Sizes { elements, stored, floats, written };
    let what = |rule: &str| format!("{rule} {elements}");
    [
        case::<bf16>("optimizer", what("Adam, mean in bf16"), 20 * elements, sizes(2, 2, [2, 1]), short_mean),
        case::<f32>("optimizer", what("SGD"), 20 * elements, sizes(1, 2, [1, 1]), sgd),
        // The norm reads the gradient too.
        case::<bf16>(
            "optimizer",
            what("norm, clip, AdamW, stochastic"),
            28 * elements,
            sizes(1, 3, [1, 2]),
            controlled,
        ),
    ]
}

fn optimizer_case<T: Float>(elements: usize) -> Case {
    // Read: gradient, both moments, and the parameter or its master; written: all but the gradient, and the parameter.
    let bytes = if size_of::<T>() == 4 { 7 * 4 } else { 7 * 4 + 2 };
    let sizes = Sizes { elements, stored: 1, floats: 4, written: [1, 3] };
    case::<T>("optimizer", format!("AdamW {elements}"), bytes * elements, sizes, step)
}

/// The norm lands in the first of what is written, so that it is compared.
fn squares(stream: &Stream, all: &mut Arrays<f32>) -> Result<(), KernelError> {
    let [x, out] = &mut all.stored[..] else { return Ok(()) };
    let sum = norm::sum_of_squares(stream, &[x.as_view()])?;
    Ok(out.view_mut(..1)?.fill(stream, sum.sqrt() as f32)?)
}

fn scale(stream: &Stream, all: &mut Arrays<f32>) -> Result<(), KernelError> {
    let [x] = &mut all.stored[..] else { return Ok(()) };
    norm::scale(stream, &mut [x.as_view_mut()], 0.5)
}

const HEADS: usize = 16;
const HEAD_SIZE: usize = 128;

fn turn<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let [x] = &mut all.stored[..] else { return Ok(()) };
    let row_stride = HEADS * HEAD_SIZE;
    let tokens = x.len() / row_stride;
    let shape = rope::Shape { batch: 1, tokens, heads: HEADS, head_size: HEAD_SIZE, row_stride };
    rope::forward(stream, shape, rope::Options { position: 1000, ..Default::default() }, None, x.as_view_mut())
}

fn rope_case<T: Float>(tokens: usize) -> Case {
    let elements = tokens * HEADS * HEAD_SIZE;
    let sizes = Sizes { elements, stored: 1, floats: 0, written: [1, 0] };
    let what = format!("forward {tokens} tokens, {HEADS} heads of {HEAD_SIZE}");
    case::<T>("rope", what, 2 * size_of::<T>() * elements, sizes, turn)
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    let (elements, tokens) = match size {
        Size::Small => (20_011, 3),
        Size::Counted => (1 << 17, 8),
        Size::Large => (1 << 27, 1 << 15),
    };
    let one = |stored| Sizes { elements, stored, floats: 0, written: [1, 0] };
    let mut all = vec![
        optimizer_case::<f32>(elements),
        optimizer_case::<bf16>(elements),
        optimizer_case::<f16>(elements),
        case::<f32>("norm", format!("squares {elements}"), 4 * elements, one(2), squares),
        case::<f32>("norm", format!("scale {elements}"), 8 * elements, one(1), scale),
        rope_case::<f32>(tokens),
        rope_case::<bf16>(tokens),
        rope_case::<f16>(tokens),
    ];
    all.extend(optimizer_cases(elements));
    all
}
