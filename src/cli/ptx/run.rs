//! `ptx run`: does a job and says what came of it.

use std::io::{self, Write};

use serde_json::json;
use warpweft::device::ptxvm::system::Run;

use super::flags::Flags;
use super::session::{Refused, Session};
use super::{compile_failed, print_json};
use crate::cli::stop::Stop;

pub(super) fn main(flags: &Flags) -> Result<(), Stop> {
    let job = flags.job().map_err(|sentence| refused(flags, sentence.into(), "".as_ref()))?;
    let module = job.folder.join(&job.module);
    let done = Session::open(&job, &flags.replay()).and_then(|session| {
        let runs = session.run()?;
        session.dump()?;
        Ok(runs)
    });
    let runs = done.map_err(|why| refused(flags, why, &module))?;
    let errors: usize = runs.iter().map(Run::errors).sum();
    let skipped: Vec<&str> = job.launches[runs.len()..].iter().map(|launch| launch.kernel.as_str()).collect();
    if flags.json {
        json_of(&runs, &skipped, errors)?;
    } else {
        text_of(&runs, &skipped)?;
    }
    if errors > 0 { Err(Stop::Reported(1)) } else { Ok(()) }
}

/// A job that cannot be done, as text and, where it was asked for, as JSON.
pub(super) fn refused(flags: &Flags, why: Refused, module: &std::path::Path) -> Stop {
    let tell = |error: String| {
        if flags.json {
            let _ = print_json(&json!({"status": 2, "error": error}));
        }
    };
    match why {
        Refused::Sentence(sentence) => {
            tell(sentence.clone());
            Stop::Usage(sentence)
        }
        Refused::Compile(error) => {
            tell(error.to_string());
            compile_failed(module, &error)
        }
    }
}

fn text_of(runs: &[Run], skipped: &[&str]) -> Result<(), Stop> {
    let mut out = io::stdout().lock();
    for run in runs {
        out.write_all(run.output_bytes())?;
        writeln!(out, "{run}")?;
    }
    for kernel in skipped {
        writeln!(out, "kernel `{kernel}` was not launched: the device stopped before it")?;
    }
    Ok(())
}

fn json_of(runs: &[Run], skipped: &[&str], errors: usize) -> Result<(), Stop> {
    let launches = runs.iter().map(|run| {
        json!({
            "kernel": run.kernel,
            "grid": run.grid,
            "block": run.block,
            "warp_instructions": run.warp_instructions,
            "output": run.output(),
            "failure": run.failure(),
            "reports": run.reports,
        })
    });
    let launches: Vec<_> = launches.collect();
    print_json(&json!({"status": i32::from(errors > 0), "errors": errors, "launches": launches, "skipped": skipped}))
}
