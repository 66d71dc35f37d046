//! From what was given to a [`Config`]: layers of values, defaults, the stored configuration of a resumed run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use warpweft_device::DType;
use warpweft_schedule::Name;

use super::error::{ConfigError, Origin};
use super::flags::{FLAGS, Flag, Status};
use super::values::{self, Values};
use super::{Config, Family, Launch, checks, experts, mesh};
use crate::checkpoint;
use crate::data::Blend;
use crate::dump::Wanted;
use crate::model::Recompute;
use crate::parallel::context::Method;
use crate::parallel::mesh::Sizes;
use crate::parallel::zero::Zero;

/// The world size that a launcher's environment gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// The variable, `WORLD_SIZE`.
    pub variable: String,
    /// Its value.
    pub world: usize,
}

/// All that a configuration is made from.
#[derive(Clone, Debug, Default)]
pub struct Inputs<'a> {
    /// A TOML file of settings.
    pub file: Option<&'a Path>,
    /// Settings of the command line, by name; they override the file.
    pub flags: &'a [(String, String)],
    /// A launcher's world size, if one started this rank.
    pub launched: Option<Launched>,
}

impl Config {
    /// Puts file and flags together, fills in the defaults and checks the whole.
    ///
    /// With `resume` the base is the configuration stored in that checkpoint, and only settings that are no part of
    /// the run's numbers may be given beside it ([`Status::Free`]).
    ///
    /// # Errors
    /// The first thing found wrong, with its origin and the fix.
    pub fn resolve(inputs: &Inputs<'_>) -> Result<Config, ConfigError> {
        let mut values = Values::default();
        let mut resume = None;
        if let Some((_, folder)) = inputs.flags.iter().find(|(name, _)| name == "resume") {
            if let Some(file) = inputs.file {
                return Err(ConfigError::Contradiction {
                    what: format!("--resume {folder} restores the configuration, and {} gives another", file.display()),
                    fix: "leave one of them out".into(),
                });
            }
            resume = Some(restore(Path::new(folder), &mut values)?);
        } else if let Some(path) = inputs.file {
            values.layer(values::read(path)?, &Origin::File(path.into()))?;
            if let Some(given) = values.get("resume") {
                return Err(ConfigError::Contradiction {
                    what: format!("resume is set in {}", given.origin),
                    fix: "give it as a flag: --resume DIR".into(),
                });
            }
        }
        let stored = values.clone();
        values.layer(inputs.flags.iter().cloned(), &Origin::Flag)?;
        if resume.is_some() {
            refuse_changes(&values, &stored)?;
        }
        let sizes = mesh::sizes(&mut values, inputs.launched.as_ref())?;
        let config = build(&values, resume, inputs.launched.is_some(), sizes)?;
        checks::check(&config)?;
        Ok(config)
    }

    /// The settings as a TOML file that [`resolve`](Self::resolve) reads back to the same configuration: what is
    /// stored in a checkpoint. `resume`, `weights`, `trace`, the dumps and `dry-run` belong to one invocation and are left out.
    pub fn to_toml(&self) -> String {
        let mut table = toml::Table::new();
        let mut put = |name: &str, value: toml::Value| {
            table.insert(name.into(), value);
        };
        // TOML integers are i64; larger ones are written as text, which is read back the same way.
        let whole = |n: u64| i64::try_from(n).map_or_else(|_| toml::Value::String(n.to_string()), toml::Value::Integer);
        if let Some(blend) = &self.data {
            put("data", blend.to_string().into());
        }
        put("out", self.out.display().to_string().into());
        put("model", if self.model == Family::Gpt2 { "gpt2" } else { "llama" }.into());
        for (name, n) in [
            ("layers", self.layers),
            ("channels", self.channels),
            ("heads", self.heads),
            ("kv-heads", self.kv_heads),
            ("context", self.context),
            ("vocab", self.vocab),
            ("batch", self.batch),
            ("eval-sequences", self.eval_sequences),
            ("sample", self.sample),
            ("ranks", self.ranks),
            ("pp", self.sizes.pp),
            ("cp", self.sizes.cp),
            ("tp", self.sizes.tp),
            ("ep", self.sizes.ep),
        ] {
            put(name, whole(n as u64));
        }
        for (name, value) in self.moe.iter().flat_map(|moe| experts::table(moe, self.shared_expert)) {
            put(name, value);
        }
        for (name, n) in [
            ("steps", self.steps),
            ("warmup", self.warmup),
            ("seed", self.seed),
            ("eval-every", self.eval_every),
            ("save-every", self.save_every),
        ] {
            put(name, whole(n));
        }
        for (name, n) in [
            ("micro-batch", self.micro_batch),
            ("hidden", self.hidden),
            ("threads", self.threads),
            ("shards", self.zero.shards),
            ("chunks", self.chunks),
        ] {
            if let Some(n) = n {
                put(name, whole(n as u64));
            }
        }
        put("lr", self.lr.into());
        put("weight-decay", self.weight_decay.into());
        put("clip", self.clip.unwrap_or(0.0).into());
        put("cp-method", if self.cp_method == Method::Ring { "ring" } else { "ulysses" }.into());
        put("sp", self.sequence_parallel.into());
        put("tied", self.tied.into());
        put("zero", self.zero.stage.to_string().into());
        put("schedule", self.schedule.as_str().into());
        put("exact", self.exact.into());
        put("overlap", self.overlap.into());
        put("packing", if self.documents { "documents" } else { "windows" }.into());
        if let Some(end) = self.end_token {
            put("end-token", whole(u64::from(end)));
        }
        put("device", self.device.clone().into());
        put("recompute", Recompute::ALL[self.recompute as usize].0.into());
        put("dtype", self.dtype.name().into());
        put("launch", if self.launch == Launch::Processes { "processes" } else { "threads" }.into());
        put("transport", self.transport.to_string().into());
        put("timeout", self.timeout.as_secs_f64().into());
        table.to_string()
    }
}

