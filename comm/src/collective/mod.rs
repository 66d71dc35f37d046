//! The algorithms, and the machine that runs them.
//!
//! An algorithm is a pure function from a rank, the world and counts to a [`plan::Plan`]; a checker (in the tests)
//! proves of every plan that each contribution arrives exactly once, that bounded links cannot deadlock and how many
//! bytes are sent. [`engine::Engine`] runs plans over any transport.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod barrier;
mod broadcast;
#[cfg(test)]
mod check;
mod choice;
mod conclude;
mod descriptor;
mod engine;
mod finding;
mod frame;
mod memory;
mod plan;
mod reduce_scatter;
mod run;

pub use choice::{Algorithm, DIRECT_WORLD, SMALL_BYTES, all_reduce_bytes};
pub(crate) use choice::{Call, Shape, plan};
pub(crate) use descriptor::{Descriptor, Operation, hash_counts};
pub(crate) use engine::Engine;
pub(crate) use memory::Memory;
pub(crate) use plan::{How, Parts, Place, Span};
pub(crate) use run::{Circumstances, Told};
