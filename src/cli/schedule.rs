//! `warpweft schedule`: a pipeline schedule as a timeline, with its bubble, its memory and its proof.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::stop::Stop;
use warpweft::schedule::{Costs, Name, Schedule, ScheduleError, svg, text};
use warpweft::trainer::parallel::simulated;

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
    /// Run it on as many ranks (threads), through the executor that trains; computations are waits, a unit of time is so
    /// many milliseconds
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    measure: Option<f64>,
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
    let measured = flags.measure.map(|unit| measure(&schedule, unit)).transpose()?;
    let mut out = if flags.json { object(&schedule) } else { page(&schedule) };
    match (&measured, flags.json) {
        (Some(measured), true) => out = format!("{},\"measured\":{}}}", out.trim_end_matches('}'), measured.object()),
        (Some(measured), false) => out += &format!("\n{}", measured.text(&schedule)),
        (None, _) => {}
    }
    Ok(writeln!(io::stdout(), "{out}")?)
}

fn milliseconds(text: &str) -> Result<f64, String> {
    let unit = text.parse().ok().filter(|unit: &f64| *unit > 0.0 && *unit <= 1e4);
    unit.ok_or_else(|| "give milliseconds above 0, up to 10000".to_owned())
}

/// Repeats of a measurement, after one that does not count.
const REPEATS: usize = 5;

/// What a schedule took on real ranks.
struct Measured {
    /// The longest span of a rank, by repeat, shortest first, in units of the schedule's times.
    costs: Vec<f64>,
    compute: f64,
    peaks: Vec<usize>,
    messages: Vec<usize>,
}

fn measure(schedule: &Schedule, unit: f64) -> Result<Measured, Stop> {
    let repeats = simulated::run(schedule, Duration::from_secs_f64(unit / 1e3), REPEATS)?;
    let cost =
        |ranks: &Vec<simulated::Run>| ranks.iter().map(|rank| rank.span.as_secs_f64() * 1e3 / unit).fold(0.0, f64::max);
    let mut costs: Vec<f64> = repeats.iter().map(cost).collect();
    costs.sort_by(f64::total_cmp);
    for (rank, run) in repeats.iter().flat_map(|ranks| ranks.iter().enumerate()) {
        if run.order != schedule.computations(rank) {
            return Err(Stop::failed(format!("rank {rank} did not keep to the order of {}", schedule.origin())));
        }
    }
    let last = repeats.last().map_or(&[][..], Vec::as_slice);
    let (peaks, messages) = (last.iter().map(|run| run.peak).collect(), last.iter().map(|run| run.messages).collect());
    Ok(Measured { costs, compute: schedule.micro_batches() as f64 * schedule.costs().compute(), peaks, messages })
}

impl Measured {
    fn cost(&self) -> f64 {
        self.costs[self.costs.len() / 2]
    }

    fn rate(&self) -> f64 {
        (self.cost() - self.compute) / self.cost()
    }

    fn object(&self) -> String {
        json!({
            "cost": self.cost(),
            "costs": self.costs,
            "bubble_rate": self.rate(),
            "peak_chunk_activations": self.peaks,
            "sends": self.messages,
        })
        .to_string()
    }

    fn text(&self, schedule: &Schedule) -> String {
        let (cost, predicted) = (self.cost(), schedule.proof().cost);
        format!(
            "measured on {} ranks: cost {cost:.3} ({:+.2} %; {:.3} to {:.3} in {} repeats), rate {:.4}; \
             the order that of the lists, activations {}, messages {}",
            schedule.ranks(),
            100.0 * (cost - predicted) / predicted,
            self.costs[0],
            self.costs[self.costs.len() - 1],
            self.costs.len(),
            self.rate(),
            if self.peaks == schedule.peak_activations() { "as counted" } else { "NOT as counted" },
            if self.messages == schedule.proof().sends { "as counted" } else { "NOT as counted" },
        )
    }
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
