//! How fast training goes: repeats of many steps on synthetic tokens, without data files, logs and checkpoints.
//!
//! The numbers have the names that the comparison with PyTorch uses, so that the two can be set side by side.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use warpweft_comm::{Communicator, Op};
use warpweft_device::{DType, Device, Float, bf16};
use warpweft_kernels::philox::Philox4x32;

use crate::TrainError;
use crate::model::{Architecture, ModelShape};
use crate::optimizer::Schedule;
use crate::parallel::mesh::Mesh;
use crate::step::{Recipe, Sequences, StepReport, Trainer};

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The model; sequences are as long as its context.
    pub shape: ModelShape,
    /// Type of the weights: f32 or bf16.
    pub dtype: DType,
    /// Sequences a step on each rank.
    pub batch: usize,
    /// Threads of each rank.
    pub threads: usize,
    /// Steps before the first repeat.
    pub warmup: usize,
    /// Repeats.
    pub repeats: usize,
    /// Least duration of a repeat.
    pub duration: Duration,
    /// Least steps of a repeat.
    pub least_steps: usize,
}

/// What was measured; times are medians over a repeat's steps, and over the repeats of those.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The family.
    pub model: Architecture,
    /// Type of the weights.
    pub dtype: &'static str,
    /// Threads of each rank.
    pub threads: usize,
    /// Ranks.
    pub world: usize,
    /// Sequences a step on each rank.
    #[serde(rename = "B")]
    pub batch: usize,
    /// Tokens of a sequence.
    #[serde(rename = "T")]
    pub tokens: usize,
    /// Parameters.
    pub params: usize,
    /// Steps of a repeat.
    pub steps: usize,
    /// Repeats.
    pub repeats: usize,
    /// Tokens a second over all ranks, from the median step.
    pub tok_s: f64,
    /// The same of each repeat.
    pub tok_s_all: Vec<f64>,
    /// Difference between the fastest and slowest repeat, in percent of the median.
    pub spread_pct: f64,
    /// Milliseconds of a step.
    pub step_ms: f64,
    /// Of them in forward passes.
    pub fwd_ms: f64,
    /// Of them in backward passes.
    pub bwd_ms: f64,
    /// Of them waiting for gradients to be summed after the backward pass.
    pub exposed_comm_ms: f64,
    /// Of them in norm, clip and update.
    pub opt_ms: f64,
    /// Matrix FLOPs a token, forward and backward, the causal half of attention counted.
    pub mflop_per_tok: f64,
    /// Such FLOPs a second of each rank.
    pub gflops: f64,
    /// The loss of the first step.
    pub loss_first: f64,
    /// The loss of the last step.
    pub loss_last: f64,
    /// Most bytes that the trainer held.
    pub peak_bytes: u64,
}

/// Measures one rank's part of a plan; every rank calls it with the same.
///
/// # Errors
/// Sizes that do not fit together; threads or memory that are not to be had; a peer that died.
pub fn bench(plan: &Plan, communicator: Communicator) -> Result<Measured, TrainError> {
    match plan.dtype {
        DType::BF16 => measure::<bf16>(plan, communicator),
        _ => measure::<f32>(plan, communicator),
    }
}

fn measure<T: Float>(plan: &Plan, communicator: Communicator) -> Result<Measured, TrainError> {
    let tokens = plan.shape.context;
    let schedule = Schedule { peak: 3e-4, warmup: 0, steps: u64::MAX };
    let device = Device::cpu_with_threads(plan.threads)?;
    let communicator = Arc::new(communicator);
    let world = communicator.world();
    let recipe =
        Recipe { micro_batch: plan.batch, schedule, clip: Some(1.0), ..Recipe::new(tokens, plan.batch * world) };
    let mesh = Mesh::data(communicator.clone())?;
    let mut trainer = Trainer::<T>::new(plan.shape, recipe, &device, mesh)?;
    let mut source = Tokens::new(communicator.rank() as u64, plan);
    let valid = (plan.batch * tokens * world) as u64;
    let mut step = || {
        let (inputs, targets) = source.next();
        let start = Instant::now();
        let report = trainer.step(Sequences { inputs, targets }, valid, None)?;
        Ok::<_, TrainError>((start.elapsed(), report))
    };
    let (mut once, first) = step()?;
    for _ in 1..plan.warmup {
        once = once.min(step()?.0);
    }
    // All ranks must take as many steps: those that the slowest to start thinks enough.
    let mut steps = [(plan.duration.as_secs_f64() / once.as_secs_f64()) as u64];
    communicator.all_reduce(&mut steps[..], Op::Max)?;
    let steps = (steps[0] as usize).max(plan.least_steps).max(1);
    let mut repeats = Vec::with_capacity(plan.repeats.max(1));
    let mut last = first.loss;
    for _ in 0..plan.repeats.max(1) {
        communicator.barrier()?;
        let taken: Vec<_> = (0..steps).map(|_| step()).collect::<Result<_, _>>()?;
        last = taken.last().map_or(last, |(_, report)| report.loss);
        repeats.push(Repeat::of(&taken));
    }
    let params = trainer.model().table().elements();
    let peak_bytes = trainer.account().peak_total();
    Ok(summary(plan, world, steps, &repeats, (params, peak_bytes, first.loss, last)))
}

