//! How work and state are spread over ranks: one file a parallelism, and the layouts they are all derived from.

pub mod data;
pub mod layout;