/// Loads the stored configuration of a checkpoint as the base layer and returns the checkpoint's folder.
fn restore(folder: &Path, values: &mut Values) -> Result<PathBuf, ConfigError> {
    let step_folder = checkpoint::locate(folder)?;
    let path = step_folder.join(checkpoint::CONFIG_FILE);
    let text = checkpoint::read_config(&step_folder)?;
    values.layer(values::parse(&text, &path)?, &Origin::Checkpoint(path))?;
    // The run goes on where it is found now, which need not be where it was started.
    values.remove("out");
    let run = checkpoint::run_folder(&step_folder);
    values.layer([("out".into(), run.display().to_string())], &Origin::Checkpoint(step_folder.clone()))?;
    Ok(step_folder)
}

/// Refuses flags that would change a resumed run's numbers; the run's own values may be repeated.
fn refuse_changes(values: &Values, stored: &Values) -> Result<(), ConfigError> {
    for (name, given) in values.iter().filter(|(_, given)| given.origin == Origin::Flag) {
        let before = stored.get(name).map(|stored| stored.value.clone());
        let fixed = Flag::find(name).is_some_and(|flag| flag.status == Status::Fixed);
        if fixed && !before.as_deref().is_some_and(|before| same(&given.value, before)) {
            let free: Vec<_> = FLAGS.iter().filter(|flag| flag.status == Status::Free).map(|flag| flag.name).collect();
            let (value, origin) = (given.value.clone(), given.origin.clone());
            return Err(ConfigError::Resumed { name, value, origin, stored: before, free: free.join(", ") });
        }
    }
    Ok(())
}

/// Whether two texts say the same: the same words, the same number, the same path, or the same blend of paths.
fn same(given: &str, stored: &str) -> bool {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let path = |text: &str| std::path::absolute(text).ok();
    let blend = |text: &str| text.parse::<Blend>().ok().and_then(|blend| blend.absolute().ok());
    given == stored
        || blend(given).is_some_and(|given| blend(stored) == Some(given))
        || number(given).is_some_and(|n| number(stored) == Some(n))
        || path(given) == path(stored)
}

/// A size: a whole number from 1, small enough that products of a few of them are caught before they overflow.
pub(super) fn size(values: &Values, name: &'static str, default: usize) -> Result<usize, ConfigError> {
    let wants = "a whole number from 1 to 2147483647";
    Ok(values.parse(name, wants, |n| (1..=i32::MAX as usize).contains(n))?.unwrap_or(default))
}

pub(super) fn whole(values: &Values, name: &'static str, default: u64) -> Result<u64, ConfigError> {
    Ok(values.parse(name, "a whole number from 0", |_| true)?.unwrap_or(default))
}

pub(super) fn real(values: &Values, name: &'static str, default: f64) -> Result<f64, ConfigError> {
    Ok(values.parse(name, "a finite number from 0", |x: &f64| x.is_finite() && *x >= 0.0)?.unwrap_or(default))
}

fn path(values: &Values, name: &'static str) -> Result<Option<PathBuf>, ConfigError> {
    let wants = "a path";
    values.parse(name, wants, |path: &PathBuf| !path.as_os_str().is_empty())
}

/// What to train on, with absolute paths.
fn data(values: &Values) -> Result<Option<Blend>, ConfigError> {
    let Some(text) = path(values, "data")? else { return Ok(None) };
    let text = text.to_string_lossy();
    let blend = text.parse::<Blend>().map_err(|error| ConfigError::Value {
        name: "data",
        value: text.to_string(),
        origin: values.origin("data"),
        nearest: None,
        wants: format!("a path or WEIGHT:PATH,WEIGHT:PATH; {error}"),
    })?;
    Ok(Some(blend.absolute().map_err(|(path, source)| ConfigError::Io { path, operation: "find", source })?))
}

