//! `warpweft perf train`: how fast training steps are, without data files, logs and checkpoints; one line of JSON.

use std::io::{self, Write};
use std::time::Duration;

use warpweft::comm::bootstrap::Bootstrap;
use warpweft::comm::transport::TransportKind;
use warpweft::device::DType;
use warpweft::trainer::bench::{Plan, bench};
use warpweft::trainer::model::ModelShape;

use crate::cli::ranks::{self, Job, Launch};
use crate::cli::stop::Stop;

/// Measures training steps on synthetic tokens, in f32 or bf16, and prints one line of JSON.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Settings {
    /// Family of the model.
    #[arg(long, value_enum, default_value = "gpt2")]
    model: Family,
    /// A: 4 layers, 128 channels, context 64, 12 sequences; B: 6, 384, 256, 8; C: 8, 512, 512, 2 and 50,257 tokens.
    #[arg(long, value_enum, default_value = "A", ignore_case = true)]
    shape: Named,
    /// Sequences a step on each rank, in place of the shape's.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Type of the weights: f32 or bf16.
    #[arg(long, default_value = "f32", value_parser = ["f32", "bf16"])]
    dtype: String,
    /// Threads of each rank.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Least seconds of a repeat.
    #[arg(long, default_value_t = 1.5, value_parser = seconds)]
    seconds: f64,
    /// Repeats; the figures are their medians, and all of them are shown too.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Steps before the first repeat.
    #[arg(long, default_value_t = 5)]
    warmup: usize,
    /// Least steps of a repeat.
    #[arg(long, default_value_t = 2)]
    min_steps: usize,
    /// Ranks to start.
    #[arg(long)]
    ranks: Option<usize>,
    /// How gradients move between them: auto, thread, shm or tcp.
    #[arg(long, default_value = "auto", value_parser = ["auto", "thread", "shm", "tcp"])]
    transport: String,
    /// Whether ranks are processes or threads of this one.
    #[arg(long, value_enum)]
    launch: Option<Launch>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Family {
    Gpt2,
    Llama,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Named {
    #[value(name = "A")]
    A,
    #[value(name = "B")]
    B,
    #[value(name = "C")]
    C,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.0..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "give seconds from 0 to 3600".to_owned())
}

impl Settings {
    fn plan(&self) -> Plan {
        let (layers, heads, channels, context, batch, vocab) = match self.shape {
            Named::A => (4, 4, 128, 64, 12, 65),
            Named::B => (6, 6, 384, 256, 8, 256),
            Named::C => (8, 8, 512, 512, 2, 50257),
        };
        let shape = match self.model {
            Family::Gpt2 => ModelShape::gpt2(layers, channels, heads, context, vocab),
            Family::Llama => ModelShape::llama(layers, channels, heads, 2, context, vocab),
        };
        Plan {
            shape,
            dtype: if self.dtype == "bf16" { DType::BF16 } else { DType::F32 },
            batch: self.batch.map_or(batch, |batch| batch as usize),
            threads: self.threads,
            warmup: self.warmup,
            repeats: self.repeats,
            duration: Duration::from_secs_f64(self.seconds),
            least_steps: self.min_steps,
        }
    }

    /// The parser has let only known names through.
    fn transport(&self) -> TransportKind {
        self.transport.parse().unwrap_or_default()
    }
}

/// Starts the ranks and measures.
pub(crate) fn main(settings: &Settings) -> Result<(), Stop> {
    let job = Job {
        ranks: settings.ranks,
        usual_ranks: 1,
        transport: settings.transport(),
        launch: settings.launch,
        timeout: Duration::from_secs(600),
    };
    job.run(|bootstrap: Bootstrap| {
        let communicator = ranks::connect(bootstrap, settings.transport())?;
        let rank = communicator.rank();
        let measured = bench(&settings.plan(), communicator)?;
        if rank == 0 {
            let mut out = io::stdout().lock();
            let line = serde_json::to_string(&measured).map_err(io::Error::from)?;
            writeln!(out, "{line}")?;
        }
        Ok(())
    })
}
