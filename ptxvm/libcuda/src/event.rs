//! Events.

use std::ffi::c_uint;

use warpweft_ptxvm::system::Event;

use crate::handles::{Handle, Handles};
use crate::pointer::set;
use crate::status::{Status, guard};
use crate::stream;

static EVENTS: Handles<Event> = Handles::new();

/// The event of a handle.
pub(crate) fn find(handle: Handle) -> Result<Event, Status> {
    EVENTS.get(handle)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: *mut Handle, _flags: c_uint) -> i32 {
    guard(|| set(event, EVENTS.add(Event::new())))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: Handle) -> i32 {
    guard(|| EVENTS.remove(event).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> i32 {
    guard(|| {
        let (event, queue) = (find(event)?, stream::queue(stream)?);
        if queue.legacy {
            queue.stream.device().synchronize();
        }
        Ok(queue.stream.record(&event)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: Handle) -> i32 {
    guard(|| if find(event)?.is_reached() { Ok(()) } else { Err(Status::NOT_READY) })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: Handle) -> i32 {
    guard(|| {
        find(event)?.synchronize();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle) -> i32 {
    guard(|| {
        let (start, end) = (find(start)?, find(end)?);
        if !start.is_recorded() || !end.is_recorded() {
            return Err(Status::INVALID_HANDLE);
        }
        if !start.is_reached() || !end.is_reached() {
            return Err(Status::NOT_READY);
        }
        let elapsed = end.since(&start).map(|time| time.as_secs_f32());
        let backwards = start.since(&end).map(|time| -time.as_secs_f32());
        set(milliseconds, elapsed.or(backwards).unwrap_or(0.0) * 1e3)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: Handle, end: Handle) -> i32 {
    cuEventElapsedTime(milliseconds, start, end)
}
