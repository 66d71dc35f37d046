//! `printf` as CUDA's device code has it: C's conversions over arguments packed in memory, each at a multiple of its size.

use super::host::{HostCall, HostError};

/// One conversion, `%-08.3f`.
#[derive(Clone, Copy, Debug, Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    /// Bytes of an integer argument.
    bytes: u64,
    kind: u8,
}

/// The widest field that is made.
const WIDEST: usize = 4096;

/// Reads the arguments one after the other.
struct Arguments<'c, 'a> {
    at: u64,
    call: &'c HostCall<'a>,
    count: i32,
}

impl Arguments<'_, '_> {
    fn next(&mut self, bytes: u64) -> Result<u64, HostError> {
        self.at = self.at.checked_next_multiple_of(bytes).unwrap_or(self.at);
        let mut value = [0; 8];
        self.call.read(self.at, &mut value[..bytes as usize])?;
        self.at = self.at.wrapping_add(bytes);
        self.count = self.count.saturating_add(1);
        Ok(u64::from_le_bytes(value))
    }
}

/// What a format prints, and how many arguments it takes.
pub(super) fn format(format: &[u8], arguments: u64, call: &HostCall<'_>) -> Result<(Vec<u8>, i32), HostError> {
    let mut arguments = Arguments { at: arguments, call, count: 0 };
    let mut out = Vec::new();
    let mut rest = format;
    while let Some(start) = rest.iter().position(|&byte| byte == b'%') {
        out.extend_from_slice(&rest[..start]);
        let (spec, len) = parse(&rest[start + 1..], &mut arguments)?;
        let whole = &rest[start..(start + 1 + len).min(rest.len())];
        rest = &rest[start + whole.len()..];
        match spec.kind {
            b'%' => out.push(b'%'),
            b's' => {
                let address = arguments.next(8)?;
                let mut text = if address == 0 { b"(null)".to_vec() } else { call.read_string(address)? };
                text.truncate(spec.precision.unwrap_or(usize::MAX));
                pad(&mut out, &text, spec);
            }
            b'c' => {
                let value = arguments.next(4)? as u8;
                pad(&mut out, &[value], spec);
            }
            b'd' | b'i' | b'u' | b'o' | b'x' | b'X' | b'p' => {
                let value = arguments.next(if spec.kind == b'p' { 8 } else { spec.bytes.max(4) })?;
                integer(&mut out, value, spec);
            }
            b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
                let value = f64::from_bits(arguments.next(8)?);
                float(&mut out, value, spec);
            }
            _ => out.extend_from_slice(whole),
        }
    }
    out.extend_from_slice(rest);
    Ok((out, arguments.count))
}

/// Reads a conversion behind its `%`; how many bytes it has.
fn parse(text: &[u8], arguments: &mut Arguments<'_, '_>) -> Result<(Spec, usize), HostError> {
    let mut spec = Spec { bytes: 4, ..Spec::default() };
    let mut at = 0;
    let byte = |at: usize| text.get(at).copied().unwrap_or(0);
    loop {
        match byte(at) {
            b'-' => spec.left = true,
            b'+' => spec.plus = true,
            b' ' => spec.space = true,
            b'#' => spec.alternate = true,
            b'0' => spec.zero = true,
            _ => break,
        }
        at += 1;
    }
    if byte(at) == b'*' {
        let width = arguments.next(4)? as i32;
        spec.left |= width < 0;
        spec.width = (width.unsigned_abs() as usize).min(WIDEST);
        at += 1;
    } else {
        (spec.width, at) = number(text, at);
    }
    if byte(at) == b'.' {
        at += 1;
        if byte(at) == b'*' {
            let precision = arguments.next(4)? as i32;
            spec.precision = usize::try_from(precision).ok().map(|precision| precision.min(WIDEST));
            at += 1;
        } else {
            let (precision, after) = number(text, at);
            (spec.precision, at) = (Some(precision), after);
        }
    }
    loop {
        match (byte(at), byte(at + 1)) {
            (b'h', b'h') => (spec.bytes, at) = (1, at + 2),
            (b'h', _) => (spec.bytes, at) = (2, at + 1),
            (b'l' | b'z' | b't' | b'j' | b'L', _) => (spec.bytes, at) = (8, at + 1),
            (kind, _) => {
                spec.kind = kind;
                return Ok((spec, at + 1));
            }
        }
    }
}

/// A decimal number, and where it ends.
fn number(text: &[u8], start: usize) -> (usize, usize) {
    let digits = text[start.min(text.len())..].iter().take_while(|byte| byte.is_ascii_digit());
    let mut end = start;
    let value = digits.fold(0usize, |value, &digit| {
        end += 1;
        (value * 10 + usize::from(digit - b'0')).min(WIDEST)
    });
    (value, end)
}

/// Adds a field, padded with spaces.
fn pad(out: &mut Vec<u8>, text: &[u8], spec: Spec) {
    let fill = spec.width.saturating_sub(text.len());
    if !spec.left {
        out.resize(out.len() + fill, b' ');
    }
    out.extend_from_slice(text);
    if spec.left {
        out.resize(out.len() + fill, b' ');
    }
}

