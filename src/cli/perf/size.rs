//! Sizes as nccl-tests writes them: a number and K, M or G, in powers of 1,024.

/// Bytes of `8`, `64M`, `1.5k`.
///
/// # Errors
/// A sentence naming what is wrong with it.
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 1u64 << 10),
        Some((at, 'M' | 'm')) => (&text[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let bad = || format!("`{text}` is no size; write a number of bytes, or one with K, M or G (powers of 1,024)");
    let bytes = match number.trim().parse::<u64>() {
        Ok(whole) => whole.checked_mul(unit).ok_or_else(bad)?,
        Err(_) => {
            let value = number.trim().parse::<f64>().map_err(|_| bad())? * unit as f64;
            // 2^53: beyond it a f64 no longer holds every whole number.
            if !(0.0..=9_007_199_254_740_992.0).contains(&value) {
                return Err(bad());
            }
            value as u64
        }
    };
    // No slice is longer than isize::MAX bytes.
    usize::try_from(bytes).ok().filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or_else(bad)
}

/// How sizes grow from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// By this many bytes.
    Bytes(usize),
    /// By this factor, more than 1.
    Factor(usize),
}

/// Every size from `least` to `most`.
pub(crate) fn sweep(least: usize, most: usize, step: Step) -> impl Iterator<Item = usize> {
    let next = move |&size: &usize| match step {
        Step::Bytes(0) => None,
        Step::Bytes(bytes) => size.checked_add(bytes),
        // Zero times anything stays zero: such a sweep has one size.
        Step::Factor(factor) => size.checked_mul(factor).filter(|&next| next > size),
    };
    std::iter::successors(Some(least), next).take_while(move |&size| size <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_binary() {
        for (text, bytes) in [
            ("8", 8),
            ("0", 0),
            ("1K", 1024),
            ("64M", 64 << 20),
            ("2g", 2 << 30),
            ("1.5k", 1536),
            ("0.5M", 1 << 19),
            ("8 M", 8 << 20),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "K", "8T", "-1", "-1K", "1e30", "nan", "inf", "99999999999999999999G", "8MB", "0x10"] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn a_sweep_has_both_ends_and_always_ends() {
        let sizes = |least, most, step| sweep(least, most, step).collect::<Vec<_>>();
        assert_eq!(sizes(8, 128, Step::Factor(2)), [8, 16, 32, 64, 128]);
        assert_eq!(sizes(8, 100, Step::Factor(4)), [8, 32]);
        assert_eq!(sizes(1024, 4096, Step::Bytes(1024)), [1024, 2048, 3072, 4096]);
        assert_eq!(sizes(0, 64, Step::Factor(2)), [0]);
        assert_eq!(sizes(64, 8, Step::Factor(2)), [] as [usize; 0]);
        assert_eq!(sizes(5, 5, Step::Bytes(0)), [5]);
        assert_eq!(sizes(usize::MAX - 1, usize::MAX, Step::Bytes(7)), [usize::MAX - 1]);
    }
}
