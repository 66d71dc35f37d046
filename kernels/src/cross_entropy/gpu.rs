//! Cross-entropy by the kernels of `cu/cross_entropy.cu`: parts of rows, put together, and their gradient.

use warpweft_device::{Arg, Float, Stream, View, ViewMut, Workspace};

use super::{Options, PARTS, Shape, Shard, Sum};
use crate::KernelError;
use crate::launch::{CROSS_ENTROPY, Extent, RowLaunch, fits};

/// Threads of the kernel that puts parts together, a row each.
const THREADS: u32 = 128;

/// What a call is named, and the data that it may find wrong.
#[derive(Clone, Copy)]
pub(super) struct Op {
    name: &'static str,
    targets: &'static str,
}

impl Op {
    pub(super) const FORWARD: Op = Op::new("cross_entropy forward", "cross_entropy forward: `targets`");
    pub(super) const FORWARD_SHARD: Op =
        Op::new("cross_entropy forward_shard", "cross_entropy forward_shard: `targets`");
    pub(super) const BACKWARD: Op = Op::new("cross_entropy backward", "cross_entropy backward: `targets`");
    pub(super) const BACKWARD_SHARD: Op =
        Op::new("cross_entropy backward_shard", "cross_entropy backward_shard: `targets`");

    const fn new(name: &'static str, targets: &'static str) -> Self {
        Self { name, targets }
    }
}

/// What the forward calls leave of each row.
pub(super) enum Saved<'a> {
    Lse(View<'a, f32>),
    Normaliser(View<'a, f64>),
}

/// Targets as a kernel takes them: where, which to ignore, whether any, and all classes.
fn targets_of(targets: View<'_, u32>, options: Options, vocab: u32) -> Result<[Arg; 4], KernelError> {
    let ignores = u32::from(options.ignore.is_some());
    Ok([targets.try_into()?, options.ignore.unwrap_or(0).into(), ignores.into(), vocab.into()])
}

pub(super) fn forward<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    logits: View<'_, T>,
    targets: View<'_, u32>,
    losses: ViewMut<'_, f32>,
    lse: ViewMut<'_, f32>,
) -> Result<Sum, KernelError> {
    let Shape { rows, vocab } = shape;
    if rows == 0 {
        return Ok(Sum::default());
    }
    let room = Room::new(stream, rows, rows * PARTS)?;
    parts(Op::FORWARD, stream, shape, Shard { first: 0, vocab }, options, logits, targets, room.parts()?)?;
    let vocab = vocab as u32;
    put_together(&room, room.parts()?, 1, vocab, options, targets, losses, [Arg::pointer(0), lse.try_into()?])
}

pub(super) fn merge(
    stream: &Stream,
    ranks: usize,
    options: Options,
    parts: View<'_, f64>,
    targets: View<'_, u32>,
    losses: ViewMut<'_, f32>,
    normaliser: ViewMut<'_, f64>,
) -> Result<Sum, KernelError> {
    if targets.is_empty() {
        return Ok(Sum::default());
    }
    let room = Room::new(stream, targets.len(), 0)?;
    // How many classes there are was a matter of the parts.
    let outputs = [normaliser.try_into()?, Arg::pointer(0)];
    put_together(&room, parts.try_into()?, ranks, u32::MAX, options, targets, losses, outputs)
}

/// Working memory: the sum and the count, each row's loss in f64, and where they are not the caller's the parts.
struct Room<'a> {
    stream: &'a Stream,
    rows: usize,
    memory: Workspace<'a>,
}

impl<'a> Room<'a> {
    fn new(stream: &'a Stream, rows: usize, parts: usize) -> Result<Self, KernelError> {
        let memory = stream.workspace((2 + rows + parts) * size_of::<f64>())?;
        Ok(Self { stream, rows, memory })
    }

    /// From element `first` of f64 on.
    fn from(&self, first: usize) -> Result<View<'_, u8>, KernelError> {
        Ok(self.memory.as_view().slice(first * size_of::<f64>()..)?)
    }

    fn parts(&self) -> Result<Arg, KernelError> {
        Ok(self.from(2 + self.rows)?.try_into()?)
    }
}

