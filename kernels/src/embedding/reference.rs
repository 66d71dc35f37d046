//! The embedding in f64, token by token.

use super::Shape;

/// `y[b, t, :] = table[ids[b, t], :] + position_table[t, :]`.
pub fn forward(shape: Shape, ids: &[u32], table: &[f64], position_table: Option<&[f64]>) -> Vec<f64> {
    let Shape { tokens, channels, .. } = shape;
    let mut y = Vec::new();
    for (row, &id) in ids.iter().enumerate() {
        for c in 0..channels {
            let position = position_table.map_or(0.0, |table| table[row % tokens * channels + c]);
            y.push(table[id as usize * channels + c] + position);
        }
    }
    y
}

/// The gradients of the two tables: [V, C] and [positions, C].
pub fn backward(shape: Shape, ids: &[u32], dy: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let Shape { tokens, channels, vocab, positions, .. } = shape;
    let (mut dtable, mut dpositions) = (vec![0.0; vocab * channels], vec![0.0; positions * channels]);
    for (row, &id) in ids.iter().enumerate() {
        for c in 0..channels {
            dtable[id as usize * channels + c] += dy[row * channels + c];
            dpositions[row % tokens * channels + c] += dy[row * channels + c];
        }
    }
    (dtable, dpositions)
}
