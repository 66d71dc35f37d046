//! Numbers as C's printf writes them, where Rust's formatting differs: what parses nccl-tests' output must parse ours.

/// `%.{digits}e`: the exponent has a sign and at least two digits.
fn exponential(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
    format!("{mantissa}e{sign}{exponent:0>2}")
}

/// `%g`: six significant digits, without trailing zeros.
pub(crate) fn general(value: f64) -> String {
    const DIGITS: i32 = 6;
    if !value.is_finite() {
        return format!("{value}").to_lowercase();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    // The exponent after rounding to six digits decides, as C has it.
    let rounded = format!("{value:.5e}");
    let exponent: i32 = rounded.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let strip = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..DIGITS).contains(&exponent) {
        let decimals = (DIGITS - 1 - exponent).unsigned_abs() as usize;
        return strip(&format!("{value:.decimals$}"));
    }
    let text = exponential(value, 5);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
    format!("{}e{exponent}", strip(mantissa))
}

/// A time or a rate in `width` columns with as many decimals as fit, as nccl-tests chooses them.
pub(crate) fn fitting(value: f64, width: usize) -> String {
    // A rate over a time too short for the clock is infinite.
    if !value.is_finite() {
        return format!("{:>width$}", general(value));
    }
    let mut digits = 0;
    let mut power = 1.0;
    while value >= power {
        digits += 1;
        power *= 10.0;
    }
    if digits < width - 2 {
        format!("{value:width$.2}")
    } else if digits < width - 1 {
        format!("{value:width$.1}")
    } else if digits < width + 1 {
        format!("{value:width$.0}")
    } else {
        format!("{:>width$}", exponential(value, usize::from(width >= 7)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn general_is_what_printf_writes() {
        for (value, text) in [
            (0.0, "0"),
            (745.53, "745.53"),
            (0.000123456789, "0.000123457"),
            (0.0000123456, "1.23456e-05"),
            (123456.7, "123457"),
            (1234567.0, "1.23457e+06"),
            (999999.5, "1e+06"),
            (100.0, "100"),
            (9.9999999, "10"),
            (1e100, "1e+100"),
        ] {
            assert_eq!(general(value), text);
        }
    }

    #[test]
    fn fitting_is_what_nccl_tests_writes() {
        for (value, width, text) in [
            (18.66, 7, "  18.66"),
            (1806.7, 7, "1806.70"),
            (20299.4, 7, "20299.4"),
            (1234567.0, 7, "1234567"),
            (12345678.0, 7, "1.2e+07"),
            (0.05, 6, "  0.05"),
            (297.16, 6, "297.16"),
            (1234.56, 6, "1234.6"),
            (12345.6, 6, " 12346"),
            (1234567.0, 6, " 1e+06"),
            (f64::INFINITY, 7, "    inf"),
            (f64::NAN, 6, "   nan"),
            (1e300, 7, "1.0e+300"),
        ] {
            assert_eq!(fitting(value, width), text);
        }
    }
}
