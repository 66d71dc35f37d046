//! The memory account: bytes of every class that the trainer allocates, now and at most; and what they will be, from sizes
//! alone ([`predict`]).
//!
//! Three lifetimes of a step are kept apart: activations live from a forward pass until their layer's backward pass,
//! errors for one hop, gradients until the optimizer. Most buffers are allocated once and used again; what comes and goes
//! within a step (attention over parts of sequences, the trees of exact sums) is [`Held`] as long as it is there. What only
//! setting up holds is not in it (initial values, the files of a checkpoint that is resumed from), nor are the kernels'
//! tiles, whose size does not grow with the batch.

mod predict;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpweft_device::{Buffer, Device, DeviceError, Element};

pub use predict::predict;

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
    /// Tokens on the device, units of weights and gradients that are whole for a while, parts of sequences that travel.
    Buffers,
    /// Weights and state on their way to a checkpoint.
    Snapshots,
    /// What the communicators hold for what is on its way; it is theirs to say, and not predicted.
    Communicators,
}

impl Class {
    /// Every class, in the order of the account.
    pub const ALL: [Class; 8] = [
        Class::Parameters,
        Class::Gradients,
        Class::Optimizer,
        Class::Activations,
        Class::Errors,
        Class::Buffers,
        Class::Snapshots,
        Class::Communicators,
    ];

    /// Whether [`predict`] knows it from the sizes alone.
    pub const fn is_predicted(self) -> bool {
        !matches!(self, Class::Snapshots | Class::Communicators)
    }

    /// Its name in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Parameters => "parameters",
            Class::Gradients => "gradients",
            Class::Optimizer => "optimizer",
            Class::Activations => "activations",
            Class::Errors => "errors",
            Class::Buffers => "buffers",
            Class::Snapshots => "snapshots",
            Class::Communicators => "communicators",
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

/// The account of one rank: a handle, whose clones are the same account.
#[derive(Clone, Debug, Default)]
pub struct Account(Arc<Mutex<Totals>>);

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    current: Bytes,
    peak: Bytes,
    peak_total: u64,
}

impl Account {
    fn totals(&self) -> MutexGuard<'_, Totals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters `bytes` more of a class.
    pub fn enter(&self, class: Class, bytes: u64) {
        let mut totals = self.totals();
        totals.current.add(class, bytes);
        totals.peak.0[class as usize] = totals.peak.of(class).max(totals.current.of(class));
        totals.peak_total = totals.peak_total.max(totals.current.total());
    }

    /// Takes `bytes` of a class off again.
    pub fn leave(&self, class: Class, bytes: u64) {
        let held = &mut self.totals().current.0[class as usize];
        debug_assert!(*held >= bytes, "{class}: {bytes} bytes leave, {held} are held");
        *held = held.saturating_sub(bytes);
    }

    /// Enters `bytes` of a class until what is returned goes.
    pub fn hold(&self, class: Class, bytes: u64) -> Held {
        self.enter(class, bytes);
        Held { account: self.clone(), class, bytes }
    }

    /// What is held now.
    pub fn current(&self) -> Bytes {
        self.totals().current
    }

    /// The most of each class that was held at any time.
    pub fn peak(&self) -> Bytes {
        self.totals().peak
    }

    /// The most that was held at one time, all classes together.
    pub fn peak_total(&self) -> u64 {
        self.totals().peak_total
    }
}

/// Bytes that are in an account as long as this is there.
#[derive(Debug)]
pub struct Held {
    account: Account,
    class: Class,
    bytes: u64,
}

impl Held {
    /// Makes them `bytes`.
    pub fn set(&mut self, bytes: u64) {
        self.account.enter(self.class, bytes.saturating_sub(self.bytes));
        self.account.leave(self.class, self.bytes.saturating_sub(bytes));
        self.bytes = bytes;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.account.leave(self.class, self.bytes);
    }
}

/// A buffer that is in an account as long as it is there.
pub(crate) struct Entered<T: Element> {
    buffer: Buffer<T>,
    _held: Held,
}

impl<T: Element> Entered<T> {
    /// Enters a buffer.
    pub(crate) fn new(account: &Account, class: Class, buffer: Buffer<T>) -> Self {
        let bytes = buffer.bytes() as u64;
        Self { buffer, _held: account.hold(class, bytes) }
    }
}

impl<T: Element> Deref for Entered<T> {
    type Target = Buffer<T>;

    fn deref(&self) -> &Buffer<T> {
        &self.buffer
    }
}

impl<T: Element> DerefMut for Entered<T> {
    fn deref_mut(&mut self) -> &mut Buffer<T> {
        &mut self.buffer
    }
}

/// Allocates buffers of one device and enters them in an account.
pub struct Allocator<'a> {
    /// Where the buffers lie.
    pub device: &'a Device,
    /// Where they are entered.
    pub account: &'a Account,
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
        let account = Account::default();
        account.enter(Class::Activations, 100);
        account.leave(Class::Activations, 60);
        account.enter(Class::Buffers, 50);
        assert_eq!(account.current().of(Class::Activations), 40);
        assert_eq!(account.current().total(), 90);
        assert_eq!((account.peak().of(Class::Activations), account.peak().of(Class::Buffers)), (100, 50));
        assert_eq!(account.peak_total(), 100);
    }

    #[test]
    fn what_is_held_leaves_with_its_holder() {
        let account = Account::default();
        let mut held = account.hold(Class::Buffers, 10);
        held.set(30);
        held.set(5);
        assert_eq!((account.current().of(Class::Buffers), account.peak().of(Class::Buffers)), (5, 30));
        drop(held);
        assert_eq!(account.current(), Bytes::default());
    }
}
