//! `warpweft kernels perf`: time, TFLOP/s and GB/s of every op on a device, and their share of what a large copy reaches there.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use super::super::stop::Stop;
use super::case::{Case, Size};
use super::cases::cases;
use super::{failed, open};
use warpweft::device::{Device, DeviceError, Event, Stream};
use warpweft::kernels::KernelError;

/// Measures every op on a device: the median of several runs, with the least and the most.
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
    /// Writes one JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

/// Bytes of the copy that the ceiling is measured by, at large and at small sizes.
const COPY: [usize; 2] = [1 << 30, 1 << 20];

pub(crate) fn main(flags: &Flags) -> Result<(), Stop> {
    let (device, card) = open(&flags.device)?;
    let size = if flags.small { Size::Small } else { Size::Large };
    let copied = COPY[usize::from(flags.small)];
    let said = |error: DeviceError| Stop::failed(error.to_string());
    let ceiling = rate(2 * copied as u64, median(&copies(&device, copied, flags.iters).map_err(said)?));
    let mut out = io::stdout().lock();
    if !flags.json {
        writeln!(out, "# {card}; a copy of {} MiB moves {ceiling:.1} GB/s", copied >> 20)?;
        let columns = ["median us", "least", "most", "TFLOP/s", "GB/s", "of copy"];
        write!(out, "# {:<58}", "op")?;
        columns.iter().try_for_each(|column| write!(out, " {column:>10}"))?;
        writeln!(out)?;
    }
    for case in cases(size, flags.op.as_deref()) {
        let times = measure(&case, &device, flags.iters).map_err(|error| failed(&case, &error))?;
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let time = median(&times);
        let (least, most) = (micros(times[0]), micros(times[times.len() - 1]));
        let bandwidth = rate(case.bytes, time);
        let tflops = case.flops as f64 / time.as_secs_f64() / 1e12;
        if flags.json {
            let line = json!({ "device": card, "op": case.op, "case": case.what, "dtype": case.dtype.to_string(),
                "us": micros(time), "least_us": least, "most_us": most, "tflops": tflops, "gb_per_s": bandwidth,
                "of_copy": bandwidth / ceiling });
            writeln!(out, "{line}")?;
            continue;
        }
        let (name, share) = (case.to_string(), 100.0 * bandwidth / ceiling);
        write!(out, "  {name:<58} {:>10.1} {least:>10.1} {most:>10.1}", micros(time))?;
        writeln!(out, " {tflops:>10.2} {bandwidth:>10.1} {share:>9.0}%")?;
    }
    Ok(())
}

/// Gigabytes a second.
fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-12) / 1e9
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
