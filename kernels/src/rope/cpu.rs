//! The fast path: a table of cosines and sines, and rows turned in parallel.

use std::cell::RefCell;
use std::sync::Arc;

use warpweft_device::{CpuPool, Float};

use super::{Direction, Options, Shape, reference};
use crate::rows;
use crate::simd::vectorised;

/// Elements below which handing rows to another thread costs more than it saves.
const LEAST_ELEMENTS: usize = 8192;

/// The largest table (pairs) that a thread keeps from one call to the next: 8 MiB.
const KEPT_PAIRS: usize = 1 << 20;

/// Cosines and sines of the angles of rows, `head_size / 2` a row. Row r of x takes row r modulo their number.
struct Table {
    head_size: usize,
    options: Options,
    /// What each row's position is, less `options.position`.
    places: Places,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// The positions of a table's rows.
#[derive(PartialEq, Eq)]
enum Places {
    /// 0, 1, 2 and so on, so many.
    Counted(usize),
    Listed(Vec<u32>),
}

thread_local! {
    /// Every layer of a model asks for the same angles, forward and backward.
    static LAST: RefCell<Option<Arc<Table>>> = const { RefCell::new(None) };
}

impl Table {
    fn get(shape: Shape, options: Options, positions: Option<&[u32]>) -> Arc<Self> {
        let places = match positions {
            None => Places::Counted(shape.tokens),
            // Sequences that are all cut the same way, as they are over context-parallel ranks, share the first one's rows.
            Some(listed) if listed.chunks_exact(shape.tokens).all(|own| *own == listed[..shape.tokens]) => {
                Places::Listed(listed[..shape.tokens].to_vec())
            }
            Some(listed) => Places::Listed(listed.to_vec()),
        };
        let fits = |table: &Arc<Self>| {
            table.head_size == shape.head_size && table.options == options && table.places == places
        };
        if let Some(table) = LAST.with_borrow(|last| last.clone().filter(fits)) {
            return table;
        }
        let table = Arc::new(Self::compute(shape.head_size, options, places));
        if table.cos.len() <= KEPT_PAIRS {
            LAST.set(Some(table.clone()));
        }
        table
    }

    fn compute(head_size: usize, options: Options, places: Places) -> Self {
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        let mut row = |place: usize| {
            for pair in 0..head_size / 2 {
                let position = options.position.saturating_add(place);
                let angle = reference::angle(head_size, options.base, position, pair);
                cos.push(angle.cos() as f32);
                sin.push(angle.sin() as f32);
            }
        };
        match &places {
            Places::Counted(tokens) => (0..*tokens).for_each(&mut row),
            Places::Listed(listed) => listed.iter().for_each(|place| row(*place as usize)),
        }
        Self { head_size, options, places, cos, sin }
    }

    fn rows(&self) -> usize {
        match &self.places {
            Places::Counted(tokens) => *tokens,
            Places::Listed(listed) => listed.len(),
        }
    }
}

pub(super) fn rotate<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    options: Options,
    positions: Option<&[u32]>,
    direction: Direction,
    x: &mut [T],
) {
    let Shape { batch, tokens, heads, head_size, row_stride } = shape;
    if x.is_empty() || heads * head_size == 0 {
        return;
    }
    let table = Table::get(shape, options, positions);
    let table_rows = table.rows();
    let sign = if direction == Direction::Forward { 1.0 } else { -1.0 };
    let half = head_size / 2;
    let block = rows::block(batch * tokens, pool, 1, LEAST_ELEMENTS.div_ceil(row_stride));
    let blocks = x.chunks_mut(block * row_stride).enumerate().collect();
    pool.for_each(blocks, |(index, rows)| {
        vectorised(
            #[inline(always)]
            || {
                for (row, x) in rows.chunks_exact_mut(row_stride).enumerate() {
                    let angles = (index * block + row) % table_rows * half;
                    let (cos, sin) = (&table.cos[angles..][..half], &table.sin[angles..][..half]);
                    for head in x[..heads * head_size].chunks_exact_mut(head_size) {
                        if options.interleaved {
                            turn_neighbours(head, cos, sin, sign);
                        } else {
                            turn_halves(head, cos, sin, sign);
                        }
                    }
                }
            },
        );
    });
}

#[inline(always)]
fn turn_halves<T: Float>(head: &mut [T], cos: &[f32], sin: &[f32], sign: f32) {
    let (first, second) = head.split_at_mut(cos.len());
    for (((first, second), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*first, *second) = turn(*first, *second, *cos, sign * sin);
    }
}

#[inline(always)]
fn turn_neighbours<T: Float>(head: &mut [T], cos: &[f32], sin: &[f32], sign: f32) {
    for ((pair, cos), sin) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
        (pair[0], pair[1]) = turn(pair[0], pair[1], *cos, sign * sin);
    }
}

#[inline(always)]
fn turn<T: Float>(first: T, second: T, cos: f32, sin: f32) -> (T, T) {
    let (a, b) = (first.to_f32(), second.to_f32());
    (T::from_f32(a.mul_add(cos, -(b * sin))), T::from_f32(b.mul_add(cos, a * sin)))
}
