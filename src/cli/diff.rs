//! `warpweft diff`: where two runs part.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use warpweft::trainer::diff::{self, DumpStep, Element, LogStep, Parting, Report, StateStep, Tolerance};
use warpweft::trainer::dump::Kind;

use super::stop::Stop;

/// Lines of a log that are shown.
const LINES: usize = 10;

/// Finds the first step, layer, tensor and element where two runs part, whatever the layouts of their ranks
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// Folder of a run (--out); tensors are compared where both ran with --dump
    run_a: PathBuf,
    /// Folder of another
    run_b: PathBuf,
    /// How far apart numbers may be, relative; 0 is the same bits [default: 0 where both are --exact, else the default grade]
    #[arg(long, value_name = "X", value_parser = tolerance)]
    tolerance: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn tolerance(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or("give a finite number from 0")
}

/// Compares; the status is 0 where the runs are the same within the tolerance, and 1 where they part.
pub(crate) fn main(flags: &Flags) -> Result<(), Stop> {
    let report = diff::diff(&flags.run_a, &flags.run_b, flags.tolerance.map(Tolerance::of));
    let report = report.map_err(|error| Stop::usage(error.to_string()))?;
    let text = match flags.json {
        true => serde_json::to_string(&report).map_err(|error| Stop::failed(error.to_string()))? + "\n",
        false => page(&report),
    };
    io::stdout().write_all(text.as_bytes())?;
    if report.parting.is_some() { Err(Stop::Reported(1)) } else { Ok(()) }
}

/// All of it as text.
fn page(report: &Report) -> String {
    let mut text = String::new();
    if let Some([a, b]) = &report.layouts {
        text += &format!("{a} against {b}\n");
    }
    match &report.parting {
        Some(parting) => text += &parted(parting, report),
        None => {
            text += &format!("the runs are the same within {}: {}\n", tolerated(report.tolerance), compared(report))
        }
    }
    text += &dumps(&report.dumps);
    text += &log(&report.log);
    text += &checkpoints(&report.checkpoints);
    text
}

fn tolerated(tolerance: Tolerance) -> String {
    let Tolerance { element, state, loss, norm } = tolerance;
    match tolerance == Tolerance::NONE {
        true => "no tolerance, bit by bit".into(),
        false => format!(
            "{element:.0e} for elements, {state:.0e} after updates, {loss:.0e} for losses, {norm:.0e} for norms"
        ),
    }
}

fn compared(report: &Report) -> String {
    let tensors: usize = report.dumps.iter().map(|step| step.tensors).sum();
    let state: usize = report.checkpoints.iter().map(|step| step.tensors).sum();
    format!(
        "{} steps of the logs, {tensors} tensors of {} dumped steps, {state} of {} checkpoints",
        report.log.len(),
        report.dumps.len(),
        report.checkpoints.len()
    )
}

fn parted(parting: &Parting, report: &Report) -> String {
    let Parting { step, layer, tensor, shape, distance, tolerance, found_in } = parting;
    let place =
        if shape.is_empty() { "the log".into() } else { format!("{layer}, {tensor} {shape:?}, in the {found_in}") };
    let mut text = format!("the runs part at step {step}: {place}\n");
    let at = |Element { index, a, b }: &Element| match index.is_empty() {
        true => format!("{tensor} {a} and {b}"),
        // Tensors have no wider numbers.
        false => format!("{index:?}: {} and {}", *a as f32, *b as f32),
    };
    let [first, worst] = [&distance.first, &distance.worst].map(|element| element.as_ref().map_or(String::new(), at));
    if shape.is_empty() {
        text += &format!("  {first}, {:.1e} apart\n", distance.relative);
        if report.dumps.iter().all(|dump| dump.step != *step) {
            text += &format!("  for the tensor: train both again with --dump {step}\n");
        }
    } else {
        let than =
            if *tolerance == 0.0 { "not the same".into() } else { format!("further apart than {tolerance:.0e}") };
        text += &format!(
            "  {} of {} elements {than}, at most {:.1e}\n",
            distance.beyond, distance.elements, distance.relative
        );
        text += &format!("  first {first}\n  worst {worst}\n");
    }
    text
}

fn number(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.6}"))
}

/// How far the tensors of each dumped step are apart.
fn dumps(steps: &[DumpStep]) -> String {
    let Some(first) = steps.first() else { return String::new() };
    let kinds: Vec<Kind> = first.worst.iter().map(|(kind, ..)| *kind).collect();
    let mut text = format!("{:>8}  {:>9}  {:>9}", "dumped", "loss a", "loss b");
    kinds.iter().for_each(|kind| text += &format!("  {:>8}", kind.name()));
    text.push('\n');
    for DumpStep { step, loss: [a, b], worst, .. } in steps {
        text += &format!("{step:>8}  {:>9}  {:>9}", number(*a), number(*b));
        for kind in &kinds {
            let found = worst.iter().find(|(of, ..)| of == kind);
            text += &format!("  {:>8}", found.map_or("-".into(), |(_, apart, _)| apart_text(*apart)));
        }
        text.push('\n');
    }
    text
}

fn apart_text(apart: f64) -> String {
    if apart == 0.0 { "0".into() } else { format!("{apart:.1e}") }
}

/// The first steps of the logs, and where they are furthest apart.
fn log(steps: &[LogStep]) -> String {
    let mut text = String::new();
    let furthest = |of: fn(&LogStep) -> f64| steps.iter().max_by(|a, b| of(a).total_cmp(&of(b)));
    let (Some(loss), Some(norm)) = (furthest(|step| step.loss_apart), furthest(|step| step.norm_apart)) else {
        return text;
    };
    // A string takes whatever is written.
    let _ = writeln!(text, "{:>8}  {:>9}  {:>9}  {:>8}  {:>8}", "logged", "loss a", "loss b", "apart", "norm");
    for (index, LogStep { step, loss: [a, b], loss_apart, norm_apart }) in steps.iter().enumerate() {
        if index < LINES || index + 1 == steps.len() {
            let (loss, norm) = (apart_text(*loss_apart), apart_text(*norm_apart));
            let _ = writeln!(text, "{step:>8}  {:>9}  {:>9}  {loss:>8}  {norm:>8}", number(*a), number(*b));
        } else if index == LINES {
            text += "       …\n";
        }
    }
    let (at_most, norms) = (apart_text(loss.loss_apart), apart_text(norm.norm_apart));
    let _ = writeln!(text, "losses at most {at_most} apart (step {}), norms {norms} (step {})", loss.step, norm.step);
    text
}

/// How far weights and state of each checkpoint are apart.
fn checkpoints(steps: &[StateStep]) -> String {
    let line = |StateStep { step, worst, .. }: &StateStep| {
        let kinds = worst.iter().map(|(kind, apart, which)| match *apart == 0.0 {
            true => format!("{kind} the same"),
            false => format!("{kind} {} ({which})", apart_text(*apart)),
        });
        format!("checkpoint of step {step}: {}\n", kinds.collect::<Vec<_>>().join(", "))
    };
    steps.iter().map(line).collect()
}
