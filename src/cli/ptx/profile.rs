//! `ptx profile`: counts what the hardware would be charged for, beside what a GPU could do.

use std::io::{self, Write};

use serde_json::json;
use warpweft::device::ptxvm::observe::profile::{GPUS, Gpu, Profile, Profiler};

use super::print_json;
use super::run::refused;
use super::session::Session;
use crate::cli::stop::Stop;

/// Runs kernels as `ptx run` does, without checks, and prints the counters of each launch: sectors of global memory, bank
/// conflicts, the instruction mix, and the least time on a named GPU. Status 0, or 1 where a kernel failed.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub(super) struct Flags {
    #[command(flatten)]
    run: super::flags::Flags,
    /// The GPU of the roofline: a100, h100, h200, l40s, rtx3090, rtx4090.
    #[arg(long, value_name = "NAME", default_value = "a100")]
    gpu: String,
}

pub(super) fn main(flags: &Flags) -> Result<(), Stop> {
    let gpu = Gpu::named(&flags.gpu).ok_or_else(|| {
        let names: Vec<&str> = GPUS.iter().map(|gpu| gpu.name).collect();
        Stop::Usage(format!("--gpu {}: there is no such GPU here; use {}", flags.gpu, names.join(", ")))
    })?;
    let job = flags.run.job().map_err(|sentence| refused(&flags.run, sentence.into(), "".as_ref()))?;
    let module = job.folder.join(&job.module);
    let mut profiles = Vec::new();
    let done = Session::open(&job, &flags.run.replay()).and_then(|session| {
        let runs = session.run_each(|launch| {
            let mut profiler = Profiler::default();
            let run = launch.observe(&mut profiler)?;
            profiles.push(profiler.finish());
            Ok(run)
        })?;
        session.dump()?;
        Ok(runs)
    });
    let runs = done.map_err(|why| refused(&flags.run, why, &module))?;
    if flags.run.json {
        json_of(&profiles, gpu)?
    } else {
        text_of(&profiles, gpu)?
    }
    match runs.iter().find_map(|run| run.failure()) {
        Some(failure) => {
            writeln!(io::stderr(), "{failure}")?;
            Err(Stop::Reported(1))
        }
        None => Ok(()),
    }
}

fn text_of(profiles: &[Profile], gpu: &Gpu) -> Result<(), Stop> {
    let mut out = io::stdout().lock();
    for profile in profiles {
        write!(out, "{profile}{}", profile.against(gpu))?;
    }
    Ok(())
}

fn json_of(profiles: &[Profile], gpu: &Gpu) -> Result<(), Stop> {
    let launches: Vec<_> = profiles
        .iter()
        .map(|profile| {
            let threads = profile.block.iter().product();
            let occupancy = gpu.occupancy(threads, profile.registers, profile.shared_bytes);
            json!({"profile": profile, "occupancy": occupancy, "roofline": gpu.roofline(profile)})
        })
        .collect();
    print_json(&json!({"gpu": gpu, "launches": launches}))
}
