//! Calls of which one argument at a time is made wrong.

use std::cell::RefCell;

use warpweft_device::{Buffer, Element};

use super::On;

/// What is wrong with an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// It lacks an element.
    Short,
    /// It has one too many.
    Long,
    /// It lies on another device.
    Elsewhere,
}

/// Where the arguments of a call come from.
pub(crate) struct Call<'a> {
    pub(crate) on: &'a On,
    elsewhere: &'a On,
    /// The argument that is wrong.
    wrong: Option<(&'static str, Wrong)>,
    /// Whether it must write nothing.
    refused: bool,
    /// The arguments that were asked for, and how long they must be.
    pub(crate) named: RefCell<Vec<(&'static str, usize)>>,
}

/// What an output holds before a call.
const BEFORE: u8 = 0x41;

impl<'a> Call<'a> {
    pub(crate) fn new(on: &'a On, elsewhere: &'a On, wrong: Option<(&'static str, Wrong)>, refused: bool) -> Self {
        Self { on, elsewhere, wrong, refused, named: RefCell::default() }
    }

    fn of_bytes<T: Element>(&self, name: &'static str, len: usize, byte: u8) -> Buffer<T> {
        self.named.borrow_mut().push((name, len));
        let wrong = self.wrong.filter(|(wrong, _)| *wrong == name).map(|(_, wrong)| wrong);
        let len = match wrong {
            Some(Wrong::Short) => len - 1,
            Some(Wrong::Long) => len + 1,
            _ => len,
        };
        let mut values = vec![T::zeroed(); len];
        bytemuck::cast_slice_mut::<T, u8>(&mut values).fill(byte);
        if wrong == Some(Wrong::Elsewhere) { self.elsewhere.up(&values) } else { self.on.up(&values) }
    }

    /// An argument to read, of zeros.
    pub(crate) fn input<T: Element>(&self, name: &'static str, len: usize) -> Buffer<T> {
        self.of_bytes(name, len, 0)
    }

    /// An argument to write.
    pub(crate) fn output<T: Element>(&self, name: &'static str, len: usize) -> Buffer<T> {
        self.of_bytes(name, len, BEFORE)
    }

    /// Asserts that a call which was wrong has not written to an output.
    #[track_caller]
    pub(crate) fn untouched<T: Element>(&self, outputs: &[&Buffer<T>]) {
        for output in outputs {
            let on = if output.device() == &self.on.device { self.on } else { self.elsewhere };
            let all = on.down(output);
            let untouched = bytemuck::cast_slice::<T, u8>(&all).iter().all(|byte| *byte == BEFORE);
            assert!(!self.refused || untouched, "{:?}: written", self.wrong);
        }
    }
}
