//! Integer tensor operations: exact sums in 32 bits, wrapping or saturating (`.satfinite`).

/// `D = A B + C` of one element: products of 8-bit values sum exactly in 64 bits.
pub fn multiply(a: impl Iterator<Item = i64>, b: impl Iterator<Item = i64>, c: i32, saturate: bool) -> i32 {
    let sum = a.zip(b).map(|(a, b)| a * b).sum::<i64>() + i64::from(c);
    if saturate { sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32 } else { sum as i32 }
}
