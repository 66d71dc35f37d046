//! torchrun's variables, which many scripts set by hand as well, and those of our own launcher.

use std::net::SocketAddr;

use super::meeting::Meeting;
use super::place::{Launcher, Place};
use super::variables::{Variables, malformed, port};
use crate::CommError;

pub(super) const TORCHRUN: [&str; 5] = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"];
pub(in crate::bootstrap) const OURS: [&str; 4] =
    ["WARPWEFT_RANK", "WARPWEFT_WORLD_SIZE", "WARPWEFT_LOCAL_RANK", "WARPWEFT_RENDEZVOUS"];
/// Ranks on this host.
pub(super) const LOCAL_WORLD: &str = "LOCAL_WORLD_SIZE";
const AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";
const AGENT_RUN: &str = "TORCHELASTIC_RUN_ID";
const AGENTS: &str = "GROUP_WORLD_SIZE";

/// The rank that torchrun tells. Beside another launcher the rendezvous alone may be given, which is not torchrun's then.
pub(super) fn torchrun(variables: &Variables<'_>, another: bool) -> Result<Option<Place>, CommError> {
    if another && variables.text(TORCHRUN[0])?.is_none() && variables.text(TORCHRUN[1])?.is_none() {
        return Ok(None);
    }
    let Some([rank, world, local_rank, ..]) = variables.all_or_none(&TORCHRUN)? else { return Ok(None) };
    let names = [TORCHRUN[0], TORCHRUN[1], TORCHRUN[2]];
    let place = Place::new(Launcher::Torchrun, names, [&rank, &world, &local_rank])?;
    Ok(Some(place.beside(variables, LOCAL_WORLD)?))
}

/// How many agents of torchrun there are, if such an agent started this process: another launcher may have started them.
pub(super) fn agents(variables: &Variables<'_>) -> Result<Option<usize>, CommError> {
    if variables.text(AGENT_RUN)?.is_none() { Ok(None) } else { variables.number(AGENTS) }
}

/// Where torchrun's ranks meet: at the port that it says, or ours beside it where torchrun itself listens there.
pub(super) fn meeting(variables: &Variables<'_>) -> Result<Meeting, CommError> {
    let value = |name| Ok::<_, CommError>(variables.text(name)?.unwrap_or_default());
    let (host, given) = (value(TORCHRUN[3])?, value(TORCHRUN[4])?);
    let wanted = "a port between 1 and 65535 (65534 under torchrun's agent store)";
    let agent = variables.text(AGENT_STORE)?.is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let port = port("MASTER_PORT", &given, wanted)?;
    let port = if agent { port.checked_add(1) } else { Some(port) };
    let port = port.ok_or_else(|| malformed("MASTER_PORT", &given, wanted))?;
    Ok(Meeting::at(host, port))
}

/// The rank that our own launcher tells.
pub(super) fn ours(variables: &Variables<'_>) -> Result<Option<Place>, CommError> {
    let Some([rank, world, local_rank, _]) = variables.all_or_none(&OURS)? else { return Ok(None) };
    let place = Place::new(Launcher::Ours, [OURS[0], OURS[1], OURS[2]], [&rank, &world, &local_rank])?;
    Ok(Some(Place { local_world: Some(place.world), ..place }))
}

/// Where our launcher listens.
pub(super) fn our_meeting(variables: &Variables<'_>) -> Result<Meeting, CommError> {
    let rendezvous = variables.text(OURS[3])?.unwrap_or_default();
    let address: SocketAddr =
        rendezvous.parse().map_err(|_| malformed(OURS[3], &rendezvous, "an address and a port"))?;
    Ok(Meeting::at(address.ip().to_string(), address.port()))
}
