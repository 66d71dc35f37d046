//! The lines on the terminal: one a step, or a bar that is kept up to date where there is a terminal to redraw.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::error::ReportError;
use super::record::StepRecord;
use crate::model::NARROW;

/// Steps for which a line stays above the bar, in parts of the run.
const LINES_ABOVE_BAR: u64 = 20;

/// Where progress goes. The caller chooses: nothing is printed unasked.
pub struct Progress(Kind);

enum Kind {
    Bar(ProgressBar),
    Lines(Box<dyn Write + Send>),
    Silent,
}

impl Progress {
    /// A bar on the standard error stream where that is a terminal, else plain lines on it.
    pub fn stderr() -> Self {
        if io::stderr().is_terminal() { Self::bar(ProgressDrawTarget::stderr()) } else { Self::lines(io::stderr()) }
    }

    /// A bar.
    pub fn bar(target: ProgressDrawTarget) -> Self {
        let bar = ProgressBar::with_draw_target(None, target);
        // The template is a constant; were it wrong, the plain bar would do.
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {msg} ({elapsed}, {eta} left)");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        Self(Kind::Bar(bar))
    }

    /// Plain lines.
    pub fn lines(sink: impl Write + Send + 'static) -> Self {
        Self(Kind::Lines(Box::new(sink)))
    }

    /// Nothing at all: for every rank but the first.
    pub fn silent() -> Self {
        Self(Kind::Silent)
    }

    /// Says that the run has `steps` steps, `done` of which are done.
    pub(super) fn start(&self, steps: u64, done: u64) {
        if let Kind::Bar(bar) = &self.0 {
            bar.set_length(steps);
            bar.set_position(done);
            bar.reset_eta();
        }
    }

    /// Shows one step.
    pub(super) fn step(&mut self, record: &StepRecord, steps: u64) -> Result<(), ReportError> {
        let line = step_line(record, steps);
        match &mut self.0 {
            Kind::Bar(bar) => {
                bar.set_position(record.step);
                bar.set_message(short_line(record));
                let stays = (steps / LINES_ABOVE_BAR).max(1);
                if record.step == 1 || record.step.is_multiple_of(stays) || record.val_loss.is_some() {
                    bar.println(line);
                }
                Ok(())
            }
            _ => self.note(&line),
        }
    }

    /// Shows some other text, of one or more lines.
    ///
    /// # Errors
    /// What the sink says.
    pub fn note(&mut self, text: &str) -> Result<(), ReportError> {
        match &mut self.0 {
            Kind::Bar(bar) => {
                bar.println(text);
                Ok(())
            }
            Kind::Lines(sink) => {
                writeln!(sink, "{text}").and_then(|()| sink.flush()).map_err(|source| ReportError::Progress { source })
            }
            Kind::Silent => Ok(()),
        }
    }

    /// Ends the bar, and leaves `text` as the last line.
    pub(super) fn finish(mut self, text: &str) -> Result<(), ReportError> {
        if let Kind::Bar(bar) = &self.0 {
            bar.println(text);
            bar.finish_and_clear();
            return Ok(());
        }
        self.note(text)
    }
}

/// A number, or a dash where there is none.
fn shown(number: Option<f64>, show: impl Fn(f64) -> String) -> String {
    number.map_or_else(|| "-".into(), show)
}

/// The line of a step: loss, gradient norm, learning rate, speed, share of the machine, what communication cost, memory, the
/// wait for other stages.
pub fn step_line(record: &StepRecord, steps: u64) -> String {
    let width = steps.to_string().len();
    let mut line = format!(
        "step {:>width$}/{steps}  loss {}  norm {}  lr {}  {} tokens/s  mfu {}  exposed comm {}  memory {}",
        record.step,
        shown(record.loss, |x| format!("{x:.4}")),
        shown(record.grad_norm, |x| format!("{x:.3}")),
        shown(record.lr, |x| format!("{x:.2e}")),
        shown(record.tokens_per_s, |x| grouped(x.round() as u64)),
        shown(record.mfu, |x| format!("{:.1} %", 100.0 * x)),
        part_of(record.exposed_comm_ms, record.step_ms),
        record.peak_bytes.map_or_else(|| "-".into(), bytes),
    );
    // Nobody waits for other stages where there are none: what is left is the time to see that.
    if record.waiting_ms.is_some_and(|waiting| waiting >= 0.05) {
        line += &format!("  waiting {}", part_of(record.waiting_ms, record.step_ms));
    }
    if let Some(load) = record.expert_load {
        line += &format!("  expert load {load:.2}");
    }
    if let Some(margin) = record.routing_margin.filter(|margin| *margin < f64::from(NARROW)) {
        line += &format!("  routing margin {margin:.1e}");
    }
    if let Some(loss) = record.val_loss {
        line += &format!("  held-out loss {loss:.4}");
    }
    line
}

fn short_line(record: &StepRecord) -> String {
    let speed = shown(record.tokens_per_s, |x| grouped(x.round() as u64));
    format!("loss {}  {speed} tokens/s", shown(record.loss, |x| format!("{x:.4}")))
}

/// A time, and how much of the step it is.
fn part_of(part: Option<f64>, step: Option<f64>) -> String {
    match (part, step) {
        (Some(part), Some(step)) if step > 0.0 => format!("{part:.1} ms ({:.0} %)", 100.0 * part / step),
        (part, _) => shown(part, |x| format!("{x:.1} ms")),
    }
}

/// `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `512 B`, `1.5 KiB`, `45.2 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut size = count as f64;
    let mut unit = "B";
    for next in UNITS {
        // 1023.95 would be shown as 1024.0 of this unit.
        if size < 1023.95 {
            break;
        }
        (size, unit) = (size / 1024.0, next);
    }
    format!("{size:.1} {unit}")
}

/// A memory account as lines of a class and its bytes, with their sum.
pub fn memory_table(classes: &[(&str, u64)]) -> String {
    let width = classes.iter().map(|(class, _)| class.len()).max().unwrap_or(0).max("total".len());
    let total = classes.iter().map(|(_, count)| count).sum();
    let rows = classes.iter().copied().chain([("total", total)]);
    let lines: Vec<_> = rows.map(|(class, count)| format!("  {class:<width$}  {:>10}", bytes(count))).collect();
    lines.join("\n")
}
