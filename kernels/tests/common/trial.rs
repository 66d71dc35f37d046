//! How the mutants of a kernel are tried, and what became of them.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, Once};

use bytemuck::Pod;
use warpweft_kernels::{Program, programs};

use super::On;
use super::counters::work;
use super::mutants::{Mutant, mutants, only, without_mutants};

/// One of two numbers: the second where time is no matter.
pub(crate) const fn sample(few: usize, many: usize) -> usize {
    if cfg!(feature = "long-tests") { many } else { few }
}

/// What a proof gives its results to: those of the kernel as it is are kept, those of a mutant are held against them at once, so
/// that the first one that differs ends the proof.
pub(crate) struct Judge<'a> {
    right: Option<&'a [u64]>,
    seen: Vec<u64>,
}

impl Judge<'_> {
    /// A result, which must have the same bits as that of the kernel as it is.
    pub(crate) fn see<T: Pod>(&mut self, values: &[T]) {
        let mut hasher = DefaultHasher::new();
        bytemuck::cast_slice::<T, u8>(values).hash(&mut hasher);
        let digest = hasher.finish();
        self.holds(self.right.is_none_or(|right| right.get(self.seen.len()) == Some(&digest)));
        self.seen.push(digest);
    }

    /// Something that must hold.
    pub(crate) fn holds(&self, holds: bool) {
        assert!(holds, "a mutant shows itself");
    }
}

/// Mutants of one kernel, and the device that they are tried on.
#[derive(Clone)]
pub(crate) struct Trial<'a> {
    pub(crate) program: &'static Program,
    /// Kernels whose names begin so are broken.
    pub(crate) kernel: &'a str,
    /// Every so many-th mutant is tried.
    pub(crate) step: usize,
    /// No more than so many of those.
    pub(crate) most: usize,
    /// The beginnings of the names of the kernels that the proof needs: the others are left out, so that the program loads sooner.
    pub(crate) beside: &'a [&'a str],
    /// Of the device, beside the usual ones: `&multiprocessors=1`.
    pub(crate) settings: &'a str,
}

impl<'a> Trial<'a> {
    pub(crate) fn new(program: &'static Program, kernel: &'a str) -> Self {
        Self { program, kernel, step: 1, most: usize::MAX, beside: &[""], settings: "" }
    }

    /// At most `most` mutants of a kernel of the op.
    pub(crate) fn of(op: &str, kernel: &'a str, most: usize) -> Self {
        let program = programs().iter().find(|program| program.op == op).unwrap();
        Self { most, ..Self::new(program, kernel) }
    }

    /// A device with a text in the program's place; none where it does not load. A launch ends after `limit` instructions of warps.
    fn device(&self, ptx: &str, limit: u64) -> Option<On> {
        self.open("check=all&divergence=independent&async=latest&schedule=random&seed=3", ptx, limit)
    }

    /// One whose warps and lanes go side by side, so that its counters say what the text does and not how it was run.
    fn counting_device(&self, ptx: &str, limit: u64) -> Option<On> {
        self.open("schedule=rr", ptx, limit)
    }

    fn open(&self, way: &str, ptx: &str, limit: u64) -> Option<On> {
        let on = On::open(&format!("software?{way}&limit={limit}{}", self.settings));
        on.device.replace_program(self.program.ptx, ptx).is_ok().then_some(on)
    }

    /// The mutants to be tried, evenly over the text; which of them they are differs from kernel to kernel.
    fn chosen(&self, ptx: &str) -> Vec<Mutant> {
        let all: Vec<Mutant> = mutants(ptx, self.kernel).into_iter().step_by(self.step).collect();
        let (len, most) = (all.len(), self.most.min(all.len()));
        let mut hasher = DefaultHasher::new();
        self.kernel.hash(&mut hasher);
        let phase = hasher.finish() as usize % len.max(1);
        let mut chosen: Vec<usize> = (0..most).map(|i| (i * len / most + phase) % len).collect();
        chosen.sort_unstable();
        chosen.into_iter().map(|i| all[i].clone()).collect()
    }

