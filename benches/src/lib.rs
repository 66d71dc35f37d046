//! Criterion benches of the toolkit, in a package of their own so that no test build waits for criterion. The benches of
//! collectives are `warpweft perf`.
#![forbid(unsafe_code)]