/// Adds a number: sign or prefix, zeros where the field asks for them, digits.
fn number_field(out: &mut Vec<u8>, prefix: &str, digits: &str, zeros: bool, spec: Spec) {
    let len = prefix.len() + digits.len();
    let fill = if zeros && !spec.left { spec.width.saturating_sub(len) } else { 0 };
    pad(out, format!("{prefix}{}{digits}", "0".repeat(fill)).as_bytes(), spec);
}

fn integer(out: &mut Vec<u8>, raw: u64, spec: Spec) {
    let unused = 64 - 8 * spec.bytes.min(8) as u32;
    let unused = if spec.kind == b'p' { 0 } else { unused };
    let (unsigned, signed) = (raw << unused >> unused, ((raw << unused) as i64) >> unused);
    let (prefix, mut digits) = match spec.kind {
        b'd' | b'i' => (sign(signed < 0, spec), signed.unsigned_abs().to_string()),
        b'o' => ("", format!("{unsigned:o}")),
        b'x' => (if spec.alternate && unsigned != 0 { "0x" } else { "" }, format!("{unsigned:x}")),
        b'X' => (if spec.alternate && unsigned != 0 { "0X" } else { "" }, format!("{unsigned:X}")),
        b'p' => ("0x", format!("{unsigned:x}")),
        _ => ("", unsigned.to_string()),
    };
    if let Some(precision) = spec.precision {
        if precision == 0 && unsigned == 0 {
            digits.clear();
        }
        digits.insert_str(0, &"0".repeat(precision.saturating_sub(digits.len())));
    }
    if spec.kind == b'o' && spec.alternate && !digits.starts_with('0') {
        digits.insert(0, '0');
    }
    number_field(out, prefix, &digits, spec.zero && spec.precision.is_none(), spec);
}

fn sign(negative: bool, spec: Spec) -> &'static str {
    match () {
        () if negative => "-",
        () if spec.plus => "+",
        () if spec.space => " ",
        () => "",
    }
}

fn float(out: &mut Vec<u8>, value: f64, spec: Spec) {
    let prefix = sign(value.is_sign_negative(), spec);
    let magnitude = value.abs();
    let digits = match spec.kind.to_ascii_lowercase() {
        _ if value.is_nan() => "nan".to_owned(),
        _ if value.is_infinite() => "inf".to_owned(),
        b'f' => with_point(format!("{magnitude:.*}", spec.precision.unwrap_or(6)), spec.alternate),
        b'e' => exponential(magnitude, spec.precision.unwrap_or(6), spec.alternate),
        b'g' => shortest(magnitude, spec.precision.unwrap_or(6).max(1), spec.alternate),
        _ => hexadecimal(magnitude, spec.precision),
    };
    let digits = if spec.kind.is_ascii_uppercase() { digits.to_ascii_uppercase() } else { digits };
    number_field(out, prefix, &digits, spec.zero && value.is_finite(), spec);
}

fn with_point(mut digits: String, wanted: bool) -> String {
    if wanted && !digits.contains('.') {
        digits.push('.');
    }
    digits
}

/// Rust writes `1.5e2` where C writes `1.5e+02`.
fn exponential(value: f64, precision: usize, point: bool) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", with_point(digits.to_owned(), point), exponent.abs())
}

/// `%g`: whichever of `%e` and `%f` is shorter for so many digits, without trailing zeros.
fn shortest(value: f64, precision: usize, keep_zeros: bool) -> String {
    let text = exponential(value, precision - 1, false);
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |digits: &str| match digits.contains('.') && !keep_zeros {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => digits.to_owned(),
    };
    if power < -4 || power >= precision as i32 {
        return format!("{}e{exponent}", trimmed(digits));
    }
    let decimals = (precision as i32 - 1 - power).max(0) as usize;
    trimmed(&with_point(format!("{value:.decimals$}"), keep_zeros))
}

/// `%a`: `0x1.8p+1`.
fn hexadecimal(value: f64, precision: Option<usize>) -> String {
    let bits = value.to_bits();
    let (mut exponent, mut fraction) = ((bits >> 52 & 0x7ff) as i32, bits & ((1 << 52) - 1));
    let mut lead = u64::from(exponent != 0);
    exponent = match (exponent, fraction) {
        (0, 0) => 0,
        (0, _) => -1022,
        (biased, _) => biased - 1023,
    };
    let mut digits = 13;
    if let Some(precision) = precision.filter(|&precision| precision < 13) {
        let dropped = 4 * (13 - precision) as u32;
        let whole = lead << 52 | fraction;
        let half = 1u64 << (dropped - 1);
        let even = whole >> dropped & 1;
        let rounded = (whole + half - 1 + even) >> dropped;
        (lead, fraction) = (rounded >> (52 - dropped), rounded & ((1 << (52 - dropped)) - 1));
        digits = precision;
    }
    let mut text = if digits == 0 { String::new() } else { format!("{fraction:0digits$x}") };
    match precision {
        None => text = text.trim_end_matches('0').to_owned(),
        Some(precision) => text.extend(std::iter::repeat_n('0', precision.saturating_sub(13))),
    }
    let point = if text.is_empty() { "" } else { "." };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("0x{lead}{point}{text}p{sign}{}", exponent.abs())
}
