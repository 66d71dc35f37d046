//! A stand-in for `libcuda.so.1` over ptxvm, so that code which drives a real GPU runs in tests on machines without one.
//!
//! It exports the part of the CUDA driver API that such code calls, by its names and numbers (CUDA Driver API reference).
//! Handles are numbers, never addresses, so a wrong one is an error and not a crash. Its devices are named `ptxvm`, and
//! nothing finds it by accident: a test makes a folder with a `libcuda.so.1` link to it, for a child process only.
//!
//! `PTXVM_DEVICES` says how many devices there are (2), `PTXVM_OPTIONS` how they run, as `sm=90&check=all&seed=1`.
//! Findings of checks go to standard error, as a GPU's own tools do it, and are a launch failure at the next synchronise.
#![allow(non_snake_case, reason = "the names are those of the CUDA driver API")]

mod context;
mod device;
mod error;
mod event;
mod handles;
mod kernel;
mod memory;
mod module;
mod pointer;
mod state;
mod status;
mod stream;
