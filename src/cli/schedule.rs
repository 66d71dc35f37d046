//! `warpweft schedule`: a pipeline schedule as a timeline, with its bubble, its memory and its proof.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::stop::Stop;
use warpweft::schedule::{Costs, Name, Schedule, ScheduleError, svg, text};

/// Characters in a line of the timeline.
const WIDTH: usize = 160;

/// Draws a pipeline schedule, and proves it.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, dualpipe or auto
    name: String,
    /// Ranks of the pipeline
    #[arg(long, value_name = "P")]
    p: usize,
    /// Micro-batches of a step
    #[arg(long, value_name = "M")]
    m: usize,
    /// Chunks a rank (interleaved: 2 unless said; auto: what is best)
    #[arg(long, value_name = "V")]
    v: Option<usize>,
    /// Time of a forward of one micro-batch in one stage (the model over p ranks)
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    f: f64,
    /// Time of a backward to the input
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    b: f64,
    /// Time of a backward to the weights
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    w: f64,
    /// Time from one rank to another
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    comm: f64,
    /// Most activations that a rank may hold, in micro-batches of one stage (auto: 2 p unless said, twice 1F1B's)
    #[arg(long, value_name = "LIMIT")]
    memory: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write the timeline as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Does what was asked.
pub(crate) fn main(flags: &Flags) -> Result<(), Stop> {
    let schedule = make(flags).map_err(|error| Stop::usage(error.to_string()))?;
    if let Some(file) = &flags.svg {
        fs::write(file, svg(&schedule))
            .map_err(|error| Stop::failed(format!("cannot write {} (--svg): {error}", file.display())))?;
    }
    let out = if flags.json { object(&schedule) } else { page(&schedule) };
    Ok(writeln!(io::stdout(), "{out}")?)
}

fn make(flags: &Flags) -> Result<Schedule, ScheduleError> {
    let name: Name = flags.name.parse()?;
    let costs = Costs { forward: flags.f, backward: flags.b, weight: flags.w, comm: flags.comm };
    Schedule::new(name, flags.p, flags.m, flags.v, costs, flags.memory)
}

/// Activations of whole stages: what chunks of `1/v` of one add up to, rounded up.
fn stages(schedule: &Schedule) -> Vec<usize> {
    let per_stage = schedule.placement().chunks_per_stage();
    schedule.peak_activations().into_iter().map(|chunks| chunks.div_ceil(per_stage)).collect()
}

fn object(schedule: &Schedule) -> String {
    let proof = schedule.proof();
    // The three that everybody reads stand first, in this order.
    let first = format!(
        "{{\"cost\":{},\"bubble_rate\":{},\"peak_activations\":{}",
        json!(proof.cost),
        json!(proof.bubble_rate),
        json!(stages(schedule))
    );
    let more = json!({
        "peak_chunk_activations": proof.peak_activations,
        "chunks_per_stage": schedule.placement().chunks_per_stage(),
        "parameter_copies": schedule.placement().copies(),
        "peak_received": proof.peak_received,
        "sends": proof.sends,
        "schedule": schedule.origin(),
    })
    .to_string();
    format!("{first},{}", &more[1..])
}

fn page(schedule: &Schedule) -> String {
    let proof = schedule.proof();
    let placement = schedule.placement();
    let costs = schedule.costs();
    let (p, m) = (schedule.ranks(), schedule.micro_batches());
    let list = |counts: &[usize]| counts.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
    let operations: usize = (0..p).map(|rank| schedule.computations(rank).len()).sum();
    let messages: usize = proof.sends.iter().sum();
    let mut lines = vec![
        format!(
            "{}: p {p}, m {m}, chunks a rank {}, F {} B {} W {} comm {}",
            schedule.origin(),
            placement.chunks_per_rank(),
            costs.forward,
            costs.backward,
            costs.weight,
            costs.comm
        ),
        text(schedule, WIDTH).trim_end().to_owned(),
        format!(
            "cost {:.3}, of which m (F + B + W) = {:.3}; bubble {:.3}, rate {:.4}",
            proof.cost,
            m as f64 * costs.compute(),
            proof.cost - m as f64 * costs.compute(),
            proof.bubble_rate
        ),
        format!("activations at most, by rank, in micro-batches of one stage: {}", list(&stages(schedule))),
    ];
    if placement.chunks_per_stage() > 1 {
        let share = placement.chunks_per_stage();
        lines.push(format!("  exactly, in chunks of 1/{share} of a stage: {}", list(&proof.peak_activations)));
    }
    if placement.copies() > 1 {
        lines.push(format!("parameters: {} copies of the model", placement.copies()));
    }
    lines.push(format!(
        "proof: {operations} operations, each once and after what it needs; {messages} messages, no deadlock even where each send \
         waits for its receive; at most {} received and not yet used",
        proof.peak_received.iter().max().unwrap_or(&0)
    ));
    lines.join("\n")
}
