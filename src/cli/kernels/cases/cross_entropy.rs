//! Cases of cross-entropy, with one rank's logits and with those of two.

use warpweft::device::{Device, Float, Stream, bf16, f16};
use warpweft::kernels::KernelError;
use warpweft::kernels::cross_entropy::{self, Options, PARTS, Shape, Shard};

use super::super::case::{Arrays, Case, Size, indices, normal};

/// Targets that do not count, and everything that a loss may have.
const ALL: Options = Options { ignore: Some(3), smoothing: 0.1, z_loss: 1e-3, softcap: 20.0 };

fn case<T: Float>(shape: Shape, options: Options, backward: bool) -> Case {
    let Shape { rows, vocab } = shape;
    let call = move |stream: &Stream, all: &mut Arrays<T>| -> Result<(), KernelError> {
        let ([logits], [losses, lse]) = (&mut all.stored[..], &mut all.floats[..]) else { return Ok(()) };
        let targets = all.indices[0].as_view();
        if backward {
            return cross_entropy::backward(stream, shape, logits.as_view_mut(), targets, options, lse.as_view(), 1.0);
        }
        let (losses, lse) = (losses.as_view_mut(), lse.as_view_mut());
        cross_entropy::forward(stream, shape, logits.as_view(), targets, options, losses, lse).map(|_| ())
    };
    let arrays = move |device: &Device| {
        let stored = vec![normal::<T>(device, rows * vocab, 1)?];
        // About that of normal logits.
        let floats = vec![device.zeros(rows)?, device.upload(&vec![(vocab as f32).ln() + 0.5; rows])?];
        let written = if backward { [1, 0, 0, 0] } else { [0, 2, 0, 0] };
        Ok(Arrays { stored, floats, indices: vec![indices(device, rows, vocab)?], written, ..Arrays::of(call) })
    };
    let way = if backward { "backward" } else { "forward" };
    let with = if options == ALL { ", smoothing, z-loss, softcap" } else { "" };
    Case {
        bytes: (rows * vocab * size_of::<T>()) as u64 * if backward { 2 } else { 1 },
        roundings: roundings::<T>(vocab),
        ..Case::new("cross_entropy", format!("{way} {rows} x {vocab}{with}"), arrays)
    }
}

/// Losses are f32 whatever the storage; the sums of two devices run in other orders.
fn roundings<T>(vocab: usize) -> f64 {
    16.0 + if size_of::<T>() == 4 { vocab as f64 / 8.0 } else { 0.0 }
}

/// The classes of two ranks, the second of which has more: what each finds, losses from both, and the gradients.
fn sharded<T: Float>(rows: usize, vocab: usize) -> Case {
    let first = vocab / 8 * 3;
    let shards = [(0, first), (first, vocab - first)];
    let call = move |stream: &Stream, all: &mut Arrays<T>| -> Result<(), KernelError> {
        let [parts, normaliser] = &mut all.doubles[..] else { return Ok(()) };
        let targets = all.indices[0].as_view();
        let of_ranks = |at: usize| at * rows * PARTS..(at + 1) * rows * PARTS;
        for (at, ((first, held), logits)) in shards.into_iter().zip(&all.stored).enumerate() {
            let (shape, shard) = (Shape { rows, vocab: held }, Shard { first, vocab });
            let parts = parts.view_mut(of_ranks(at))?;
            cross_entropy::forward_shard(stream, shape, shard, logits.as_view(), targets, ALL, parts)?;
        }
        let losses = all.floats[0].as_view_mut();
        cross_entropy::merge(stream, 2, parts.as_view(), targets, ALL, losses, normaliser.as_view_mut())?;
        for ((first, held), logits) in shards.into_iter().zip(&mut all.stored) {
            let (shape, shard) = (Shape { rows, vocab: held }, Shard { first, vocab });
            let (logits, normaliser) = (logits.as_view_mut(), normaliser.as_view());
            cross_entropy::backward_shard(stream, shape, shard, logits, targets, ALL, normaliser, 1.0)?;
        }
        Ok(())
    };
    let arrays = move |device: &Device| {
        let logits = shards.map(|(first, held)| normal::<T>(device, rows * held, 1 + first as u64));
        Ok(Arrays {
            stored: logits.into_iter().collect::<Result<_, _>>()?,
            floats: vec![device.zeros(rows)?],
            doubles: vec![device.zeros(2 * rows * PARTS)?, device.zeros(2 * rows)?],
            indices: vec![indices(device, rows, vocab)?],
            written: [2, 1, 0, 0],
            ..Arrays::of(call)
        })
    };
    Case {
        bytes: (3 * rows * vocab * size_of::<T>()) as u64,
        roundings: roundings::<T>(vocab),
        ..Case::new("cross_entropy", format!("on two ranks {rows} x {vocab}, smoothing, z-loss, softcap"), arrays)
    }
}

fn of_type<T: Float>(size: Size) -> Vec<Case> {
    let both =
        |(rows, vocab, options)| [false, true].map(|backward| case::<T>(Shape { rows, vocab }, options, backward));
    let plain = Options::default();
    if !size.is_small() {
        let sizes = if size.is_counted() { (16, 16_384, plain) } else { (8192, 50_304, plain) };
        return both(sizes).into();
    }
    let mut all: Vec<Case> = [(8, 4096, plain), (4, 8192, ALL)].into_iter().flat_map(both).collect();
    all.extend([(9, 300, plain), (4, 5003, plain)].into_iter().flat_map(both).map(Case::edge));
    all.push(sharded::<T>(8, 4096));
    all
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    [of_type::<f32>(size), of_type::<bf16>(size), of_type::<f16>(size)].into_iter().flatten().collect()
}
