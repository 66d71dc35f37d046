//! One rank of a training run, from its configuration to its last line: data, steps, held-out loss, log, checkpoints,
//! sample.
//!
//! Every rank calls [`run`] with the same configuration. Rank 0 alone writes: the log, the checkpoints, the trace.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warpweft_comm::{Communicator, Op};
use warpweft_device::{DType, Device, Float, bf16};

use crate::checkpoint::{Checkpoint, Foreign, Saver, run_folder};
use crate::config::Config;
use crate::data::Dataset;
use crate::dump::{self, Came};
use crate::forecast::Forecast;
use crate::memory::Class;
use crate::model::{NARROW, Spread};
use crate::parallel::gradients::Transfer;
use crate::parallel::mesh::Mesh;
use crate::part::Part;
use crate::report::trace::{self, Trace, Track};
use crate::report::{Progress, Reporter, Resumed, StepRecord, prepare, prepare_file};
use crate::sample::{Sampling, sample, shown};
use crate::step::{Recipe, StepReport, Trainer, valid_targets};
use crate::summary::{Summary, Totals};
use crate::{TrainError, flops};

/// The step of a run, counted from its start or resumption, that a trace is taken of: late enough that caches are warm.
const TRACED_STEP: u64 = 10;

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Steps done, those before a resumption included.
    pub steps: u64,
    /// Loss of the first step that this run did.
    pub first_loss: Option<f64>,
    /// Loss of the last step.
    pub last_loss: Option<f64>,
    /// The last held-out loss.
    pub val_loss: Option<f64>,
    /// The text drawn at the end; on rank 0.
    pub sample: Option<String>,
    /// The files written; on rank 0.
    pub files: Vec<PathBuf>,
}

/// Trains as the configuration says, as one rank of `communicator`, of which `local_ranks` share this machine's cores.
/// `progress` is where rank 0 shows how it goes.
///
/// # Errors
/// Whatever ends the run; the other ranks are told so first. [`TrainError::exit_status`] tells what was given wrongly
/// from what happened.
pub fn run(
    config: &Config,
    communicator: Communicator,
    local_ranks: usize,
    progress: Progress,
) -> Result<Outcome, TrainError> {
    let communicator = Arc::new(communicator);
    let result = match config.dtype {
        DType::BF16 => Run::<bf16>::start(config, communicator.clone(), local_ranks, progress).and_then(Run::finish),
        _ => Run::<f32>::start(config, communicator.clone(), local_ranks, progress).and_then(Run::finish),
    };
    if let Err(error) = &result {
        communicator.abort(&error.to_string());
    }
    result
}

/// A run in progress on one rank.
struct Run<'a, T> {
    config: &'a Config,
    communicator: Arc<Communicator>,
    data: Dataset,
    trainer: Trainer<T>,
    /// FLOPs of a token, and FLOPs a second that the machine could do.
    flops: (f64, f64),
    /// Most memory that any rank held once all was set up.
    set_up_bytes: u64,
    saver: Saver,
    /// Bytes of the snapshot that may still be on its way to the disk.
    snapshot_bytes: u64,
    reporter: Option<Reporter>,
    forecast: Forecast,
    totals: Totals,
    first_step: u64,
    /// Steps in which rounding alone may have sent a token to another expert, the one with the smallest margin, and that.
    narrow: Option<(u64, u64, f32)>,
    trace: Option<Trace>,
    outcome: Outcome,
}

