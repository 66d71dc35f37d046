//! The timeline as text: a line a rank, time from left to right.

use std::fmt::Write;

use crate::{Kind, Schedule};

/// The timeline, a line a rank of at most `width` characters. Where there is room a cell is one unit of time and names its
/// micro-batch; else each character is a slice of time and names what runs in most of it. Idle is `.`; in small letters what
/// belongs to the later chunks of a rank.
pub fn text(schedule: &Schedule, width: usize) -> String {
    let timeline = &schedule.proof().timeline;
    let label = format!("rank {}", timeline.ranks().saturating_sub(1)).len();
    let room = width.saturating_sub(label + 2).max(20);
    let unit = unit(schedule);
    let digits = (schedule.micro_batches() - 1).to_string().len();
    let cell = digits + 2;
    let cells = (timeline.length() / unit).ceil() as usize;
    let mut out = String::new();
    for rank in 0..timeline.ranks() {
        let name = format!("rank {rank}");
        let _ = write!(out, "{name:<label$}  ");
        let line = if cells * cell <= room {
            named(schedule, rank, unit, cells, cell)
        } else {
            sliced(schedule, rank, timeline.length() / room as f64, room)
        };
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// The shortest operation.
fn unit(schedule: &Schedule) -> f64 {
    let timeline = &schedule.proof().timeline;
    let spans = (0..timeline.ranks()).flat_map(|rank| timeline.rank(rank));
    spans.map(|span| span.end - span.start).fold(f64::INFINITY, f64::min)
}

/// Letter of an operation: small for every chunk of the rank but its first.
fn letter(schedule: &Schedule, rank: usize, kind: Kind, chunk: usize) -> char {
    let letter = match kind {
        Kind::F => 'F',
        // Both backwards in one.
        Kind::B | Kind::BW => 'B',
        Kind::W => 'W',
    };
    let first = schedule.placement().chunks_of(rank).next();
    if first == Some(chunk) { letter } else { letter.to_ascii_lowercase() }
}

/// Cells that name their micro-batch.
fn named(schedule: &Schedule, rank: usize, unit: f64, cells: usize, cell: usize) -> String {
    let mut line = vec![" ".repeat(cell); cells];
    for slot in &mut line {
        slot.replace_range(0..1, ".");
    }
    for span in schedule.proof().timeline.rank(rank) {
        let from = (span.start / unit).round() as usize;
        let to = ((span.end / unit).round() as usize).clamp(from + 1, cells.max(from + 1));
        let operation = span.operation;
        let name = format!("{}{}", letter(schedule, rank, operation.kind, operation.chunk), operation.micro_batch);
        for (index, slot) in line.iter_mut().enumerate().take(to).skip(from) {
            *slot = if index == from { format!("{name:<cell$}") } else { format!("{:<cell$}", "-".repeat(cell - 1)) };
        }
    }
    line.concat()
}

/// Slices of time, each named by what fills most of it.
fn sliced(schedule: &Schedule, rank: usize, slice: f64, count: usize) -> String {
    let spans = schedule.proof().timeline.rank(rank);
    let mut at = 0;
    let mut line = String::with_capacity(count);
    for index in 0..count {
        let (from, to) = (index as f64 * slice, (index + 1) as f64 * slice);
        while spans.get(at).is_some_and(|span| span.end <= from) {
            at += 1;
        }
        let inside = spans[at..].iter().take_while(|span| span.start < to);
        let most = inside.map(|span| (span.end.min(to) - span.start.max(from), span.operation));
        let most = most.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(share, _)| *share >= slice / 2.0 * 0.999);
        line.push(most.map_or('.', |(_, operation)| letter(schedule, rank, operation.kind, operation.chunk)));
    }
    line
}
