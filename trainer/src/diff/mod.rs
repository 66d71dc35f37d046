//! Where two runs part: the first step, layer, tensor and element, whatever the layouts of their ranks were.
//!
//! Compared are the steps of which both have a [dump](crate::dump), tensor by tensor in the order in which a step comes to them; the
//! losses and norms of both logs; and the checkpoints that both have, weights and optimizer state. The first that is further
//! apart than it may be is what is asked for; how far all others are, by step, is told beside it.

mod distance;
mod logs;
mod states;
mod steps;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::checkpoint::CheckpointError;
use crate::config::ConfigError;

pub use distance::{Distance, Element};
pub use logs::LogStep;
pub use states::StateStep;
pub use steps::DumpStep;

/// Runs that cannot be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiffError {
    /// A file that cannot be read.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A folder that is none of a run.
    #[error("{} is no folder of a run: it has no log.jsonl, no dumps and no checkpoints; give the --out folder of a run", folder.display())]
    NoRun {
        /// The folder.
        folder: PathBuf,
    },
    /// A line of a log that is none.
    #[error("{}, line {line}: {source}", path.display())]
    Log {
        /// The log.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Nothing that both have.
    #[error("the runs have no step in common: {a} and {b}; train both over the same steps, or with --dump of the same")]
    NoCommon {
        /// What the first has.
        a: String,
        /// What the second has.
        b: String,
    },
    /// Two models.
    #[error("the runs are of different models: {what} is {a} in the first and {b} in the second")]
    Models {
        /// The setting or tensor.
        what: String,
        /// The first's.
        a: String,
        /// The second's.
        b: String,
    },
    /// A dump or checkpoint that cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A checkpoint's configuration that cannot be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// How far apart numbers of two runs may be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tolerance {
    /// An element of what a step makes of the same weights, relative to the larger of the two and of the root mean square of
    /// its tensor.
    pub element: f64,
    /// An element of weights and the optimizer's state after some steps, and of what a step makes of such weights.
    pub state: f64,
    /// A loss, relative.
    pub loss: f64,
    /// A gradient norm, relative.
    pub norm: f64,
}

impl Tolerance {
    /// The same bits.
    pub const NONE: Self = Self { element: 0.0, state: 0.0, loss: 0.0, norm: 0.0 };
    /// The default grade of f32 and dense models: 2e-6 and 1e-5 for losses and norms, as the tests of layouts have it. A single
    /// element has the rounding of its own sums, some hundreds of units in the last place; AdamW, which divides a gradient by
    /// its size, makes more of it from step to step.
    pub const F32: Self = Self { element: 2e-5, state: 2e-3, loss: 2e-6, norm: 1e-5 };
    /// The same with experts.
    pub const EXPERTS: Self = Self { element: 1e-4, state: 1e-2, loss: 1e-5, norm: 5e-5 };
    /// The grade of bf16, whose numbers have 8 bits.
    pub const BF16: Self = Self { element: 0.1, state: 0.2, loss: 1e-2, norm: 5e-2 };

    /// The same for all.
    pub const fn of(tolerance: f64) -> Self {
        Self { element: tolerance, state: tolerance, loss: tolerance, norm: tolerance }
    }

    fn usual(exact: bool, bf16: bool, experts: bool) -> Self {
        match (exact, bf16, experts) {
            (true, ..) => Self::NONE,
            (_, true, _) => Self::BF16,
            (_, _, true) => Self::EXPERTS,
            _ => Self::F32,
        }
    }
}

/// Where two runs part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parting {
    /// The step.
    pub step: u64,
    /// The layer.
    pub layer: String,
    /// The tensor, or `loss` and `grad_norm` of the log.
    pub tensor: String,
    /// Its sizes; none for a number of the log.
    pub shape: Vec<usize>,
    /// How far, and at which elements.
    pub distance: Distance,
    /// How far elements were allowed to be, relative.
    pub tolerance: f64,
    /// Where that was found: in `dumps`, `log` or `checkpoints`.
    pub found_in: &'static str,
}

/// What a comparison came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The first parting; none where the runs are the same within the tolerance.
    pub parting: Option<Parting>,
    /// What was tolerated.
    pub tolerance: Tolerance,
    /// The layouts, where there are dumps.
    pub layouts: Option<[String; 2]>,
    /// Steps of which both have dumps.
    pub dumps: Vec<DumpStep>,
    /// Steps of both logs.
    pub log: Vec<LogStep>,
    /// Steps of which both have checkpoints.
    pub checkpoints: Vec<StateStep>,
}

