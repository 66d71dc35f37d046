//! `warpweft perf`: how fast a collective is, and whether it is right, in the words of nccl-tests.

mod kind;
mod measure;
mod number;
mod report;
mod sample;
mod settings;
pub(crate) mod size;
mod table;
pub(crate) mod train;

use std::io::{self, Write};
use std::time::Duration;

use warpweft::comm::bootstrap::Bootstrap;
use warpweft::comm::{Communicator, Op};
use warpweft::device::{DType, bf16, f16};

pub(crate) use kind::Kind;
pub(crate) use settings::Settings;

use self::measure::{Buffers, Case};
use self::report::Report;
use self::sample::Sample;
use self::table::{Half, RankLine, Row};
use super::Stop;
use super::ranks::{self, Job};

/// Starts the ranks and measures.
pub(crate) fn main(kind: Kind, settings: &Settings) -> Result<(), Stop> {
    let (least, most) = (settings.minbytes, settings.maxbytes);
    if least > most {
        return Err(Stop::usage(format!("--minbytes {least} is more than --maxbytes {most}; raise -e or lower -b")));
    }
    let job = Job {
        ranks: settings.ranks,
        usual_ranks: 2,
        transport: settings.transport_kind(),
        launch: settings.launch,
        timeout: Duration::from_secs(settings.timeout),
    };
    job.run(|bootstrap| rank(kind, settings, bootstrap))
}

/// One rank's part. Rank 0 writes the table.
fn rank(kind: Kind, settings: &Settings, bootstrap: Bootstrap) -> Result<(), Stop> {
    // A file that cannot be made is found now, not after an hour of measuring.
    let json = settings.output_file.as_deref().filter(|_| bootstrap.rank == 0).map(report::create_new).transpose();
    let json = json.map_err(|error| Stop::usage(format!("--output_file: {error}")))?;
    let communicator = ranks::connect(bootstrap, settings.transport_kind())?;
    let world = communicator.world();
    if let settings::Root::One(root) = settings.root
        && kind.rooted()
        && root >= world
    {
        return Err(Stop::usage(format!("--root {root}: the job has {world} ranks, 0 to {}", world - 1)));
    }
    let ranks = rank_lines(&communicator)?;
    let (mut terminal, mut nowhere) = (io::stdout(), io::sink());
    let out: &mut dyn Write = if communicator.rank() == 0 { &mut terminal } else { &mut nowhere };
    let mut report = Report::new(kind, settings, &ranks, json, out)?;
    for &dtype in &settings.datatype.0 {
        for &(op_name, op) in settings.ops(kind) {
            for root in settings.roots(kind, communicator.world()) {
                let series = Series { kind, settings, communicator: &communicator, op, op_name, root };
                series.run_as(dtype, &mut report)?;
            }
        }
    }
    communicator.barrier()?;
    match report.finish()? {
        0 => Ok(()),
        failures => Err(Stop::failed(format!("{failures} results of {kind} have wrong elements; see the table"))),
    }
}

/// All sizes of one type, reduction and root.
struct Series<'a> {
    kind: Kind,
    settings: &'a Settings,
    communicator: &'a Communicator,
    op: Op,
    op_name: &'static str,
    root: i64,
}

