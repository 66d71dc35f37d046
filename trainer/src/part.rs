//! A rank's part of a batch, read from the data.

use warpweft_device::{DType, DeviceError};

use crate::TrainError;
use crate::data::{DataError, Documents};
use crate::step::{Packed, Sequences};

/// This rank's part of a batch; its memory is used again for the next.
#[derive(Default)]
pub(crate) struct Part {
    inputs: Vec<u32>,
    /// What is to come out.
    pub(crate) targets: Vec<u32>,
    /// Those of each sequence, where several lie side by side.
    documents: Vec<Documents>,
}

impl Part {
    /// Reads `count` sequences of `tokens` tokens, each by its index in the part.
    ///
    /// # Errors
    /// No memory for them; what `read` says.
    pub(crate) fn fill(
        &mut self,
        count: usize,
        tokens: usize,
        read: impl Fn(usize, &mut [u32], &mut [u32]) -> Result<Option<Documents>, DataError>,
    ) -> Result<(), TrainError> {
        let all = count.saturating_mul(tokens);
        for half in [&mut self.inputs, &mut self.targets] {
            let more = all.saturating_sub(half.len());
            let refused = |_| DeviceError::OutOfMemory { count: all, dtype: DType::U32, device: "cpu".into() };
            half.try_reserve_exact(more).map_err(refused)?;
            half.resize(all, 0);
        }
        let sequences = self.inputs.chunks_mut(tokens).zip(self.targets.chunks_mut(tokens));
        self.documents.clear();
        for (index, (ids, targets)) in sequences.enumerate() {
            self.documents.extend(read(index, ids, targets)?);
        }
        Ok(())
    }

    /// The sequences, as a step takes them.
    pub(crate) fn packed(&self) -> Packed<'_> {
        let sequences = Sequences { inputs: &self.inputs, targets: &self.targets };
        Packed { sequences, documents: &self.documents }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_no_memory_holds_is_an_error() {
        let error =
            Part::default().fill(usize::MAX / 4, 2, |_, _, _| Ok(None)).expect_err("more than can be addressed");
        assert!(matches!(error, TrainError::Device(DeviceError::OutOfMemory { .. })), "{error}");
        assert_eq!(error.exit_status(), 2);
    }
}
