//! Order: streams and events.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::driver::{Mark, Queue};
use crate::view::Place;
use crate::{Buffer, Device, DeviceError, DeviceKind, View};

/// An ordered queue of work on one device.
///
/// On the CPU a call has finished when it returns, which is the strictest order that the contract allows: code that is
/// right there without its synchronisations may still be wrong on a GPU, so write them. Elsewhere streams run beside
/// each other and beside the host.
#[derive(Clone)]
pub struct Stream {
    device: Device,
    /// `None` on the CPU; an error where the device could not give one.
    queue: Option<Result<Arc<dyn Queue>, DeviceError>>,
    workspace: Arc<Mutex<Option<Arc<Buffer<u8>>>>>,
}

/// Memory in which the kernels of one op leave results for the next ones: a stream has one, and the op that holds it gives
/// all its kernels to the stream before the next op gets it.
#[derive(Debug)]
pub struct Workspace<'a> {
    memory: Arc<Buffer<u8>>,
    _held: MutexGuard<'a, Option<Arc<Buffer<u8>>>>,
}

impl Workspace<'_> {
    /// Writes bytes to its begin, in the order of the stream that it is of.
    ///
    /// # Errors
    /// More than it holds; a failed copy.
    pub fn write(&self, stream: &Stream, bytes: &[u8]) -> Result<(), DeviceError> {
        let view = self.memory.as_view().slice(..bytes.len())?;
        match view.place {
            Place::Host(_) => Err(DeviceError::NoKernels { what: "working memory", device: stream.device.to_string() }),
            Place::Device { memory, offset, .. } => stream.queue("a copy")?.write(memory, offset, bytes),
        }
    }

    /// The whole of it, at a multiple of 256 bytes: at least what was asked for.
    pub fn as_view(&self) -> View<'_, u8> {
        self.memory.as_view()
    }
}

impl Stream {
    pub(crate) fn new(device: Device, queue: Option<Result<Arc<dyn Queue>, DeviceError>>) -> Self {
        Self { device, queue, workspace: Arc::default() }
    }

    /// The queue of a device with memory of its own.
    pub(crate) fn queue(&self, what: &'static str) -> Result<&dyn Queue, DeviceError> {
        match &self.queue {
            Some(Ok(queue)) => Ok(queue.as_ref()),
            Some(Err(error)) => Err(error.clone()),
            None => Err(DeviceError::NoKernels { what, device: self.device.to_string() }),
        }
    }

    /// The device that it runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Marks `event` as reached once all work given before has finished.
    ///
    /// # Errors
    /// [`DeviceError::WrongDevice`] for an event of another device.
    pub fn record(&self, event: &Event) -> Result<(), DeviceError> {
        self.same_device("the event", &event.device)?;
        if event.reached.get().is_none() {
            let point = match &self.queue {
                None => Point::Time(Instant::now()),
                Some(_) => Point::Mark(self.queue("an event")?.record()?),
            };
            // An event that is recorded again keeps its first point, as no stream may change what another has seen.
            let _ = event.reached.set(point);
        }
        Ok(())
    }

    /// Makes work given from now on wait for `event`, which may be of a device beside this one. An event that no stream
    /// has recorded is not waited for.
    ///
    /// # Errors
    /// [`DeviceError::WrongDevice`] for an event of a device that is not beside this one.
    pub fn wait(&self, event: &Event) -> Result<(), DeviceError> {
        if !self.device.beside(&event.device) {
            self.same_device("the event", &event.device)?;
        }
        match event.reached.get() {
            Some(Point::Mark(mark)) => self.queue("an event")?.wait(mark.as_ref()),
            _ => Ok(()),
        }
    }

