//! `warpweft kernels count`: what the hardware would be charged for by the kernels of every op, by the counters of the software device.

use std::io::{self, Write};

use clap::Args;
use serde_json::{Value, json};

use super::super::stop::Stop;
use super::case::Size;
use super::cases::cases;
use super::{failed, no_op, open};
use warpweft::device::ptxvm::observe::profile::Profile;
use warpweft::kernels::KernelError;

/// Counts bytes, accesses, bank conflicts and instructions of every kernel, at sizes that show what they move.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// The device, which must be one in software: software, software?multiprocessors=1
    #[arg(long, value_name = "NAME", default_value = "software?multiprocessors=4")]
    device: String,
    /// One op alone
    #[arg(long, value_name = "OP")]
    op: Option<String>,
    /// The cases of `check`, which take every path
    #[arg(long)]
    small: bool,
    /// Writes one JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(flags: &Flags) -> Result<(), Stop> {
    let (device, card) = open(&flags.device)?;
    let size = if flags.small { Size::small(&device) } else { Size::counted(&device) };
    let cases = cases(size, flags.op.as_deref());
    if cases.is_empty() {
        return Err(no_op(flags.op.as_deref()));
    }
    let mut out = io::stdout().lock();
    if !flags.json {
        writeln!(out, "# {card}; bytes are of sectors of 32 that are touched, the least those of distinct bytes")?;
        let columns = ["bytes", "the least", "16 bytes", "conflicts", "instructions"];
        write!(out, "# {:<58}", "op, kernel")?;
        columns.iter().try_for_each(|column| write!(out, " {column:>12}"))?;
        writeln!(out)?;
    }
    for case in cases {
        let said = |error: KernelError| failed(&case, &error);
        let (stream, mut work) = (device.stream(), (case.make)(&device).map_err(said)?);
        let counted = stream.profile(|| work.launch(&stream)).map_err(|error| said(error.into()))?;
        let ((), profiles) = (counted.0.map_err(said)?, counted.1);
        if flags.json {
            let kernels: Vec<Value> = profiles.iter().map(object).collect();
            let dtype = case.dtype.to_string();
            writeln!(out, "{}", json!({ "op": case.op, "case": case.what, "dtype": dtype, "kernels": kernels }))?;
            continue;
        }
        writeln!(out, "  {case}")?;
        for profile in &profiles {
            let moved = profile.read_bytes + profile.written_bytes;
            let share = format!("{:.0}%", 100.0 * wide_bytes(profile) as f64 / moved.max(1) as f64);
            write!(out, "    {:<56} {moved:>12} {:>12} {share:>12}", profile.kernel, profile.least_bytes)?;
            writeln!(out, " {:>12} {:>12}", profile.wavefronts.1, profile.warp_instructions)?;
        }
    }
    Ok(())
}

/// Bytes of the sectors that accesses of 16 bytes a thread touch.
fn wide_bytes(profile: &Profile) -> u64 {
    let wide = |text: &str| {
        [".v4.", ".v2.u64", ".v2.b64", ".v2.f64", "cp.async.cg"].iter().any(|of| text.contains(of))
            && !text.contains(".v4.u16")
    };
    profile.instructions.iter().filter(|line| wide(&line.text)).map(|line| 32 * line.sectors).sum()
}

fn object(profile: &Profile) -> Value {
    json!({
        "kernel": profile.kernel, "grid": profile.grid, "block": profile.block, "shared_bytes": profile.shared_bytes,
        "read_bytes": profile.read_bytes, "written_bytes": profile.written_bytes, "least_bytes": profile.least_bytes,
        "wide_bytes": wide_bytes(profile),
        "wavefronts": profile.wavefronts.0, "conflicts": profile.wavefronts.1, "local_bytes": profile.local_bytes,
        "warp_instructions": profile.warp_instructions, "tensor_operations": profile.tensor_operations,
    })
}