/// Weights to begin with, by their absolute path.
fn weights(values: &Values) -> Result<Option<PathBuf>, ConfigError> {
    let Some(path) = path(values, "weights")? else { return Ok(None) };
    let found = std::path::absolute(&path).and_then(|whole| whole.metadata().map(|_| whole));
    found.map(Some).map_err(|source| ConfigError::Io { path, operation: "find the weights", source })
}

/// Which steps are written down.
fn dump(values: &Values) -> Result<Wanted, ConfigError> {
    Ok(Wanted {
        steps: values.parse("dump", "steps from 1, as 3, 1-5 or several with commas", |_| true)?.unwrap_or_default(),
        every: whole(values, "dump-every", 0)?,
        what: values
            .parse("dump-what", "some of activations, errors, gradients, weights, with commas", |_| true)?
            .unwrap_or_default(),
    })
}

fn build(values: &Values, resume: Option<PathBuf>, launched: bool, sizes: Sizes) -> Result<Config, ConfigError> {
    let steps = whole(values, "steps", 500)?;
    let model = if values.choice("model")? == Some("llama") { Family::Llama } else { Family::Gpt2 };
    let (channels, heads) = (size(values, "channels", 128)?, size(values, "heads", 4)?);
    let experts = experts::read(values, model.dense(1, channels, [1, 1], 1, 1).hidden)?;
    let data = data(values)?;
    let optional = |name| Ok::<_, ConfigError>(values.get(name).is_some().then_some(size(values, name, 1)?));
    Ok(Config {
        data,
        weights: weights(values)?,
        out: path(values, "out")?.unwrap_or("out".into()),
        resume,
        model,
        layers: size(values, "layers", 4)?,
        channels,
        heads,
        kv_heads: size(values, "kv-heads", heads)?,
        moe: experts.map(|(moe, _)| moe),
        shared_expert: experts.map_or(0, |(_, shared)| shared),
        hidden: optional("hidden")?,
        tied: values.choice("tied")? != Some("false"),
        context: size(values, "context", 64)?,
        vocab: size(values, "vocab", 256)?,
        steps,
        batch: size(values, "batch", 24)?,
        micro_batch: optional("micro-batch")?,
        lr: real(values, "lr", 3e-3)?,
        warmup: whole(values, "warmup", (steps / 10).min(50))?,
        weight_decay: real(values, "weight-decay", 0.1)?,
        clip: Some(real(values, "clip", 1.0)?).filter(|clip| *clip > 0.0),
        seed: whole(values, "seed", 1)?,
        dtype: if values.choice("dtype")? == Some("bf16") { DType::BF16 } else { DType::F32 },
        eval_every: whole(values, "eval-every", 100)?,
        eval_sequences: size(values, "eval-sequences", 64)?,
        save_every: whole(values, "save-every", 100)?,
        sample: whole(values, "sample", 200)? as usize,
        trace: path(values, "trace")?,
        dump: dump(values)?,
        ranks: sizes.ranks(),
        sizes,
        zero: Zero {
            stage: values.choice("zero")?.map_or(0, |stage| stage.as_bytes()[0] - b'0'),
            shards: optional("shards")?,
        },
        schedule: values.choice("schedule")?.and_then(|name| name.parse().ok()).unwrap_or(Name::OneForwardOneBackward),
        chunks: optional("chunks")?,
        documents: values.choice("packing")? == Some("documents"),
        end_token: values.parse("end-token", "a token, a whole number from 0", |_| true)?,
        device: values.get("device").map_or_else(|| "cpu".to_owned(), |given| given.value.clone()),
        recompute: {
            let name = values.choice("recompute")?;
            Recompute::ALL.into_iter().find(|(known, _)| name == Some(known)).map_or(Recompute::None, |(_, mode)| mode)
        },
        cp_method: if values.choice("cp-method")? == Some("ulysses") { Method::Ulysses } else { Method::Ring },
        sequence_parallel: values.choice("sp")? == Some("true"),
        exact: values.choice("exact")? == Some("true"),
        overlap: values.choice("overlap")? != Some("false"),
        dry_run: values.choice("dry-run")? == Some("true"),
        threads: optional("threads")?,
        launch: if values.choice("launch")? == Some("threads") { Launch::Threads } else { Launch::Processes },
        transport: values.choice("transport")?.and_then(|name| name.parse().ok()).unwrap_or_default(),
        timeout: values
            .parse("timeout", "a number of seconds above 0", |t: &f64| *t > 0.0 && *t <= 1e9)?
            .map_or(warpweft_comm::bootstrap::DEFAULT_TIMEOUT, Duration::from_secs_f64),
        launched,
        origins: values.iter().map(|(name, given)| (name, given.origin.clone())).collect(),
    })
}
