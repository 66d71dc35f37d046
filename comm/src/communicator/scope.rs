//! Non-blocking operations on borrowed memory: everything started in a scope has finished when the scope returns.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use warpweft_device::Element;

use super::pending::{Done, Slot};
use super::{Communicator, Group, Shared};
use crate::region::{Region, RegionMut};
use crate::{CommError, Op};

type Outcome = Result<Done<()>, CommError>;
type Outcomes = Arc<Mutex<Vec<Arc<Slot<Outcome>>>>>;

/// Where operations on borrowed memory are started: see [`Communicator::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    threads: &'scope thread::Scope<'scope, 'env>,
    shared: Arc<Shared>,
    outcomes: Outcomes,
}

/// An operation under way in a scope. Dropping it changes nothing: the scope waits for the operation.
pub struct ScopedPending {
    slot: Arc<Slot<Outcome>>,
}

impl ScopedPending {
    /// Whether [`wait`](Self::wait) would return at once.
    pub fn is_done(&self) -> bool {
        self.slot.is_full()
    }

    /// Waits until it has finished.
    ///
    /// # Errors
    /// As the blocking call's.
    pub fn wait(self) -> Result<Done<()>, CommError> {
        self.slot.take()
    }
}

impl Communicator {
    /// Runs `body`, which may start operations on borrowed memory, and returns when all of them have finished. Each takes
    /// its place in the order of operations when it is started. Should `body` panic, the communicator is aborted.
    ///
    /// ```
    /// # use warpweft_comm::{Communicator, Op};
    /// # let comm = Communicator::alone();
    /// let (mut a, mut b) = (vec![1.0f32; 8], vec![2.0f32; 8]);
    /// comm.scope(|scope| {
    ///     scope.all_reduce(&mut a, Op::Sum);
    ///     scope.all_reduce(&mut b, Op::Sum);
    /// })?;
    /// # Ok::<(), warpweft_comm::CommError>(())
    /// ```
    ///
    /// # Errors
    /// The first failure among the operations that nobody waited for.
    pub fn scope<'env, R>(&self, body: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> R) -> Result<R, CommError> {
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let (value, waiting) = thread::scope(|threads| {
            let abort = AbortOnPanic(self);
            let value = body(&Scope { threads, shared: self.shared.clone(), outcomes: outcomes.clone() });
            std::mem::forget(abort);
            (value, self.shared.waited.begin())
        });
        drop(waiting);
        for slot in outcomes.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if let Some(Err(error)) = slot.take_now() {
                return Err(error);
            }
        }
        Ok(value)
    }
}

impl<'scope> Scope<'scope, '_> {
    fn start(&self, run: impl FnOnce(&Shared) -> Result<(), CommError> + Send + 'scope) -> ScopedPending {
        let slot = Slot::new();
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(slot.clone());
        let pending = ScopedPending { slot: slot.clone() };
        let work = move |shared: &Shared| {
            let started = Instant::now();
            let result = run(shared);
            result.map(|()| Done { buffer: (), started, finished: Instant::now() })
        };
        if self.shared.world == 1 {
            slot.put(work(&self.shared));
            return pending;
        }
        let ticket = self.shared.turn.ticket();
        let (shared, theirs) = (self.shared.clone(), slot.clone());
        let started = thread::Builder::new().name("warpweft-comm-scope".into()).spawn_scoped(self.threads, move || {
            // Whoever waits on the slot must wake even from a panic here, which the scope then passes on.
            let promise = Promise(&theirs);
            ticket.wait();
            promise.0.put(work(&shared));
            std::mem::forget(promise);
            drop(ticket);
        });
        if let Err(error) = started {
            let what = "start a thread for an operation in a scope".into();
            slot.put(Err(CommError::System { what, reason: error.to_string() }));
        }
        pending
    }

    /// [`Communicator::all_reduce`] under way.
    pub fn all_reduce<T: Element>(&self, inout: impl Into<RegionMut<'scope, T>>, op: Op) -> ScopedPending {
        let inout = inout.into();
        self.start(move |shared| inout.on_host(|inout| shared.all_reduce(None, inout, op)))
    }

    /// [`Communicator::reduce_scatter`] under way.
    pub fn reduce_scatter<T: Element>(
        &self,
        send: impl Into<Region<'scope, T>>,
        recv: impl Into<RegionMut<'scope, T>>,
        op: Op,
    ) -> ScopedPending {
        let (send, recv) = (send.into(), recv.into());
        self.start(move |shared| {
            let send = send.host()?;
            recv.on_host(|recv| shared.reduce_scatter(Some(&send), recv, None, op))
        })
    }

    /// [`Communicator::all_gather`] under way.
    pub fn all_gather<T: Element>(
        &self,
        send: impl Into<Region<'scope, T>>,
        recv: impl Into<RegionMut<'scope, T>>,
    ) -> ScopedPending {
        let (send, recv) = (send.into(), recv.into());
        self.start(move |shared| {
            let send = send.host()?;
            recv.on_host(|recv| shared.all_gather(Some(&send), recv, None))
        })
    }

    /// [`Communicator::broadcast`] under way.
    pub fn broadcast<T: Element>(&self, inout: impl Into<RegionMut<'scope, T>>, root: usize) -> ScopedPending {
        let inout = inout.into();
        self.start(move |shared| inout.on_host(|inout| shared.broadcast(inout, root)))
    }

    /// [`Communicator::all_to_all`] under way.
    pub fn all_to_all<T: Element>(
        &self,
        send: impl Into<Region<'scope, T>>,
        recv: impl Into<RegionMut<'scope, T>>,
    ) -> ScopedPending {
        let (send, recv) = (send.into(), recv.into());
        self.start(move |shared| {
            let send = send.host()?;
            recv.on_host(|recv| shared.all_to_all(&send, recv))
        })
    }

    /// [`Communicator::sendrecv`] under way.
    pub fn sendrecv<T: Element>(
        &self,
        send: impl Into<Region<'scope, T>>,
        to: usize,
        recv: impl Into<RegionMut<'scope, T>>,
        from: usize,
    ) -> ScopedPending {
        let (send, recv) = (send.into(), recv.into());
        self.start(move |shared| {
            let mut group = Group::default();
            group.send(send, to).recv(recv, from);
            shared.points(group)
        })
    }
}

/// A body that panics must not wait for operations to which the other ranks may never come.
struct AbortOnPanic<'c>(&'c Communicator);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        self.0.abort("it panicked with operations under way");
    }
}

struct Promise<'s>(&'s Slot<Outcome>);

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        let what = "run an operation in a scope".into();
        self.0.put(Err(CommError::System { what, reason: "its thread panicked".into() }));
    }
}
