//! The `warpweft` command.
#![forbid(unsafe_code)]

fn main() {}
