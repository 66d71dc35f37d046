//! Attention by the kernels of `cu/attention*.cu`.

use warpweft_device::{Arg, DType, Float, Stream, View, ViewMut, Workspace};

use super::call::{Call, Gradients, Heads, Saved};
use super::options::Shape;
use crate::launch::{ATTENTION_64, ATTENTION_128, ATTENTION_256, ATTENTION_F32, Extent, Program};
use crate::{KernelError, Write, check};

/// Threads of a block.
const THREADS: u32 = 128;

/// The kernels for some head sizes. None needs more than 99 KiB of shared memory, which every card has.
struct Kernels {
    program: &'static Program,
    /// The largest head size.
    width: u32,
    forward: Blocks,
    queries: Blocks,
    keys: Blocks,
    /// Blocks beside each other that share the elements of dK and dV.
    parts: usize,
    /// Threads to a row in attention_rows.
    lanes: u32,
}

/// What a block has: rows of its own side, and dynamic shared memory.
struct Blocks {
    rows: usize,
    shared: u32,
}

impl Kernels {
    fn of<T: Float>(head_size: usize) -> &'static Self {
        let kernels = if T::DTYPE == DType::F32 { &F32[..] } else { &TENSOR_CORES[..] };
        // The size was checked.
        kernels.iter().find(|kernels| kernels.width as usize >= head_size).unwrap_or(&kernels[kernels.len() - 1])
    }

    /// On tensor cores: rows of a block and of a tile of each kernel.
    const fn tensor_cores(program: &'static Program, width: u32, of: [[u32; 2]; 3], parts: usize) -> Self {
        let [[m, n], [queries, passing_keys], [keys, passing_queries]] = of;
        // Two bytes an element; a bit for each weight.
        Self {
            program,
            width,
            forward: Blocks { rows: m as usize, shared: 2 * width * (m + 2 * n) + m * n / 8 },
            queries: Blocks {
                rows: queries as usize,
                shared: 4 * width * (queries + 2 * passing_keys) + queries * passing_keys / 8,
            },
            keys: Blocks {
                rows: keys as usize,
                shared: 4 * width * (keys + 2 * passing_queries) + 16 * passing_queries + keys * passing_queries / 8,
            },
            parts,
            lanes: width / 8,
        }
    }

    /// In f32: rows of a tile.
    const fn f32(width: u32, tile: u32) -> Self {
        const ROWS: u32 = 32;
        let weights = 2 * ROWS * if tile == 8 { 8 } else { tile + 8 };
        let shared = 4 * (2 * (ROWS + tile) * (width + 4) + weights) + 16 * tile + ROWS * tile / 8;
        Self {
            program: &ATTENTION_F32,
            width,
            forward: Blocks { rows: ROWS as usize, shared },
            queries: Blocks { rows: ROWS as usize, shared },
            keys: Blocks { rows: ROWS as usize, shared },
            parts: 1,
            lanes: 32,
        }
    }

    /// Launches a kernel with blocks for every head of every sequence.
    fn launch<T: Float>(
        &self,
        call: &Call<'_>,
        kernel: &str,
        (blocks, shared): ([usize; 3], u32),
        args: &[Arg],
        problem: &Problem,
    ) -> Result<(), KernelError> {
        if blocks.contains(&0) {
            return Ok(());
        }
        let extent = Extent { grid: [grid(call.op, blocks)?, 1, 1], block: [THREADS, 1, 1], shared };
        let args = [args, &arrays(call)?, &[problem.arg(blocks[0] as u32)]].concat();
        self.program.launch::<T>(call.stream, &format!("attention_{kernel}_{}_", self.width), extent, &args)
    }
}

static TENSOR_CORES: [Kernels; 3] = [
    Kernels::tensor_cores(&ATTENTION_64, 64, [[128, 128], [128, 64], [128, 32]], 1),
    Kernels::tensor_cores(&ATTENTION_128, 128, [[128, 64], [64, 32], [64, 32]], 1),
    Kernels::tensor_cores(&ATTENTION_256, 256, [[64, 32], [64, 16], [64, 16]], 2),
];

static F32: [Kernels; 2] = [Kernels::f32(128, 32), Kernels::f32(256, 8)];

