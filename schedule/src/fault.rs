//! What the checker finds wrong.

use thiserror::Error;

use crate::{Operation, Step};

/// The first thing that is wrong with the lists of a schedule.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum Fault {
    /// One list for each rank.
    #[error("{lists} lists for {ranks} ranks")]
    Lists {
        /// Lists.
        lists: usize,
        /// Ranks.
        ranks: usize,
    },
    /// A chunk or micro-batch that is not there, or a chunk of another rank or direction.
    #[error("rank {rank}, step {at}: {step} does not belong there")]
    Place {
        /// Whose list.
        rank: usize,
        /// Index in the list.
        at: usize,
        /// The step.
        step: Step,
    },
    /// Twice the same.
    #[error("rank {rank}, step {at}: {step} stands there a second time")]
    Twice {
        /// Whose list.
        rank: usize,
        /// Index in the list.
        at: usize,
        /// The step.
        step: Step,
    },
    /// Something that it needs comes later in the list or not at all.
    #[error("rank {rank}, step {at}: {step} stands before {needs}")]
    Early {
        /// Whose list.
        rank: usize,
        /// Index in the list.
        at: usize,
        /// The step.
        step: Step,
        /// What it needs.
        needs: &'static str,
    },
    /// An operation is in no list.
    #[error("{0} is missing")]
    Missing(Operation),
    /// Two ranks disagree on the order of what goes between them.
    #[error("rank {rank}, step {at}: {step} meets another message from that rank: {met}")]
    Crossed {
        /// The receiver.
        rank: usize,
        /// Index in its list.
        at: usize,
        /// Its receive.
        step: Step,
        /// What the sender sends there.
        met: Step,
    },
    /// No rank can go on.
    #[error("deadlock with room for {room} messages between two ranks: rank {rank} waits at step {at} for {step}")]
    Deadlock {
        /// Messages that may be on their way from one rank to another.
        room: usize,
        /// The first rank that waits.
        rank: usize,
        /// Index in its list.
        at: usize,
        /// What it waits for.
        step: Step,
    },
    /// Messages that nobody takes.
    #[error("rank {from} sends rank {to} {count} messages more than it takes")]
    Unread {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// How many.
        count: usize,
    },
    /// More than may be held.
    #[error("rank {rank} holds {held} activations of a chunk at once, and the limit is {limit}")]
    Memory {
        /// The rank.
        rank: usize,
        /// Most at once.
        held: usize,
        /// The limit.
        limit: usize,
    },
}
