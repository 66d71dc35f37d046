//! What the checks found: each finding once with a count, and the places in the text that it names.

use std::collections::HashMap;
use std::sync::Arc;

use crate::observe::At;
use crate::program::{self, Function, Program};
use crate::report::{Check, Place, Report, Severity};

/// Number of an instruction in its program: functions in order, each with its instructions. Checks keep it in their
/// shadows, where a reference would not fit. [`Site::NONE`] is no instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site(pub u32);

impl Site {
    /// No instruction.
    pub const NONE: Site = Site(Site::MASK);
    /// The bits that a site takes: checks pack flags above them.
    pub const MASK: u32 = (1 << 28) - 1;
}

/// One finding, before it becomes a [`Report`].
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Finding {
    pub severity: Severity,
    pub message: String,
    pub place: Place,
    pub related: Vec<(String, Place)>,
    pub address: Option<u64>,
    pub allocation: Option<String>,
}

impl Default for Finding {
    fn default() -> Self {
        Finding {
            severity: Severity::Error,
            message: String::new(),
            place: Place::default(),
            related: Vec::new(),
            address: None,
            allocation: None,
        }
    }
}

/// The findings of a launch.
#[derive(Debug)]
pub struct Findings {
    kernel: String,
    replay: String,
    grid: [u32; 3],
    /// The first site of each function, in the program's order.
    bases: Vec<u32>,
    /// Where each instruction stands, by site: an executor that is stuck has no instruction at hand.
    sites: Vec<program::Site>,
    text: Arc<str>,
    files: Vec<(u32, String)>,
    reports: Vec<Report>,
    /// Where the report of a finding is.
    known: HashMap<(Check, &'static str, Site, Site), usize>,
    errors: u64,
}

impl Findings {
    /// Nothing found yet.
    pub(super) fn new(replay: String) -> Findings {
        Findings {
            kernel: String::new(),
            replay,
            grid: [1; 3],
            bases: Vec::new(),
            sites: Vec::new(),
            text: "".into(),
            files: Vec::new(),
            reports: Vec::new(),
            known: HashMap::new(),
            errors: 0,
        }
    }

    /// A kernel begins.
    pub(super) fn launch(&mut self, program: &Program, function: &Function, grid: [u32; 3]) {
        self.kernel = function.name.clone();
        self.grid = grid;
        let sizes = program.functions.iter().map(|function| function.code.len() as u32);
        self.bases = sizes.scan(0, |next, size| Some(std::mem::replace(next, *next + size))).collect();
        self.sites = program.functions.iter().flat_map(|function| &function.code).map(|one| one.site).collect();
        (self.text, self.files) = (Arc::clone(&program.text), program.files.clone());
    }

    /// Adds a finding, or counts it when the same (check, kind, pair of instructions) was found before. `make` runs for
    /// a new one only.
    pub fn add(&mut self, check: Check, kind: &'static str, sites: (Site, Site), make: impl FnOnce() -> Finding) {
        if let Some(&at) = self.known.get(&(check, kind, sites.0, sites.1)) {
            self.reports[at].count += 1;
            return;
        }
        let found = make();
        self.errors += u64::from(found.severity == Severity::Error);
        self.known.insert((check, kind, sites.0, sites.1), self.reports.len());
        self.reports.push(Report {
            check,
            severity: found.severity,
            kind,
            message: found.message,
            kernel: self.kernel.clone(),
            place: found.place,
            related: found.related,
            address: found.address,
            allocation: found.allocation,
            count: 1,
            replay: self.replay.clone(),
        });
    }

    /// Whether this finding was made before: it is then counted, and nothing else is to do.
    pub fn again(&mut self, check: Check, kind: &'static str, sites: (Site, Site)) -> bool {
        let known = self.known.get(&(check, kind, sites.0, sites.1));
        known.map(|&at| self.reports[at].count += 1).is_some()
    }

    /// Different findings that are errors.
    pub(super) fn errors(&self) -> u64 {
        self.errors
    }

    /// The reports, taken out; what is found from now on is new.
    pub(super) fn take(&mut self) -> Vec<Report> {
        self.known.clear();
        std::mem::take(&mut self.reports)
    }

    /// The number of the instruction at `at`.
    pub fn site(&self, at: &At<'_>) -> Site {
        self.site_of(function_index(at.program, at.function), at.index)
    }

    /// The number of an instruction of a function.
    pub fn site_of(&self, function: u32, index: u32) -> Site {
        Site((self.bases.get(function as usize).copied().unwrap_or(0) + index) & Site::MASK)
    }

    /// The same where there may be no instruction.
    pub fn site_at(&self, at: Option<&At<'_>>) -> Site {
        at.map_or(Site::NONE, |at| self.site(at))
    }

    /// The place of `at`, for these lanes.
    pub fn place(&self, at: &At<'_>, lanes: u32) -> Place {
        self.place_of(self.site(at), at.block, at.warp, lanes)
    }

    /// The place of any instruction, such as one that a shadow remembers.
    pub fn place_of(&self, site: Site, block: [u32; 3], warp: u32, lanes: u32) -> Place {
        let lanes = (0..32).filter(|lane| lanes >> lane & 1 == 1).collect();
        let Some(site) = self.sites.get(site.0 as usize) else {
            return Place { block, warp, lanes, ..Place::default() };
        };
        let text = self.text.get(site.span.0 as usize..site.span.1 as usize).unwrap_or("");
        let file = self.files.iter().find(|(number, _)| *number == site.file);
        Place {
            line: site.line,
            instruction: text.split_whitespace().collect::<Vec<_>>().join(" "),
            source: file.map(|(_, name)| (name.clone(), site.source_line)),
            block,
            warp,
            lanes,
        }
    }

    /// Coordinates of a block from its number.
    pub fn coordinates(&self, block_index: u64) -> [u32; 3] {
        let [x, y, _] = self.grid.map(|extent| u64::from(extent.max(1)));
        [(block_index % x) as u32, (block_index / x % y) as u32, (block_index / x / y) as u32]
    }
}

/// Index of a function in its program.
fn function_index(program: &Program, function: &Function) -> u32 {
    program.functions.iter().position(|known| std::ptr::eq(known, function)).map_or(u32::MAX, |at| at as u32)
}