/// What there is of both runs.
struct Common {
    dumps: Vec<u64>,
    log: Vec<(logs::Line, logs::Line)>,
    checkpoints: Vec<u64>,
}

/// Compares two runs by their folders; `tolerance` is what the grade of both says unless it is given.
///
/// # Errors
/// What cannot be read; runs of different models, or with nothing in common.
pub fn diff(a: &Path, b: &Path, tolerance: Option<Tolerance>) -> Result<Report, DiffError> {
    let common = common(a, b)?;
    let mut found: Vec<Parting> = Vec::new();
    let (mut usual, mut layouts, mut dumps) = (None, None, Vec::new());
    for (index, step) in common.dumps.iter().enumerate() {
        let pair = steps::Pair::open(a, b, *step)?;
        let tolerance = tolerance.unwrap_or_else(|| pair.usual());
        usual.get_or_insert(tolerance);
        layouts.get_or_insert_with(|| pair.layouts());
        // What the step before left is compared there.
        let fresh = index == 0 || common.dumps[index - 1] + 1 != *step;
        let (dumped, parting) = pair.compare(tolerance, fresh)?;
        found.extend(parting);
        dumps.push(dumped);
    }
    let mut checkpoints = Vec::new();
    for step in &common.checkpoints {
        let pair = states::Pair::open(a, b, *step)?;
        let tolerance = tolerance.unwrap_or_else(|| pair.usual());
        usual.get_or_insert(tolerance);
        let (state, parting) = pair.compare(tolerance)?;
        found.extend(parting);
        checkpoints.push(state);
    }
    let tolerance = tolerance.or(usual).unwrap_or(Tolerance::F32);
    let (log, parting) = logs::compare(&common.log, tolerance);
    found.extend(parting);
    // A step's tensors say more than its loss, and come before what it leaves.
    let order = |parting: &Parting| ["dumps", "log", "checkpoints"].iter().position(|place| *place == parting.found_in);
    let parting = found.into_iter().min_by_key(|parting| (parting.step, order(parting)));
    Ok(Report { parting, tolerance, layouts, dumps, log, checkpoints })
}

/// What both have; an error where that is nothing.
fn common(a: &Path, b: &Path) -> Result<Common, DiffError> {
    let runs = [a, b].map(|folder| -> Result<_, DiffError> {
        let io = |source| DiffError::Io { path: folder.into(), operation: "open", source };
        std::fs::metadata(folder).map_err(io)?;
        let (dumps, log, states) = (crate::dump::steps(folder), logs::read(folder)?, states::steps(folder));
        if dumps.is_empty() && log.is_empty() && states.is_empty() {
            return Err(DiffError::NoRun { folder: folder.into() });
        }
        Ok((dumps, log, states))
    });
    let [first, second] = runs;
    let ((dumps, log, states), (other_dumps, other_log, other_states)) = (first?, second?);
    let said = |dumps: &[u64], log: &[logs::Line], states: &[u64]| {
        let steps = |steps: &[u64]| steps.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let lines = log.iter().map(|line| line.step);
        let span =
            lines.clone().min().zip(lines.max()).map(|(first, last)| format!("steps {first} to {last} in its log"));
        let dumped = (!dumps.is_empty()).then(|| format!("dumps of {}", steps(dumps)));
        let saved = (!states.is_empty()).then(|| format!("checkpoints of {}", steps(states)));
        [span, dumped, saved].into_iter().flatten().collect::<Vec<_>>().join(", ")
    };
    let (a_has, b_has) = (said(&dumps, &log, &states), said(&other_dumps, &other_log, &other_states));
    let in_both = |ours: Vec<u64>, theirs: &[u64]| ours.into_iter().filter(|step| theirs.contains(step)).collect();
    let log: Vec<_> = logs::pairs(log, other_log);
    let both = Common { dumps: in_both(dumps, &other_dumps), log, checkpoints: in_both(states, &other_states) };
    if both.dumps.is_empty() && both.log.is_empty() && both.checkpoints.is_empty() {
        return Err(DiffError::NoCommon { a: a_has, b: b_has });
    }
    Ok(both)
}
