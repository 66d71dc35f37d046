//! The unit tests of the boundary's errors, without the exported functions around them.
#![forbid(unsafe_code)]
#![allow(dead_code, reason = "only the errors and their guard are looked at here")]

#[path = "../src/fault.rs"]
mod fault;
