//! Pipeline schedules as data: what each rank of a pipeline computes, sends and receives, in which order.
//!
//! A [`Schedule`] is made by name ([`Schedule::new`]) or read from elsewhere ([`Schedule::from_steps`]); both ways end in one
//! checker ([`check`]), which proves it complete, in order of its dependencies and free of deadlock, and counts its memory and
//! its length. Nothing here computes or communicates; whoever runs a pipeline walks [`Schedule::rank`].
#![forbid(unsafe_code)]

mod check;
mod costs;
mod draw;
mod error;
mod fault;
mod machine;
mod messages;
mod name;
mod order;
mod placement;
mod proof;
mod schedule;
mod step;
mod timeline;

pub use check::check;
pub use costs::Costs;
pub use draw::{svg, text};
pub use error::ScheduleError;
pub use fault::Fault;
pub use messages::with_messages;
pub use name::Name;
pub use placement::{Placement, Shape};
pub use proof::Proof;
pub use schedule::Schedule;
pub use step::{Content, Kind, Message, Operation, Step};
pub use timeline::{Span, Timeline};
