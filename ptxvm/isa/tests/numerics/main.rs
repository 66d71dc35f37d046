//! The device's arithmetic against its definitions: exact numbers rounded once, and functions computed with 120 bits.
#![forbid(unsafe_code)]

mod approx;
mod arithmetic;
#[allow(dead_code)]
mod exact;
mod formats;
mod precise;
mod random;
