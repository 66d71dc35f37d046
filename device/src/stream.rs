//! Order: streams and events.

use std::sync::Arc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::{Device, DeviceError};

/// An ordered queue of work on one device.
///
/// On the CPU a call has finished when it returns, which is the strictest order that the contract allows: code that is
/// right there without its synchronisations may still be wrong on a GPU, so write them.
#[derive(Clone, Debug)]
pub struct Stream {
    device: Device,
}

impl Stream {
    pub(crate) fn new(device: Device) -> Self {
        Self { device }
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
        // An event that is recorded again keeps its first time, as no stream may change what another has seen.
        let _ = event.reached.set(Instant::now());
        Ok(())
    }

    /// Makes work given from now on wait for `event`.
    ///
    /// # Errors
    /// [`DeviceError::WrongDevice`] for an event of another device.
    pub fn wait(&self, event: &Event) -> Result<(), DeviceError> {
        self.same_device("the event", &event.device)
    }

    /// Blocks until all work given before has finished, and reports the first error among it.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        Ok(())
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

/// A point in a stream. Recorded once; a new point takes a new event.
#[derive(Clone, Debug)]
pub struct Event {
    device: Device,
    reached: Arc<OnceLock<Instant>>,
}

impl Event {
    /// An event of `device` that no stream has recorded yet.
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone(), reached: Arc::default() }
    }

    /// Whether a stream has recorded it and come to it.
    pub fn is_reached(&self) -> bool {
        self.reached.get().is_some()
    }

    /// The time from `earlier` to this event; `None` while one of them is not reached or the order is the other way.
    pub fn since(&self, earlier: &Event) -> Option<Duration> {
        self.reached.get()?.checked_duration_since(*earlier.reached.get()?)
    }
}
