//! What came of a launch.

use std::borrow::Cow;
use std::fmt;

use crate::exec::{ExecError, Launch, Outcome};
use crate::report::{Check, Place, Report, Severity};

/// A kernel that ran, or that was stopped.
#[derive(Clone, Debug)]
pub struct Run {
    /// The kernel.
    pub kernel: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Instructions that warps executed.
    pub warp_instructions: u64,
    /// What the checks found, and what stopped it.
    pub reports: Vec<Report>,
    output: Vec<u8>,
    failure: Option<ExecError>,
}

impl Run {
    pub(super) fn new(
        launch: &Launch<'_>,
        outcome: Outcome,
        mut reports: Vec<Report>,
        observed: bool,
        replay: String,
    ) -> Run {
        let function = launch.program.functions.get(launch.function as usize);
        let kernel = function.map_or_else(String::new, |function| function.name.clone());
        if let Some(error) = &outcome.failure
            && let Some(report) = stopped(error, observed)
        {
            reports.push(Report { kernel: kernel.clone(), replay, ..report });
        }
        Run {
            kernel,
            grid: launch.grid,
            block: launch.block,
            warp_instructions: outcome.warp_instructions,
            reports,
            output: outcome.output,
            failure: outcome.failure,
        }
    }

    /// Findings that are errors; notes and warnings do not count.
    pub fn errors(&self) -> usize {
        self.reports.iter().filter(|report| report.severity == Severity::Error).count()
    }

    /// What the kernel printed.
    pub fn output(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.output)
    }

    /// The bytes that the kernel printed.
    pub fn output_bytes(&self) -> &[u8] {
        &self.output
    }

    /// Why it did not run to its end, where it did not. After that the device is unusable, as with CUDA.
    pub fn failure(&self) -> Option<String> {
        self.failure.as_ref().map(ToString::to_string)
    }
}

/// The report of a failure that no observer has told, or could tell.
fn stopped(error: &ExecError, observed: bool) -> Option<Report> {
    let (kind, place) = match error {
        ExecError::TooManyErrors { .. } => return None,
        ExecError::Stack { place, .. } => ("stack", Some(place)),
        ExecError::Host { place, .. } => ("host-function", Some(place)),
        // The rest are halts, of which an observer has heard.
        _ if observed => return None,
        ExecError::Fault { place, fault } => (fault.kind.word(), Some(place)),
        ExecError::Trap { place } => ("trap", Some(place)),
        ExecError::Assert { place, .. } => ("assert", Some(place)),
        ExecError::Sync { place, kind, .. } => (*kind, Some(place)),
        ExecError::Limit { place, .. } => ("limit", Some(place)),
        ExecError::Deadlock { .. } => ("deadlock", None),
    };
    let fault = match error {
        ExecError::Fault { fault, .. } => Some(fault),
        _ => None,
    };
    Some(Report {
        check: Check::Execution,
        severity: Severity::Error,
        kind,
        message: error.to_string(),
        kernel: String::new(),
        place: place.map_or_else(Place::default, |place| (**place).clone()),
        related: Vec::new(),
        address: fault.map(|fault| fault.address),
        allocation: fault.and_then(|fault| fault.allocation.clone()),
        count: 1,
        replay: String::new(),
    })
}

impl fmt::Display for Run {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([gx, gy, gz], [bx, by, bz]) = (self.grid, self.block);
        write!(out, "kernel `{}`, {gx}x{gy}x{gz} blocks of {bx}x{by}x{bz} threads: ", self.kernel)?;
        let ended = if self.failure.is_some() { "stopped after" } else { "ran" };
        let errors = self.errors();
        let plural = if errors == 1 { "" } else { "s" };
        write!(out, "{ended} {} warp instructions, {errors} error{plural}", self.warp_instructions)?;
        for report in &self.reports {
            write!(out, "\n{report}")?;
        }
        Ok(())
    }
}
