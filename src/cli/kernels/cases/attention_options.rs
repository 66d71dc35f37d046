//! Cases of attention's options, each by itself and all together, and of keys in parts.

use warpweft::device::{Device, Float, Stream, bf16, f16};
use warpweft::kernels::KernelError;
use warpweft::kernels::attention::{self, Dropout, Extra, Heads, Options, Saved, Shape, Starts, Window};

use super::super::case::{Arrays, Case, Size, normal};

/// A call with an option.
#[derive(Clone, Copy)]
struct With {
    name: &'static str,
    shape: Shape,
    options: Options,
    /// ALiBi.
    slopes: bool,
    /// Where sequences of unequal lengths begin; without, all have the shape's.
    starts: Option<[&'static [u32]; 2]>,
}

/// Fewer queries than keys, two query heads to one of keys.
const SHAPE: Shape = Shape { batch: 2, queries: 45, keys: 70, heads: 2, kv_heads: 1, head_size: 64 };
const WINDOW: Window = Window { left: Some(20), right: Some(3) };
const DROPOUT: Dropout = Dropout { probability: 0.2, seed: 7, first_sequence: 1, first_head: 2 };
/// One sequence without queries, one without keys.
const STARTS: [&[u32]; 2] = [&[0, 45, 45, 60, 75], &[0, 70, 90, 90, 120]];

const PLAIN: With = With { name: "not packed", shape: SHAPE, options: Options::FULL, slopes: false, starts: None };

fn all() -> [With; 8] {
    let varlen = Shape { batch: 4, ..SHAPE };
    let every = Options { causal: true, window: WINDOW, softcap: Some(5.0), dropout: Some(DROPOUT), scale: Some(0.2) };
    let with = |name, options| With { name, options, ..PLAIN };
    [
        PLAIN,
        with("window", Options { window: WINDOW, ..Options::FULL }),
        with("softcap", Options { softcap: Some(5.0), ..Options::FULL }),
        with("dropout", Options { dropout: Some(DROPOUT), ..Options::FULL }),
        With { name: "ALiBi", slopes: true, ..PLAIN },
        With { name: "varlen", shape: varlen, starts: Some(STARTS), options: Options::CAUSAL, ..PLAIN },
        With { name: "all of these", shape: varlen, starts: Some(STARTS), options: every, slopes: true },
        With {
            name: "all of these",
            shape: Shape { head_size: 200, ..varlen },
            starts: Some(STARTS),
            options: every,
            slopes: true,
        },
    ]
}

impl With {
    /// All queries and all keys.
    fn tokens(&self) -> [usize; 2] {
        match self.starts {
            Some(starts) => starts.map(|starts| starts.last().map_or(0, |&last| last as usize)),
            None => [self.shape.batch * self.shape.queries, self.shape.batch * self.shape.keys],
        }
    }

    /// Elements of q and out, and of k and v.
    fn lengths(&self) -> [usize; 2] {
        let ([queries, keys], Shape { heads, kv_heads, head_size, .. }) = (self.tokens(), self.shape);
        [queries * heads * head_size, keys * kv_heads * head_size]
    }

    fn forward<T: Float>(self, stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
        let ([q, k, v, out, ..], [slopes, lse]) = (&mut all.stored[..], &mut all.floats[..]) else { return Ok(()) };
        let (q, k, v) = (q.as_view(), k.as_view(), v.as_view());
        let (out, lse) = (out.as_view_mut(), lse.as_view_mut());
        let Self { shape, options, .. } = self;
        if !self.slopes && self.starts.is_none() {
            return attention::forward(stream, shape, options, q, k, v, out, lse);
        }
        let starts = self.starts.map(|_| Starts { queries: all.indices[0].as_view(), keys: all.indices[1].as_view() });
        let extra = Extra { slopes: self.slopes.then(|| slopes.as_view()), starts };
        attention::forward_with(stream, shape, options, extra, heads(shape, [q, k, v]), out, lse)
    }

