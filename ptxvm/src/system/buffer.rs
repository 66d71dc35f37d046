//! Memory of a device with an owner: freed when the last handle is gone.

use std::fmt;
use std::sync::Arc;

use super::Device;

/// Memory of one device. A clone is the same memory; the last one frees it.
#[derive(Clone)]
pub struct Buffer(Arc<Owner>);

struct Owner {
    device: Device,
    address: u64,
    bytes: u64,
}

impl Buffer {
    pub(crate) fn new(device: Device, address: u64, bytes: u64) -> Buffer {
        Buffer(Arc::new(Owner { device, address, bytes }))
    }

    /// Its first address, in every kernel and on every device that may reach it.
    pub fn address(&self) -> u64 {
        self.0.address
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Whose memory it is.
    pub fn device(&self) -> &Device {
        &self.0.device
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Somebody may have freed the address by hand, to see a use after free reported.
        let _ = self.device.memory().free(self.address);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Buffer({} bytes at {:#x} on {})", self.bytes(), self.address(), self.device())
    }
}
