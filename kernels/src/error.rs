//! What can go wrong with a kernel's arguments, as one type. Nothing has been written when a call returns an error,
//! unless the error's own text says otherwise.

use std::fmt;

use warpweft_device::DeviceError;

/// The dimensions of an argument, outermost first; shown as `2 x 3 x 4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dims(pub Vec<usize>);

impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, size) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(" x ")?;
            }
            write!(f, "{size}")?;
        }
        Ok(())
    }
}

/// An error of a kernel: the op, the argument, what was given and what is allowed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The device's own error: memory or an argument of another device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An argument whose length contradicts the shape.
    #[error("{op}: `{argument}` has {given} elements; its shape {expected} needs {}", .expected.0.iter().product::<usize>())]
    Length {
        /// The op.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// Elements given.
        given: usize,
        /// The shape that it must have.
        expected: Dims,
    },
    /// A shape with more elements than memory can address.
    #[error("{op}: the shape {dims} of `{argument}` has more elements than memory can address")]
    TooLarge {
        /// The op.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// Its shape.
        dims: Dims,
    },
    /// A size or count that is not allowed.
    #[error("{op}: `{argument}` is {given}; it must be {allowed}")]
    Size {
        /// The op.
        op: &'static str,
        /// The size or count.
        argument: &'static str,
        /// Its value.
        given: usize,
        /// What is allowed.
        allowed: String,
    },
    /// A number that is not allowed.
    #[error("{op}: `{argument}` is {given}; it must be {allowed}")]
    Number {
        /// The op.
        op: &'static str,
        /// The number.
        argument: &'static str,
        /// Its value.
        given: f64,
        /// What is allowed.
        allowed: String,
    },
    /// An optional argument that this combination of options needs or excludes.
    #[error("{op}: `{argument}` {rule}")]
    Combination {
        /// The op.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// What the combination demands.
        rule: &'static str,
    },
    /// A device for which the op has no kernel.
    #[error("{op}: no kernel for {card}; there are kernels for {exists}")]
    NoKernel {
        /// The op.
        op: &'static str,
        /// The card, and its driver.
        card: String,
        /// What there are kernels for.
        exists: &'static str,
    },
    /// A token or target outside the vocabulary.
    #[error("{op}: row {row} holds token {token}; the vocabulary has {vocab} entries (0 to {})", .vocab.saturating_sub(1))]
    OutOfVocabulary {
        /// The op.
        op: &'static str,
        /// The row (flat index of the token).
        row: usize,
        /// The token.
        token: u32,
        /// Entries of the vocabulary.
        vocab: usize,
    },
}
