//! A small reference trainer whose numbers do not depend on the layout.
//!
//! [`model`] says what is computed, [`step`] what a step of training does with it, [`parallel`] how the ranks share the
//! work and sum the gradients; [`mod@run`] puts them together with [`config`], [`data`], [`checkpoint`] and [`report`].
#![forbid(unsafe_code)]

pub mod bench;
mod besides;
pub mod checkpoint;
pub mod config;
pub mod data;
pub mod diff;
pub mod dump;
mod error;
mod feed;
pub mod flops;
pub mod forecast;
pub mod memory;
pub mod model;
mod numbers;
pub mod optimizer;
pub mod parallel;
mod part;
mod recipe;
pub mod report;
pub mod run;
pub mod sample;
pub mod step;
mod summary;

pub use error::TrainError;
pub use run::{Outcome, run};