    /// Tries the mutants against `proof`, which runs the op on a device, shows what comes out to the judge, and panics where it
    /// sees that something is wrong.
    pub(crate) fn verdict(&self, proof: impl Fn(&On, &mut Judge<'_>) + Sync) -> Verdict {
        let ptx = only(self.program.ptx, self.beside);
        let right = {
            let on = self.device(&ptx, u64::MAX).expect("the program loads");
            let mut judge = Judge { right: None, seen: Vec::new() };
            proof(&on, &mut judge);
            judge.seen
        };
        // What runs for ever is ended.
        let profiles = |on: On| {
            let mut judge = Judge { right: Some(&right), seen: Vec::new() };
            on.stream.profile(|| proof(&on, &mut judge)).unwrap().1
        };
        let (limit, reached) = {
            let profiles = profiles(self.device(&ptx, u64::MAX).unwrap());
            let lines = profiles.iter().flat_map(|profile| &profile.instructions).map(|line| line.line as usize);
            let most = profiles.iter().map(|profile| profile.warp_instructions).max().unwrap_or(0);
            (if most > 0 { 4 * most + 10_000 } else { 3_000_000 }, lines.collect::<HashSet<_>>())
        };
        let needed = work(&profiles(self.counting_device(&ptx, u64::MAX).unwrap()));
        let holds = |on: &On| {
            let mut judge = Judge { right: Some(&right), seen: Vec::new() };
            catch_unwind(AssertUnwindSafe(|| proof(on, &mut judge))).is_ok()
        };
        let survives = |mutant: &Mutant| {
            let ptx = mutant.text(&ptx);
            // Under every check; then under the counters, as what does other work than it should is wrong too: accesses that are
            // narrower, a tile that nobody needs, products of zeros.
            self.device(&ptx, limit).is_some_and(|on| holds(&on))
                && self.counting_device(&ptx, limit).is_some_and(|on| {
                    let done = on.stream.profile(|| holds(&on));
                    done.is_ok_and(|(holds, profiles)| holds && work(&profiles) == needed)
                })
        };
        let all = self.chosen(&ptx);
        let (next, survivors) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(|| {
                    quietly();
                    while let Some(mutant) = all.get(next.fetch_add(1, Relaxed)) {
                        if survives(mutant) {
                            let reached = reached.contains(&mutant.line);
                            survivors.lock().unwrap().push(Mutant { reached, ..mutant.clone() });
                        }
                    }
                });
            }
        });
        let mut survivors = survivors.into_inner().unwrap();
        survivors.sort_by_key(|mutant| mutant.line);
        let mut tried: BTreeMap<String, usize> =
            without_mutants(&ptx, self.kernel).into_iter().map(|kernel| (kernel, 0)).collect();
        all.iter().for_each(|mutant| *tried.entry(mutant.kernel.clone()).or_default() += 1);
        Verdict { tried, survivors }
    }
}

/// From now on panics of this thread are not printed.
fn quietly() {
    thread_local!(static QUIET: Cell<bool> = const { Cell::new(false) });
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    QUIET.set(true);
}

/// What became of mutants.
pub(crate) struct Verdict {
    /// How many were tried of each kernel.
    pub(crate) tried: BTreeMap<String, usize>,
    pub(crate) survivors: Vec<Mutant>,
}

impl Verdict {
    /// Both together: kernels of one op.
    pub(crate) fn and(mut self, other: Verdict) -> Verdict {
        for (kernel, tried) in other.tried {
            *self.tried.entry(kernel).or_default() += tried;
        }
        self.survivors.extend(other.survivors);
        self
    }

    /// Asserts that at least 95 of 100 were killed; prints the others.
    #[track_caller]
    pub(crate) fn assert_killed(&self) {
        self.assert_killed_of_100(95);
    }

    /// The same of another share, where more mutants than elsewhere change nothing that can be seen.
    #[track_caller]
    #[allow(clippy::print_stdout, reason = "the survivors are read by people, with --nocapture")]
    pub(crate) fn assert_killed_of_100(&self, least: usize) {
        let (survivors, tried) = (&self.survivors, self.tried.values().sum::<usize>());
        let killed = tried - survivors.len();
        for Mutant { kernel, line, was, now, reached } in survivors {
            let reached = if *reached { "" } else { ", which the proof does not reach," };
            println!("{kernel}, line {line}{reached} survives: `{was}` -> `{}`", now.trim());
        }
        println!("{killed} of {tried} killed: {:?}", self.tried);
        self.note();
        assert!(tried > 0 && killed * 100 >= tried * least, "{killed} of {tried} mutants killed");
    }

    /// Writes what the cards of the kernels say of mutants, for `scripts/kernel-cards mutants`.
    fn note(&self) {
        let Some(folder) = std::env::var_os("WARPWEFT_MUTANTS") else { return };
        let mut text = String::new();
        for (kernel, tried) in &self.tried {
            text += &format!("{kernel}\ttried\t{tried}\n");
        }
        for Mutant { kernel, was, now, .. } in &self.survivors {
            // A tab parts the columns.
            let [was, now] = [was, now].map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
            text += &format!("{kernel}\tsurvives\t{was}\t{}\n", if now.is_empty() { "nothing" } else { &now });
        }
        let file = std::path::Path::new(&folder).join(format!("{}.tsv", std::process::id()));
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }
}
