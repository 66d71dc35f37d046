//! Streams and events of a software GPU.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use warpweft_ptxvm::memory::AddressSpace;
use warpweft_ptxvm::observe::profile::{Profile, Profiler};
use warpweft_ptxvm::system::{Event, Launch, Run, Stream, SystemError};

use super::failed;
use crate::DeviceError;
use crate::driver::{Mark, Memory, Queue};

pub(crate) struct SoftwareQueue {
    stream: Stream,
    name: String,
    output: Mutex<Vec<u8>>,
    /// Those of the kernels since somebody asked for them.
    profiles: Arc<Mutex<Option<Vec<Profile>>>>,
}

impl SoftwareQueue {
    pub(super) fn new(stream: Stream, name: &str) -> Self {
        Self { stream, name: name.to_owned(), output: Mutex::default(), profiles: Arc::default() }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Counts from now on, or no longer; gives what was counted.
    pub(crate) fn count(&self, on: bool) -> Vec<Profile> {
        let mut profiles = self.profiles.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *profiles, on.then(Vec::new)).unwrap_or_default()
    }

    /// Gives a kernel to the stream, under the counters where they are on.
    pub(super) fn enqueue(&self, launch: Launch) -> Result<(), SystemError> {
        if self.profiles.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return launch.enqueue(&self.stream);
        }
        launch.validate()?;
        let profiles = self.profiles.clone();
        self.stream.submit(move || {
            let mut profiler = Profiler::default();
            let run = launch.observe(&mut profiler)?;
            if let Some(profiles) = profiles.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                profiles.push(profiler.finish());
            }
            Ok(Some(run))
        })
    }

    fn check<T>(&self, result: Result<T, SystemError>) -> Result<T, DeviceError> {
        result.map_err(|error| failed(&self.name, &error))
    }

    /// Work on memory, which `owners` keep alive until it is done.
    fn submit(
        &self,
        owners: [Option<Arc<dyn Any + Send + Sync>>; 2],
        work: impl FnOnce(&AddressSpace) -> Result<(), SystemError> + Send + 'static,
    ) -> Result<(), DeviceError> {
        let device = self.stream.device().clone();
        self.check(self.stream.submit_short(move || {
            device.check()?;
            let done = work(device.memory());
            drop(owners);
            done
        }))
    }

    /// Keeps what the runs printed, and makes an error of the first with a finding that is one.
    fn take(&self, runs: &[Run]) -> Result<(), DeviceError> {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        runs.iter().for_each(|run| output.extend_from_slice(run.output_bytes()));
        match runs.iter().find(|run| run.errors() > 0) {
            Some(run) => Err(DeviceError::Kernel { device: self.name.clone(), report: run.to_string() }),
            None => Ok(()),
        }
    }
}

impl Queue for SoftwareQueue {
    fn write(&self, to: &Memory, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let (address, bytes) = (to.address + offset, bytes.to_vec());
        self.submit([to.owner.clone(), None], move |memory| Ok(memory.write(address, &bytes)?))
    }

    fn read(&self, from: &Memory, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.synchronize()?;
        let device = self.stream.device();
        self.check(device.check())?;
        self.check(device.memory().read(from.address + offset, out).map_err(SystemError::from))
    }

    fn fill(&self, to: &Memory, offset: u64, bytes: u64, value: &[u8]) -> Result<(), DeviceError> {
        let (address, value) = (to.address + offset, value.to_vec());
        self.submit([to.owner.clone(), None], move |memory| Ok(memory.fill(address, bytes, &value)?))
    }

    fn copy(
        &self,
        to: &Memory,
        to_offset: u64,
        from: &Memory,
        from_offset: u64,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let (target, source) = (to.address + to_offset, from.address + from_offset);
        let owners = [to.owner.clone(), from.owner.clone()];
        self.submit(owners, move |memory| Ok(memory.copy(target, source, bytes)?))
    }

    fn record(&self) -> Result<Arc<dyn Mark>, DeviceError> {
        let event = Event::new();
        self.check(self.stream.record(&event))?;
        Ok(Arc::new(SoftwareMark(event)))
    }

    fn wait(&self, mark: &dyn Mark) -> Result<(), DeviceError> {
        match mark.as_any().downcast_ref::<SoftwareMark>() {
            Some(mark) => self.check(self.stream.wait(&mark.0)),
            None => Ok(()),
        }
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        let runs = self.check(self.stream.synchronize())?;
        self.take(&runs)
    }

    fn take_output(&self) -> Vec<u8> {
        std::mem::take(&mut self.output.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct SoftwareMark(Event);

impl Mark for SoftwareMark {
    fn is_reached(&self) -> bool {
        self.0.is_reached()
    }

    fn since(&self, earlier: &dyn Mark) -> Option<Duration> {
        self.0.since(&earlier.as_any().downcast_ref::<SoftwareMark>()?.0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
