//! Host memory where kernels can reach it: itself on the CPU, a copy on a device whose memory is its own.
//!
//! What ranks send each other passes through the host on every device, and is put in order there.

use warpweft_device::{Device, Element, View};

use super::Context;
use crate::TrainError;
use crate::memory::Entered;

/// What kernels read of what the host has.
pub(super) enum Reached<'a, T: Element> {
    Here(View<'a, T>),
    There(Entered<T>),
}

impl<T: Element> Reached<'_, T> {
    pub(super) fn as_view(&self) -> View<'_, T> {
        match self {
            Self::Here(view) => *view,
            Self::There(copy) => copy.as_view(),
        }
    }
}

impl Context {
    /// Lets kernels of `device` reach what the host has.
    pub(super) fn reach<'a, T: Element>(
        &self,
        device: &'a Device,
        host: &'a [T],
    ) -> Result<Reached<'a, T>, TrainError> {
        match device.cpu_pool() {
            Ok(_) => Ok(Reached::Here(View::from_host(device, host)?)),
            Err(_) => Ok(Reached::There(self.entered(device.upload(host))?)),
        }
    }
}
