//! What to train and how: read from a file and from flags, checked, and stored with each checkpoint.

mod checks;
mod error;
mod experts;
mod flags;
mod mesh;
mod resolve;
mod values;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use warpweft_comm::transport::TransportKind;
use warpweft_device::DType;
use warpweft_schedule::Name;

use crate::data::Blend;
use crate::dump::Wanted;
use crate::model::{ModelShape, MoeShape, Recompute};
use crate::parallel::context::Method;
use crate::parallel::mesh::Sizes;
use crate::parallel::zero::Zero;

pub use error::{ConfigError, Origin};
pub use flags::{FLAGS, Flag, Status};
pub use resolve::{Inputs, Launched};
pub use values::nearest;

/// The family of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Learned positions, LayerNorm, GELU, biases, tied embedding.
    Gpt2,
    /// Rotary positions, RMSNorm, SwiGLU, grouped queries, no biases.
    Llama,
}

impl Family {
    /// A model of the family without experts.
    fn dense(self, layers: usize, channels: usize, heads: [usize; 2], context: usize, vocab: usize) -> ModelShape {
        let [heads, kv_heads] = heads;
        match self {
            Self::Gpt2 => ModelShape { kv_heads, ..ModelShape::gpt2(layers, channels, heads, context, vocab) },
            Self::Llama => ModelShape::llama(layers, channels, heads, kv_heads, context, vocab),
        }
    }
}

/// What a rank that is started here is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launch {
    /// A child process each.
    Processes,
    /// A thread of this process each.
    Threads,
}

/// A configuration that has passed every check that needs no data. Made by [`Config::resolve`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Training data; `None` is the built-in text. Absolute, so that a resumed run finds it from anywhere.
    pub data: Option<Blend>,
    /// Folder for everything that is written.
    pub out: PathBuf,
    /// The checkpoint folder (`.../step-000200`) to go on from.
    pub resume: Option<PathBuf>,
    /// Where the weights begin; `None` is at random. Absolute.
    pub weights: Option<PathBuf>,
    /// Family of the model.
    pub model: Family,
    /// Layers, at least 1.
    pub layers: usize,
    /// Channels, a multiple of `heads`.
    pub channels: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, a divisor of `heads`.
    pub kv_heads: usize,
    /// The experts of every layer, where there are some.
    pub moe: Option<MoeShape>,
    /// Width of the expert that all tokens share besides; 0 where there is none.
    pub shared_expert: usize,
    /// Width inside the MLP; `None` is what the family has.
    pub hidden: Option<usize>,
    /// Whether the output projection is the token embedding.
    pub tied: bool,
    /// Tokens of a sequence.
    pub context: usize,
    /// Entries of the vocabulary.
    pub vocab: usize,
    /// Optimizer steps of the whole run, those before a resumption included.
    pub steps: u64,
    /// Sequences a step over all ranks and micro-batches, at least one for every data-parallel rank.
    pub batch: usize,
    /// Sequences of one micro-batch on one rank; `None` is the rank's whole share.
    pub micro_batch: Option<usize>,
    /// Learning rate at the end of warm-up.
    pub lr: f64,
    /// Steps of warm-up, at most `steps`.
    pub warmup: u64,
    /// Weight decay.
    pub weight_decay: f64,
    /// Largest global gradient norm; `None` does not clip.
    pub clip: Option<f64>,
    /// Seed of initial weights and data order.
    pub seed: u64,
    /// Type of the weights: `F32` or `BF16`.
    pub dtype: DType,
    /// Steps between held-out losses; 0 never.
    pub eval_every: u64,
    /// Sequences of a held-out loss.
    pub eval_sequences: usize,
    /// Steps between checkpoints; 0 only at the end.
    pub save_every: u64,
    /// Tokens generated at the end.
    pub sample: usize,
    /// Chrome trace of one step.
    pub trace: Option<PathBuf>,
    /// Which steps are written down tensor by tensor.
    pub dump: Wanted,
    /// Ranks of the job.
    pub ranks: usize,
    /// How they are shared out over the axes of parallelism.
    pub sizes: Sizes,
    /// How context-parallel ranks bring the parts of a sequence together.
    pub cp_method: Method,
    /// What data-parallel ranks share out.
    pub zero: Zero,
    /// The order of the passes over micro-batches and stages.
    pub schedule: Name,
    /// Model chunks of a stage, where the schedule leaves a choice.
    pub chunks: Option<usize>,
    /// Whether documents within a sequence see nothing of each other.
    pub documents: bool,
    /// Token that ends a document, besides what the data says.
    pub end_token: Option<u32>,
    /// What of the activations is computed again in backward passes.
    pub recompute: Recompute,
    /// The device on which the kernels run.
    pub device: String,
    /// Whether tensor-parallel ranks share out the rows between their regions.
    pub sequence_parallel: bool,
    /// Whether sums are the same bits for any number of data ranks and micro-batches; the log then ends with a digest.
    pub exact: bool,
    /// Whether gradients and weights are on their way while passes compute.
    pub overlap: bool,
    /// Whether to say what a run would take, and not to train.
    pub dry_run: bool,
    /// Threads of each rank; `None` divides the cores by the ranks.
    pub threads: Option<usize>,
    /// What a local rank is.
    pub launch: Launch,
    /// What carries the bytes between ranks.
    pub transport: TransportKind,
    /// Deadline of every wait for another rank.
    pub timeout: Duration,
    /// Whether a launcher (torchrun, srun, mpirun) started this rank, so that none are started here.
    pub launched: bool,
    origins: BTreeMap<&'static str, Origin>,
}

impl Config {
    /// Where the value of a setting came from, for messages.
    pub fn origin(&self, name: &str) -> Origin {
        self.origins.get(name).cloned().unwrap_or(Origin::Default)
    }

    /// The sizes of the model.
    pub fn shape(&self) -> ModelShape {
        let Self { layers, channels, heads, kv_heads, context, vocab, moe, tied, .. } = *self;
        let dense = self.model.dense(layers, channels, [heads, kv_heads], context, vocab);
        let hidden = if moe.is_some() { self.shared_expert } else { self.hidden.unwrap_or(dense.hidden) };
        ModelShape { moe, hidden, tied, ..dense }
    }

    /// Channels of one head.
    pub fn head_size(&self) -> usize {
        self.channels / self.heads
    }

    /// Threads of each rank, where `local_ranks` of them share this machine's cores.
    pub fn threads_for(&self, local_ranks: usize) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or((cores / local_ranks.max(1)).max(1))
    }
}
