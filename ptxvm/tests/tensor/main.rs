//! The tensor cores: layouts element by element from the PTX ISA's formulas, sums against the published rules computed
//! here in whole numbers, corner by corner.
#![forbid(unsafe_code)]

mod corners;
mod layout;
mod machine;
mod rule;
mod sums;
