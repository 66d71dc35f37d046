//! Non-blocking operations that own their memory, and the thread that runs them.
//!
//! The thread starts with the first such operation. A job takes its place in the order of operations when it is started
//! and runs when its turn comes. Whatever becomes of a [`Pending`], the memory belongs to the job until it has finished.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use warpweft_device::Element;

use super::{Communicator, Group, Shared, Waited};
use crate::region::OwnedRegion;
use crate::{Cause, CommError, Failure, Op, Verdict};

/// A finished operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done<B> {
    /// The memory, with the result.
    pub buffer: B,
    /// When its turn had come.
    pub started: Instant,
    /// When its result was complete.
    pub finished: Instant,
}

/// A failed operation.
#[derive(Debug)]
pub struct PendingError<B> {
    /// Why.
    pub error: CommError,
    /// The memory, with unspecified contents; `None` where the progress thread was lost.
    pub buffer: Option<B>,
}

impl<B> fmt::Display for PendingError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B: fmt::Debug> std::error::Error for PendingError<B> {}

impl<B> From<PendingError<B>> for CommError {
    fn from(failed: PendingError<B>) -> Self {
        failed.error
    }
}

/// An operation under way. Dropping or forgetting it changes nothing: the operation goes on, and its memory is freed
/// when it has finished.
#[must_use = "the result, and a failure, come with `wait`"]
pub struct Pending<B> {
    slot: Arc<Slot<Outcome<B>>>,
    waited: Arc<Waited>,
}

type Outcome<B> = Result<Done<B>, PendingError<B>>;

impl<B> Pending<B> {
    /// Whether [`wait`](Self::wait) would return at once.
    pub fn is_done(&self) -> bool {
        self.slot.is_full()
    }

    /// Waits until it has finished, and gives the memory back.
    ///
    /// # Errors
    /// [`PendingError`] with the reason; every wait of the operation itself has the communicator's deadline.
    pub fn wait(self) -> Result<Done<B>, PendingError<B>> {
        let _waiting = self.waited.begin();
        self.slot.take()
    }
}

impl<B> fmt::Debug for Pending<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_done() { "Pending(done)" } else { "Pending(under way)" })
    }
}

/// A value that one thread puts in and another one takes out, once.
pub(super) struct Slot<T> {
    value: Mutex<Option<T>>,
    changed: Condvar,
}

