//! deadlock: nothing can run any more, and who waits for what.

use super::{Finding, Findings, Site};
use crate::observe::{At, Waiting};
use crate::program::Program;
use crate::report::{Check, Place};

/// The most waiting fragments that a report lists.
const LISTED: usize = 64;

/// Tells a deadlock: the place is the first that waits, all are listed.
pub(super) fn tell(at: Option<&At<'_>>, waiting: &[Waiting], to: &mut Findings) {
    let program = at.map(|at| at.program);
    let mut all = waiting.iter().take(LISTED).map(|fragment| (fragment.what.clone(), place(program, fragment, to)));
    let first = all.next();
    let mut related: Vec<(String, Place)> = first.clone().into_iter().chain(all).collect();
    if waiting.len() > LISTED {
        related.push((format!("and {} more", waiting.len() - LISTED), Place::default()));
    }
    let place = first.map(|(_, place)| place).unwrap_or_default();
    let mut blocks: Vec<[u32; 3]> = waiting.iter().map(|fragment| fragment.block).collect();
    blocks.dedup();
    to.add(Check::Deadlock, "deadlock", (Site::NONE, Site::NONE), || Finding {
        message: format!(
            "nothing can run any more: {} fragments of warps in {} blocks wait, and nobody is left to wake them",
            waiting.len(),
            blocks.len()
        ),
        place,
        related,
        ..Finding::default()
    });
}

fn place(program: Option<&Program>, fragment: &Waiting, to: &Findings) -> Place {
    let (function, index) = fragment.place;
    let site = to.site_of(function, index);
    match program {
        Some(program) => to.place_of(program, site, fragment.block, fragment.warp, fragment.mask),
        None => Place { block: fragment.block, warp: fragment.warp, ..Place::default() },
    }
}