    /// To its end, so that what it gives is there for any stream.
    fn run_forward<T: Float>(self, device: &Device, all: &mut Arrays<T>) -> Result<(), KernelError> {
        let stream = device.stream();
        self.forward(&stream, all)?;
        Ok(stream.synchronize()?)
    }

    fn backward<T: Float>(self, stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
        let [q, k, v, out, dout, dq, dk, dv] = &mut all.stored[..] else { return Ok(()) };
        let [slopes, lse] = &all.floats[..] else { return Ok(()) };
        let (q, k, v) = (q.as_view(), k.as_view(), v.as_view());
        let (out, lse, dout) = (out.as_view(), lse.as_view(), dout.as_view());
        let (dq, dk, dv) = (dq.as_view_mut(), dk.as_view_mut(), dv.as_view_mut());
        let Self { shape, options, .. } = self;
        if !self.slopes && self.starts.is_none() {
            return attention::backward(stream, shape, options, q, k, v, out, lse, dout, dq, dk, dv);
        }
        let starts = self.starts.map(|_| Starts { queries: all.indices[0].as_view(), keys: all.indices[1].as_view() });
        let extra = Extra { slopes: self.slopes.then(|| slopes.as_view()), starts };
        let saved = Saved { out, lse, dout };
        attention::backward_with(stream, shape, options, extra, heads(shape, [q, k, v]), saved, [dq, dk, dv])
    }

    /// What both calls read and write; for the second what the first gives.
    fn arrays<T: Float>(self, device: &Device, backward: bool) -> Result<Arrays<T>, KernelError> {
        let ([q, kv], Shape { heads, .. }) = (self.lengths(), self.shape);
        let mut stored = vec![normal::<T>(device, q, 1)?, normal(device, kv, 2)?, normal(device, kv, 3)?];
        stored.push(device.zeros(q)?);
        let slopes: Vec<f32> = (0..heads).map(|head| 2f32.powi(-1 - head as i32)).collect();
        let floats = vec![device.upload(&slopes)?, device.zeros(self.tokens()[0] * heads)?];
        let starts = self.starts.into_iter().flatten().map(|starts| device.upload(starts));
        let indices = starts.collect::<Result<_, _>>()?;
        let call = move |stream: &Stream, all: &mut Arrays<T>| self.forward(stream, all);
        let mut all = Arrays { stored, floats, indices, written: [1, 1, 0, 0], ..Arrays::of(call) };
        if backward {
            self.run_forward(device, &mut all)?;
            all.stored.extend([normal(device, q, 4)?, device.zeros(q)?, device.zeros(kv)?, device.zeros(kv)?]);
            let call = move |stream: &Stream, all: &mut Arrays<T>| self.backward(stream, all);
            all = Arrays { written: [3, 0, 0, 0], call: Arrays::of(call).call, ..all };
        }
        Ok(all)
    }
}

fn heads<T: Float>(shape: Shape, [q, k, v]: [warpweft::device::View<'_, T>; 3]) -> [Heads<'_, T>; 3] {
    let of_kv = |rows| Heads::whole(rows, shape.kv_heads, shape.head_size);
    [Heads::whole(q, shape.heads, shape.head_size), of_kv(k), of_kv(v)]
}

fn case<T: Float>(with: With, backward: bool) -> Case {
    let ([queries, keys], [q, kv]) = (with.tokens(), with.lengths());
    let (way, moved) = if backward { ("backward", 2) } else { ("forward", 1) };
    let (name, size) = (with.name, with.shape.head_size);
    let what = format!("{way} {queries} to {keys} tokens, 2 heads of {size}, {name}");
    let bytes = (2 * moved * (q + kv) * size_of::<T>()) as u64;
    let arrays = move |device: &Device| with.arrays::<T>(device, backward);
    Case { bytes, roundings: roundings::<T>(size), ..Case::new("attention", what, arrays) }
}

/// A score is a sum of as many products as a head has elements, and f32 keeps what orders make of it. In narrower types weights are
/// rounded to the storage before the second product.
pub(super) fn roundings<T>(head_size: usize) -> f64 {
    if size_of::<T>() == 4 { head_size.max(64) as f64 } else { 8.0 }
}

/// Keys in two parts: of the first each query sees some, of the second all.
const PART: Shape = Shape { batch: 1, queries: 45, keys: 45, heads: 2, kv_heads: 1, head_size: 64 };

fn onto<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let ([q, k, v], [out, lse]) = (&all.stored[..], &mut all.floats[..]) else { return Ok(()) };
    let inputs = heads(PART, [q.as_view(), k.as_view(), v.as_view()]);
    lse.as_view_mut().fill(stream, f32::NEG_INFINITY)?;
    for seen in [Some(all.indices[0].as_view()), None] {
        let (out, lse) = (out.as_view_mut(), lse.as_view_mut());
        attention::forward_onto(stream, PART, Options::FULL, seen, inputs, out, lse)?;
    }
    Ok(())
}

fn backward_onto<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let [q, k, v, out, dout] = &all.stored[..] else { return Ok(()) };
    let [_, lse, dq, dk, dv] = &mut all.floats[..] else { return Ok(()) };
    let inputs = heads(PART, [q.as_view(), k.as_view(), v.as_view()]);
    let (saved, seen) = ((out.as_view(), lse.as_view(), dout.as_view()), Some(all.indices[0].as_view()));
    for gradient in [&mut *dq, &mut *dk, &mut *dv] {
        gradient.as_view_mut().fill(stream, 0.0)?;
    }
    let (dq, dk, dv) = (dq.as_view_mut(), dk.as_view_mut(), dv.as_view_mut());
    attention::backward_onto(stream, PART, Options::FULL, seen, inputs, saved, dq, dk, dv)
}