impl<'a, T: Float> Run<'a, T> {
    fn start(
        config: &'a Config,
        communicator: Arc<Communicator>,
        local_ranks: usize,
        progress: Progress,
    ) -> Result<Self, TrainError> {
        let rank = communicator.rank();
        if rank == 0 {
            prepare(&config.out)?;
            config.trace.as_deref().map_or(Ok(()), prepare_file)?;
        }
        let data = match &config.data {
            Some(blend) => Dataset::blended(blend, config.context, config.vocab)?,
            None => Dataset::open(None, config.context, config.vocab)?,
        };
        if config.documents {
            data.check_documents(config.end_token)?;
        }
        let device = open(config, communicator.local_rank(), local_ranks)?;
        let shape = config.shape();
        let kv = Spread::ranks_to_a_head(&shape, config.sizes.tp)?;
        let mesh = Mesh::new(communicator.clone(), config.sizes, kv)?;
        let mut trainer = Trainer::new(shape, Recipe::of(config), &device, mesh)?;
        let taken = match (&config.weights, &config.resume) {
            (Some(weights), None) => trainer.take_weights(&Foreign::open(weights)?)?,
            _ => Vec::new(),
        };
        let resumed = match &config.resume {
            Some(folder) => Some(resume(&mut trainer, &Checkpoint::load(folder)?, &data)?),
            None => None,
        };
        let mut ceiling = [flops::ceiling(&trainer.stream)?.unwrap_or(0.0)];
        communicator.all_reduce(&mut ceiling[..], Op::Sum)?;
        let mut set_up = [trainer.account.peak_total()];
        communicator.all_reduce(&mut set_up[..], Op::Max)?;
        // Every rank has read what it resumes from: folders may be moved now.
        let reporter = match rank {
            0 => {
                let stays = config.resume.as_deref().is_some_and(|folder| run_folder(folder) == config.out);
                dump::clear(&config.out, resumed.filter(|_| stays))?;
                let before = config.resume.as_deref().map(run_folder);
                let before = resumed.zip(before.as_deref()).map(|(step, run)| Resumed { step, run });
                Some(Reporter::open(&config.out, config.steps, before, progress)?)
            }
            _ => None,
        };
        let saving = communicator.clone();
        let mut run = Self {
            config,
            communicator,
            data,
            flops: (flops::per_token(&trainer.model, config.context), ceiling[0]),
            trainer,
            set_up_bytes: set_up[0],
            saver: Saver::new(&config.out, saving),
            snapshot_bytes: 0,
            reporter,
            forecast: Forecast::of(config)?,
            totals: Totals::default(),
            first_step: resumed.unwrap_or(0),
            narrow: None,
            trace: None,
            outcome: Outcome { steps: resumed.unwrap_or(0), ..Outcome::default() },
        };
        run.describe(&taken)?;
        Ok(run)
    }

    /// Says what is about to be trained, on what, and what memory it takes; `taken` is what to know of given weights.
    fn describe(&mut self, taken: &[String]) -> Result<(), TrainError> {
        let Some(reporter) = &mut self.reporter else { return Ok(()) };
        for note in taken {
            reporter.note(&format!("weights: {note}"))?;
        }
        let config = self.config;
        let table = self.trainer.model.table();
        let without = match config.moe {
            Some(moe) => format!(
                "embeddings and the {} of {} experts that a token does not go to",
                moe.experts - moe.top_k,
                moe.experts
            ),
            None => "embeddings".into(),
        };
        let text = format!(
            "{} parameters ({}), {} training tokens, {} held-out sequences\n\
             {} ranks {}, {} sequences of {} tokens a step; gradients are summed in f32\n\
             {:.3} MFLOP a token (6N + 12LTC, N without {}); MFU is of {:.1} GFLOP/s, this job's own f32 GEMM\n\
             {}",
            table.elements(),
            config.dtype.name(),
            self.data.training_tokens(),
            self.data.held_out(),
            self.communicator.world(),
            place(self.trainer.stream.device()),
            config.batch,
            config.context,
            self.flops.0 / 1e6,
            without,
            self.flops.1 / 1e9,
            self.forecast.memory(),
        );
        Ok(reporter.note(&text)?)
    }

    /// All steps that are left, and what comes after the last.
    fn finish(mut self) -> Result<Outcome, TrainError> {
        let mut part = Part::default();
        for step in self.first_step + 1..=self.config.steps {
            self.step(step, &mut part)?;
        }
        if self.first_step < self.config.steps && !self.saves_at(self.config.steps) {
            self.save()?;
        }
        self.end()
    }

