//! `warpweft kernels check`: every op on a device against the CPU, on the same arguments.

use std::io::{self, Write};

use clap::Args;
use serde_json::json;

use super::super::stop::Stop;
use super::case::{Size, rounding};
use super::cases::cases;
use super::{failed, no_op, open};
use warpweft::device::Device;

/// Runs every op on a device and on the CPU, and compares what they write. Status 1 where they differ.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// The device: software, software?check=all, cuda, cuda:1
    #[arg(long, value_name = "NAME", default_value = "software?check=all&multiprocessors=4")]
    device: String,
    /// One op alone
    #[arg(long, value_name = "OP")]
    op: Option<String>,
    /// Writes one JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(flags: &Flags) -> Result<(), Stop> {
    let (device, card) = open(&flags.device)?;
    let cpu = Device::cpu().map_err(|error| Stop::failed(error.to_string()))?;
    let cases = cases(Size::small(&device), flags.op.as_deref());
    if cases.is_empty() {
        return Err(no_op(flags.op.as_deref()));
    }
    let mut out = io::stdout().lock();
    if !flags.json {
        writeln!(out, "# {card}, against the CPU; errors in roundings of the type at the largest output")?;
        writeln!(out, "# {:<58} {:>10} {:>10}", "op", "error", "allowed")?;
    }
    let (count, mut wrong) = (cases.len(), 0);
    for case in cases {
        let expected = case.run(&cpu).map_err(|error| failed(&case, &error))?;
        let given = case.run(&device).map_err(|error| failed(&case, &error))?;
        let error = distance(&expected, &given) / rounding(case.dtype);
        // A NaN is not within.
        let right = error <= case.roundings;
        wrong += usize::from(!right);
        if flags.json {
            let line = json!({ "op": case.op, "case": case.what, "dtype": case.dtype.to_string(), "error": error,
                "allowed": case.roundings, "right": right });
            writeln!(out, "{line}")?;
            continue;
        }
        let mark = if right { "" } else { "  WRONG" };
        writeln!(out, "  {:<58} {error:>10.2} {:>10.0}{mark}", case.to_string(), case.roundings)?;
    }
    if !flags.json {
        writeln!(out, "# {} of {count} right", count - wrong)?;
    }
    if wrong > 0 {
        Err(Stop::failed(format!("{wrong} of {count} cases are wrong on {}", flags.device)))
    } else {
        Ok(())
    }
}

/// The largest difference, as a share of the largest number; NaN where one has a NaN or an infinity that the other has not.
fn distance(expected: &[f64], given: &[f64]) -> f64 {
    let largest = expected.iter().filter(|value| value.is_finite()).fold(0.0f64, |most, value| most.max(value.abs()));
    let mut worst = 0.0f64;
    for (a, b) in expected.iter().zip(given) {
        let same = a == b || (a.is_nan() && b.is_nan());
        let difference = if same { 0.0 } else { (a - b).abs() / largest.max(f64::MIN_POSITIVE) };
        if !difference.is_finite() {
            return f64::NAN;
        }
        worst = worst.max(difference);
    }
    if expected.len() == given.len() { worst } else { f64::NAN }
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn a_nan_of_one_side_alone_is_no_agreement() {
        let nan = f64::NAN;
        assert_eq!(distance(&[4.0, nan], &[4.0, nan]), 0.0);
        assert_eq!(distance(&[4.0, 1.0], &[4.0, 2.0]), 0.25);
        assert!(distance(&[4.0, 1.0], &[4.0, nan]).is_nan());
        assert!(distance(&[4.0, f64::INFINITY], &[4.0, 1.0]).is_nan());
        assert!(distance(&[1.0], &[1.0, 2.0]).is_nan());
    }
}
