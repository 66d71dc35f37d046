//! The flags of `ptx run`, and the job that they describe.

use std::path::PathBuf;

use super::job::{Job, Launch, Memory, Param, Target, raw, shape};
use super::scalar::Scalar;
use crate::cli::perf::size;

/// Runs kernels of a PTX file on the software GPU, under checks. Status 0: no check reported an error. 1: one did. 2: the
/// job, the PTX or an argument is wrong.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Flags {
    /// The PTX.
    #[arg(value_name = "FILE", required_unless_present = "job")]
    pub(super) file: Option<String>,
    /// A job file (JSON) instead of FILE and the flags of a launch; the settings below override its own.
    #[arg(long, value_name = "JOB.json", conflicts_with_all = ["file", "kernel", "grid", "block", "shared", "cluster", "args", "device"])]
    pub(super) job: Option<PathBuf>,
    /// The kernel to launch; the only one of the file otherwise.
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// Blocks along x, y, z.
    #[arg(long, value_name = "X,Y,Z", value_delimiter = ',', default_value = "1")]
    grid: Vec<u32>,
    /// Threads of a block along x, y, z.
    #[arg(long, value_name = "X,Y,Z", value_delimiter = ',', default_value = "1")]
    block: Vec<u32>,
    /// Bytes of dynamic shared memory.
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = size::parse)]
    shared: usize,
    /// Blocks of a cluster; only 1,1,1 runs.
    #[arg(long, value_name = "X,Y,Z", value_delimiter = ',', default_value = "1")]
    cluster: Vec<u32>,
    /// The next argument: TYPE:NUMBER (u32:128, f32:0.5), [NAME=]buf:BYTES[=INIT] with INIT zero, poison or a file,
    /// [NAME=]buf:FILE, ptr:NAME[+OFFSET], bytes:HEX[,AT=NAME[+OFFSET]...]. A buffer without a name is arg0, arg1...
    #[arg(long = "arg", value_name = "ARGUMENT", allow_hyphen_values = true)]
    args: Vec<String>,
    /// Writes a buffer to a file after the last launch; may be repeated.
    #[arg(long, value_name = "NAME=FILE")]
    dump: Vec<String>,
    /// The GPU: sm_80, sm_86, sm_87, sm_89, sm_90.
    #[arg(long, value_name = "SM", default_value = "sm_80")]
    device: String,
    #[command(flatten)]
    settings: Settings,
    /// Writes one JSON object instead of text.
    #[arg(long)]
    pub(super) json: bool,
}

/// The settings of launches.
#[derive(Clone, Debug, clap::Args)]
struct Settings {
    /// all (the default), none, or memcheck, initcheck, racecheck, synccheck, asynccheck, deadlock, nancheck with commas.
    #[arg(long, value_name = "CHECKS")]
    check: Option<String>,
    /// Of whatever is left to chance.
    #[arg(long)]
    seed: Option<String>,
    /// Turns of warps and blocks: rr, reverse, random.
    #[arg(long)]
    schedule: Option<String>,
    /// When asynchronous copies land: eager, latest, random.
    #[arg(long = "async", value_name = "WHEN")]
    asynchrony: Option<String>,
    /// After a branch that divides a warp: reconverge, independent.
    #[arg(long)]
    divergence: Option<String>,
    /// Approximate functions: rounded, adversary.
    #[arg(long)]
    approx: Option<String>,
    /// Tensor cores: exact (the model of the device), exact:sm_80, exact:sm_90, native.
    #[arg(long)]
    numerics: Option<String>,
    /// Warp instructions after which a kernel is stopped.
    #[arg(long)]
    limit: Option<String>,
    /// Host threads, where no check watches.
    #[arg(long)]
    workers: Option<String>,
}

impl Settings {
    /// Those given.
    fn given(&self) -> impl Iterator<Item = (&'static str, String)> {
        let all = [
            ("check", &self.check),
            ("seed", &self.seed),
            ("schedule", &self.schedule),
            ("async", &self.asynchrony),
            ("divergence", &self.divergence),
            ("approx", &self.approx),
            ("numerics", &self.numerics),
            ("limit", &self.limit),
            ("workers", &self.workers),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key, value.clone()?)))
    }
}