pub(super) fn forward<T: Float, O: Float>(
    call: &Call<'_>,
    tokens: [usize; 2],
    inputs: [Heads<'_, T>; 3],
    out: ViewMut<'_, O>,
    lse: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    let problem = Problem::new(call, tokens, inputs)?;
    aligned(call.op, "out", out.as_view())?;
    let Shape { batch, heads, queries, head_size, .. } = call.shape;
    let kernels = Kernels::of::<T>(head_size);
    let Blocks { rows: of_block, shared } = kernels.forward;
    let mut args = rows(inputs)?.to_vec();
    args.extend([out.try_into()?, lse.try_into()?]);
    let blocks = [queries.div_ceil(of_block), heads, batch];
    kernels.launch::<T>(call, "forward", (blocks, shared), &args, &problem)
}

pub(super) fn backward<T: Float, O: Float>(
    call: &Call<'_>,
    tokens: [usize; 2],
    inputs: [Heads<'_, T>; 3],
    saved: Saved<'_, T>,
    gradients: Gradients<'_, O>,
) -> Result<(), KernelError> {
    let mut problem = Problem::new(call, tokens, inputs)?;
    aligned(call.op, "out", saved.out)?;
    aligned(call.op, "dout", saved.dout)?;
    let [dq, dk, dv] = problem.gradients(call, gradients)?;
    let Shape { batch, heads, kv_heads, queries, keys, head_size } = call.shape;
    let kernels = Kernels::of::<T>(head_size);
    let saved_rows = rows_of(call, kernels, &problem, tokens[0], saved)?;
    let mut args = rows(inputs)?.to_vec();
    args.extend([saved.dout.try_into()?, saved_rows.as_view().try_into()?]);
    let Blocks { rows: of_block, shared } = kernels.queries;
    let blocks = [queries.div_ceil(of_block), heads, batch];
    kernels.launch::<T>(call, "queries", (blocks, shared), &[&args[..], &[dq]].concat(), &problem)?;
    let Blocks { rows: of_block, shared } = kernels.keys;
    let blocks = [keys.div_ceil(of_block) * kernels.parts, kv_heads, batch];
    kernels.launch::<T>(call, "keys", (blocks, shared), &[&args[..], &[dk, dv]].concat(), &problem)
}

/// Of each row of out its LSE and the sum of out dout, as pairs in the LSE's layout.
fn rows_of<'a, T: Float>(
    call: &Call<'a>,
    kernels: &Kernels,
    problem: &Problem,
    tokens: usize,
    saved: Saved<'_, T>,
) -> Result<Workspace<'a>, KernelError> {
    let starts = call.extra.starts.is_some();
    let all = if starts { tokens } else { call.shape.batch * tokens };
    let count = check::elements(call.op, "lse", &[all, call.shape.heads])?;
    word(call.op, "rows of the LSE", count)?;
    let rows = call.stream.workspace(2 * size_of::<f32>() * count)?;
    if count == 0 {
        return Ok(rows);
    }
    let blocks = count.div_ceil((THREADS / kernels.lanes) as usize);
    let extent = Extent { grid: [grid(call.op, [blocks, 1, 1])?, 1, 1], block: [THREADS, 1, 1], shared: 0 };
    let args = [
        saved.out.try_into()?,
        saved.dout.try_into()?,
        saved.lse.try_into()?,
        rows.as_view().try_into()?,
        u32::from(starts).into(),
        word(call.op, "all queries", all)?.into(),
        problem.arg(blocks as u32),
    ];
    kernels.program.launch::<T>(call.stream, &format!("attention_rows_{}_", kernels.width), extent, &args)?;
    Ok(rows)
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
        words.extend([0; Self::GRADIENTS.end - Self::GRADIENTS.start]);
        words.extend([word("all queries", tokens[0])?, word("all keys", tokens[1])?]);
        let window = options.window();
        // What reaches beyond every key is no limit, as is the largest number.
        let side = |side: Option<usize>| side.and_then(|side| i32::try_from(side).ok()).unwrap_or(i32::MAX) as u32;
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

    /// Where the gradients' rows are told.
    const GRADIENTS: std::ops::Range<usize> = 8..11;

    /// The gradients' places, of which the problem is told the rows.
    fn gradients<O: Float>(&mut self, call: &Call<'_>, to: Gradients<'_, O>) -> Result<[Arg; 3], KernelError> {
        let Call { op, shape, .. } = *call;
        let Shape { heads, kv_heads, head_size, .. } = shape;
        // f32 ones are moved in pairs.
        let to_bytes = if O::DTYPE == DType::F32 { 8 } else { 16 };
        let check = |argument, view: View<'_, O>| match view.is_aligned(to_bytes) {
            true => Ok(()),
            false => Err(KernelError::Combination { op, argument, rule: UNALIGNED }),
        };
        let (views, rows) = match to {
            Gradients::Apart(views) => (views, [heads, kv_heads, kv_heads].map(|heads| heads * head_size)),
            Gradients::Packed(rows) => {
                let (q, row) = (heads * head_size, (heads + 2 * kv_heads) * head_size);
                let firsts = [0, q, q + kv_heads * head_size];
                let mut args = Vec::with_capacity(3);
                check("dqkv", rows.as_view())?;
                for first in firsts {
                    args.push(rows.as_view().slice(first.min(rows.len())..)?.try_into()?);
                }
                self.0[Self::GRADIENTS].fill(row as u32);
                let [dq, dk, dv]: [Arg; 3] = args.try_into().expect("three of them");
                return Ok([dq, dk, dv]);
            }
        };
        for (word, row) in self.0[Self::GRADIENTS].iter_mut().zip(rows) {
            *word = self::word(op, "row of a gradient", row)?;
        }
        let [dq, dk, dv] = views;
        check("dq", dq.as_view())?;
        check("dk", dk.as_view())?;
        check("dv", dv.as_view())?;
        Ok([dq.try_into()?, dk.try_into()?, dv.try_into()?])
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

const UNALIGNED: &str = "must begin at a multiple of 16 bytes on a GPU (8 where sums in f32 are added)";

fn aligned<T: Float>(op: &'static str, argument: &'static str, view: View<'_, T>) -> Result<(), KernelError> {
    if view.is_aligned(16) {
        return Ok(());
    }
    Err(KernelError::Combination { op, argument, rule: UNALIGNED })
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
