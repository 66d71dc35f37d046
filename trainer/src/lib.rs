//! A small reference trainer whose numbers do not depend on the layout.

pub mod checkpoint;
pub mod config;
pub mod data;
pub mod report;