impl<T> Slot<T> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { value: Mutex::new(None), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, value: T) {
        *self.lock() = Some(value);
        self.changed.notify_all();
    }

    pub(super) fn is_full(&self) -> bool {
        self.lock().is_some()
    }

    /// Waits for the value. Whoever is to put it in does so even when it fails.
    pub(super) fn take(&self) -> T {
        let mut value = self.lock();
        loop {
            match value.take() {
                Some(value) => return value,
                None => value = self.changed.wait(value).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// The value if it is still there.
    pub(super) fn take_now(&self) -> Option<T> {
        self.lock().take()
    }
}

/// Puts in a failure where the job ended without a result.
struct Promise<B> {
    slot: Arc<Slot<Outcome<B>>>,
    kept: bool,
}

impl<B> Promise<B> {
    fn keep(mut self, outcome: Outcome<B>) {
        self.kept = true;
        self.slot.put(outcome);
    }
}

impl<B> Drop for Promise<B> {
    fn drop(&mut self) {
        if !self.kept {
            let error = lost();
            self.slot.put(Err(PendingError { error, buffer: None }));
        }
    }
}

fn lost() -> CommError {
    CommError::System {
        what: "run a non-blocking operation on the communicator's progress thread".into(),
        reason: "the thread ended before it".into(),
    }
}

type Work = Box<dyn FnOnce(&Shared) + Send>;

/// The progress thread, once there is one.
#[derive(Default)]
pub(super) struct Worker {
    started: OnceLock<Arc<Queue>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Work>,
    closed: bool,
    ended: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, shared: &Shared) {
        loop {
            let mut state = self.lock();
            let job = loop {
                match state.jobs.pop_front() {
                    Some(job) => break job,
                    None if state.closed => {
                        state.ended = true;
                        self.changed.notify_all();
                        return;
                    }
                    None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(state);
            if catch_unwind(AssertUnwindSafe(|| job(shared))).is_err() {
                shared.fail(panicked(shared));
            }
        }
    }
}

/// A panic in the middle of a run leaves its links in the middle of a frame: nothing can follow.
fn panicked(shared: &Shared) -> Failure {
    Failure {
        rank: shared.rank,
        world: shared.world,
        operation: "a non-blocking operation",
        sequence: 0,
        peer: Some(shared.rank),
        address: None,
        cause: Cause::Aborted { reason: "its progress thread panicked, which is a mistake in this library".into() },
    }
}

impl Worker {
    /// The queue of the running thread.
    fn queue(&self, shared: &Arc<Shared>) -> Result<&Arc<Queue>, CommError> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = self.started.get() {
            return Ok(queue);
        }
        let queue = Arc::new(Queue::default());
        let (theirs, shared) = (queue.clone(), shared.clone());
        let name = format!("warpweft-comm-{}", shared.rank);
        let started = std::thread::Builder::new().name(name).spawn(move || theirs.work(&shared));
        *thread = Some(started.map_err(|error| CommError::System {
            what: "start the communicator's progress thread".into(),
            reason: error.to_string(),
        })?);
        Ok(self.started.get_or_init(|| queue))
    }
}

impl Communicator {
    fn start<B: Send + 'static>(
        &self,
        mut buffer: B,
        run: impl FnOnce(&Shared, &mut B) -> Result<(), CommError> + Send + 'static,
    ) -> Pending<B> {
        let slot = Slot::new();
        let promise = Promise { slot: slot.clone(), kept: false };
        let pending = Pending { slot, waited: self.shared.waited.clone() };
        if self.world() == 1 {
            promise.keep(timed(&self.shared, buffer, run));
            return pending;
        }
        let queue = match self.worker.queue(&self.shared) {
            Ok(queue) => queue,
            Err(error) => {
                promise.keep(Err(PendingError { error, buffer: Some(buffer) }));
                return pending;
            }
        };
        // The ticket is taken under the queue's lock, so that jobs stand in the queue in the order of their tickets.
        let mut state = queue.lock();
        let ticket = self.shared.turn.ticket();
        state.jobs.push_back(Box::new(move |shared| {
            ticket.wait();
            let started = Instant::now();
            let result = run(shared, &mut buffer);
            let finished = Instant::now();
            promise.keep(match result {
                Ok(()) => Ok(Done { buffer, started, finished }),
                Err(error) => Err(PendingError { error, buffer: Some(buffer) }),
            });
            // Last, so that whoever comes next finds this one done.
            drop(ticket);
        }));
        drop(state);
        queue.changed.notify_all();
        pending
    }
}

fn timed<B>(shared: &Shared, mut buffer: B, run: impl FnOnce(&Shared, &mut B) -> Result<(), CommError>) -> Outcome<B> {
    let started = Instant::now();
    match run(shared, &mut buffer) {
        Ok(()) => Ok(Done { buffer, started, finished: Instant::now() }),
        Err(error) => Err(PendingError { error, buffer: Some(buffer) }),
    }
}

/// # Non-blocking operations
///
/// Each takes its place in the order of operations at once and runs on the communicator's own thread. Its memory is moved
/// in, and comes back from [`Pending::wait`]; every error, a wrong argument too, comes from there.
impl Communicator {
    /// [`all_reduce`](Self::all_reduce) under way.
    pub fn start_all_reduce<T: Element, B: OwnedRegion<T>>(&self, buffer: B, op: Op) -> Pending<B> {
        self.start(buffer, move |shared, buffer| {
            buffer.region_mut().on_host(|buffer| shared.all_reduce(None, buffer, op))
        })
    }

    /// [`reduce_scatter`](Self::reduce_scatter) under way.
    pub fn start_reduce_scatter<T: Element, A: OwnedRegion<T>, B: OwnedRegion<T>>(
        &self,
        send: A,
        recv: B,
        op: Op,
    ) -> Pending<(A, B)> {
        self.start((send, recv), move |shared, (send, recv)| {
            let send = send.region().host()?;
            recv.region_mut().on_host(|recv| shared.reduce_scatter(Some(&send), recv, None, op))
        })
    }

    /// [`reduce_scatter_in_place`](Self::reduce_scatter_in_place) under way.
    pub fn start_reduce_scatter_in_place<T: Element, B: OwnedRegion<T>>(&self, buffer: B, op: Op) -> Pending<B> {
        self.start(buffer, move |shared, buffer| {
            buffer.region_mut().on_host(|buffer| shared.reduce_scatter(None, buffer, None, op))
        })
    }

    /// [`reduce_scatter_v_in_place`](Self::reduce_scatter_v_in_place) under way.
    pub fn start_reduce_scatter_v_in_place<T: Element, B: OwnedRegion<T>>(
        &self,
        buffer: B,
        counts: Vec<usize>,
        op: Op,
    ) -> Pending<B> {
        self.start(buffer, move |shared, buffer| {
            buffer.region_mut().on_host(|buffer| shared.reduce_scatter(None, buffer, Some(&counts), op))
        })
    }

    /// [`all_gather`](Self::all_gather) under way.
    pub fn start_all_gather<T: Element, A: OwnedRegion<T>, B: OwnedRegion<T>>(
        &self,
        send: A,
        recv: B,
    ) -> Pending<(A, B)> {
        self.start((send, recv), |shared, (send, recv)| {
            let send = send.region().host()?;
            recv.region_mut().on_host(|recv| shared.all_gather(Some(&send), recv, None))
        })
    }

    /// [`all_gather_in_place`](Self::all_gather_in_place) under way.
    pub fn start_all_gather_in_place<T: Element, B: OwnedRegion<T>>(&self, buffer: B) -> Pending<B> {
        self.start(buffer, |shared, buffer| buffer.region_mut().on_host(|buffer| shared.all_gather(None, buffer, None)))
    }

    /// [`all_gather_v_in_place`](Self::all_gather_v_in_place) under way.
    pub fn start_all_gather_v_in_place<T: Element, B: OwnedRegion<T>>(
        &self,
        buffer: B,
        counts: Vec<usize>,
    ) -> Pending<B> {
        self.start(buffer, move |shared, buffer| {
            buffer.region_mut().on_host(|buffer| shared.all_gather(None, buffer, Some(&counts)))
        })
    }

    /// [`broadcast`](Self::broadcast) under way.
    pub fn start_broadcast<T: Element, B: OwnedRegion<T>>(&self, buffer: B, root: usize) -> Pending<B> {
        self.start(buffer, move |shared, buffer| buffer.region_mut().on_host(|buffer| shared.broadcast(buffer, root)))
    }

    /// [`all_to_all`](Self::all_to_all) under way.
    pub fn start_all_to_all<T: Element, A: OwnedRegion<T>, B: OwnedRegion<T>>(
        &self,
        send: A,
        recv: B,
    ) -> Pending<(A, B)> {
        self.start((send, recv), |shared, (send, recv)| {
            let send = send.region().host()?;
            recv.region_mut().on_host(|recv| shared.all_to_all(&send, recv))
        })
    }

    /// [`send`](Self::send) under way. Operations of one communicator run one after the other: two ranks that each start a
    /// long message to the other one and then receive wait for each other, as with the blocking calls. Give each
    /// direction a communicator of its own, or take [`start_sendrecv`](Self::start_sendrecv).
    pub fn start_send<T: Element, B: OwnedRegion<T>>(&self, data: B, peer: usize) -> Pending<B> {
        self.start(data, move |shared, data| {
            let mut group = Group::default();
            group.send(data.region(), peer);
            shared.points(group)
        })
    }

    /// [`recv`](Self::recv) under way.
    pub fn start_recv<T: Element, B: OwnedRegion<T>>(&self, data: B, peer: usize) -> Pending<B> {
        self.start(data, move |shared, data| {
            let mut group = Group::default();
            group.recv(data.region_mut(), peer);
            shared.points(group)
        })
    }

    /// [`sendrecv`](Self::sendrecv) under way.
    pub fn start_sendrecv<T: Element, A: OwnedRegion<T>, B: OwnedRegion<T>>(
        &self,
        send: A,
        to: usize,
        recv: B,
        from: usize,
    ) -> Pending<(A, B)> {
        self.start((send, recv), move |shared, (send, recv)| {
            let mut group = Group::default();
            group.send(send.region(), to).recv(recv.region_mut(), from);
            shared.points(group)
        })
    }
}

impl Drop for Communicator {
    /// Lets the operations that were started finish; at the deadline, or where this thread panics, aborts them.
    fn drop(&mut self) {
        let Some(queue) = self.worker.started.get() else { return };
        let mut state = queue.lock();
        state.closed = true;
        queue.changed.notify_all();
        let patience = if std::thread::panicking() { Duration::ZERO } else { self.shared.timeout() };
        let until = Instant::now().checked_add(patience);
        while !state.ended {
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            state = queue.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let ended = state.ended;
        drop(state);
        if !ended {
            let by = self.shared.members[self.shared.rank];
            let reason = "its communicator was dropped with operations under way".into();
            self.shared.health.report(Verdict::Aborted { by, reason });
        }
        let thread = self.worker.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A communicator that lies in a job's own memory is dropped by the progress thread, which cannot await itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}
