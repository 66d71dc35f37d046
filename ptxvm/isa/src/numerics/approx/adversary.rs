//! The adversary: results as far from the true ones as the ISA allows, chosen by a seed. What it gives is a function of
//! the seed, the operation and the input's bits alone.

/// How far a result may be from the true value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reach {
    /// Units in the last place of the value.
    Ulp(f64),
    /// A part of the value.
    Relative(f64),
    /// An amount.
    Absolute(f64),
}

impl Reach {
    /// As an amount, for a value in a format of so many bits of fraction whose least normal exponent is `least`.
    pub fn absolute(self, value: f64, fraction: i32, least: i32) -> f64 {
        match self {
            Reach::Ulp(units) => {
                let exponent = ((value.to_bits() >> 52) as i32 & 0x7ff) - 1023;
                units * 2f64.powi(exponent.max(least) - fraction)
            }
            Reach::Relative(part) => part * value.abs(),
            Reach::Absolute(amount) => amount,
        }
    }
}

/// A number in [-1, 1), the same for the same arguments (the mixing function of SplitMix64).
pub fn draw(seed: u64, operation: u64, input: u64) -> f64 {
    let mix = |x: u64| {
        let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    };
    let bits = mix(mix(seed.wrapping_add(operation << 56)) ^ input.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (bits >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// The result that the draw picks: the true value moved by its part of what is allowed, rounded, and where rounding took it
/// too far, the neighbour of the correctly rounded result that lies on the drawn side and within the bound. A special
/// value, and a result next to one, stays: a move changes no sign, reaches neither zero nor infinity.
pub(super) fn choose<T: Copy>(
    exact: f64,
    allowed: f64,
    draw: f64,
    round: impl Fn(f64) -> T,
    value: impl Fn(T) -> f64,
    [near, down, up]: [T; 3],
) -> T {
    let centre = value(near);
    let fits = |candidate: T| {
        let x = value(candidate);
        x.is_finite() && x != 0.0 && x.is_sign_negative() == centre.is_sign_negative() && (x - exact).abs() <= allowed
    };
    if !centre.is_finite() || centre == 0.0 {
        return near;
    }
    let moved = round(exact + draw * allowed);
    let neighbour = if (value(up) > value(down)) == (draw > 0.0) { up } else { down };
    // A large move that rounding took beyond the bound becomes a step on the same side.
    let candidates = [moved, if draw.abs() > 0.5 { neighbour } else { near }];
    candidates.into_iter().find(|&candidate| fits(candidate)).unwrap_or(near)
}
