//! The flags of `perf`: those of nccl-tests, and how the ranks are started.

use std::path::PathBuf;

use warpweft::comm::Op;
use warpweft::comm::transport::TransportKind;
use warpweft::device::DType;

use super::kind::Kind;
use super::size::{self, Step};
use crate::cli::ranks::Launch;

/// Measures a collective over local ranks, or as one rank of a job that torchrun, mpirun or srun started.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Settings {
    /// Least size in bytes; K, M and G are powers of 1,024.
    #[arg(short = 'b', long, default_value = "32M", value_parser = size::parse)]
    pub(crate) minbytes: usize,
    /// Most bytes.
    #[arg(short = 'e', long, default_value = "32M", value_parser = size::parse)]
    pub(crate) maxbytes: usize,
    /// Bytes from size to size, where no factor is given.
    #[arg(short = 'i', long, default_value = "1M", value_parser = size::parse)]
    pub(crate) stepbytes: usize,
    /// Factor from size to size; 1 means steps of bytes.
    #[arg(short = 'f', long, default_value_t = 1)]
    pub(crate) stepfactor: usize,
    /// Calls that are timed.
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) iters: u32,
    /// Calls in one iteration; the time shown is that of one call.
    #[arg(short = 'm', long = "agg_iters", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) agg_iters: u32,
    /// Calls before the timed ones, at the least and at the most size.
    #[arg(short = 'w', long = "warmup_iters", default_value_t = 1)]
    pub(crate) warmup_iters: u32,
    /// How often each result is checked; 0 checks nothing.
    #[arg(short = 'c', long, default_value_t = 1)]
    pub(crate) check: u32,
    /// Reduction: sum, prod, max, min, avg or all.
    #[arg(short = 'o', long, default_value = "sum", value_parser = ops)]
    pub(crate) op: Ops,
    /// Element type: int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16 or all.
    #[arg(short = 'd', long, default_value = "float", value_parser = dtypes)]
    pub(crate) datatype: DTypes,
    /// Root of a broadcast; -1 or `all` measures every rank.
    #[arg(short = 'r', long, default_value = "0", value_parser = root, allow_hyphen_values = true)]
    pub(crate) root: Root,
    /// Which time is shown: 0 that of rank 0, 1 the mean over the ranks, 2 the least, 3 the most.
    #[arg(short = 'a', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=3))]
    pub(crate) average: u8,
    /// 1: a barrier after each call, inside the time.
    #[arg(short = 'z', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(crate) blocking: u8,
    /// Seconds that a rank may wait for another.
    #[arg(short = 'T', long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) timeout: u64,
    /// Writes the results as JSON too; a file that exists is not overwritten, a number is added to the name.
    #[arg(short = 'J', long = "output_file", value_name = "FILE")]
    pub(crate) output_file: Option<PathBuf>,
    /// Ranks to start; under torchrun, mpirun or srun theirs counts.
    #[arg(long)]
    pub(crate) ranks: Option<usize>,
    /// How bytes move between them: auto, thread, shm or tcp.
    #[arg(long, default_value = "auto", value_parser = clap::builder::PossibleValuesParser::new(["auto", "thread", "shm", "tcp"]))]
    pub(crate) transport: String,
    /// Whether ranks are processes or threads of this one; threads by default with the transport `thread`.
    #[arg(long, value_enum)]
    pub(crate) launch: Option<Launch>,
}

impl Settings {
    /// How sizes grow.
    pub(crate) fn step(&self) -> Step {
        if self.stepfactor > 1 { Step::Factor(self.stepfactor) } else { Step::Bytes(self.stepbytes) }
    }

    /// The transport.
    pub(crate) fn transport_kind(&self) -> TransportKind {
        // The parser has let only these names through.
        self.transport.parse().unwrap_or_default()
    }

    /// The reductions to measure; one without meaning where the collective does not reduce.
    pub(crate) fn ops(&self, kind: Kind) -> &[(&'static str, Op)] {
        if kind.reduces() { &self.op.0 } else { &[("none", Op::Sum)] }
    }

    /// The roots to measure, as the table shows them; -1 where the collective has none.
    pub(crate) fn roots(&self, kind: Kind, world: usize) -> Vec<i64> {
        match self.root {
            _ if !kind.rooted() => vec![-1],
            Root::All => (0..world as i64).collect(),
            Root::One(root) => vec![root as i64],
        }
    }
}

const OPS: [(&str, Op); 5] =
    [("sum", Op::Sum), ("prod", Op::Prod), ("max", Op::Max), ("min", Op::Min), ("avg", Op::Avg)];

/// Reductions with their names.
#[derive(Clone, Debug)]
pub(crate) struct Ops(Vec<(&'static str, Op)>);

fn ops(name: &str) -> Result<Ops, String> {
    if name == "all" {
        return Ok(Ops(OPS.to_vec()));
    }
    let found = OPS.iter().find(|(known, _)| *known == name);
    found.map(|op| Ops(vec![*op])).ok_or_else(|| "use sum, prod, max, min, avg or all".to_owned())
}

/// NCCL's name of each element type, in the order in which `all` measures them.
const DTYPES: [(&str, DType); 12] = [
    ("int8", DType::I8),
    ("uint8", DType::U8),
    ("int32", DType::I32),
    ("uint32", DType::U32),
    ("int64", DType::I64),
    ("uint64", DType::U64),
    ("half", DType::F16),
    ("float", DType::F32),
    ("double", DType::F64),
    ("bfloat16", DType::BF16),
    ("int16", DType::I16),
    ("uint16", DType::U16),
];

/// Element types to measure.
#[derive(Clone, Debug)]
pub(crate) struct DTypes(pub(crate) Vec<DType>);

fn dtypes(name: &str) -> Result<DTypes, String> {
    if name == "all" {
        return Ok(DTypes(DTYPES.iter().map(|(_, dtype)| *dtype).collect()));
    }
    let known = DTYPES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype);
    known.or_else(|| DType::from_name(name)).map(|dtype| DTypes(vec![dtype])).ok_or_else(|| {
        let names: Vec<&str> = DTYPES.iter().map(|(name, _)| *name).collect();
        format!("use {}, a short name (f32, bf16, i8) or all", names.join(", "))
    })
}

/// Which ranks are root.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Root {
    One(usize),
    All,
}

fn root(text: &str) -> Result<Root, String> {
    match text {
        "all" | "-1" => Ok(Root::All),
        _ => text.parse().map(Root::One).map_err(|_| "use a rank, or -1 for every rank in turn".to_owned()),
    }
}
