//! `warpweft kernels perf`: time, TFLOP/s and GB/s of every op on a device, their share of what the device reaches at most, and
//! beside them those of another library.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use super::super::stop::Stop;
use super::case::{Case, Size};
use super::cases::cases;
use super::peer::Peers;
use super::{failed, no_op, open};
use warpweft::device::{Device, DeviceError, Event, Stream};
use warpweft::kernels::KernelError;

/// Measures every op on a device: the median of several runs, with the least and the most. Shares are of a large copy where memory
/// is what counts, and of the other library's largest product where products are.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// The device: cuda, cuda:1, cpu, software
    #[arg(long, value_name = "NAME", default_value = "cuda")]
    device: String,
    /// One op alone
    #[arg(long, value_name = "OP")]
    op: Option<String>,
    /// Runs that are measured
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// Small sizes, for devices that are slow
    #[arg(long)]
    small: bool,
    /// Times of another library on this device, as scripts/gpu-peer writes them, to stand beside
    #[arg(long, value_name = "FILE")]
    peer: Option<PathBuf>,
    /// Says what would be measured, and measures nothing
    #[arg(long)]
    list: bool,
    /// Writes one JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

/// Bytes of the copy that the ceiling is measured by, at large and at small sizes.
const COPY: [usize; 2] = [1 << 30, 1 << 20];

pub(crate) fn main(flags: &Flags) -> Result<(), Stop> {
    let peers = flags.peer.as_deref().map(Peers::read).transpose()?.unwrap_or_default();
    let mut out = io::stdout().lock();
    if flags.list {
        for case in cases(Size::Large, flags.op.as_deref()) {
            writeln!(out, "{}", json!({ "op": case.op, "case": case.what, "dtype": case.dtype.to_string() }))?;
        }
        return Ok(());
    }
    let (device, card) = open(&flags.device)?;
    let size = if flags.small { Size::small(&device) } else { Size::Large };
    let cases = cases(size, flags.op.as_deref());
    if cases.is_empty() {
        return Err(no_op(flags.op.as_deref()));
    }
    let copied = COPY[usize::from(flags.small)];
    let said = |error: DeviceError| Stop::failed(error.to_string());
    let time = median(&copies(&device, copied, flags.iters).map_err(said)?);
    let ceilings = Ceilings { copy: 2.0 * copied as f64 / time.as_secs_f64().max(1e-12), peers: &peers };
    if !flags.json {
        ceilings.head(&mut out, &card, copied)?;
    }
    for case in cases {
        let times = measure(&case, &device, flags.iters).map_err(|error| failed(&case, &error))?;
        if flags.json {
            ceilings.object(&mut out, &card, &case, &times)?;
        } else {
            ceilings.line(&mut out, &case, &times)?;
        }
    }
    Ok(())
}

/// What a device reaches at most.
struct Ceilings<'a> {
    /// Bytes a second of a large copy, read and written.
    copy: f64,
    /// Whose largest product is the other one.
    peers: &'a Peers,
}

/// What a time means for a case: operations and bytes a second, and the share of its ceiling where that is known.
struct Rates {
    micros: f64,
    tflops: f64,
    gigabytes: f64,
    share: Option<f64>,
}

impl Rates {
    fn columns(&self) -> String {
        let share = self.share.map_or("none".to_owned(), |share| format!("{:.0}%", 100.0 * share));
        format!("{:>10.1} {:>8.2} {:>9.1} {share:>7}", self.micros, self.tflops, self.gigabytes)
    }
}

impl Ceilings<'_> {
    fn rates(&self, case: &Case, micros: f64) -> Rates {
        let per_second = 1e6 / micros.max(1e-6);
        let (flops, bytes) = (case.flops as f64 * per_second, case.bytes as f64 * per_second);
        let share = match case.flops {
            0 => Some(bytes / self.copy),
            _ => self.peers.product(case.dtype).map(|ceiling| flops / ceiling),
        };
        Rates { micros, tflops: flops / 1e12, gigabytes: bytes / 1e9, share }
    }

    fn head(&self, out: &mut impl Write, card: &str, copied: usize) -> io::Result<()> {
        let copy = self.copy / 1e9;
        writeln!(
            out,
            "# {card}; a copy of {} MiB moves {copy:.1} GB/s, the ceiling where memory counts",
            copied >> 20
        )?;
        writeln!(out, "# where products count: {}", self.peers.products())?;
        let of_one = format!("{:>10} {:>8} {:>9} {:>7}", "median us", "TFLOP/s", "GB/s", "ceiling");
        writeln!(
            out,
            "# {:<62} {of_one} {:>10} {:>10}  {of_one}",
            "op; ours, and the other library", "least us", "most us"
        )
    }

    fn line(&self, out: &mut impl Write, case: &Case, times: &[Duration]) -> io::Result<()> {
        let ours = self.rates(case, micros(median(times))).columns();
        let (least, most) = (micros(times[0]), micros(times[times.len() - 1]));
        let theirs = self.peers.micros(case).map_or("none".to_owned(), |micros| self.rates(case, micros).columns());
        writeln!(out, "  {:<62} {ours} {least:>10.1} {most:>10.1}  {theirs:>10}", case.to_string())
    }

    fn object(&self, out: &mut impl Write, card: &str, case: &Case, times: &[Duration]) -> io::Result<()> {
        let ours = self.rates(case, micros(median(times)));
        let theirs = self.peers.micros(case).map(|micros| self.rates(case, micros));
        let (least, most) = (micros(times[0]), micros(times[times.len() - 1]));
        let line = json!({ "device": card, "op": case.op, "case": case.what, "dtype": case.dtype.to_string(),
            "us": ours.micros, "least_us": least, "most_us": most, "tflops": ours.tflops, "gb_per_s": ours.gigabytes,
            "of_ceiling": ours.share, "peer_us": theirs.as_ref().map(|theirs| theirs.micros),
            "peer_of_ceiling": theirs.and_then(|theirs| theirs.share) });
        writeln!(out, "{line}")
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(sorted: &[Duration]) -> Duration {
    sorted[sorted.len() / 2]
}

fn measure(case: &Case, device: &Device, iters: u32) -> Result<Vec<Duration>, KernelError> {
    let (stream, mut work) = (device.stream(), (case.make)(device)?);
    timed(&stream, iters, || work.launch(&stream))
}

fn copies(device: &Device, bytes: usize, iters: u32) -> Result<Vec<Duration>, DeviceError> {
    let (from, mut to) = (device.zeros::<u8>(bytes)?, device.zeros::<u8>(bytes)?);
    let stream = device.stream();
    timed(&stream, iters, || to.as_view_mut().copy_from(&stream, from.as_view()))
}

/// Times of single runs by the device's own clock, or by ours where it keeps none; sorted. Two runs before do not count.
fn timed<E: From<DeviceError>>(
    stream: &Stream,
    iters: u32,
    mut run: impl FnMut() -> Result<(), E>,
) -> Result<Vec<Duration>, E> {
    let mut times = Vec::new();
    for turn in 0..iters + 2 {
        let (begin, end) = (Event::new(stream.device()), Event::new(stream.device()));
        let started = Instant::now();
        stream.record(&begin)?;
        run()?;
        stream.record(&end)?;
        stream.synchronize()?;
        let took = end.since(&begin).unwrap_or_else(|| started.elapsed());
        if turn >= 2 {
            times.push(took);
        }
    }
    times.sort();
    Ok(times)
}
