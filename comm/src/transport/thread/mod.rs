//! Ranks that are threads of one process: the rings of the `shm` transport, over memory of this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::shm::{Place, Rings, Segment, Token, segment_bytes};
use super::{Facts, Setup, Transport, TransportKind};
use crate::CommError;

/// Segments between their making by rank 0 and the moment when all ranks hold them.
fn registry() -> MutexGuard<'static, HashMap<Token, Arc<Segment>>> {
    static REGISTRY: OnceLock<Mutex<HashMap<Token, Arc<Segment>>>> = OnceLock::new();
    REGISTRY.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the segment out of the registry again, also when the set-up fails in between.
struct Registered(Token);

impl Drop for Registered {
    fn drop(&mut self) {
        registry().remove(&self.0);
    }
}

pub(super) fn connect(setup: &mut Setup<'_>, facts: &[Facts]) -> Result<Box<dyn Transport>, CommError> {
    let (rank, world) = (setup.rank, setup.world);
    let mut made = None;
    let mut message = Vec::new();
    if rank == 0 {
        let token = super::random_token()?;
        let segment = Segment::in_process(world).map_err(|error| CommError::System {
            what: format!("{} bytes of memory for the rings of {world} threads", segment_bytes(world)),
            reason: error.to_string(),
        })?;
        registry().insert(token, Arc::new(segment));
        made = Some(Registered(token));
        message = token.to_vec();
    }
    let offers = setup.exchange.all_gather(&message)?;
    let token: Option<Token> = offers.first().and_then(|offer| offer.as_slice().try_into().ok());
    let segment = token.and_then(|token| registry().get(&token).cloned());
    let place = segment.and_then(|segment| Place::take(segment, rank));
    // All hold it, or have failed and will tell when their turn in the next operation comes.
    setup.exchange.all_gather(&[])?;
    drop(made);
    let place = place.ok_or_else(|| setup.broken("a free place in the memory that rank 0 made, and there is none"))?;
    let addresses = facts.iter().map(|_| format!("thread of process {}", std::process::id())).collect();
    Ok(Box::new(Rings::new(place, TransportKind::Thread, addresses)))
}