/// Medians of one repeat, in milliseconds.
struct Repeat {
    step: f64,
    forward: f64,
    backward: f64,
    exposed: f64,
    optimizer: f64,
}

impl Repeat {
    fn of(taken: &[(Duration, StepReport)]) -> Self {
        let of = |duration: fn(&(Duration, StepReport)) -> Duration| {
            median(taken.iter().map(|step| duration(step).as_secs_f64() * 1e3))
        };
        Self {
            step: of(|step| step.0),
            forward: of(|step| step.1.forward),
            backward: of(|step| step.1.backward),
            exposed: of(|step| step.1.exposed),
            optimizer: of(|step| step.1.optimizer),
        }
    }
}

fn summary(
    plan: &Plan,
    world: usize,
    steps: usize,
    repeats: &[Repeat],
    (params, peak_bytes, loss_first, loss_last): (usize, u64, f64, f64),
) -> Measured {
    let tokens = plan.shape.context;
    let per_step = (plan.batch * tokens * world) as f64;
    let tok_s_all: Vec<f64> = repeats.iter().map(|repeat| per_step / repeat.step * 1e3).collect();
    let tok_s = median(tok_s_all.iter().copied());
    let (least, most) = tok_s_all.iter().fold((f64::MAX, 0.0f64), |(least, most), x| (least.min(*x), most.max(*x)));
    let of = |part: fn(&Repeat) -> f64| median(repeats.iter().map(part));
    let flops = matrix_flops_per_token(&plan.shape);
    Measured {
        model: plan.shape.architecture,
        dtype: plan.dtype.name(),
        threads: plan.threads,
        world,
        batch: plan.batch,
        tokens,
        params,
        steps,
        repeats: repeats.len(),
        tok_s,
        tok_s_all,
        spread_pct: (most - least) / tok_s * 100.0,
        step_ms: of(|repeat| repeat.step),
        fwd_ms: of(|repeat| repeat.forward),
        bwd_ms: of(|repeat| repeat.backward),
        exposed_comm_ms: of(|repeat| repeat.exposed),
        opt_ms: of(|repeat| repeat.optimizer),
        mflop_per_tok: flops / 1e6,
        gflops: tok_s / world as f64 * flops / 1e9,
        loss_first,
        loss_last,
        peak_bytes,
    }
}

/// Two for each multiplication with a weight, three times (forward, and both backward), and attention's two products
/// over half of T x T.
fn matrix_flops_per_token(shape: &ModelShape) -> f64 {
    let ModelShape { layers, channels, hidden, vocab, context, .. } = *shape;
    let mlp = shape.expanded() + hidden;
    let weights = layers * channels * (shape.qkv_width() + channels + mlp) + vocab * channels;
    6.0 * weights as f64 + 6.0 * (layers * channels * context) as f64
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count.is_multiple_of(2) => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

/// Random sequences with few frequent and many rare tokens, so that the loss falls but not at once.
struct Tokens {
    random: Philox4x32,
    drawn: u64,
    vocab: usize,
    tokens: usize,
    inputs: Vec<u32>,
    targets: Vec<u32>,
}

impl Tokens {
    fn new(rank: u64, plan: &Plan) -> Self {
        let (tokens, all) = (plan.shape.context, plan.batch * plan.shape.context);
        let (inputs, targets) = (vec![0; all], vec![0; all]);
        Self { random: Philox4x32::new(1, rank), drawn: 0, vocab: plan.shape.vocab, tokens, inputs, targets }
    }

    fn next(&mut self) -> (&[u32], &[u32]) {
        for (inputs, targets) in self.inputs.chunks_mut(self.tokens).zip(self.targets.chunks_mut(self.tokens)) {
            let mut draw = || {
                let uniform = f64::from(self.random.uniform(self.drawn));
                self.drawn += 1;
                (uniform.powi(3) * self.vocab as f64) as u32
            };
            let mut token = draw();
            for (input, target) in inputs.iter_mut().zip(targets) {
                *input = token;
                token = draw();
                *target = token;
            }
        }
        (&self.inputs, &self.targets)
    }
}
