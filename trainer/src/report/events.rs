//! TensorBoard's event files: protocol-buffer messages in frames with masked CRC32Cs.
//!
//! The messages are the few fields used here of TensorFlow's `event.proto` and `summary.proto`; a frame is TFRecord's:
//! length (u64), masked CRC of the length, bytes, masked CRC of the bytes, all little-endian.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

use super::error::ReportError;
use super::folder::{EVENTS_FOLDER, io_error};
use super::record::StepRecord;

/// `tensorflow.Event`.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    /// The step.
    #[prost(int64, tag = "2")]
    pub step: i64,
    /// Content.
    #[prost(oneof = "What", tags = "3, 5, 7")]
    pub what: Option<What>,
}

/// The content of an [`Event`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum What {
    /// `brain.Event:2`, in the first event of a file.
    #[prost(string, tag = "3")]
    FileVersion(String),
    /// Numbers.
    #[prost(message, tag = "5")]
    Summary(Summary),
    /// The start of a session: readers drop what an earlier file says of later steps.
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

/// `tensorflow.Summary`.
#[derive(Clone, PartialEq, Message)]
pub struct Summary {
    /// The numbers.
    #[prost(message, repeated, tag = "1")]
    pub value: Vec<Value>,
}

/// `tensorflow.Summary.Value`, of a scalar.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    /// Its name.
    #[prost(string, tag = "1")]
    pub tag: String,
    /// The number.
    #[prost(float, tag = "2")]
    pub simple_value: f32,
}

/// `tensorflow.SessionLog`.
#[derive(Clone, PartialEq, Message)]
pub struct SessionLog {
    /// 1 is a start.
    #[prost(int32, tag = "1")]
    pub status: i32,
}

const NAME: &str = "events.out.tfevents.";
const SUFFIX: &str = ".warpweft";

/// Whether a file of this name was written here.
pub(super) fn is_ours(name: &str) -> bool {
    name.starts_with(NAME) && name.ends_with(SUFFIX)
}

/// CRC32C as TFRecord stores it: turned and shifted, so that a CRC over data with CRCs in it stays sound.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// One frame.
pub fn frame(event: &Event) -> Vec<u8> {
    let bytes = event.encode_to_vec();
    let length = (bytes.len() as u64).to_le_bytes();
    [&length[..], &masked(&length).to_le_bytes(), &bytes, &masked(&bytes).to_le_bytes()].concat()
}

/// The events of a file's bytes, up to the first frame that is cut off or damaged; and where that is, if there is one.
pub fn read_frames(mut bytes: &[u8]) -> (Vec<Event>, Option<usize>) {
    let (total, mut events) = (bytes.len(), Vec::new());
    while !bytes.is_empty() {
        let Some((event, rest)) = read_frame(bytes) else { return (events, Some(total - bytes.len())) };
        events.push(event);
        bytes = rest;
    }
    (events, None)
}

fn read_frame(bytes: &[u8]) -> Option<(Event, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let (length_crc, rest) = rest.split_first_chunk::<4>()?;
    if masked(length) != u32::from_le_bytes(*length_crc) {
        return None;
    }
    let (message, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let sound = masked(message) == u32::from_le_bytes(*crc);
    sound.then(|| Event::decode(message).ok()).flatten().map(|event| (event, rest))
}

/// The event file of one run, or of one part of a resumed one.
pub(super) struct Events {
    path: PathBuf,
    file: File,
}

impl Events {
    pub(super) fn create(out: &Path, resumed: Option<u64>) -> Result<Self, ReportError> {
        let folder = out.join(EVENTS_FOLDER);
        fs::create_dir_all(&folder).map_err(io_error(&folder, "create"))?;
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host: String = host.trim().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        let host = if host.is_empty() { "localhost" } else { &host };
        let name = format!("{NAME}{}.{host}.{}{SUFFIX}", now() as u64, std::process::id());
        let path = folder.join(name);
        // Appending: a run that is resumed within a second of its start goes on in the same file.
        let file = File::options().create(true).append(true).open(&path).map_err(io_error(&path, "create"))?;
        let mut events = Self { path, file };
        events.put(0, What::FileVersion("brain.Event:2".into()))?;
        if let Some(step) = resumed {
            events.put(step + 1, What::SessionLog(SessionLog { status: 1 }))?;
        }
        Ok(events)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn step(&mut self, record: &StepRecord) -> Result<(), ReportError> {
        let numbers = [
            ("loss/train", record.loss),
            ("loss/held_out", record.val_loss),
            ("loss/auxiliary", record.aux_loss),
            ("experts/load", record.expert_load),
            ("experts/routing_margin", record.routing_margin),
            ("optimizer/grad_norm", record.grad_norm),
            ("optimizer/lr", record.lr),
            ("speed/tokens_per_s", record.tokens_per_s),
            ("speed/mfu", record.mfu),
            ("time/step_ms", record.step_ms),
            ("time/forward_ms", record.forward_ms),
            ("time/backward_ms", record.backward_ms),
            ("time/comm_ms", record.comm_ms),
            ("time/exposed_comm_ms", record.exposed_comm_ms),
            ("time/waiting_ms", record.waiting_ms),
            ("time/optimizer_ms", record.optimizer_ms),
            ("memory/peak_bytes", record.peak_bytes.map(|bytes| bytes as f64)),
        ];
        let known = numbers
            .into_iter()
            .filter_map(|(tag, number)| Some(Value { tag: tag.into(), simple_value: number? as f32 }));
        self.put(record.step, What::Summary(Summary { value: known.collect() }))
    }

    fn put(&mut self, step: u64, what: What) -> Result<(), ReportError> {
        let event = Event { wall_time: now(), step: step as i64, what: Some(what) };
        self.file.write_all(&frame(&event)).map_err(io_error(&self.path, "write"))
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
