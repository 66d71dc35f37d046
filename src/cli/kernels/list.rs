//! `warpweft kernels list`.

use std::io::{self, Write};

use clap::Args;

use super::super::stop::Stop;
use warpweft::kernels::programs;

/// Lists the kernels of each op, and how much PTX they are.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// Writes one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(flags: &Flags) -> Result<(), Stop> {
    let kernels = |ptx: &str| -> Vec<String> {
        let entries = ptx.lines().filter_map(|line| line.split_once(".entry "));
        entries.map(|(_, name)| name.trim_end_matches('(').trim().to_owned()).collect()
    };
    let mut out = io::stdout().lock();
    if flags.json {
        let ops = programs().iter().map(|program| {
            let fields = serde_json::json!({ "ptx_bytes": program.ptx.len(), "kernels": kernels(program.ptx) });
            (program.op.to_owned(), fields)
        });
        let object: serde_json::Map<String, serde_json::Value> = ops.collect();
        writeln!(out, "{:#}", serde_json::Value::Object(object))?;
        return Ok(());
    }
    for program in programs() {
        writeln!(out, "{} ({} KiB of PTX for compute capability 8.0 and later)", program.op, program.ptx.len() >> 10)?;
        for kernel in kernels(program.ptx) {
            writeln!(out, "  {kernel}")?;
        }
    }
    Ok(())
}
