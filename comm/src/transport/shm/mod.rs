//! Ranks on one host: a ring in shared memory for each pair and direction. The thread transport uses the same rings
//! over memory of its own process.
//!
//! Linux only, like the rest of the transports: it sleeps on futexes.

mod backing;
#[allow(unsafe_code)]
mod mapping;
mod rings;
#[allow(unsafe_code)]
mod segment;

use std::path::PathBuf;
use std::sync::Arc;

pub(super) use backing::Backing;
use backing::Made;
pub(super) use rings::Rings;
pub(super) use segment::{Place, Segment, Token, segment_bytes};
use serde::{Deserialize, Serialize};

use super::{Facts, Setup, Transport, TransportKind};
use crate::CommError;

/// What rank 0 tells the others.
#[derive(Serialize, Deserialize)]
enum Offer {
    Segment { path: PathBuf, token: Token },
    Refused(String),
}

/// Opens the transport, or says why this host cannot have it; all ranks come to the same answer.
pub(super) fn connect(
    setup: &mut Setup<'_>,
    facts: &[Facts],
    backings: &[Backing],
) -> Result<Result<Box<dyn Transport>, String>, CommError> {
    let mut reasons = Vec::new();
    for backing in backings {
        match attach(setup, backing)? {
            Ok(segment) => {
                let place = Place::take(Arc::new(segment), setup.rank);
                let place = place.ok_or_else(|| setup.broken("a free place in the memory of this group"))?;
                let address = |facts: &Facts| format!("shared memory, process {}", facts.process_id);
                let rings = Rings::new(place, TransportKind::Shm, facts.iter().map(address).collect());
                return Ok(Ok(Box::new(rings)));
            }
            Err(reason) => reasons.push(reason),
        }
    }
    Ok(Err(reasons.join("; ")))
}

/// Maps one segment into all ranks, or into none.
fn attach(setup: &mut Setup<'_>, backing: &Backing) -> Result<Result<Segment, String>, CommError> {
    let mut made = None;
    let mut offer = Vec::new();
    if setup.rank == 0 {
        let token = super::random_token()?;
        let told = match backing::make(backing, setup.world, &token) {
            Ok(segment) => Offer::Segment { path: made.insert(segment).path().to_owned(), token },
            Err(reason) => Offer::Refused(reason),
        };
        offer = serde_json::to_vec(&told).map_err(|error| setup.broken(&error.to_string()))?;
    }
    let offers = setup.exchange.all_gather(&offer)?;
    let offer = offers.first().and_then(|offer| serde_json::from_slice(offer).ok());
    let opened = match offer.ok_or_else(|| setup.broken("rank 0's offer of shared memory"))? {
        Offer::Refused(reason) => return Ok(Err(reason)),
        Offer::Segment { path, token } => match &made {
            Some(_) => Ok(None),
            None => backing::open(&path, setup.world, &token).map(Some),
        },
    };
    let trouble = opened.as_ref().err().map_or(String::new(), |reason| format!("rank {}: {reason}", setup.rank));
    let troubles = setup.exchange.all_gather(trouble.as_bytes())?;
    // Everybody who could has opened it: the name can go, with `made`.
    if let Some(trouble) = troubles.iter().find(|trouble| !trouble.is_empty()) {
        return Ok(Err(String::from_utf8_lossy(trouble).into_owned()));
    }
    Ok(match opened {
        Ok(segment) => segment.or(made.map(Made::into_segment)).ok_or_else(|| "no segment".to_owned()),
        Err(reason) => Err(reason),
    })
}
