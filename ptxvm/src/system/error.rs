//! What a host can do wrong, or ask for in vain.

use crate::exec;
use crate::lower::CompileError;
use crate::memory::{DeviceId, MemoryError};
use crate::types::Target;

/// An error of the host's side. What a kernel does wrong is no error of the call that ran it, but a report of its
/// [`Run`](super::Run).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SystemError {
    /// Memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A module's text.
    #[error("the module does not compile: {0}")]
    Compile(#[from] CompileError),
    /// A module for a newer GPU than the device is.
    #[error("the module is for {module} and the device is {device}: a module runs on its own target and later ones")]
    Target {
        /// Of the module.
        module: Target,
        /// Of the device.
        device: Target,
    },
    /// A variable that another module would have to define.
    #[error("variable `{name}` is .extern, and modules are not linked here: define it in the module")]
    ExternalVariable {
        /// The variable.
        name: String,
    },
    /// A kernel that the module does not have.
    #[error("the module has no kernel `{name}`; it has {kernels}")]
    NoKernel {
        /// The name asked for.
        name: String,
        /// The kernels there are.
        kernels: String,
    },
    /// A variable that the module does not have.
    #[error("the module has no variable `{name}`; it has {variables}")]
    NoVariable {
        /// The name asked for.
        name: String,
        /// The variables there are.
        variables: String,
    },
    /// Too few or too many arguments.
    #[error("kernel `{kernel}` takes {wanted} arguments, {given} given; its parameters: {params}")]
    ArgumentCount {
        /// The kernel.
        kernel: String,
        /// Arguments given.
        given: usize,
        /// Arguments taken.
        wanted: usize,
        /// Names and types.
        params: String,
    },
    /// An argument of the wrong size or kind.
    #[error("kernel `{kernel}`: parameter {index} `{name}` is {wanted}, given is {given}")]
    Argument {
        /// The kernel.
        kernel: String,
        /// Which, from 0.
        index: usize,
        /// Its name in the text.
        name: String,
        /// What was passed.
        given: String,
        /// What the parameter is.
        wanted: String,
    },
    /// Thread-block clusters.
    #[error("kernel `{kernel}`: a cluster of {cluster:?} blocks asked for; clusters do not run here, only [1, 1, 1]")]
    Cluster {
        /// The kernel.
        kernel: String,
        /// The shape asked for.
        cluster: [u32; 3],
    },
    /// An argument or stream of another system of devices.
    #[error("{what} is of another system of devices than the launch")]
    OtherSystem {
        /// What.
        what: &'static str,
    },
    /// A launch that cannot begin.
    #[error(transparent)]
    Launch(#[from] exec::LaunchError),
    /// A kernel has failed on this device, which is then unusable until its error is cleared.
    #[error("{device} has stopped after kernel `{kernel}`: {reason}")]
    Stopped {
        /// Where.
        device: DeviceId,
        /// The kernel that failed.
        kernel: String,
        /// How.
        reason: String,
    },
    /// A setting that does not exist or cannot have the value.
    #[error("{key} cannot be `{value}`: use {wanted}")]
    Option {
        /// The setting.
        key: String,
        /// The value given.
        value: String,
        /// What is possible.
        wanted: String,
    },
    /// Values that do not fill a buffer.
    #[error("{bytes} bytes are no whole number of values of {size} bytes")]
    Ragged {
        /// Bytes of the buffer.
        bytes: u64,
        /// Bytes of a value.
        size: usize,
    },
    /// The host has no thread for a stream.
    #[error("cannot start a thread for a stream: {reason}; lower the number of streams or raise `ulimit -u`")]
    Thread {
        /// The operating system's reason.
        reason: String,
    },
    /// Work of a stream panicked: a defect of this library.
    #[error("work of a stream panicked, which is a defect of ptxvm; please report it with the module")]
    Broken,
}
