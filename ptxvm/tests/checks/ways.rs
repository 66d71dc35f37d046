//! A kernel with a body, run in every way that the executor has, and what its reports must say.
//!
//! The body finds prepared: `%rd1`, `%rd2` the two buffers (16 KiB each, zero), `%rd3`, `%rd4` the same plus 4 bytes a
//! thread of the block; `%r1` the thread, `%r2` the block, `%r3` the lane, `%r4` the warp; shared memory `smem` (its
//! first byte at `%r5`, plus 4 bytes a thread at `%r6`). It may use `%p`, `%r10` to `%r99`, `%rd10` to `%rd49`, `%f`, `%h`.
//! A line that a report must name ends in a comment with a word: `// @read`.

use std::fmt::Write as _;

use warpweft_ptxvm::exec::{self, Asynchrony, Divergence, HostFunctions, Options, Schedule};
use warpweft_ptxvm::lower;
use warpweft_ptxvm::memory::{AddressSpace, DeviceId};
use warpweft_ptxvm::observe::Observer;
use warpweft_ptxvm::observe::check::{Checks, Selection};
use warpweft_ptxvm::report::{Check, Place, Report, Severity};

/// All lanes.
pub(crate) const ALL: u32 = u32::MAX;

/// A kernel to check.
#[derive(Clone)]
pub(crate) struct Kernel {
    body: String,
    grid: [u32; 3],
    block: [u32; 3],
    declarations: String,
    checks: Selection,
    launches: u32,
    limit: u64,
}

/// One way to run it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    schedule: Schedule,
    asynchrony: Asynchrony,
    divergence: Divergence,
    seed: u64,
}

impl Way {
    /// The plain one, under which reports hold whole warps.
    pub(crate) const PLAIN: Way = Way {
        schedule: Schedule::RoundRobin,
        asynchrony: Asynchrony::Eager,
        divergence: Divergence::Reconverge,
        seed: 0,
    };

    /// Every mode with every schedule.
    pub(crate) fn all() -> Vec<Way> {
        let mut all = Vec::new();
        for schedule in [Schedule::RoundRobin, Schedule::Reverse, Schedule::Random] {
            for asynchrony in [Asynchrony::Eager, Asynchrony::Latest, Asynchrony::Random] {
                for divergence in [Divergence::Reconverge, Divergence::Independent] {
                    let seeds = if schedule == Schedule::Random { 1..4 } else { 0..1 };
                    all.extend(seeds.map(|seed| Way { schedule, asynchrony, divergence, seed }));
                }
            }
        }
        all
    }
}

/// A kernel of this body, one block of 64 threads, every check.
pub(crate) fn kernel(body: &str) -> Kernel {
    Kernel {
        body: body.to_owned(),
        grid: [1, 1, 1],
        block: [64, 1, 1],
        declarations: ".shared .align 16 .b8 smem[8192];\n".to_owned(),
        checks: Selection::ALL,
        launches: 1,
        limit: 2_000_000,
    }
}

impl Kernel {
    /// So many threads a block.
    pub(crate) fn threads(mut self, threads: u32) -> Kernel {
        self.block = [threads, 1, 1];
        self
    }

    /// So many blocks.
    pub(crate) fn blocks(mut self, blocks: u32) -> Kernel {
        self.grid = [blocks, 1, 1];
        self
    }

    /// Launched so often, one after the other.
    pub(crate) fn launches(mut self, launches: u32) -> Kernel {
        self.launches = launches;
        self
    }

    /// Only these checks.
    pub(crate) fn checks(mut self, checks: Selection) -> Kernel {
        self.checks = checks;
        self
    }

    /// Only this check.
    pub(crate) fn only(self, check: Check) -> Kernel {
        self.checks(Selection::only(check))
    }

    /// Every check but racecheck.
    pub(crate) fn without_races(self) -> Kernel {
        self.checks(Selection::ALL.without(Check::Racecheck))
    }

    /// These checks but initcheck: whoever races may read what is not there yet, which is its own finding.
    pub(crate) fn without_initcheck(self) -> Kernel {
        let checks = self.checks.without(Check::Initcheck);
        self.checks(checks)
    }

    /// With a part of the body replaced.
    pub(crate) fn with(mut self, part: &str, by: &str) -> Kernel {
        self.body = self.body.replace(part, by);
        self
    }

