//! Attention by the kernels of `cu/attention*.cu`.

use warpweft_device::{Arg, DType, Float, Stream, View, ViewMut};

use super::call::{Call, Gradients, Heads, Saved};
use super::options::Shape;
use crate::launch::{ATTENTION, Extent};
use crate::{KernelError, Write};

/// Threads of a block.
const THREADS: u32 = 128;

/// A kernel's tiles: elements of a row, rows of queries and of keys.
#[derive(Clone, Copy)]
struct Tiles {
    width: u32,
    queries: u32,
    keys: u32,
}

/// Of the forward kernels, by head size.
const FORWARD: [Tiles; 3] = [
    Tiles { width: 64, queries: 128, keys: 128 },
    Tiles { width: 128, queries: 128, keys: 64 },
    Tiles { width: 256, queries: 64, keys: 32 },
];

fn tiles(of: [Tiles; 3], head_size: usize) -> Tiles {
    // The size was checked.
    of.into_iter().find(|tiles| tiles.width as usize >= head_size).unwrap_or(of[2])
}

pub(super) fn forward<T: Float, O: Float>(
    call: &Call<'_>,
    tokens: [usize; 2],
    inputs: [Heads<'_, T>; 3],
    out: ViewMut<'_, O>,
    lse: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    if T::DTYPE == DType::F32 {
        call.stream.device().cpu_pool()?;
    }
    let problem = Problem::new(call, tokens, inputs)?;
    aligned(call.op, "out", out.as_view())?;
    let Shape { batch, heads, queries, head_size, .. } = call.shape;
    if batch == 0 || heads == 0 || queries == 0 {
        return Ok(());
    }
    let tiles = tiles(FORWARD, head_size);
    let blocks = queries.div_ceil(tiles.queries as usize);
    let extent = Extent {
        grid: [grid(call.op, [blocks, heads, batch])?, 1, 1],
        block: [THREADS, 1, 1],
        shared: 2 * tiles.width * (tiles.queries + 2 * tiles.keys) + tiles.queries * tiles.keys / 8,
    };
    let mut args = rows(inputs)?.to_vec();
    args.extend([out.try_into()?, lse.try_into()?]);
    args.extend(arrays(call)?);
    args.push(problem.arg(blocks as u32));
    ATTENTION.launch::<T>(call.stream, &format!("attention_forward_{}_", tiles.width), extent, &args)
}

pub(super) fn backward<T: Float, O: Float>(
    call: &Call<'_>,
    _tokens: [usize; 2],
    _inputs: [Heads<'_, T>; 3],
    _saved: Saved<'_, T>,
    _gradients: Gradients<'_, O>,
) -> Result<(), KernelError> {
    call.stream.device().cpu_pool()?;
    Ok(())
}

/// `Problem` of cu/include/attention.cuh.
struct Problem(Vec<u32>);

impl Problem {
    /// Of sizes and options, with what a GPU allows of them.
    fn new<T: Float>(call: &Call<'_>, tokens: [usize; 2], inputs: [Heads<'_, T>; 3]) -> Result<Self, KernelError> {
        let Call { op, shape, options, .. } = *call;
        let Shape { queries, keys, heads, kv_heads, head_size, .. } = shape;
        if !head_size.is_multiple_of(8) || head_size > 256 {
            let allowed = "a multiple of 8, at most 256, on a GPU".to_owned();
            return Err(KernelError::Size { op, argument: "head_size", given: head_size, allowed });
        }
        let word = |argument, given| word(op, argument, given);
        let mut words = vec![word("queries", queries)?, word("keys", keys)?, word("heads", heads)?];
        words.extend([word("kv_heads", kv_heads)?, head_size as u32]);
        for (argument, of) in ["q", "k", "v"].into_iter().zip(inputs) {
            words.push(row(op, argument, of)?);
        }
        words.extend([word("all queries", tokens[0])?, word("all keys", tokens[1])?]);
        let window = options.window();
        // What reaches beyond every key is no limit.
        let side = |side: Option<usize>| side.and_then(|side| i32::try_from(side).ok()).unwrap_or(-1) as u32;
        words.extend([side(window.left), side(window.right)]);
        let scale = options.scale(head_size);
        let dropout = options.dropout.filter(|dropout| dropout.threshold() > 0);
        let plain = options.softcap.is_none() && dropout.is_none() && call.extra.slopes.is_none() && scale > 0.0;
        words.push(scale.to_bits());
        words.push(if plain { (scale * std::f32::consts::LOG2_E).to_bits() } else { 0 });
        words.push(options.softcap.unwrap_or(0.0).to_bits());
        words.push(dropout.map_or(0, |dropout| dropout.threshold()));
        words.push(dropout.map_or(1.0, |dropout| dropout.factor() as f32).to_bits());
        let seed = dropout.map_or(0, |dropout| dropout.seed);
        words.extend([seed as u32, (seed >> 32) as u32]);
        words.extend(dropout.map_or([0; 2], |dropout| [dropout.first_sequence, dropout.first_head]));
        words.push(u32::from(call.write == Write::Add));
        Ok(Self(words))
    }

    /// For a kernel with so many blocks to a head.
    fn arg(&self, blocks: u32) -> Arg {
        let words: Vec<u32> = self.0.iter().copied().chain([blocks]).collect();
        Arg::bytes(bytemuck::cast_slice(&words))
    }
}

fn word(op: &'static str, argument: &'static str, given: usize) -> Result<u32, KernelError> {
    match i32::try_from(given) {
        Ok(given) => Ok(given as u32),
        Err(_) => {
            let allowed = format!("at most {} on a GPU", i32::MAX);
            Err(KernelError::Size { op, argument, given, allowed })
        }
    }
}

/// Blocks for every head of every sequence.
fn grid(op: &'static str, sizes: [usize; 3]) -> Result<u32, KernelError> {
    let blocks = sizes.into_iter().try_fold(1usize, |product, size| product.checked_mul(size));
    word(op, "blocks of a launch", blocks.unwrap_or(usize::MAX))
}

/// Elements of a row of heads, which 16 bytes must divide.
fn row<T: Float>(op: &'static str, argument: &'static str, of: Heads<'_, T>) -> Result<u32, KernelError> {
    let most = i32::MAX as usize / 4;
    if !of.row.is_multiple_of(8) || !of.first.is_multiple_of(8) || of.row > most {
        let given = if of.first.is_multiple_of(8) { of.row } else { of.first };
        let allowed = format!("a multiple of 8, at most {most}, for `{argument}` on a GPU");
        return Err(KernelError::Size { op, argument: "row", given, allowed });
    }
    aligned(op, argument, of.rows)?;
    Ok(of.row as u32)
}

fn aligned<T: Float>(op: &'static str, argument: &'static str, view: View<'_, T>) -> Result<(), KernelError> {
    if view.is_aligned(16) {
        return Ok(());
    }
    Err(KernelError::Combination { op, argument, rule: "must begin at a multiple of 16 bytes on a GPU" })
}

/// q, k and v from the first element that is read.
fn rows<T: Float>(inputs: [Heads<'_, T>; 3]) -> Result<[Arg; 3], KernelError> {
    let mut args = Vec::with_capacity(3);
    for Heads { rows, first, .. } in inputs {
        args.push(rows.slice(first.min(rows.len())..)?.try_into()?);
    }
    let [q, k, v]: [Arg; 3] = args.try_into().expect("three of them");
    Ok([q, k, v])
}

/// `Arrays` of cu/include/attention.cuh.
fn arrays(call: &Call<'_>) -> Result<Vec<Arg>, KernelError> {
    fn or_null<T: warpweft_device::Element>(view: Option<View<'_, T>>) -> Result<Arg, KernelError> {
        Ok(view.map_or(Ok(Arg::pointer(0)), Arg::try_from)?)
    }
    let Call { stream, extra, seen, .. } = *call;
    let starts = extra.starts;
    let mut args = vec![
        or_null(starts.map(|starts| starts.queries))?,
        or_null(starts.map(|starts| starts.keys))?,
        or_null(seen)?,
        or_null(extra.slopes)?,
    ];
    args.extend(faults(stream)?);
    Ok(args)
}

/// The status word, and the numbers of what may be wrong.
fn faults(stream: &Stream) -> Result<Vec<Arg>, KernelError> {
    let device = stream.device();
    let [word, queries] = device.fault("attention: `starts.queries`")?;
    let [_, keys] = device.fault("attention: `starts.keys`")?;
    let [_, seen] = device.fault("attention: `seen`")?;
    Ok(vec![word, queries, keys, seen])
}