    /// One step, from its data to its line in the log.
    fn step(&mut self, step: u64, part: &mut Part) -> Result<(), TrainError> {
        let Config { batch, context, .. } = *self.config;
        let begun = Instant::now();
        let traced = self.config.trace.is_some() && step == self.config.steps.min(self.first_step + TRACED_STEP);
        let trace = traced.then(Trace::new);
        let mine = self.trainer.recipe.share(self.trainer.mesh(), batch);
        let first = (step - 1) * batch as u64;
        let (seed, end) = (self.config.seed, self.config.end_token);
        part.fill(mine.len(), context, |index, ids, targets| {
            let index = first + (mine.start + index) as u64;
            if self.config.documents {
                return self.data.packed_sample((seed, index), end, ids, targets).map(Some);
            }
            self.data.sample(seed, index, ids, targets).map(|()| None)
        })?;
        if let Some(trace) = &trace {
            trace.add(Track::Storage, "read data", begun, Instant::now());
        }
        let valid = self.valid(part)?;
        if self.config.dump.has(step) {
            self.trainer.dump_next(self.config.dump.what);
        }
        let report = match self.trainer.step(part.packed(), valid, trace.as_ref()) {
            Err(TrainError::NotFinite { step, loss, grad_norm }) => {
                return self.run_away(Came { step, loss, grad_norm });
            }
            report => report?,
        };
        let StepReport { step, loss, grad_norm, .. } = report;
        self.trainer.write_dump(&self.config.out, Came { step, loss, grad_norm })?;
        let took = begun.elapsed();
        self.totals.add(&report, took);
        self.saver.poll()?;
        self.trace = trace.or(self.trace.take());
        self.outcome.steps = step;
        self.outcome.first_loss.get_or_insert(report.loss);
        self.outcome.last_loss = Some(report.loss);
        if let Some(routing) = report.routing.as_ref().filter(|routing| routing.is_narrow()) {
            let (steps, at, margin) = self.narrow.unwrap_or((0, step, f32::INFINITY));
            let smaller = routing.margin < margin;
            self.narrow = Some(if smaller { (steps + 1, step, routing.margin) } else { (steps + 1, at, margin) });
        }
        let evaluates =
            self.config.eval_every > 0 && (step.is_multiple_of(self.config.eval_every) || step == self.config.steps);
        let val_loss = if evaluates { self.evaluate(part)? } else { None };
        self.outcome.val_loss = val_loss.or(self.outcome.val_loss);
        if self.saves_at(step) {
            self.save()?;
        }
        self.record(&report, took, val_loss)
    }

    /// Targets that count, of all ranks' parts: all of them, but where documents end.
    fn valid(&self, part: &Part) -> Result<u64, TrainError> {
        let Config { batch, context, documents, ranks, sizes, .. } = *self.config;
        if !documents {
            return Ok((batch * context) as u64);
        }
        let mut valid = [valid_targets(&part.targets)];
        self.communicator.all_reduce(&mut valid[..], Op::Sum)?;
        // The ranks of each part have the same sequences.
        Ok(valid[0] / (ranks / sizes.dp) as u64)
    }

    /// Ends a run whose loss is no number any more, which all ranks find at once: what is on its way to the disk arrives, the
    /// checkpoint before and what the step computed.
    fn run_away(&mut self, came: Came) -> Result<(), TrainError> {
        self.trainer.write_dump(&self.config.out, came)?;
        self.saver.wait()?;
        let Came { step, loss, grad_norm } = came;
        Err(TrainError::NotFinite { step, loss, grad_norm })
    }

    fn record(&mut self, report: &StepReport, took: Duration, val_loss: Option<f64>) -> Result<(), TrainError> {
        let Some(reporter) = &mut self.reporter else { return Ok(()) };
        let millis = |duration: Duration| Some(duration.as_secs_f64() * 1e3);
        // Those that went through the model, whether their targets count or not.
        let tokens = (self.config.batch * self.config.context) as u64;
        let tokens_per_s = tokens as f64 / took.as_secs_f64();
        let (per_token, ceiling) = self.flops;
        let record = StepRecord {
            step: report.step,
            loss: Some(report.loss),
            grad_norm: Some(report.grad_norm),
            lr: Some(report.lr),
            tokens: report.step * tokens,
            tokens_per_s: Some(tokens_per_s),
            mfu: (ceiling > 0.0).then(|| tokens_per_s * per_token / ceiling),
            step_ms: millis(took),
            forward_ms: millis(report.forward),
            backward_ms: millis(report.backward),
            comm_ms: millis(under_way(&report.transfers)),
            exposed_comm_ms: millis(report.exposed),
            waiting_ms: millis(report.waiting),
            optimizer_ms: millis(report.optimizer),
            peak_bytes: Some(self.set_up_bytes.max(self.trainer.account.peak_total())),
            sent_bytes: Some(report.traffic),
            val_loss,
            aux_loss: report.routing.as_ref().and_then(|routing| routing.aux_loss),
            routing_margin: report.routing.as_ref().map(|routing| f64::from(routing.margin)),
            expert_load: report.routing.as_ref().map(|routing| routing.load),
            dropped: report.routing.as_ref().map(|routing| routing.dropped),
        };
        Ok(reporter.step(&record)?)
    }

