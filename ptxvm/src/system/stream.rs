//! Streams and events: queues of work in order, that run beside each other.
//!
//! A stream with work has a thread of the host, so that kernels of several streams and devices run at the same time and
//! can wait for each other, as device-side communication does. What one stream does depends on its own order only; what
//! two streams do without an event between them has no order, here as on a GPU.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Device, Run, SystemError};

type Work = Box<dyn FnOnce() -> Result<Option<Run>, SystemError> + Send>;

/// An ordered queue of work on one device. A clone is the same queue.
#[derive(Clone)]
pub struct Stream {
    device: Device,
    queue: Arc<Queue>,
}

#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    /// A thread works on it, or the caller does.
    busy: bool,
    runs: Vec<Run>,
    error: Option<SystemError>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does one piece of work and keeps what came of it; the first error stays until somebody synchronises.
    fn perform(&self, work: Work) {
        let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(SystemError::Broken));
        let mut state = self.lock();
        match done {
            Ok(Some(run)) => state.runs.push(run),
            Ok(None) => {}
            Err(error) => {
                state.error.get_or_insert(error);
            }
        }
    }

    /// A thread that empties the queue.
    fn start(queue: &Arc<Queue>) -> Result<(), SystemError> {
        let queue = Arc::clone(queue);
        let thread = std::thread::Builder::new().name("ptxvm-stream".to_owned());
        let started = thread.spawn(move || queue.drain());
        started.map(drop).map_err(|error| SystemError::Thread { reason: error.to_string() })
    }

    fn drain(&self) {
        loop {
            let mut state = self.lock();
            let Some(work) = state.waiting.pop_front() else {
                state.busy = false;
                self.changed.notify_all();
                return;
            };
            drop(state);
            self.perform(work);
        }
    }

    /// Waits until nothing is left to do.
    pub(crate) fn wait(&self) {
        let mut state = self.lock();
        while state.busy {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Stream {
    pub(crate) fn new(device: Device) -> Stream {
        let queue = Arc::new(Queue::default());
        device.register(&queue);
        Stream { device, queue }
    }

    /// The device it runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Gives work to the queue and returns at once. A thread takes it up; it ends with the queue's last work.
    ///
    /// # Errors
    /// [`SystemError::Thread`] where the host has no thread left.
    pub fn submit(
        &self,
        work: impl FnOnce() -> Result<Option<Run>, SystemError> + Send + 'static,
    ) -> Result<(), SystemError> {
        let mut state = self.queue.lock();
        state.waiting.push_back(Box::new(work));
        if state.busy {
            return Ok(());
        }
        let started = Queue::start(&self.queue);
        state.busy = started.is_ok();
        if started.is_err() {
            state.waiting.pop_back();
        }
        started
    }

    /// Does short work now if the queue is empty, else in its turn: what a copy is.
    ///
    /// # Errors
    /// As [`Stream::submit`]. An error of the work itself comes with [`Stream::synchronize`].
    pub fn submit_short(
        &self,
        work: impl FnOnce() -> Result<(), SystemError> + Send + 'static,
    ) -> Result<(), SystemError> {
        let mut state = self.queue.lock();
        if state.busy {
            drop(state);
            return self.submit(move || work().map(|()| None));
        }
        state.busy = true;
        drop(state);
        self.queue.perform(Box::new(move || work().map(|()| None)));
        // Others may have queued behind it meanwhile; a kernel among that must not keep this caller.
        let mut state = self.queue.lock();
        if state.waiting.is_empty() {
            state.busy = false;
            self.queue.changed.notify_all();
            return Ok(());
        }
        drop(state);
        Queue::start(&self.queue).or_else(|_| {
            self.queue.drain();
            Ok(())
        })
    }

    /// Whether all work given before is done.
    pub fn is_idle(&self) -> bool {
        !self.queue.lock().busy
    }

    /// Waits for all work given before, and gives the runs of the kernels since the last time.
    ///
    /// # Errors
    /// The first error among them.
    pub fn synchronize(&self) -> Result<Vec<Run>, SystemError> {
        self.queue.wait();
        let mut state = self.queue.lock();
        let runs = std::mem::take(&mut state.runs);
        match state.error.take() {
            Some(error) => Err(error),
            None => Ok(runs),
        }
    }

    /// Marks `event` as reached once the work given before is done.
    ///
    /// # Errors
    /// As [`Stream::submit`].
    pub fn record(&self, event: &Event) -> Result<(), SystemError> {
        let mark = Arc::new(Mark::default());
        *event.lock() = Some(Arc::clone(&mark));
        self.submit_short(move || {
            *mark.lock() = Some(Instant::now());
            mark.reached.notify_all();
            Ok(())
        })
    }

    /// Makes work given from now on wait for what `event` has recorded so far. An event that was never recorded is not
    /// waited for, and one that is recorded again later does not move the wait.
    ///
    /// # Errors
    /// As [`Stream::submit`].
    pub fn wait(&self, event: &Event) -> Result<(), SystemError> {
        match event.lock().clone() {
            Some(mark) if mark.lock().is_none() => self.submit(move || {
                mark.wait();
                Ok(None)
            }),
            _ => Ok(()),
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Stream({}, {} waiting)", self.device, self.queue.lock().waiting.len())
    }
}

/// A point in a stream, on any device of the system. A clone is the same event.
#[derive(Clone, Default)]
pub struct Event(Arc<Mutex<Option<Arc<Mark>>>>);

/// One recording of an event.
#[derive(Default)]
struct Mark {
    at: Mutex<Option<Instant>>,
    reached: Condvar,
}

impl Mark {
    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) {
        let mut at = self.lock();
        while at.is_none() {
            at = self.reached.wait(at).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Event {
    /// An event that no stream has recorded.
    pub fn new() -> Event {
        Event::default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Mark>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn time(&self) -> Option<Instant> {
        let mark = self.lock().clone();
        mark.and_then(|mark| *mark.lock())
    }

    /// Whether its last recording is reached. As in CUDA, one that was never recorded has nothing to wait for.
    pub fn is_reached(&self) -> bool {
        self.lock().clone().is_none_or(|mark| mark.lock().is_some())
    }

    /// Whether a stream has recorded it.
    pub fn is_recorded(&self) -> bool {
        self.lock().is_some()
    }

    /// Blocks until its last recording is reached.
    pub fn synchronize(&self) {
        let mark = self.lock().clone();
        if let Some(mark) = mark {
            mark.wait();
        }
    }

    /// The host's time from `earlier` to this event; `None` while one is not reached or the order is the other way.
    pub fn since(&self, earlier: &Event) -> Option<Duration> {
        self.time()?.checked_duration_since(earlier.time()?)
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Event(recorded {}, reached {})", self.is_recorded(), self.is_reached())
    }
}
