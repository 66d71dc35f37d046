//! What a host sees: systems of devices, memory, modules, launches, streams and events.

mod argument;
mod buffer;
mod device;
mod error;
mod launch;
mod module;
mod options;
mod run;
mod stream;

pub use argument::{Argument, Pointer, Value};
pub use buffer::Buffer;
pub use device::{Device, DeviceOptions, System};
pub use error::SystemError;
pub use launch::Launch;
pub use module::{Global, Kernel, Module};
pub use options::{DEFAULT_LIMIT, DEFAULT_MOST_ERRORS, LaunchOptions};
pub use run::Run;
pub use stream::{Event, Stream};
