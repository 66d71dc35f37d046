//! What a run measured beside what was predicted: where the time went, memory by class, bytes by axis, the bubble.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use warpweft_device::Float;

use crate::forecast::Forecast;
use crate::memory::Class;
use crate::parallel::traffic::Traffic;
use crate::report::{ReportError, bytes, grouped};
use crate::step::{StepReport, Trainer};

/// The file of it, in a run's folder.
pub(crate) const REPORT_FILE: &str = "report.json";

/// Where a step's time goes.
const SHARES: [&str; 5] = ["forward", "backward", "exposed_comm", "waiting", "optimizer"];

/// Of one rank, over the steps of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    shares: [Duration; SHARES.len()],
    /// Of whole steps, their data and the reports included.
    took: Duration,
    /// From the first pass of a step to its last.
    span: Duration,
    /// Sent to all; besides steps, others than the trainer do so too.
    world: u64,
    steps: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, report: &StepReport, took: Duration) {
        let StepReport { forward, backward, exposed, waiting, optimizer, span, .. } = *report;
        let parts = [forward, backward, exposed, waiting, optimizer];
        self.shares.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        (self.took, self.span, self.steps) = (self.took + took, self.span + span, self.steps + 1);
        self.world += report.traffic.world;
    }

    /// As numbers that the ranks gather: [`Measured`] takes them apart.
    pub(crate) fn measured<T: Float>(&self, trainer: &Trainer<T>) -> Vec<f64> {
        let seconds = self.shares.iter().chain([&self.took, &self.span]).map(Duration::as_secs_f64);
        let (peak, total) = (trainer.account().peak(), trainer.account().peak_total());
        let held = Class::ALL.into_iter().map(|class| peak.of(class)).chain([total]);
        let sent = Traffic { world: self.world, ..trainer.sent() }.kinds().map(|(_, bytes)| bytes);
        seconds.chain(held.chain(sent).chain([self.steps]).map(|count| count as f64)).collect()
    }
}

/// One rank's numbers.
struct Measured<'a> {
    shares: &'a [f64],
    took: f64,
    span: f64,
    held: &'a [f64],
    most: f64,
    sent: &'a [f64],
    steps: f64,
}

impl<'a> Measured<'a> {
    fn of(numbers: &'a [f64]) -> Self {
        let (shares, rest) = numbers.split_at(SHARES.len());
        let (held, after) = rest[2..].split_at(Class::ALL.len());
        let sent = &after[1..after.len() - 1];
        Self { shares, took: rest[0], span: rest[1], held, most: after[0], sent, steps: after[after.len() - 1] }
    }
}

