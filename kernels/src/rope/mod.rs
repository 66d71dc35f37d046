//! Rotary position embedding, in place (Su 2021, arXiv 2104.09864).
//!
//! Pair d of a head at position p is turned by the angle p · base^(-2d/D): (a, b) becomes (a cos - b sin, b cos + a sin).
//! The pairs are (d, d + D/2), or with `interleaved` (2d, 2d + 1). Angles are formed and reduced in f64, so that the
//! last position of a long context is as accurate as the first; cosine and sine are rounded once to f32.
//!
//! Positions are data where tokens do not stand one after the other: the rows of a context-parallel rank, packed documents.

mod cpu;
mod gpu;
pub mod reference;

use warpweft_device::{Float, Stream, View, ViewMut};

use crate::{KernelError, check};

/// Sizes: x is `[batch, tokens, row_stride]`, of which the first `heads` heads of each token's row are turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Sequences.
    pub batch: usize,
    /// Tokens of a sequence.
    pub tokens: usize,
    /// Heads to turn: H for q alone, H + G for a packed row of q, k and v.
    pub heads: usize,
    /// Elements of a head; even.
    pub head_size: usize,
    /// Elements from a token to the next; at least `heads * head_size`.
    pub row_stride: usize,
}

/// The angles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The base of the geometric row of frequencies; positive.
    pub base: f32,
    /// Position of the first token; added to every position where those are given.
    pub position: usize,
    /// Whether neighbours (2d, 2d + 1) make a pair, and not (d, d + D/2).
    pub interleaved: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { base: 10_000.0, position: 0, interleaved: false }
    }
}

/// Turns the first `heads` heads of every row of x, each by its entry of `positions` `[batch, tokens]`; `None` means that
/// the tokens of each sequence stand at 0, 1, 2 and so on.
///
/// # Errors
/// An odd head size (on a GPU one above 8192), a row shorter than its heads, a base that is not positive, a length that contradicts the shape, an
/// argument of another device. Nothing is written then.
pub fn forward<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    positions: Option<View<'_, u32>>,
    x: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    rotate("rope::forward", stream, shape, options, positions, x, Direction::Forward)
}

/// The gradient: turns the other way. dx in place.
///
/// # Errors
/// As [`forward`].
pub fn backward<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    positions: Option<View<'_, u32>>,
    dx: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    rotate("rope::backward", stream, shape, options, positions, dx, Direction::Backward)
}

/// Which way pairs are turned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

fn rotate<T: Float>(
    op: &'static str,
    stream: &Stream,
    shape: Shape,
    options: Options,
    positions: Option<View<'_, u32>>,
    x: ViewMut<'_, T>,
    direction: Direction,
) -> Result<(), KernelError> {
    let Shape { batch, tokens, heads, head_size, row_stride } = shape;
    if !head_size.is_multiple_of(2) {
        let allowed = "even: its elements are turned in pairs".to_owned();
        return Err(KernelError::Size { op, argument: "head_size", given: head_size, allowed });
    }
    let turned = check::elements(op, "x", &[heads, head_size])?;
    if row_stride < turned {
        let allowed = format!("at least {turned}, the {heads} heads of {head_size} that are turned");
        return Err(KernelError::Size { op, argument: "row_stride", given: row_stride, allowed });
    }
    if !(options.base > 0.0 && options.base.is_finite()) {
        let allowed = "positive and finite".to_owned();
        return Err(KernelError::Number { op, argument: "base", given: options.base.into(), allowed });
    }
    let positions =
        positions.map(|positions| check::region(stream, op, "positions", positions, &[batch, tokens])).transpose()?;
    let x = check::region_mut(stream, op, "x", x, &[batch, tokens, row_stride])?;
    let Ok(pool) = stream.device().cpu_pool() else {
        return gpu::rotate(op, stream, shape, options, positions, direction, x);
    };
    let positions = positions.map(View::host).transpose()?;
    cpu::rotate(pool, shape, options, positions, direction, x.host()?);
    Ok(())
}
