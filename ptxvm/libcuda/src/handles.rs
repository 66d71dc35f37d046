//! Handles: what the caller holds is a number, looked up in a table.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::status::Status;

/// An opaque handle as the API passes it. It points nowhere.
pub(crate) type Handle = usize;

/// Handles are never used again, and no two tables share one: a stream's handle is no event's.
static NEXT: AtomicUsize = AtomicUsize::new(0x1_0000);

/// What lies behind the handles of one kind.
pub(crate) struct Handles<T>(Mutex<Option<HashMap<Handle, T>>>);

impl<T: Clone> Handles<T> {
    pub(crate) const fn new() -> Self {
        Handles(Mutex::new(None))
    }

    fn with<R>(&self, body: impl FnOnce(&mut HashMap<Handle, T>) -> R) -> R {
        body(self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(HashMap::new))
    }

    pub(crate) fn add(&self, value: T) -> Handle {
        let handle = NEXT.fetch_add(0x10, Relaxed);
        self.with(|all| all.insert(handle, value));
        handle
    }

    pub(crate) fn get(&self, handle: Handle) -> Result<T, Status> {
        self.with(|all| all.get(&handle).cloned()).ok_or(Status::INVALID_HANDLE)
    }

    pub(crate) fn remove(&self, handle: Handle) -> Result<T, Status> {
        self.with(|all| all.remove(&handle)).ok_or(Status::INVALID_HANDLE)
    }

    /// What lies behind every handle.
    pub(crate) fn all(&self) -> Vec<T> {
        self.with(|all| all.values().cloned().collect())
    }
}