    /// At least `bytes` bytes of working memory, in which is anything. It is kept for the next time; only a software device
    /// gives new memory each time, so that its checks see what a kernel reads before another has written it.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn workspace(&self, bytes: usize) -> Result<Workspace<'_>, DeviceError> {
        let mut kept = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        let anew = self.device.kind() == DeviceKind::Software;
        let memory = match kept.take().filter(|memory| !anew && memory.len() >= bytes) {
            Some(memory) => memory,
            // What was kept is freed after the kernels that use it.
            None => Arc::new(self.device.uninitialized(if anew { bytes } else { bytes.next_power_of_two() })?),
        };
        *kept = Some(memory.clone());
        Ok(Workspace { memory, _held: kept })
    }

    /// Blocks until all work given before has finished.
    ///
    /// # Errors
    /// The first error among it; [`DeviceError::Kernel`] where a check of a software device found one;
    /// [`DeviceError::BadData`] where a kernel did.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        if self.queue.is_none() {
            return Ok(());
        }
        let queue = self.queue("a stream")?;
        queue.synchronize()?;
        self.device.faults().map_or(Ok(()), |faults| faults.take(&self.device, queue))
    }

    /// Runs `work`, counts what each kernel that it gives to this stream costs, waits for them, and gives the counters in the
    /// kernels' order beside what `work` gave. Only a software device has counters; its checks do not watch meanwhile.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize); [`DeviceError::NoKernels`] on another device.
    #[cfg(feature = "software")]
    pub fn profile<R>(
        &self,
        work: impl FnOnce() -> R,
    ) -> Result<(R, Vec<crate::ptxvm::observe::profile::Profile>), DeviceError> {
        use crate::software::SoftwareQueue;
        let what = "counters of kernels";
        let Some(queue) = self.queue(what)?.as_any().downcast_ref::<SoftwareQueue>() else {
            return Err(DeviceError::NoKernels { what, device: self.device.to_string() });
        };
        queue.count(true);
        let result = work();
        let done = self.synchronize();
        let profiles = queue.count(false);
        done.map(|()| (result, profiles))
    }

    /// What kernels of this stream have printed up to the last [`synchronize`](Self::synchronize), taken out. Only a
    /// software device keeps it; a real one prints on the process's standard output.
    pub fn take_output(&self) -> Vec<u8> {
        self.queue("the output").map_or_else(|_| Vec::new(), Queue::take_output)
    }

    /// Checks that an argument lies on this stream's device.
    ///
    /// # Errors
    /// [`DeviceError::WrongDevice`] that names the argument.
    pub fn same_device(&self, what: &'static str, device: &Device) -> Result<(), DeviceError> {
        if self.device == *device {
            return Ok(());
        }
        Err(DeviceError::WrongDevice { what, given: format!("{device:?}"), expected: format!("{:?}", self.device) })
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("device", &self.device).finish_non_exhaustive()
    }
}

/// A point in a stream. Recorded once; a new point takes a new event.
#[derive(Clone)]
pub struct Event {
    device: Device,
    reached: Arc<OnceLock<Point>>,
}

/// Where an event was recorded.
enum Point {
    /// On the CPU, which was there already.
    Time(Instant),
    /// In a queue that may still have to come there.
    Mark(Arc<dyn Mark>),
}

impl Event {
    /// An event of `device` that no stream has recorded yet.
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone(), reached: Arc::default() }
    }

    /// Whether a stream has recorded it and come to it.
    pub fn is_reached(&self) -> bool {
        match self.reached.get() {
            None => false,
            Some(Point::Time(_)) => true,
            Some(Point::Mark(mark)) => mark.is_reached(),
        }
    }

    /// The time from `earlier` to this event; `None` while one of them is not reached or the order is the other way.
    pub fn since(&self, earlier: &Event) -> Option<Duration> {
        match (self.reached.get()?, earlier.reached.get()?) {
            (Point::Time(later), Point::Time(earlier)) => later.checked_duration_since(*earlier),
            (Point::Mark(later), Point::Mark(earlier)) => later.since(earlier.as_ref()),
            _ => None,
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event(on {}, reached: {})", self.device, self.is_reached())
    }
}