impl Flags {
    /// The job. The error is a sentence.
    pub(super) fn job(&self) -> Result<Job, String> {
        let mut job = match (&self.job, &self.file) {
            (Some(path), _) => Job::read(path)?,
            (None, Some(file)) => self.launch_of(file)?,
            (None, None) => return Err("FILE or --job is missing; `--help` shows how it is used".to_owned()),
        };
        job.settings.extend(self.settings.given());
        for dump in &self.dump {
            let (name, file) = dump.split_once('=').ok_or_else(|| format!("--dump {dump}: write NAME=FILE"))?;
            // The folder of a job file is where its own paths start, not those of the command line.
            let file = std::path::absolute(file).map_err(|error| format!("--dump {dump}: {error}"))?;
            job.dump.push((name.to_owned(), file.to_string_lossy().into_owned()));
        }
        Ok(job)
    }

    /// The job of one launch.
    fn launch_of(&self, file: &str) -> Result<Job, String> {
        let mut buffers = Vec::new();
        let params = self.args.iter().enumerate();
        let params =
            params.map(|(at, text)| argument(at, text, &mut buffers).map_err(|error| format!("--arg {text}: {error}")));
        let shared = u32::try_from(self.shared).map_err(|_| format!("--shared {}: at most 4 GiB", self.shared))?;
        let launch = Launch {
            params: params.collect::<Result<_, _>>()?,
            kernel: self.kernel.clone().unwrap_or_default(),
            grid: shape("--grid", &self.grid)?,
            block: shape("--block", &self.block)?,
            shared,
            cluster: shape("--cluster", &self.cluster)?,
        };
        Ok(Job {
            folder: PathBuf::new(),
            device: self.device.clone(),
            module: file.to_owned(),
            buffers,
            launches: vec![launch],
            dump: Vec::new(),
            settings: Vec::new(),
        })
    }

    /// The command that gives the same run again, settings aside.
    pub(super) fn replay(&self) -> String {
        let mut words = vec!["warpweft ptx run".to_owned()];
        if let Some(job) = &self.job {
            words.extend(["--job".to_owned(), quoted(&job.to_string_lossy())]);
            return words.join(" ");
        }
        let listed = |extents: &[u32]| extents.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        words.extend(self.file.as_deref().map(quoted));
        words.extend(self.kernel.iter().flat_map(|kernel| ["--kernel".to_owned(), quoted(kernel)]));
        words.push(format!(
            "--device {} --grid {} --block {}",
            quoted(&self.device),
            listed(&self.grid),
            listed(&self.block)
        ));
        if self.shared > 0 {
            words.push(format!("--shared {}", self.shared));
        }
        words.extend(self.args.iter().flat_map(|argument| ["--arg".to_owned(), quoted(argument)]));
        words.join(" ")
    }
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// One `--arg`, number `at`; a buffer that it describes is added to those there are.
fn argument(at: usize, text: &str, buffers: &mut Vec<(String, Memory)>) -> Result<Param, String> {
    let (name, text) = match text.split_once("=buf:") {
        Some((name, _)) if !name.contains(':') => (name.to_owned(), &text[name.len() + 1..]),
        _ => (format!("arg{at}"), text),
    };
    let (kind, rest) = text.split_once(':').ok_or("write TYPE:VALUE, such as u32:128 or buf:1024=zero")?;
    match kind {
        "buf" => {
            if name.is_empty() || buffers.iter().any(|(known, _)| *known == name) {
                return Err(format!("a buffer needs a name of its own, and `{name}` is none"));
            }
            buffers.push((name.clone(), buffer(rest)));
            Ok(Param::Pointer(Target { buffer: name, offset: 0 }))
        }
        "ptr" => Ok(Param::Pointer(target(rest)?)),
        "bytes" => {
            let mut parts = rest.split(',');
            let digits = parts.next().unwrap_or_default();
            let places = parts.map(|part| {
                let (at, to) = part.split_once('=').ok_or_else(|| format!("`{part}`: write AT=NAME"))?;
                let at = at.parse().map_err(|_| format!("`{at}` is no byte of a struct"))?;
                Ok((at, target(to)?))
            });
            raw(digits, places.collect::<Result<_, String>>()?)
        }
        _ => Scalar::parse(kind, rest).map(Param::Scalar),
    }
}

/// `65536`, `64K=zero`, `1024=q.bin`, `q.bin`.
fn buffer(text: &str) -> Memory {
    let (bytes, init) = text.split_once('=').unwrap_or((text, "poison"));
    match size::parse(bytes) {
        Ok(bytes) => Memory { bytes: Some(bytes as u64), init: init.to_owned() },
        Err(_) => Memory { bytes: None, init: text.to_owned() },
    }
}

/// `q`, `q+16`.
fn target(text: &str) -> Result<Target, String> {
    let (buffer, offset) = text.split_once('+').unwrap_or((text, "0"));
    let offset = offset.parse().map_err(|_| format!("`{offset}` is no number of bytes"))?;
    Ok(Target { buffer: buffer.to_owned(), offset })
}