/// What all ranks measured, and what was predicted.
pub(crate) struct Summary {
    /// Parts of the time of all ranks.
    shares: Vec<(&'static str, f64)>,
    /// The bubble measured, and the schedule's.
    bubble: Option<[f64; 2]>,
    schedule: String,
    /// The rank that held most, and its classes: the most measured, and what was predicted.
    rank: usize,
    memory: Vec<(&'static str, u64, Option<u64>)>,
    /// Bytes of a step by kind.
    sent: Vec<(&'static str, f64, u64)>,
}

impl Summary {
    /// From the numbers of all ranks, `each` many of each.
    pub(crate) fn new(all: &[f64], each: usize, forecast: &Forecast) -> Self {
        let ranks: Vec<Measured<'_>> = all.chunks_exact(each).map(Measured::of).collect();
        let took: f64 = ranks.iter().map(|rank| rank.took).sum();
        let part = |index: usize| ranks.iter().map(|rank| rank.shares[index]).sum::<f64>() / took;
        let mut shares: Vec<_> = SHARES.into_iter().enumerate().map(|(index, name)| (name, part(index))).collect();
        shares.push(("other", 1.0 - shares.iter().map(|(_, share)| share).sum::<f64>()));
        // Passes are what the others of a stage's ranks wait for, too: what exposes communication counts as work here.
        let work: f64 = ranks.iter().map(|rank| rank.span - rank.shares[3]).sum();
        let longest = ranks.iter().map(|rank| rank.span).fold(0.0, f64::max) * ranks.len() as f64;
        let bubble = (forecast.sizes.pp > 1).then(|| [1.0 - work / longest, forecast.schedule.proof().bubble_rate]);
        let most = |rank: &usize| ranks[*rank].most as u64;
        let rank = (0..ranks.len()).rev().max_by_key(most).unwrap_or(0);
        let predicted = &forecast.ranks[rank];
        let class = |(index, class): (usize, Class)| {
            let known = class.is_predicted().then(|| predicted.of(class));
            (class.name(), ranks[rank].held[index] as u64, known)
        };
        let steps = ranks.first().map_or(1.0, |rank| rank.steps);
        let sent = forecast.sent.kinds().into_iter().enumerate().map(|(index, (kind, predicted))| {
            (kind, ranks.iter().map(|rank| rank.sent[index]).sum::<f64>() / steps, predicted)
        });
        Self {
            shares,
            bubble,
            schedule: forecast.schedule.origin().to_owned(),
            rank,
            memory: Class::ALL.into_iter().enumerate().map(class).collect(),
            sent: sent.collect(),
        }
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let share = |(name, part): &(&str, f64)| format!("{} {:.1} %", name.replace('_', " "), 100.0 * part);
        let mut lines =
            vec![format!("time of all ranks: {}", self.shares.iter().map(share).collect::<Vec<_>>().join(", "))];
        if let Some([measured, predicted]) = self.bubble {
            lines.push(format!(
                "bubble: {:.1} % measured, {:.1} % of {} where F = B = W",
                100.0 * measured,
                100.0 * predicted,
                self.schedule
            ));
        }
        lines.push(format!(
            "{:<34}{:>14}{:>14}",
            format!("memory of rank {}, at most", self.rank),
            "measured",
            "predicted"
        ));
        let shown = |known: Option<u64>| known.map_or_else(|| "-".to_owned(), bytes);
        for (class, held, known) in self.memory.iter().filter(|(_, held, known)| *held > 0 || known.unwrap_or(0) > 0) {
            lines.push(format!("  {class:<32}{:>14}{:>14}", bytes(*held), shown(*known)));
        }
        let sent: Vec<_> =
            self.sent.iter().filter(|(_, measured, predicted)| *measured > 0.0 || *predicted > 0).collect();
        if !sent.is_empty() {
            lines.push(format!("{:<34}{:>14}{:>14}", "bytes sent by all ranks in a step", "measured", "predicted"));
        }
        for (kind, measured, predicted) in sent {
            lines.push(format!("  {kind:<32}{:>14}{:>14}", grouped(measured.round() as u64), grouped(*predicted)));
        }
        lines.join("\n")
    }

    /// Writes it for programs; gives the file.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn write(&self, out: &Path) -> Result<PathBuf, ReportError> {
        let pair = |measured: serde_json::Value, predicted: serde_json::Value| json!({ "measured": measured, "predicted": predicted });
        let shares: serde_json::Map<_, _> =
            self.shares.iter().map(|(name, part)| ((*name).to_owned(), json!(part))).collect();
        let memory: serde_json::Map<_, _> = self
            .memory
            .iter()
            .map(|(class, held, known)| ((*class).to_owned(), pair(json!(held), json!(known))))
            .collect();
        let sent: serde_json::Map<_, _> = self
            .sent
            .iter()
            .map(|(kind, measured, predicted)| ((*kind).to_owned(), pair(json!(measured), json!(predicted))))
            .collect();
        let bubble = self.bubble.map(|[measured, predicted]| pair(json!(measured), json!(predicted)));
        let object = json!({
            "time_shares": shares,
            "bubble_rate": bubble,
            "schedule": self.schedule,
            "largest_rank": self.rank,
            "memory_bytes": memory,
            "sent_bytes_a_step": sent,
        });
        let path = out.join(REPORT_FILE);
        match fs::write(&path, format!("{object:#}\n")) {
            Ok(()) => Ok(path),
            Err(source) => Err(ReportError::Io { path, operation: "write", source }),
        }
    }
}
