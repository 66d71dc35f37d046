//! Collective communication over threads, shared memory and TCP.
//!
//! The parts, from the bottom: [`transport`] moves bytes between two ranks; [`bootstrap`] finds the ranks, proves that
//! they belong to one job and watches whether they live; `collective` holds the algorithms as pure functions and the
//! executor that runs them; [`Communicator`] is what a user calls.
#![deny(unsafe_code)]

pub mod bootstrap;
mod error;
mod health;
mod notice;
pub mod transport;

pub use error::{Cause, CommError, Failure};
pub use health::{Health, Verdict};
pub use notice::Notices;