impl Series<'_> {
    fn run_as(&self, dtype: DType, report: &mut Report<'_>) -> Result<(), Stop> {
        match dtype {
            DType::F64 => self.run::<f64>(report),
            DType::F32 => self.run::<f32>(report),
            DType::F16 => self.run::<f16>(report),
            DType::BF16 => self.run::<bf16>(report),
            DType::I8 => self.run::<i8>(report),
            DType::I16 => self.run::<i16>(report),
            DType::I32 => self.run::<i32>(report),
            DType::I64 => self.run::<i64>(report),
            DType::U8 => self.run::<u8>(report),
            DType::U16 => self.run::<u16>(report),
            DType::U32 => self.run::<u32>(report),
            DType::U64 => self.run::<u64>(report),
            other => Err(Stop::usage(format!("--datatype: {other} cannot be measured yet"))),
        }
    }

    fn run<T: Sample>(&self, report: &mut Report<'_>) -> Result<(), Stop> {
        let settings = self.settings;
        let most = settings.maxbytes;
        let buffers = Buffers::<T>::new(most / size_of::<T>());
        let mut buffers =
            buffers.ok_or_else(|| Stop::usage(format!("--maxbytes {most}: there is no memory for it")))?;
        for bytes in [settings.maxbytes, settings.minbytes] {
            let case = self.case::<T>(bytes, false);
            for _ in 0..settings.warmup_iters {
                case.call(&mut buffers)?;
            }
        }
        for bytes in size::sweep(settings.minbytes, settings.maxbytes, settings.step()) {
            let out_of_place = self.half::<T>(&mut buffers, bytes, false)?;
            let in_place = self.half::<T>(&mut buffers, bytes, true)?;
            let counts = self.case::<T>(bytes, false).counts;
            report.row(&Row {
                bytes: counts.send.max(counts.recv) * size_of::<T>(),
                count: counts.argument,
                type_name: T::NAME,
                op: self.op_name,
                root: self.root,
                out_of_place,
                in_place,
            })?;
        }
        Ok(())
    }

    fn case<T: Sample>(&self, bytes: usize, in_place: bool) -> Case<'_> {
        let counts = self.kind.counts(bytes, size_of::<T>(), self.communicator.world());
        // A collective without a root shows -1 and uses none.
        let root = usize::try_from(self.root).unwrap_or(0);
        Case { communicator: self.communicator, kind: self.kind, op: self.op, root, counts, in_place }
    }

    /// Times and checks one size, in or out of place.
    fn half<T: Sample>(&self, buffers: &mut Buffers<T>, bytes: usize, in_place: bool) -> Result<Half, Stop> {
        let settings = self.settings;
        let case = self.case::<T>(bytes, in_place);
        // Once outside the time: pages are touched and links made.
        case.check(buffers, 99)?;
        let calls = settings.iters.saturating_mul(settings.agg_iters);
        let seconds = case.time(buffers, calls, settings.blocking == 1)?;
        let seconds = self.over_ranks(seconds)?;
        let mut wrong = (settings.check > 0).then_some(0u64);
        for round in 0..u64::from(settings.check) {
            let mut all = [case.check(buffers, round)?];
            self.communicator.all_reduce(&mut all[..], Op::Sum)?;
            wrong = wrong.map(|wrong| wrong + all[0]);
        }
        let world = self.communicator.world();
        let (algorithm_bandwidth, bus_bandwidth) = self.kind.bandwidths(case.counts, size_of::<T>(), seconds, world);
        Ok(Half { microseconds: seconds * 1e6, algorithm_bandwidth, bus_bandwidth, wrong })
    }

    /// The time that is shown, from this rank's.
    fn over_ranks(&self, seconds: f64) -> Result<f64, Stop> {
        let mut all = vec![0.0f64; self.communicator.world()];
        self.communicator.all_gather(&[seconds][..], &mut all[..])?;
        Ok(match self.settings.average {
            0 => all[0],
            1 => all.iter().sum::<f64>() / all.len() as f64,
            2 => all.iter().copied().fold(f64::INFINITY, f64::min),
            _ => all.iter().copied().fold(0.0, f64::max),
        })
    }
}

/// Every rank's process and host, known to every rank.
fn rank_lines(communicator: &Communicator) -> Result<Vec<RankLine>, Stop> {
    /// Bytes of a host name, the longest that Linux has.
    const HOST: usize = 64;
    const RECORD: usize = 4 + HOST;
    let mut mine = [0u8; RECORD];
    mine[..4].copy_from_slice(&std::process::id().to_le_bytes());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "localhost".into());
    let host = host.trim().as_bytes();
    let len = host.len().min(HOST);
    mine[4..4 + len].copy_from_slice(&host[..len]);
    let mut all = vec![0u8; RECORD * communicator.world()];
    communicator.all_gather(&mine[..], &mut all[..])?;
    let lines = all.chunks_exact(RECORD).enumerate().map(|(rank, record)| {
        let (process, host) = record.split_at(4);
        let process = process.iter().rev().fold(0u32, |value, &byte| value << 8 | u32::from(byte));
        let host = String::from_utf8_lossy(host).trim_end_matches('\0').to_owned();
        RankLine { rank, process, host, transport: communicator.transport().to_string() }
    });
    Ok(lines.collect())
}
