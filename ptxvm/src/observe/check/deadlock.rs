//! deadlock: nothing can run any more, and who waits for what.

use super::{Finding, Findings, Site};
use crate::observe::Waiting;
use crate::report::{Check, Place};

/// The most waiting fragments that a report lists.
const LISTED: usize = 64;

/// Tells a deadlock: the place is the first that waits, all are listed.
pub(super) fn tell(waiting: &[Waiting], to: &mut Findings) {
    let mut all = waiting.iter().take(LISTED).map(|fragment| (fragment.what.clone(), place(fragment, to)));
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

fn place(fragment: &Waiting, to: &Findings) -> Place {
    let (function, index) = fragment.place;
    to.place_of(to.site_of(function, index), fragment.block, fragment.warp, fragment.mask)
}
