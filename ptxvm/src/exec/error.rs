//! Why a launch does not end well.

use std::fmt::Write;

use super::host::HostError;
use crate::memory::Fault;
use crate::observe::{At, Halt, Waiting};
use crate::report::Place;

/// Why a kernel ended early.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ExecError {
    /// An access to memory that cannot be done.
    #[error("{}: {}", at(place), fault_words(fault))]
    Fault { place: Box<Place>, fault: Box<Fault> },
    /// `trap`.
    #[error("{}: the kernel trapped", at(place))]
    Trap { place: Box<Place> },
    /// A failed `assert` in the kernel.
    #[error("{}: {message}", at(place))]
    Assert { place: Box<Place>, message: String },
    /// A wrong use of a synchronising instruction, after which nothing can go on.
    #[error("{}: {message} [{kind}]", at(place))]
    Sync { place: Box<Place>, kind: &'static str, message: String },
    /// All warps of a block wait, and nothing can wake one.
    #[error("deadlock: {}", waiting_words(waiting))]
    Deadlock { waiting: Vec<Waiting> },
    /// The instruction limit.
    #[error("stopped at the limit of {limit} warp instructions, {}", at(place))]
    Limit { limit: u64, place: Box<Place> },
    /// Calls nested too deep, or more local memory than a thread may have.
    #[error("{}: {what} beyond the limit of {limit} {unit}: recursion without end?", at(place))]
    Stack { place: Box<Place>, what: &'static str, limit: u32, unit: &'static str },
    /// A function of the host failed.
    #[error("{}: `{function}` of the host: {source}", at(place))]
    Host { place: Box<Place>, function: String, source: HostError },
    /// As many errors were reported as the launch allows.
    #[error("stopped after {reported} reported errors")]
    TooManyErrors { reported: u64 },
}

impl ExecError {
    /// From what an observer is told.
    pub(super) fn from_halt(place: Option<&At<'_>>, halt: &Halt<'_>) -> ExecError {
        let place = Box::new(place.map_or_else(Place::default, place_of));
        match *halt {
            Halt::Fault(fault) => ExecError::Fault { place, fault: Box::new(fault.clone()) },
            Halt::Trap => ExecError::Trap { place },
            Halt::Assert(message) => ExecError::Assert { place, message: message.to_owned() },
            Halt::Sync { kind, message } => ExecError::Sync { place, kind, message: message.to_owned() },
            Halt::Deadlock(waiting) => ExecError::Deadlock { waiting: waiting.to_vec() },
            Halt::Limit(limit) => ExecError::Limit { limit, place },
        }
    }
}

/// The place in the words of a report.
pub(super) fn place_of(at: &At<'_>) -> Place {
    let site = at.instruction.site;
    let (start, end) = (site.span.0 as usize, site.span.1 as usize);
    let file = at.program.files.iter().find(|(number, _)| *number == site.file);
    Place {
        line: site.line,
        instruction: at.program.text.get(start..end).unwrap_or_default().to_owned(),
        source: file.map(|(_, name)| (name.clone(), site.source_line)),
        block: at.block,
        warp: at.warp,
        lanes: super::lanes(at.mask).map(|lane| lane as u32).collect(),
    }
}

fn at(place: &Place) -> String {
    let [x, y, z] = place.block;
    let mut words = format!("line {}: `{}`, block ({x}, {y}, {z}) warp {}", place.line, place.instruction, place.warp);
    if let (Some(first), Some(last)) = (place.lanes.first(), place.lanes.last()) {
        let _ = match place.lanes.len() {
            1 => write!(words, " lane {first}"),
            count => write!(words, " lanes {first} to {last} ({count})"),
        };
    }
    words
}

fn fault_words(fault: &Fault) -> String {
    let verb = if fault.write { "write" } else { "read" };
    let near = fault.allocation.as_ref().map_or_else(String::new, |near| format!(", {near}"));
    format!("{} {verb} of {} bytes at {:#x}{near}", fault.kind.word(), fault.bytes, fault.address)
}

fn waiting_words(waiting: &[Waiting]) -> String {
    let one = |wait: &Waiting| {
        let [x, y, z] = wait.block;
        format!("block ({x}, {y}, {z}) warp {} lanes {:#010x} wait for {}", wait.warp, wait.mask, wait.what)
    };
    waiting.iter().map(one).collect::<Vec<_>>().join("; ")
}