    /// The module's text.
    pub(crate) fn text(&self) -> String {
        format!(
            ".version 8.0
.target sm_80
.address_size 64
{}
.visible .entry k(.param .u64 p0, .param .u64 p1)
{{
.reg .pred %p<20>;
.reg .b16 %h<20>;
.reg .b32 %r<100>;
.reg .f32 %f<20>;
.reg .b64 %rd<50>;
ld.param.u64 %rd1, [p0];
ld.param.u64 %rd2, [p1];
cvta.to.global.u64 %rd1, %rd1;
cvta.to.global.u64 %rd2, %rd2;
mov.u32 %r1, %tid.x;
mov.u32 %r2, %ctaid.x;
and.b32 %r3, %r1, 31;
shr.u32 %r4, %r1, 5;
mov.u32 %r5, smem;
shl.b32 %r6, %r1, 2;
add.u32 %r6, %r6, %r5;
mul.wide.u32 %rd3, %r1, 4;
add.u64 %rd4, %rd3, %rd2;
add.u64 %rd3, %rd3, %rd1;
{}
ret;
}}
",
            self.declarations, self.body
        )
    }

    /// The line of the text that ends in this word.
    pub(crate) fn line(&self, word: &str) -> u32 {
        let text = self.text();
        let lines: Vec<usize> = text
            .lines()
            .enumerate()
            .filter(|(_, line)| line.trim_end().ends_with(&format!("// {word}")))
            .map(|(at, _)| at + 1)
            .collect();
        assert_eq!(lines.len(), 1, "{word} stands at lines {lines:?}");
        lines[0] as u32
    }

    /// Runs it, and gives the reports.
    pub(crate) fn run(&self, way: Way) -> Vec<Report> {
        let program = lower::compile(&self.text()).unwrap_or_else(|error| panic!("{error}\n{}", self.text()));
        let memory = AddressSpace::new(&[1 << 30]).expect("a device");
        let device = DeviceId(0);
        let buffer = |tag| {
            let address = memory.allocate(device, 16384, 256, tag).expect("room");
            memory.write(address, &[0; 16384]).expect("in bounds");
            address
        };
        let (p0, p1) = (buffer("p0"), buffer("p1"));
        let params: Vec<u8> = [p0, p1].iter().flat_map(|address| address.to_le_bytes()).collect();
        let options = Options {
            schedule: way.schedule,
            asynchrony: way.asynchrony,
            divergence: way.divergence,
            seed: way.seed,
            limit: self.limit,
            ..Options::default()
        };
        let function = program.functions.iter().position(|function| function.name == "k").expect("the kernel") as u32;
        let launch = exec::Launch {
            program: &program,
            variables: &[],
            function,
            grid: self.grid,
            block: self.block,
            dynamic_shared: 0,
            params: &params,
            device,
            target: program.target,
            sms: 4,
            grid_id: 0,
        };
        let mut reports = Vec::new();
        for _ in 0..self.launches {
            let mut checks = Checks::new(self.checks, format!("{way:?}"));
            exec::run(&launch, &memory, &HostFunctions::default(), &options, &mut checks).expect("a launch");
            reports.extend(checks.take_reports());
        }
        reports
    }

    /// No run reports an error; notes are of these kinds only.
    #[track_caller]
    pub(crate) fn passes_with_notes(&self, notes: &[&str]) {
        for way in Way::all() {
            let reports = self.run(way);
            let wrong = |report: &&Report| report.severity != Severity::Note || !notes.contains(&report.kind);
            let wrong: Vec<&Report> = reports.iter().filter(wrong).collect();
            assert!(wrong.is_empty(), "{way:?}\n{}{}", shown(&wrong), self.text());
        }
    }

    /// No run reports anything.
    #[track_caller]
    pub(crate) fn passes(&self) {
        self.passes_with_notes(&[]);
    }

