//! What a list of a rank is made of.

use std::fmt;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Forward.
    F,
    /// Backward to the input alone: the error for the chunk before.
    B,
    /// Backward to the weights alone: gradients. Ends the life of the activations.
    W,
    /// Backward to input and weights in one; the error leaves at its end.
    BW,
}

impl Kind {
    /// Whether it makes the error for the chunk before.
    pub fn makes_error(self) -> bool {
        matches!(self, Kind::B | Kind::BW)
    }

    /// Whether the activations of its micro-batch are free after it.
    pub fn frees(self) -> bool {
        matches!(self, Kind::W | Kind::BW)
    }
}

/// One computation of one chunk for one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Operation {
    /// What is computed.
    pub kind: Kind,
    /// Of which chunk ([`crate::Placement::chunks`]).
    pub chunk: usize,
    /// For which micro-batch of the step.
    pub micro_batch: usize,
}

impl Operation {
    /// The operation of this kind, chunk and micro-batch.
    pub fn new(kind: Kind, chunk: usize, micro_batch: usize) -> Self {
        Self { kind, chunk, micro_batch }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of micro-batch {} in chunk {}", self.kind, self.micro_batch, self.chunk)
    }
}

/// What a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Content {
    /// The output of a chunk's forward, which is the input of the next chunk.
    Activation,
    /// The error that a chunk's backward makes for the chunk before.
    Error,
}

/// One tensor on its way between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    /// What it carries.
    pub content: Content,
    /// The chunk on this rank that made it (in a `Send`) or takes it (in a `Recv`).
    pub chunk: usize,
    /// The micro-batch that it belongs to.
    pub micro_batch: usize,
    /// The rank at the other end.
    pub peer: usize,
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let content = match self.content {
            Content::Activation => "activation",
            Content::Error => "error",
        };
        write!(f, "{content} of micro-batch {} at chunk {} with rank {}", self.micro_batch, self.chunk, self.peer)
    }
}

/// One entry of a rank's list.
///
/// The lists stay free of deadlock even where a `Send` waits until its `Recv` has come up in the peer's list, so any amount of
/// buffering is enough. A runner may do better: start a send, go on, and look after it later; post a receive, and wait for it
/// at the operation that needs it. Between two ranks both lists name the messages of one direction in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Compute.
    Compute(Operation),
    /// Send what the operation just before made.
    Send(Message),
    /// Take what a later operation of this list needs.
    Recv(Message),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Compute(operation) => write!(f, "{operation}"),
            Step::Send(message) => write!(f, "the send of the {message}"),
            Step::Recv(message) => write!(f, "the receive of the {message}"),
        }
    }
}
