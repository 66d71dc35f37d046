//! Spans of time on each rank, and the Chrome trace that shows them side by side (`chrome://tracing`, Perfetto).

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::error::ReportError;

/// Where a span is drawn within its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Track {
    /// Operations of the pipeline's schedule: F, B, W of a micro-batch and chunk.
    Passes,
    /// Forward and backward of each layer, optimizer.
    Compute,
    /// A stage that waits for another one.
    Waiting,
    /// Messages to other stages under way.
    Send,
    /// Messages from other stages under way.
    Receive,
    /// Collectives under way.
    Communication,
    /// Data and checkpoints.
    Storage,
}

impl Track {
    /// Every track, from the top down.
    pub const ALL: [Track; 7] = [
        Track::Passes,
        Track::Compute,
        Track::Waiting,
        Track::Send,
        Track::Receive,
        Track::Communication,
        Track::Storage,
    ];

    fn name(self) -> &'static str {
        match self {
            Track::Passes => "passes",
            Track::Compute => "compute",
            Track::Waiting => "waiting",
            Track::Send => "send",
            Track::Receive => "receive",
            Track::Communication => "communication",
            Track::Storage => "storage",
        }
    }
}

/// One thing that took time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Where it is drawn.
    pub track: Track,
    /// What it was: `forward layer 3`, `reduce bucket 2`.
    pub name: Cow<'static, str>,
    /// Nanoseconds since 1970, so that ranks of one host line up.
    pub start_ns: u64,
    /// How long it took.
    pub duration_ns: u64,
}

/// Records spans of one rank, from any of its threads.
pub struct Trace {
    started: Instant,
    started_ns: u64,
    spans: Mutex<Vec<Span>>,
}

impl Default for Trace {
    fn default() -> Self {
        Self::new()
    }
}

impl Trace {
    /// An empty one.
    pub fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), started_ns: now.as_nanos() as u64, spans: Mutex::default() }
    }

    /// Adds a span.
    pub fn add(&self, track: Track, name: impl Into<Cow<'static, str>>, start: Instant, end: Instant) {
        let since = start.saturating_duration_since(self.started).as_nanos() as u64;
        // An operation that began before the trace did is drawn where it began.
        let early = self.started.saturating_duration_since(start).as_nanos() as u64;
        let span = Span {
            track,
            name: name.into(),
            start_ns: self.started_ns.saturating_add(since).saturating_sub(early),
            duration_ns: end.saturating_duration_since(start).as_nanos() as u64,
        };
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).push(span);
    }

    /// Does `work` and records how long it took.
    pub fn time<R>(&self, track: Track, name: impl Into<Cow<'static, str>>, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = work();
        self.add(track, name, start, Instant::now());
        result
    }

    /// Takes the spans out.
    pub fn take(&self) -> Vec<Span> {
        std::mem::take(&mut self.spans.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Spans as bytes, to be gathered from the other ranks.
pub fn encode(spans: &[Span]) -> Vec<u8> {
    // Numbers and text always serialise.
    serde_json::to_vec(spans).unwrap_or_default()
}

/// Spans from such bytes.
///
/// # Errors
/// Bytes that are none; `rank` is whose they were.
pub fn decode(rank: usize, bytes: &[u8]) -> Result<Vec<Span>, ReportError> {
    serde_json::from_slice(bytes).map_err(|source| ReportError::Spans { rank, source })
}

#[derive(Serialize)]
struct Event<'a> {
    ph: &'a str,
    name: &'a str,
    pid: usize,
    tid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<serde_json::Value>,
}

/// Writes the spans of all ranks, by rank, as one Chrome trace: a process for each rank, a thread for each track, times
/// in microseconds from the first span on.
///
/// # Errors
/// What the file system says.
pub fn write_chrome(path: &Path, ranks: &[Vec<Span>]) -> Result<(), ReportError> {
    let io = |operation| move |source| ReportError::Io { path: path.into(), operation, source };
    let mut file = BufWriter::new(File::create(path).map_err(io("create"))?);
    let first = ranks.iter().flatten().map(|span| span.start_ns).min().unwrap_or(0);
    let mut separator = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    let mut put = |event: Event<'_>| {
        file.write_all(separator.as_bytes())?;
        separator = ",\n";
        serde_json::to_writer(&mut file, &event).map_err(std::io::Error::from)
    };
    for (pid, spans) in ranks.iter().enumerate() {
        let meta = |name, tid, value: serde_json::Value| Event {
            ph: "M",
            name,
            pid,
            tid,
            ts: None,
            dur: None,
            args: Some(value),
        };
        let named = |name: String| serde_json::json!({ "name": name });
        put(meta("process_name", 0, named(format!("rank {pid}")))).map_err(io("write"))?;
        put(meta("process_sort_index", 0, serde_json::json!({ "sort_index": pid }))).map_err(io("write"))?;
        for (tid, track) in Track::ALL.into_iter().enumerate() {
            put(meta("thread_name", tid, named(track.name().into()))).map_err(io("write"))?;
        }
        for span in spans {
            let micros = |ns: u64| Some(ns as f64 / 1e3);
            let (ts, dur) = (micros(span.start_ns - first), micros(span.duration_ns));
            let event = Event { ph: "X", name: &span.name, pid, tid: span.track as usize, ts, dur, args: None };
            put(event).map_err(io("write"))?;
        }
    }
    // Without any rank there is still an object.
    let start = if ranks.is_empty() { separator } else { "" };
    file.write_all(format!("{start}\n]}}\n").as_bytes()).map_err(io("write"))?;
    file.flush().map_err(io("write"))
}
