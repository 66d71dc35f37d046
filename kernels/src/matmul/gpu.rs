//! Matrix products by the kernels of `cu/matmul.cu`: of one weight, or of one for each group of rows in one launch.

use warpweft_device::{Arg, DType, Float, Stream, View, ViewMut};

use super::{Activation, Epilogue, Shape, Through};
use crate::launch::{Extent, MATMUL, Partials, PartsLaunch};
use crate::{KernelError, Write};

/// Groups of a launch, as in `cu/matmul.cu`.
const MOST_GROUPS: usize = 256;
/// Threads of a block, and of one that goes through elements.
const TENSOR_THREADS: u32 = 128;
const ELEMENT_THREADS: usize = 256;
/// Rows of which an epilogue sums the columns of its results.
const HEIGHT: usize = 64;

/// Groups of rows one after another, each with a weight `[n, k]` of its own.
#[derive(Clone, Copy)]
pub(crate) struct Grouped<'a> {
    /// Rows of each.
    pub(crate) counts: &'a [usize],
    pub(crate) n: usize,
    pub(crate) k: usize,
}

/// Some of the groups: as many as a launch takes.
struct Part<'a> {
    counts: &'a [usize],
    /// Groups and rows before these.
    groups: usize,
    rows: usize,
}

impl<'a> Grouped<'a> {
    fn parts(self) -> impl Iterator<Item = Part<'a>> {
        let mut rows = 0;
        self.counts.chunks(MOST_GROUPS).enumerate().map(move |(at, counts)| {
            let part = Part { counts, groups: at * MOST_GROUPS, rows };
            rows += counts.iter().sum::<usize>();
            part
        })
    }

    /// All rows, n and k against what a kernel's numbers hold.
    fn check(self, op: &'static str) -> Result<(), KernelError> {
        let most = i32::MAX as usize;
        let rows = self.counts.iter().sum::<usize>();
        for (argument, given) in [("m", rows), ("n", self.n), ("k", self.k)] {
            if given > most {
                let allowed = format!("at most {most} on a GPU");
                return Err(KernelError::Size { op, argument, given, allowed });
            }
        }
        Ok(())
    }
}

impl Part<'_> {
    fn sum(&self) -> usize {
        self.counts.iter().sum()
    }

    fn largest(&self) -> usize {
        self.counts.iter().copied().max().unwrap_or(0)
    }

    /// The first row of each group, and the end of the last, as the kernels take them.
    fn begins(&self) -> Arg {
        let mut begins = [0u32; MOST_GROUPS + 1];
        let mut end = 0;
        for (begin, count) in begins[1..].iter_mut().zip(self.counts) {
            end += *count as u32;
            *begin = end;
        }
        Arg::bytes(bytemuck::cast_slice(&begins))
    }
}

/// A variant of a kernel and how it is launched.
struct Tiles {
    variant: &'static str,
    extent: Extent,
}

/// What the result of a launch is: `groups` matrices of at most so many rows and columns. Of the columns of a pair of
/// halves only those of one are counted.
struct Output {
    rows: usize,
    columns: usize,
    pairs: bool,
    groups: usize,
}

impl Output {
    /// `packed`: whether all units of 16 bytes of the operands are aligned. Neither it nor the tile changes a result.
    fn tiles<T: Float>(&self, op: &'static str, stream: &Stream, packed: bool) -> Result<Tiles, KernelError> {
        let count = |tile: usize| {
            let columns = if self.pairs { tile / 2 } else { tile };
            self.rows.div_ceil(tile) * self.columns.div_ceil(columns)
        };
        // Large ones feed a multiprocessor best; small ones occupy more of them.
        let full = count(128) * self.groups >= stream.device().properties()?.multiprocessors as usize;
        let single = T::DTYPE == DType::F32;
        let (variant, tile) = match (packed || single, full) {
            (true, true) => ("large", 128),
            (true, false) => ("small", 64),
            (false, _) => ("any", 64),
        };
        let tiles = count(tile);
        if tiles > i32::MAX as usize {
            let allowed = format!("such that the result has at most {} tiles of {tile} by {tile}", i32::MAX);
            return Err(KernelError::Size { op, argument: "m", given: self.rows, allowed });
        }
        let threads = if single { (tile * tile / 64) as u32 } else { TENSOR_THREADS };
        // The sums are laid down where the operands were.
        let operands = if single { 4 * 2 * 8 * (tile + 4) * 4 } else { 4 * 2 * tile * 32 * 2 };
        let shared = operands.max(tile * tile * 4) as u32;
        let extent = Extent { grid: [tiles as u32, self.groups as u32, 1], block: [threads, 1, 1], shared };
        Ok(Tiles { variant, extent })
    }
}