    /// Mean loss of the held-out sequences, which the ranks share; `None` where the data is too short for any.
    fn evaluate(&mut self, part: &mut Part) -> Result<Option<f64>, TrainError> {
        let count = self.data.held_out().min(self.config.eval_sequences as u64) as usize;
        if count == 0 {
            return Ok(None);
        }
        let mine = self.trainer.recipe.share(self.trainer.mesh(), count);
        let Config { context, documents, end_token, .. } = *self.config;
        part.fill(mine.len(), context, |index, ids, targets| {
            let index = (mine.start + index) as u64;
            if documents {
                return self.data.packed_held_out_sample(index, end_token, ids, targets).map(Some);
            }
            self.data.held_out_sample(index, ids, targets).map(|()| None)
        })?;
        self.trainer.evaluate(part.packed(), count).map(Some)
    }

    fn saves_at(&self, step: u64) -> bool {
        self.config.save_every > 0 && (step.is_multiple_of(self.config.save_every) || step == self.config.steps)
    }

    /// Begins to write a checkpoint: of ranks that hold the same, the first writes it.
    fn save(&mut self) -> Result<(), TrainError> {
        let snapshot = self.trainer.snapshot(self.data.tokens(), self.config.to_toml())?;
        let bytes = snapshot.bytes();
        self.trainer.account.enter(Class::Snapshots, bytes);
        self.saver.save(snapshot)?;
        // The one before it is on the disk now, and its memory free.
        let before = std::mem::replace(&mut self.snapshot_bytes, bytes);
        self.trainer.account.leave(Class::Snapshots, before);
        Ok(())
    }

    /// The trace, the last checkpoint, a sample, and the line that names the files.
    fn end(mut self) -> Result<Outcome, TrainError> {
        let traced = self.write_trace()?;
        let summary = self.summary()?;
        let checkpoint = self.saver.finish()?;
        let state = if self.config.exact { Some(self.trainer.state_sha256()?) } else { None };
        // Where ranks have parts of the model or its tokens, all draw, and all draw the same.
        let Config { sizes, zero, sample, .. } = *self.config;
        let draws =
            sample > 0 && (self.reporter.is_some() || sizes.ranks() > sizes.dp || sizes.ep > 1 || zero.stage == 3);
        let text = match draws {
            true => Some(draw(&mut self.trainer, self.config, self.data.is_bytes())?),
            false => None,
        };
        let Some(mut reporter) = self.reporter.take() else { return Ok(self.outcome) };
        if let Some((steps, step, margin)) = self.narrow {
            reporter.note(&format!(
                "{steps} steps had a routing margin below {NARROW:e}, the smallest {margin:.1e} in step {step}: rounding alone \
                 may have chosen there, and another layout may go another way from there on"
            ))?;
        }
        if let Some(state) = state {
            reporter.state(&state, self.outcome.steps)?;
        }
        if let Some(summary) = &summary {
            reporter.note(&summary.text())?;
        }
        if let Some(text) = text {
            reporter.note(&format!("a sample of {} tokens:\n{text}", self.config.sample))?;
            self.outcome.sample = Some(text);
        }
        let summed_up = summary.map(|summary| summary.write(&self.config.out)).transpose()?;
        self.outcome.files = reporter.finish(checkpoint.into_iter().chain(summed_up).chain(traced))?;
        Ok(self.outcome)
    }

    /// What all ranks measured beside what was predicted; nothing where this run did no step.
    fn summary(&mut self) -> Result<Option<Summary>, TrainError> {
        if self.first_step >= self.config.steps {
            return Ok(None);
        }
        self.trainer.settle()?;
        let mine = self.totals.measured(&self.trainer);
        let mut all = vec![0.0; mine.len() * self.communicator.world()];
        self.communicator.all_gather(&mine[..], &mut all[..])?;
        Ok(Some(Summary::new(&all, mine.len(), &self.forecast)))
    }

