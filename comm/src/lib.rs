//! Collective communication over threads, shared memory and TCP.
//!
//! The parts, from the bottom: [`transport`] moves bytes between two ranks; [`bootstrap`] finds the ranks, proves that
//! they belong to one job and watches whether they live; `collective` holds the algorithms as pure functions and the
//! executor that runs them; [`Communicator`] is what a user calls.
#![deny(unsafe_code)]

pub mod bootstrap;
mod collective;
mod communicator;
mod error;
mod health;
mod notice;
mod reduce;
mod region;
pub mod transport;
mod wait;

pub use collective::{Algorithm, DIRECT_WORLD, SMALL_BYTES, all_reduce_bytes};
pub use communicator::{Communicator, Done, Group, Options, Pending, PendingError, Scope, ScopedPending};
pub use error::{Cause, CommError, Failure};
pub use health::{Health, Verdict};
pub use notice::Notices;
pub use reduce::Op;
pub use region::{OwnedRegion, Region, RegionMut};
