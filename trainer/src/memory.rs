//! The memory account: bytes of every class that the trainer allocates, now and at most.
//!
//! Three lifetimes of a step are kept apart: activations live from a forward pass until their layer's backward pass,
//! errors for one hop, gradients until the optimizer. Buffers are allocated once and used again, so that the account
//! changes only where the set of buffers does: at the start, for a checkpoint's snapshot, where an operation among the
//! ranks first needs more. What only setting up holds is not in it (initial values, the files of a checkpoint that is
//! resumed from), nor are the kernels' tiles, whose size does not grow with the batch.

use std::fmt;

use warpweft_device::{Buffer, Device, DeviceError, Element};

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Weights, in the type that the forward pass reads.
    Parameters,
    /// Gradients of the weights, f32.
    Gradients,
    /// AdamW's moments, and the f32 master weights of a bf16 model.
    Optimizer,
    /// What a forward pass keeps for its backward pass, the logits included.
    Activations,
    /// Gradients of activations on their way from layer to layer.
    Errors,
    /// Tokens on the device, what is on its way to other ranks, and snapshots for checkpoints.
    Buffers,
}

impl Class {
    /// Every class, in the order of the account.
    pub const ALL: [Class; 6] =
        [Class::Parameters, Class::Gradients, Class::Optimizer, Class::Activations, Class::Errors, Class::Buffers];

    /// Its name in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Parameters => "parameters",
            Class::Gradients => "gradients",
            Class::Optimizer => "optimizer",
            Class::Activations => "activations",
            Class::Errors => "errors",
            Class::Buffers => "buffers",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Bytes by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes([u64; Class::ALL.len()]);

impl Bytes {
    /// Of one class.
    pub fn of(&self, class: Class) -> u64 {
        self.0[class as usize]
    }

    /// Of all classes together.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds to one class.
    pub fn add(&mut self, class: Class, bytes: u64) {
        self.0[class as usize] += bytes;
    }
}

/// The account of one rank.
#[derive(Clone, Debug, Default)]
pub struct Account {
    current: Bytes,
    peak: Bytes,
    peak_total: u64,
}

impl Account {
    /// Enters `bytes` more of a class.
    pub fn enter(&mut self, class: Class, bytes: u64) {
        self.current.add(class, bytes);
        self.peak.0[class as usize] = self.peak.of(class).max(self.current.of(class));
        self.peak_total = self.peak_total.max(self.current.total());
    }

    /// Takes `bytes` of a class off again.
    pub fn leave(&mut self, class: Class, bytes: u64) {
        let held = &mut self.current.0[class as usize];
        debug_assert!(*held >= bytes, "{class}: {bytes} bytes leave, {held} are held");
        *held = held.saturating_sub(bytes);
    }

    /// What is held now.
    pub fn current(&self) -> Bytes {
        self.current
    }

    /// The most of each class that was held at any time.
    pub fn peak(&self) -> Bytes {
        self.peak
    }

    /// The most that was held at one time, all classes together.
    pub fn peak_total(&self) -> u64 {
        self.peak_total
    }
}

/// Allocates buffers of one device and enters them in an account.
pub struct Allocator<'a> {
    /// Where the buffers lie.
    pub device: &'a Device,
    /// Where they are entered.
    pub account: &'a mut Account,
}

impl Allocator<'_> {
    /// A buffer of `len` zeros for `class`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn zeros<T: Element>(&mut self, class: Class, len: usize) -> Result<Buffer<T>, DeviceError> {
        let buffer = self.device.zeros(len)?;
        self.account.enter(class, buffer.bytes() as u64);
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_of_all_is_not_the_sum_of_the_peaks() {
        let mut account = Account::default();
        account.enter(Class::Activations, 100);
        account.leave(Class::Activations, 60);
        account.enter(Class::Buffers, 50);
        assert_eq!(account.current().of(Class::Activations), 40);
        assert_eq!(account.current().total(), 90);
        assert_eq!((account.peak().of(Class::Activations), account.peak().of(Class::Buffers)), (100, 50));
        assert_eq!(account.peak_total(), 100);
    }
}