fn onto_case<T: Float>(backward: bool) -> Case {
    let arrays = move |device: &Device| {
        let (q, kv, lse) = (45 * 2 * 64, 45 * 64, 45 * 2);
        let seen = device.upload(&(1..=45).collect::<Vec<u32>>())?;
        let stored = vec![normal(device, q, 1)?, normal(device, kv, 2)?, normal(device, kv, 3)?];
        if !backward {
            let (floats, indices) = (vec![device.zeros(q)?, device.zeros(lse)?], vec![seen]);
            return Ok(Arrays { stored, floats, indices, written: [0, 2, 0, 0], ..Arrays::of(onto::<T>) });
        }
        // What each query sees is what causal says.
        let causal = With { shape: PART, options: Options::CAUSAL, ..PLAIN };
        let mut all = causal.arrays::<T>(device, false)?;
        causal.run_forward(device, &mut all)?;
        all.stored.push(normal(device, q, 4)?);
        all.floats.extend([device.zeros(q)?, device.zeros(kv)?, device.zeros(kv)?]);
        Ok(Arrays { indices: vec![seen], written: [0, 3, 0, 0], call: Arrays::of(backward_onto::<T>).call, ..all })
    };
    let way = if backward { "backward" } else { "forward" };
    let what = format!("{way} 45 to two parts of 45 tokens, 2 heads of 64");
    Case { roundings: roundings::<T>(PART.head_size), ..Case::new("attention", what, arrays) }
}

fn of_type<T: Float>() -> Vec<Case> {
    let mut cases: Vec<Case> =
        all().into_iter().flat_map(|with| [false, true].map(|backward| case::<T>(with, backward))).collect();
    cases.extend([false, true].map(onto_case::<T>));
    cases
}

/// Only small ones: what options cost is measured elsewhere.
pub(super) fn cases(size: Size) -> Vec<Case> {
    if size == Size::Large {
        return Vec::new();
    }
    [of_type::<f32>(), of_type::<bf16>(), of_type::<f16>()].into_iter().flatten().collect()
}