/// Whether all units of 16 bytes of operands that begin there, with rows of so many elements, are aligned.
fn units<T: Float>(begins: [View<'_, T>; 2], lengths: [usize; 2]) -> bool {
    begins.iter().all(|begin| begin.is_aligned(16)) && lengths.iter().all(|length| length.is_multiple_of(8))
}

fn optional<T: Float>(view: Option<View<'_, T>>) -> Result<Arg, KernelError> {
    Ok(view.map_or(Ok(Arg::pointer(0)), TryInto::try_into)?)
}

/// The number by which a kernel is told.
fn number(activation: Activation) -> Arg {
    let number: u32 = match activation {
        Activation::None => 0,
        Activation::GeluTanh => 1,
        Activation::GeluErf => 2,
        Activation::Relu => 3,
        Activation::SwiGlu => 4,
    };
    number.into()
}

pub(crate) fn forward<T: Float>(
    stream: &Stream,
    op: &'static str,
    shape: Grouped<'_>,
    x: View<'_, T>,
    w: View<'_, T>,
    epilogue: Epilogue<'_, T>,
    mut y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    let Grouped { n, k, .. } = shape;
    let Epilogue { scale, bias, activation, mut pre, residual } = epilogue;
    let (outputs, pairs) = (activation.outputs(n), activation == Activation::SwiGlu);
    shape.check(op)?;
    for part in shape.parts() {
        let (first, m) = (part.rows, part.sum());
        if m == 0 || n == 0 {
            continue;
        }
        let of = |width: usize| first * width..(first + m) * width;
        let groups = part.groups..part.groups + part.counts.len();
        let (x, w) = (x.slice(of(k))?, w.slice(groups.start * n * k..groups.end * n * k)?);
        let bias = bias.map(|bias| bias.slice(groups.start * n..groups.end * n)).transpose()?;
        let residual = residual.map(|residual| residual.slice(of(outputs))).transpose()?;
        let pre = pre.as_mut().map(|pre| pre.reborrow().slice(of(n))).transpose()?;
        let y = y.reborrow().slice(of(outputs))?;
        let result = Output { rows: part.largest(), columns: outputs, pairs, groups: groups.len() };
        let tiles = result.tiles::<T>(op, stream, units([x, w], [k, k]))?;
        let beside = [bias, residual, pre.as_ref().map(|pre| pre.as_view()), Some(y.as_view())];
        let packed = outputs.is_multiple_of(4) && beside.into_iter().flatten().all(|view| view.is_aligned(16));
        let args = [
            x.try_into()?,
            w.try_into()?,
            optional(bias)?,
            optional(pre.as_ref().map(|pre| pre.as_view()))?,
            optional(residual)?,
            y.try_into()?,
            part.begins(),
            (m as u32).into(),
            (n as u32).into(),
            (k as u32).into(),
            scale.into(),
            number(activation),
            u32::from(packed).into(),
        ];
        MATMUL.launch::<T>(stream, &format!("matmul_forward_{}_", tiles.variant), tiles.extent, &args)?;
    }
    Ok(())
}

#[allow(clippy::too_many_arguments, reason = "the arguments of the op, and its name")]
pub(crate) fn backward_input<T: Float>(
    stream: &Stream,
    op: &'static str,
    shape: Grouped<'_>,
    dy: View<'_, T>,
    w: View<'_, T>,
    through: Through<'_, T>,
    write: Write,
    mut dx: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    let Grouped { n, k, .. } = shape;
    let Through { scale, activation, pre, db } = through;
    let width = if activation == Activation::SwiGlu { 2 * k } else { k };
    shape.check(op)?;
    // Of one group of rows, as those that give `db` have.
    let rows: usize = shape.counts.iter().sum();
    let sums = match db {
        Some(db) if rows > 0 && width > 0 => Some((Partials::new(op, stream, rows.div_ceil(HEIGHT), width, 1)?, db)),
        _ => None,
    };
    let partials = sums.as_ref().map_or(Ok(Arg::pointer(0)), |(partials, _)| partials.argument())?;
    for part in shape.parts() {
        let (first, m) = (part.rows, part.sum());
        if m == 0 || k == 0 {
            continue;
        }
        let groups = part.groups..part.groups + part.counts.len();
        let (dy, w) = (dy.slice(first * n..(first + m) * n)?, w.slice(groups.start * n * k..groups.end * n * k)?);
        let written = first * width..(first + m) * width;
        let pre = pre.map(|pre| pre.slice(written.clone())).transpose()?;
        let dx = dx.reborrow().slice(written)?;
        let result = Output { rows: part.largest(), columns: k, pairs: false, groups: groups.len() };
        let tiles = result.tiles::<T>(op, stream, units([dy, w], [n, k]))?;
        let packed = k.is_multiple_of(4) && dx.as_view().is_aligned(16) && pre.is_none_or(|pre| pre.is_aligned(16));
        let args = [
            dy.try_into()?,
            w.try_into()?,
            optional(pre)?,
            optional((write == Write::Add).then(|| dx.as_view()))?,
            dx.try_into()?,
            partials.clone(),
            part.begins(),
            (m as u32).into(),
            (n as u32).into(),
            (k as u32).into(),
            scale.into(),
            number(activation),
            u32::from(packed).into(),
        ];
        MATMUL.launch::<T>(stream, &format!("matmul_backward_input_{}_", tiles.variant), tiles.extent, &args)?;
    }
    sums.map_or(Ok(()), |(partials, db)| add_parts(stream, &partials, width, db))
}

/// db += the sums that a kernel has made of parts of the rows of `columns` columns.
fn add_parts(
    stream: &Stream,
    partials: &Partials<'_>,
    columns: usize,
    db: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    let args = [partials.argument()?, partials.parts.into(), (columns as u32).into(), db.try_into()?];
    MATMUL.launch::<f32>(stream, "matmul_add_parts", partials.add, &args)
}

pub(crate) fn backward_weight<T: Float>(
    stream: &Stream,
    op: &'static str,
    shape: Grouped<'_>,
    x: View<'_, T>,
    dy: View<'_, T>,
    mut dw: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    let Grouped { n, k, .. } = shape;
    shape.check(op)?;
    for part in shape.parts() {
        let (first, m) = (part.rows, part.sum());
        if m == 0 || n == 0 || k == 0 {
            continue;
        }
        let groups = part.groups..part.groups + part.counts.len();
        let (x, dy) = (x.slice(first * k..(first + m) * k)?, dy.slice(first * n..(first + m) * n)?);
        let dw = dw.reborrow().slice(groups.start * n * k..groups.end * n * k)?;
        let result = Output { rows: n, columns: k, pairs: false, groups: groups.len() };
        let tiles = result.tiles::<T>(op, stream, units([x, dy], [k, n]))?;
        let packed = k.is_multiple_of(4) && dw.as_view().is_aligned(16);
        let args = [
            x.try_into()?,
            dy.try_into()?,
            dw.try_into()?,
            part.begins(),
            (m as u32).into(),
            (n as u32).into(),
            (k as u32).into(),
            1f32.into(),
            u32::from(packed).into(),
        ];
        MATMUL.launch::<T>(stream, &format!("matmul_backward_weight_{}_", tiles.variant), tiles.extent, &args)?;
    }
    Ok(())
}

pub(super) fn backward_bias<T: Float>(
    stream: &Stream,
    op: &'static str,
    shape: Shape,
    dy: View<'_, T>,
    db: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    let Shape { m, n, .. } = shape;
    if m == 0 || n == 0 {
        return Ok(());
    }
    let launch = PartsLaunch::new::<T>(op, stream, [m, n], 1, dy.is_aligned(16))?;
    let (rows, columns) = ((m as u32).into(), n as u32);
    let args = [dy.try_into()?, launch.partials.argument()?, rows, columns.into(), u32::from(launch.packed).into()];
    MATMUL.launch::<T>(stream, "matmul_backward_bias_", launch.extent, &args)?;
    add_parts(stream, &launch.partials, n, db)
}

/// How elements are spread over threads, 16 bytes or one a thread.
fn elements<T: Float>(
    op: &'static str,
    shape: Shape,
    activation: Activation,
    aligned: bool,
) -> Result<(Extent, [Arg; 4]), KernelError> {
    let outputs = activation.outputs(shape.n);
    let half = if activation == Activation::SwiGlu { outputs } else { 0 };
    let (count, run) = (shape.m * outputs, 16 / size_of::<T>());
    let packed = aligned && count.is_multiple_of(run) && half.is_multiple_of(run);
    let blocks = count.div_ceil(if packed { run } else { 1 }).div_ceil(ELEMENT_THREADS);
    let most = i32::MAX as usize;
    if blocks > most || half > most {
        let allowed = format!("such that elements need at most {most} blocks of {ELEMENT_THREADS} threads");
        return Err(KernelError::Size { op, argument: "m", given: shape.m, allowed });
    }
    let extent = Extent { grid: [blocks as u32, 1, 1], block: [ELEMENT_THREADS as u32, 1, 1], shared: 0 };
    Ok((extent, [(count as u64).into(), (half as u32).into(), number(activation), u32::from(packed).into()]))
}

pub(super) fn activate<T: Float>(
    stream: &Stream,
    op: &'static str,
    shape: Shape,
    activation: Activation,
    pre: View<'_, T>,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    if shape.m == 0 || shape.n == 0 {
        return Ok(());
    }
    let aligned = pre.is_aligned(16) && y.as_view().is_aligned(16);
    let (extent, [count, half, activation, packed]) = elements::<T>(op, shape, activation, aligned)?;
    let args = [pre.try_into()?, y.try_into()?, count, half, activation, packed];
    MATMUL.launch::<T>(stream, "matmul_activate_", extent, &args)
}

pub(super) fn backward_activation<T: Float>(
    stream: &Stream,
    op: &'static str,
    shape: Shape,
    activation: Activation,
    pre: View<'_, T>,
    dy: View<'_, T>,
    dpre: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    if shape.m == 0 || shape.n == 0 {
        return Ok(());
    }
    let aligned = pre.is_aligned(16) && dy.is_aligned(16) && dpre.as_view().is_aligned(16);
    let (extent, [count, half, activation, packed]) = elements::<T>(op, shape, activation, aligned)?;
    let args = [pre.try_into()?, dy.try_into()?, dpre.try_into()?, count, half, activation, packed];
    MATMUL.launch::<T>(stream, "matmul_backward_activation_", extent, &args)
}
