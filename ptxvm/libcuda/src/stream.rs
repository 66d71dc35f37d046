//! Streams. The null stream orders with all others of its device, as the legacy default stream does.

use std::ffi::{c_uint, c_void};
use std::io::{self, Write};

use warpweft_ptxvm::report::{Check, Report, Severity};
use warpweft_ptxvm::system::{Run, Stream, SystemError};

use crate::handles::{Handle, Handles};
use crate::pointer::set;
use crate::status::{Status, guard};
use crate::{context, event, state};

/// A stream and its device.
#[derive(Clone)]
pub(crate) struct Queue {
    pub(crate) stream: Stream,
    pub(crate) ordinal: i32,
    /// The null stream: whatever is given to it waits for the device and is waited for.
    pub(crate) legacy: bool,
}

static STREAMS: Handles<Queue> = Handles::new();

/// The stream of a handle: 0 and 1 are the legacy stream of the current context, 2 the per-thread one, which is the same here.
pub(crate) fn queue(handle: Handle) -> Result<Queue, Status> {
    if handle > 2 {
        return STREAMS.get(handle);
    }
    let ordinal = context::current()?;
    Ok(Queue { stream: state::default_stream(ordinal)?.clone(), ordinal, legacy: true })
}

impl Queue {
    /// Gives work to the stream; on the null stream all work before is done first, and this is done when it returns.
    pub(crate) fn submit(
        &self,
        work: impl FnOnce() -> Result<Option<Run>, SystemError> + Send + 'static,
    ) -> Result<(), Status> {
        if self.legacy {
            self.stream.device().synchronize();
        }
        self.stream.submit(work)?;
        if self.legacy {
            self.stream.device().synchronize();
        }
        Ok(())
    }

    /// Waits, and gives the first thing that went wrong.
    pub(crate) fn synchronize(&self) -> Result<(), Status> {
        if self.legacy {
            self.stream.device().synchronize();
        }
        verdict(self.stream.synchronize())
    }
}

/// What a device's kernels did wrong: told on standard error, and as a status.
fn verdict(runs: Result<Vec<Run>, SystemError>) -> Result<(), Status> {
    let runs = runs?;
    for run in runs.iter().filter(|run| !run.output_bytes().is_empty()) {
        tell(&run.output(), false);
    }
    let Some(run) = runs.iter().find(|run| run.errors() > 0 || run.failure().is_some()) else { return Ok(()) };
    tell(&run.to_string(), true);
    let worst = run.reports.iter().rfind(|report| report.severity == Severity::Error);
    Err(worst.map_or(Status::LAUNCH_FAILED, status_of))
}

/// A driver has no other place for what kernels print and what checks find. A closed one is no error of the call.
fn tell(text: &str, error: bool) {
    let _ = if error { io::stderr().write_all(text.as_bytes()) } else { io::stdout().write_all(text.as_bytes()) };
}

/// The status that a GPU gives for a finding.
fn status_of(report: &Report) -> Status {
    match (report.check, report.kind) {
        (_, "misaligned") => Status::MISALIGNED_ADDRESS,
        (Check::Memcheck, _)
        | (_, "out-of-bounds" | "use-after-free" | "wrong-space" | "no-peer-access" | "read-only") => {
            Status::ILLEGAL_ADDRESS
        }
        (_, "assert") => Status::ASSERT,
        (_, "trap") => Status::ILLEGAL_INSTRUCTION,
        (_, "limit") => Status::TIMEOUT,
        _ => Status::LAUNCH_FAILED,
    }
}

/// All streams of a device: the first thing that went wrong on any.
pub(crate) fn synchronize_device(ordinal: i32) -> Result<(), Status> {
    state::device(ordinal)?.synchronize();
    let own = STREAMS.all().into_iter().filter(|queue| queue.ordinal == ordinal);
    let all: Vec<Stream> = own.map(|queue| queue.stream).chain([state::default_stream(ordinal)?.clone()]).collect();
    let mut first = Ok(());
    for stream in all {
        first = first.and(verdict(stream.synchronize()));
    }
    first
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: *mut Handle, flags: c_uint) -> i32 {
    guard(|| {
        if flags > 1 {
            return Err(Status::INVALID_VALUE);
        }
        let queue = Queue { stream: context::device()?.stream(), ordinal: context::current()?, legacy: false };
        set(stream, STREAMS.add(queue))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, _priority: i32) -> i32 {
    cuStreamCreate(stream, flags)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: Handle) -> i32 {
    // Work that is still queued is done before its thread ends, as with a driver.
    guard(|| STREAMS.remove(stream).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: Handle) -> i32 {
    guard(|| queue(stream)?.synchronize())
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: Handle) -> i32 {
    guard(|| {
        let queue = queue(stream)?;
        if queue.stream.is_idle() { queue.synchronize() } else { Err(Status::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(stream: Handle, context: *mut usize) -> i32 {
    guard(|| set(context, context::of(queue(stream)?.ordinal)))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) -> i32 {
    guard(|| {
        let (queue, event) = (queue(stream)?, event::find(event)?);
        Ok(queue.stream.wait(&event)?)
    })
}

/// A host function in a stream, as C passes it.
type HostFunction = extern "C" fn(*mut c_void);

/// A pointer that travels to the stream's thread, which is all that is done with it.
struct UserData(*mut c_void);

// SAFETY: the driver API promises the pointer to a host function that runs on a thread of the driver's; the caller has
// to provide for that.
unsafe impl Send for UserData {}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(stream: Handle, function: Option<HostFunction>, data: *mut c_void) -> i32 {
    guard(|| {
        let function = function.ok_or(Status::INVALID_VALUE)?;
        let data = UserData(data);
        queue(stream)?.submit(move || {
            let UserData(pointer) = { data };
            function(pointer);
            Ok(None)
        })
    })
}
