//! The rotation in f64, pair by pair.

use super::{Options, Shape};

/// The angle of pair `pair` at position `position`.
pub fn angle(head_size: usize, base: f32, position: usize, pair: usize) -> f64 {
    position as f64 * f64::from(base).powf(-2.0 * pair as f64 / head_size as f64)
}

/// Turns x in place by `sign` (1 or -1) times the angles of `positions`, or of 0, 1, 2 and so on in each sequence.
pub fn rotate(shape: Shape, options: Options, positions: Option<&[u32]>, sign: f64, x: &mut [f64]) {
    let Shape { batch, tokens, heads, head_size, row_stride } = shape;
    let half = head_size / 2;
    for sequence in 0..batch {
        for token in 0..tokens {
            let place = positions.map_or(token, |positions| positions[sequence * tokens + token] as usize);
            for head in 0..heads {
                let start = (sequence * tokens + token) * row_stride + head * head_size;
                for pair in 0..half {
                    let (first, second) =
                        if options.interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
                    let (a, b) = (x[start + first], x[start + second]);
                    let (sin, cos) = (sign * angle(head_size, options.base, options.position + place, pair)).sin_cos();
                    x[start + first] = a * cos - b * sin;
                    x[start + second] = b * cos + a * sin;
                }
            }
        }
    }
}
