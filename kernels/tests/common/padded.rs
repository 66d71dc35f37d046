//! Arrays between NaNs, which a kernel must neither use nor overwrite, at any offset from the begin of an allocation.

use warpweft_device::{Buffer, Float, View, ViewMut};

use super::On;

/// NaNs behind an array.
const BEHIND: usize = 8;

pub(crate) struct Padded<T> {
    buffer: Buffer<T>,
    before: usize,
    len: usize,
}

impl On {
    /// `values` on the device, with `before` NaNs before it and some behind: 8 keep 16 bytes' alignment in any type, 1 takes it
    /// away. Behind multiples of 3 there are none, so that the array ends where the device's own red zone begins.
    pub(crate) fn padded<T: Float>(&self, before: usize, values: &[T]) -> Padded<T> {
        let nan = T::from_f32(f32::NAN);
        let all: Vec<T> =
            [&vec![nan; before], values, &[nan; BEHIND][..if before.is_multiple_of(3) { 0 } else { BEHIND }]].concat();
        Padded { buffer: self.up(&all), before, len: values.len() }
    }

    /// The same of NaNs alone, so that an element which an op forgets to write is seen.
    pub(crate) fn padded_garbage<T: Float>(&self, before: usize, len: usize) -> Padded<T> {
        self.padded(before, &vec![T::from_f32(f32::NAN); len])
    }
}

impl<T: Float> Padded<T> {
    pub(crate) fn view(&self) -> View<'_, T> {
        self.buffer.view(self.before..self.before + self.len).unwrap()
    }

    pub(crate) fn view_mut(&mut self) -> ViewMut<'_, T> {
        self.buffer.view_mut(self.before..self.before + self.len).unwrap()
    }

    /// The values, once the NaNs around them have proved to be there still.
    #[track_caller]
    pub(crate) fn down(&self, on: &On) -> Vec<T> {
        let mut all = on.down(&self.buffer);
        let behind = all.split_off(self.before + self.len);
        let values = all.split_off(self.before);
        assert!(all.iter().chain(&behind).all(|x| x.to_f64().is_nan()), "written outside of the array");
        values
    }
}