    /// Gathers the spans of all ranks, and writes them on rank 0.
    fn write_trace(&mut self) -> Result<Option<PathBuf>, TrainError> {
        let (Some(path), Some(trace)) = (&self.config.trace, self.trace.take()) else { return Ok(None) };
        let mine = trace::encode(&trace.take());
        let world = self.communicator.world();
        let mut lengths = vec![0u64; world];
        self.communicator.all_gather(&[mine.len() as u64][..], &mut lengths[..])?;
        let lengths: Vec<usize> = lengths.into_iter().map(|length| length as usize).collect();
        let mut all = vec![0u8; lengths.iter().sum()];
        self.communicator.all_gather_v(&mine[..], &mut all[..], &lengths)?;
        if self.reporter.is_none() {
            return Ok(None);
        }
        let (mut rest, mut ranks) = (&all[..], Vec::with_capacity(world));
        for (rank, length) in lengths.into_iter().enumerate() {
            let (bytes, after) = rest.split_at(length);
            ranks.push(trace::decode(rank, bytes)?);
            rest = after;
        }
        trace::write_chrome(path, &ranks)?;
        Ok(Some(path.clone()))
    }
}

/// The device that the kernels of a rank run on: of GPUs without a number the one with that of the rank on its machine.
fn open(config: &Config, local_rank: usize, local_ranks: usize) -> Result<Device, TrainError> {
    match config.device.as_str() {
        "cpu" => Ok(Device::cpu_with_threads(config.threads_for(local_ranks))?),
        "cuda" => Ok(Device::open(&format!("cuda:{local_rank}"))?),
        name => Ok(Device::open(name)?),
    }
}

/// Where a rank's kernels run, in words.
fn place(device: &Device) -> String {
    match (device.cpu_pool(), device.properties()) {
        (Ok(pool), _) => format!("with {} threads each", pool.threads()),
        (_, Ok(properties)) => format!("on {}", properties.card),
        _ => format!("on {device}"),
    }
}

/// Takes up a run where its checkpoint left it; gives the steps done.
fn resume<T: Float>(trainer: &mut Trainer<T>, checkpoint: &Checkpoint, data: &Dataset) -> Result<u64, TrainError> {
    if checkpoint.data_tokens != data.tokens() {
        return Err(TrainError::OtherData { then: checkpoint.data_tokens, now: data.tokens() });
    }
    trainer.restore(checkpoint)?;
    Ok(checkpoint.step)
}

/// Text from the model: what comes after a line break, where it has learnt from text, or after token 0.
fn draw<T: Float>(trainer: &mut Trainer<T>, config: &Config, of_bytes: bool) -> Result<String, TrainError> {
    let line_break = u32::from(b'\n');
    let prompt = if of_bytes && (line_break as usize) < config.vocab { line_break } else { 0 };
    let sampling = Sampling { tokens: config.sample, temperature: 0.8, seed: config.seed };
    Ok(shown(&sample(trainer, &[prompt], sampling)?, of_bytes))
}

/// Time in which at least one transfer was under way; they are in the order in which they started.
fn under_way(transfers: &[Transfer]) -> Duration {
    let mut end: Option<Instant> = None;
    let mut sum = Duration::ZERO;
    for transfer in transfers {
        let from = end.map_or(transfer.started, |end| end.max(transfer.started));
        sum += transfer.finished.saturating_duration_since(from);
        end = Some(end.map_or(transfer.finished, |end| end.max(transfer.finished)));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_transfers_count_once() {
        let at = |base: Instant, millis| base + Duration::from_millis(millis);
        let base = Instant::now();
        let transfer = |from, to| Transfer {
            what: "all_reduce",
            unit: None,
            bytes: 4,
            started: at(base, from),
            finished: at(base, to),
        };
        assert_eq!(under_way(&[transfer(0, 10), transfer(5, 20), transfer(30, 31)]), Duration::from_millis(21));
        assert_eq!(under_way(&[]), Duration::ZERO);
    }
}
