//! The losses and norms of two logs.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::distance::compare as apart;
use super::{DiffError, Parting, Tolerance};
use crate::report::LOG_FILE;

/// What of a line is compared.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Line {
    pub(super) step: u64,
    loss: Option<f64>,
    grad_norm: Option<f64>,
}

/// A step of both logs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LogStep {
    /// The step.
    pub step: u64,
    /// The losses.
    pub loss: [Option<f64>; 2],
    /// Their distance, relative.
    pub loss_apart: f64,
    /// That of the gradient norms.
    pub norm_apart: f64,
}

/// The steps of a run's log; none where there is no log.
pub(super) fn read(run: &Path) -> Result<Vec<Line>, DiffError> {
    let path = run.join(LOG_FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(DiffError::Io { path, operation: "read", source }),
    };
    let lines: Vec<&str> = text.lines().collect();
    let mut read = Vec::with_capacity(lines.len());
    for (index, line) in lines.iter().enumerate() {
        match serde_json::from_str::<Line>(line) {
            Ok(line) => read.push(line),
            // The last may be the digest, or half a line of a run that was killed.
            Err(_) if index + 1 == lines.len() => {}
            Err(source) => return Err(DiffError::Log { path, line: index + 1, source }),
        }
    }
    Ok(read)
}

/// The steps that both have.
pub(super) fn pairs(a: Vec<Line>, b: Vec<Line>) -> Vec<(Line, Line)> {
    let b: std::collections::BTreeMap<u64, Line> = b.into_iter().map(|line| (line.step, line)).collect();
    a.into_iter().filter_map(|line| Some((line, *b.get(&line.step)?))).collect()
}

/// How far two numbers are apart, and whether that is too far; one that is missing was not finite.
fn number(a: Option<f64>, b: Option<f64>, tolerance: f64) -> super::Distance {
    apart((&[a.unwrap_or(f64::NAN)], &[b.unwrap_or(f64::NAN)]), &[], tolerance, |_| 0.0)
}

pub(super) fn compare(both: &[(Line, Line)], tolerance: Tolerance) -> (Vec<LogStep>, Option<Parting>) {
    let mut parting = None;
    let compared = both.iter().map(|(a, b)| {
        let loss = number(a.loss, b.loss, tolerance.loss);
        let norm = number(a.grad_norm, b.grad_norm, tolerance.norm);
        let step =
            LogStep { step: a.step, loss: [a.loss, b.loss], loss_apart: loss.relative, norm_apart: norm.relative };
        let numbers = [("loss", loss, tolerance.loss), ("grad_norm", norm, tolerance.norm)];
        for (tensor, distance, tolerance) in numbers {
            if distance.beyond > 0 && parting.is_none() {
                let (layer, tensor, found_in) = ("all".into(), tensor.into(), "log");
                let shape = Vec::new();
                parting = Some(Parting { step: a.step, layer, tensor, shape, distance, tolerance, found_in });
            }
        }
        step
    });
    let compared = compared.collect();
    (compared, parting)
}
