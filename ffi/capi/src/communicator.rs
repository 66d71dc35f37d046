//! Making communicators, asking them, ending them.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use warpweft_comm::bootstrap::{self, Bootstrap};
use warpweft_comm::{Communicator, Options};

use crate::element::count;
use crate::fault::{Fault, guard};
use crate::pointer::{Out, Owned, Ref, Text};

/// Names a job of threads of this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct UniqueId([u8; 128]);

/// The ranks of jobs that are not complete yet, each in the seat from which its thread takes it.
static SEATS: LazyLock<Mutex<HashMap<UniqueId, Vec<Option<Bootstrap>>>>> = LazyLock::new(Mutex::default);

/// Takes the seat of `rank`; the first rank of an id sets the table.
fn take_seat(id: UniqueId, world: usize, rank: usize) -> Result<Bootstrap, Fault> {
    if rank >= world {
        return Err(Fault::Rank { rank, world });
    }
    // Nothing in here panics half-way, so a poisoned table is as good as any.
    let mut jobs = SEATS.lock().unwrap_or_else(PoisonError::into_inner);
    let seats = match jobs.entry(id) {
        std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
        std::collections::hash_map::Entry::Vacant(entry) => {
            entry.insert(bootstrap::threads(world)?.into_iter().map(Some).collect())
        }
    };
    if seats.len() != world {
        return Err(Fault::World { given: world, expected: seats.len() });
    }
    let seat = seats[rank].take().ok_or(Fault::Taken { rank })?;
    if seats.iter().all(Option::is_none) {
        jobs.remove(&id);
    }
    Ok(seat)
}

/// A new id.
#[unsafe(no_mangle)]
pub extern "C" fn ww_unique_id_create(id: Out<UniqueId>) -> i32 {
    guard("ww_unique_id_create", || {
        let mut bytes = [0; 128];
        getrandom::fill(&mut bytes).map_err(|reason| Fault::Random { reason })?;
        id.set("id", UniqueId(bytes))
    })
}

/// One rank of a job of threads.
#[unsafe(no_mangle)]
pub extern "C" fn ww_comm_create(id: Ref<UniqueId>, world: usize, rank: usize, comm: Out<*mut Communicator>) -> i32 {
    guard("ww_comm_create", || {
        comm.check("comm")?;
        let seat = take_seat(*id.get("id")?, world, rank)?;
        comm.handle("comm", Communicator::new(seat, Options::default())?)
    })
}

/// One rank of a launcher's job.
#[unsafe(no_mangle)]
pub extern "C" fn ww_comm_create_from_env(comm: Out<*mut Communicator>) -> i32 {
    guard("ww_comm_create_from_env", || {
        comm.check("comm")?;
        let bootstrap = bootstrap::from_env()?.ok_or(Fault::NoEnvironment)?;
        comm.handle("comm", Communicator::new(bootstrap, Options::default())?)
    })
}

/// Leaves the job.
#[unsafe(no_mangle)]
pub extern "C" fn ww_comm_destroy(comm: Owned<Communicator>) -> i32 {
    guard("ww_comm_destroy", || {
        drop(comm.take());
        Ok(())
    })
}

/// This rank.
#[unsafe(no_mangle)]
pub extern "C" fn ww_comm_rank(comm: Ref<Communicator>, rank: Out<usize>) -> i32 {
    guard("ww_comm_rank", || rank.set("rank", comm.get("comm")?.rank()))
}

/// The number of ranks.
#[unsafe(no_mangle)]
pub extern "C" fn ww_comm_world(comm: Ref<Communicator>, world: Out<usize>) -> i32 {
    guard("ww_comm_world", || world.set("world", comm.get("comm")?.world()))
}

/// The deadline of every wait.
#[unsafe(no_mangle)]
pub extern "C" fn ww_comm_set_timeout(comm: Ref<Communicator>, seconds: f64) -> i32 {
    guard("ww_comm_set_timeout", || {
        let comm = comm.get("comm")?;
        let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero());
        comm.set_timeout(timeout.ok_or(Fault::Seconds { given: seconds })?);
        Ok(())
    })
}

/// Ends every call on every rank.
#[unsafe(no_mangle)]
pub extern "C" fn ww_comm_abort(comm: Ref<Communicator>, reason: Text) -> i32 {
    guard("ww_comm_abort", || {
        comm.get("comm")?.abort(&reason.get().unwrap_or_else(|| "no reason given".into()));
        Ok(())
    })
}

/// Splits by color.
#[unsafe(no_mangle)]
pub extern "C" fn ww_comm_split(comm: Ref<Communicator>, color: i32, key: i64, part: Out<*mut Communicator>) -> i32 {
    guard("ww_comm_split", || {
        part.check("part")?;
        match comm.get("comm")?.split(u32::try_from(color).ok(), key)? {
            Some(communicator) => part.handle("part", communicator),
            None => part.set("part", std::ptr::null_mut()),
        }
    })
}

/// `count` elements for each rank.
pub(crate) fn for_all(comm: &Communicator, argument: &'static str, each: usize) -> Result<usize, Fault> {
    count(argument, &[comm.world(), each])
}