    /// Every run reports a race between the two lines, in either order, and nothing else. Given are the lines' words and
    /// the lanes (of any warp) that take part: all of them in the plain way, some in each.
    #[track_caller]
    pub(crate) fn races(&self, first: (&str, u32), second: (&str, u32)) {
        let ends = [(self.line(first.0), first.1), (self.line(second.0), second.1)];
        let kernel = self.clone().without_initcheck();
        for way in Way::all() {
            let reports = kernel.run(way);
            let errors: Vec<&Report> = reports.iter().filter(|report| report.severity == Severity::Error).collect();
            assert!(!errors.is_empty(), "{way:?}: no report\n{}", self.text());
            for report in &errors {
                let end = ends.iter().position(|(line, _)| *line == report.place.line);
                let context = || format!("{way:?}\n{}{}", shown(&errors), self.text());
                let end = end.unwrap_or_else(|| panic!("a report elsewhere: {}", context()));
                let mask = mask(&report.place);
                assert!(report.check == Check::Racecheck, "{}", context());
                let exact = way.divergence == Divergence::Reconverge && way.schedule == Schedule::RoundRobin;
                let right = if exact { mask == ends[end].1 } else { mask != 0 && mask & !ends[end].1 == 0 };
                assert!(right, "lanes {mask:#x}: {}", context());
                let other = report.related[0].1.line;
                assert!(ends.iter().any(|(line, _)| *line == other), "earlier access at {other}: {}", context());
            }
        }
    }

    /// Every run reports this, at this line's word for these lanes: exactly these in the plain way, some of them in each.
    #[track_caller]
    pub(crate) fn fails(&self, check: Check, kind: &str, word: &str, lanes: u32) {
        let line = self.line(word);
        for way in Way::all() {
            let reports = self.run(way);
            let errors: Vec<&Report> = reports.iter().filter(|report| report.severity == Severity::Error).collect();
            let context = || format!("{way:?}\n{}{}", shown(&errors), self.text());
            let found =
                errors.iter().find(|report| (report.check, report.kind, report.place.line) == (check, kind, line));
            let report = found.unwrap_or_else(|| panic!("no {check} {kind} at line {line}: {}", context()));
            let mask = mask(&report.place);
            let exact = way.divergence == Divergence::Reconverge && way.schedule == Schedule::RoundRobin;
            let right = if exact { mask == lanes } else { mask != 0 && mask & !lanes == 0 };
            assert!(right, "lanes {mask:#x}, not {lanes:#x}: {}", context());
            assert!(errors.iter().all(|report| report.check == check), "another check: {}", context());
        }
    }
}

impl Kernel {
    /// Every run finds this kind of race somewhere; which accesses meet first is chance.
    #[track_caller]
    pub(crate) fn finds_somewhere(&self, kind: &str) {
        for way in Way::all() {
            let reports = self.run(way);
            let all: Vec<&Report> = reports.iter().collect();
            assert!(reports.iter().any(|report| report.kind == kind), "{way:?}\n{}{}", shown(&all), self.text());
        }
    }

    /// Every run has an error of this kind; at which of several places is chance.
    #[track_caller]
    pub(crate) fn reported(&self, check: Check, kind: &str) {
        for way in Way::all() {
            let reports = self.run(way);
            let all: Vec<&Report> = reports.iter().collect();
            let found =
                |report: &Report| (report.check, report.kind, report.severity) == (check, kind, Severity::Error);
            assert!(reports.iter().any(found), "{way:?}\n{}{}", shown(&all), self.text());
        }
    }

    /// Every run finds this kind at this line's word, for some of these lanes.
    #[track_caller]
    pub(crate) fn finds(&self, kind: &str, word: &str, lanes: u32) {
        let line = self.line(word);
        for way in Way::all() {
            let reports = self.run(way);
            let all: Vec<&Report> = reports.iter().collect();
            let found = reports.iter().find(|report| report.kind == kind && report.place.line == line);
            let mask = found.map_or(0, |report| mask(&report.place));
            assert!(mask != 0 && mask & !lanes == 0, "{way:?}\n{}{}", shown(&all), self.text());
        }
    }
}

fn mask(place: &Place) -> u32 {
    place.lanes.iter().fold(0, |mask, lane| mask | 1 << lane)
}

fn shown(reports: &[&Report]) -> String {
    let mut text = String::new();
    for report in reports {
        let _ = writeln!(
            text,
            "{} {:?} {} at line {} lanes {:?}: {}",
            report.check, report.severity, report.kind, report.place.line, report.place.lanes, report.message
        );
        for (what, place) in &report.related {
            let _ = writeln!(text, "    {what}: line {} warp {} lanes {:?}", place.line, place.warp, place.lanes);
        }
    }
    text
}
