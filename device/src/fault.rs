//! Wrong data that only a kernel sees: a token outside a vocabulary, an index outside a table.
//!
//! A device has one status word. A kernel that finds such data notes which and where in it, unless another one was there
//! first, and writes nothing that depends on the data; the host hears of it at the next synchronisation.

use std::sync::{Mutex, PoisonError};

use crate::driver::{Memory, Queue};
use crate::module::Arg;
use crate::{Device, DeviceError};

/// What a kernel writes: which data (0 is none), in which row, the value found there, and the first value not allowed.
pub(crate) const WORDS: usize = 4;

/// The status word of a device.
pub(crate) struct Faults {
    memory: Memory,
    /// What each number says, the first being 1.
    names: Mutex<Vec<&'static str>>,
}

impl Faults {
    pub(crate) fn new(memory: Memory, queue: &dyn Queue) -> Result<Self, DeviceError> {
        queue.fill(&memory, 0, (WORDS * size_of::<u64>()) as u64, &0u64.to_ne_bytes())?;
        queue.synchronize()?;
        Ok(Self { memory, names: Mutex::default() })
    }

    /// The word's address, and the number by which a kernel names `what`.
    pub(crate) fn arguments(&self, device: &Device, what: &'static str) -> [Arg; 2] {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let index = names.iter().position(|known| *known == what).unwrap_or_else(|| {
            names.push(what);
            names.len() - 1
        });
        [Arg::region((self.memory.address, self.memory.clone()), device), Arg::from(index as u64 + 1)]
    }

    /// Whether any work of `queue` so far has noted wrong data; the word is free again afterwards.
    pub(crate) fn take(&self, device: &Device, queue: &dyn Queue) -> Result<(), DeviceError> {
        let mut words = [0u64; WORDS];
        queue.read(&self.memory, 0, bytemuck::cast_slice_mut(&mut words))?;
        let [number, row, value, limit] = words;
        if number == 0 {
            return Ok(());
        }
        queue.fill(&self.memory, 0, size_of_val(&words) as u64, &0u64.to_ne_bytes())?;
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let what = names.get(number as usize - 1).copied().unwrap_or("a kernel");
        Err(DeviceError::BadData { device: device.to_string(), what, row, value, limit })
    }
}