#[expect(clippy::too_many_arguments, reason = "the op's own arguments")]
pub(super) fn parts<T: Float>(
    op: Op,
    stream: &Stream,
    shape: Shape,
    shard: Shard,
    options: Options,
    logits: View<'_, T>,
    targets: View<'_, u32>,
    parts: Arg,
) -> Result<(), KernelError> {
    let Shape { rows, vocab } = shape;
    fits(op.name, "vocab", shard.vocab, u32::MAX as usize)?;
    let launch = RowLaunch::new::<T>(op.name, [rows, vocab], 0, logits.is_aligned(16))?;
    if rows == 0 {
        return Ok(());
    }
    let [targets, ignore, ignores, all] = targets_of(targets, options, shard.vocab as u32)?;
    let [word, number] = stream.device().fault(op.targets)?;
    let args = [
        logits.try_into()?,
        targets,
        ignore,
        ignores,
        all,
        parts,
        (rows as u32).into(),
        (vocab as u32).into(),
        (shard.first as u32).into(),
        options.smoothing.into(),
        options.softcap.into(),
        u32::from(launch.packed).into(),
        word,
        number,
    ];
    CROSS_ENTROPY.launch::<T>(stream, "cross_entropy_parts_", launch.extent, &args)
}

#[expect(clippy::too_many_arguments, reason = "the op's own arguments")]
fn put_together(
    room: &Room<'_>,
    parts: Arg,
    ranks: usize,
    vocab: u32,
    options: Options,
    targets: View<'_, u32>,
    losses: ViewMut<'_, f32>,
    [normaliser, lse]: [Arg; 2],
) -> Result<Sum, KernelError> {
    const OP: &str = "cross_entropy merge";
    let rows = room.rows;
    fits(OP, "rows", rows, i32::MAX as usize)?;
    fits(OP, "ranks", ranks, i32::MAX as usize)?;
    let [targets, ignore, ignores, all] = targets_of(targets, options, vocab)?;
    let nats = Arg::try_from(room.from(2)?)?;
    let args = [
        parts,
        targets.clone(),
        ignore.clone(),
        ignores.clone(),
        all.clone(),
        losses.try_into()?,
        nats.clone(),
        normaliser,
        lse,
        (rows as u32).into(),
        (ranks as u32).into(),
        options.z_loss.into(),
    ];
    let extent = Extent { grid: [(rows as u32).div_ceil(THREADS), 1, 1], block: [THREADS, 1, 1], shared: 0 };
    CROSS_ENTROPY.launch::<f32>(room.stream, "cross_entropy_merge", extent, &args)?;
    let one = Extent { grid: [1, 1, 1], block: [1024, 1, 1], shared: 0 };
    let args = [nats, targets, ignore, ignores, all, room.from(0)?.try_into()?, (rows as u32).into()];
    CROSS_ENTROPY.launch::<f32>(room.stream, "cross_entropy_sum", one, &args)?;
    let bytes = room.from(0)?.slice(..2 * size_of::<f64>())?.download(room.stream)?;
    let [loss, count] = [0, 1].map(|at| bytemuck::pod_read_unaligned::<f64>(&bytes[at * 8..][..8]));
    Ok(Sum { loss, count: count as usize })
}

#[expect(clippy::too_many_arguments, reason = "the op's own arguments")]
pub(super) fn backward<T: Float>(
    op: Op,
    stream: &Stream,
    shape: Shape,
    shard: Shard,
    options: Options,
    logits: ViewMut<'_, T>,
    targets: View<'_, u32>,
    saved: Saved<'_>,
    scale: f32,
) -> Result<(), KernelError> {
    let Shape { rows, vocab } = shape;
    if rows == 0 || vocab == 0 {
        return Ok(());
    }
    fits(op.name, "vocab", shard.vocab, u32::MAX as usize)?;
    let launch = RowLaunch::new::<T>(op.name, [rows, vocab], 0, logits.as_view().is_aligned(16))?;
    let [targets, ignore, ignores, all] = targets_of(targets, options, shard.vocab as u32)?;
    let [lse, normaliser] = match saved {
        Saved::Lse(lse) => [lse.try_into()?, Arg::pointer(0)],
        Saved::Normaliser(normaliser) => [Arg::pointer(0), normaliser.try_into()?],
    };
    let [word, number] = stream.device().fault(op.targets)?;
    let args = [
        logits.try_into()?,
        targets,
        ignore,
        ignores,
        all,
        lse,
        normaliser,
        (rows as u32).into(),
        (vocab as u32).into(),
        (shard.first as u32).into(),
        scale.into(),
        options.smoothing.into(),
        options.z_loss.into(),
        options.softcap.into(),
        u32::from(launch.packed).into(),
        word,
        number,
    ];
    CROSS_ENTROPY.launch::<T>(stream, "cross_entropy_backward_", launch.extent, &args)
}
