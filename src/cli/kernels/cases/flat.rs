//! Cases of ops that go through elements one by one: the optimizers, the global norm, rotary positions.

use warpweft::device::{Buffer, Device, Float, Stream, bf16, f16};
use warpweft::kernels::optimizer::{self, Adam, Control, Numbers, Options, Place, Rounding, Rule, Sgd, Step, Tensor};
use warpweft::kernels::{KernelError, norm, rope};

use super::super::case::{Arrays, Case, Function, Size, indices, normal, positive};

/// A case over `elements` elements, with `stored` arrays of the storage type and `floats` of f32, the last ones of which
/// are written.
struct Sizes {
    elements: usize,
    stored: usize,
    floats: usize,
    written: [usize; 2],
}

fn case<T: Float>(op: &'static str, what: String, bytes: usize, sizes: Sizes, call: Function<T>) -> Case {
    let arrays = move |device: &Device| {
        let Sizes { elements, stored, floats, written } = sizes;
        let all = (1..).take(stored).map(|seed| normal::<T>(device, elements, seed));
        let stored = all.collect::<Result<Vec<Buffer<T>>, _>>()?;
        let floats = (11..).take(floats).map(|seed| positive(device, elements, seed)).collect::<Result<Vec<_>, _>>()?;
        Ok(Arrays { stored, floats, written: [written[0], written[1], 0, 0], ..Arrays::of(call) })
    };
    Case { bytes: bytes as u64, roundings: 8.0, ..Case::new(op, what, arrays) }
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

fn sgd<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
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
fn optimizer_cases(elements: usize) -> [Case; 5] {
    let sizes = |stored, floats, written| Sizes { elements, stored, floats, written };
    let what = |rule: &str| format!("{rule} {elements}");
    [
        case::<bf16>("optimizer", what("Adam, mean in bf16"), 20 * elements, sizes(2, 2, [2, 1]), short_mean),
        case::<f32>("optimizer", what("SGD"), 20 * elements, sizes(1, 2, [1, 1]), sgd),
        case::<bf16>("optimizer", what("SGD"), 16 * elements, sizes(1, 2, [1, 1]), sgd),
        case::<f16>("optimizer", what("SGD"), 16 * elements, sizes(1, 2, [1, 1]), sgd),
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

/// Back, pairs of neighbours, each token by its position.
fn turn_back<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let ([x], [positions]) = (&mut all.stored[..], &mut all.indices[..]) else { return Ok(()) };
    let (tokens, row_stride) = (positions.len(), HEADS * HEAD_SIZE);
    let shape = rope::Shape { batch: 1, tokens, heads: HEADS, head_size: HEAD_SIZE, row_stride };
    let options = rope::Options { interleaved: true, ..Default::default() };
    rope::backward(stream, shape, options, Some(positions.as_view()), x.as_view_mut())
}

fn rope_cases<T: Float>(tokens: usize) -> [Case; 2] {
    let elements = tokens * HEADS * HEAD_SIZE;
    let what = |way: &str| format!("{way} {tokens} tokens, {HEADS} heads of {HEAD_SIZE}");
    let bytes = (2 * size_of::<T>() * elements) as u64;
    let case = |what, positions: usize, call: Function<T>| {
        let arrays = move |device: &Device| {
            let indices = if positions > 0 { vec![indices(device, positions, 131_072)?] } else { Vec::new() };
            let stored = vec![normal(device, elements, 1)?];
            Ok(Arrays { stored, indices, written: [1, 0, 0, 0], ..Arrays::of(call) })
        };
        Case { bytes, roundings: 8.0, ..Case::new("rope", what, arrays) }
    };
    [case(what("forward"), 0, turn), case(what("backward, interleaved, by position"), tokens, turn_back)]
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    let (elements, tokens) = match size {
        Size::Small { .. } => (131_072, 16),
        Size::Counted { .. } => (1 << 17, 8),
        Size::Large => (1 << 27, 1 << 15),
    };
    let one = |stored| Sizes { elements, stored, floats: 0, written: [1, 0] };
    let mut all = vec![
        optimizer_case::<f32>(elements),
        optimizer_case::<bf16>(elements),
        optimizer_case::<f16>(elements),
        case::<f32>("norm", format!("squares {elements}"), 4 * elements, one(2), squares),
        case::<f32>("norm", format!("scale {elements}"), 8 * elements, one(1), scale),
    ];
    all.extend(optimizer_cases(elements));
    all.extend(
        [rope_cases::<f32>(tokens), rope_cases::<bf16>(tokens), rope_cases::<f16>(tokens)].into_iter().flatten(),
    );
    if size.is_counted() {
        // Backward moves what forward does.
        all.retain(|case| case.op != "rope" || !case.what.starts_with("backward"));
    }
    if size.is_small() {
        all.extend([optimizer_case::<bf16>(2_011).edge(), optimizer_case::<f32>(2_011).edge()]);
    }
    all
}
