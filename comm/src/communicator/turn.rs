//! The order of a communicator's operations: that in which they were called, from whatever thread.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Hands out tickets and serves them in order.
#[derive(Default)]
pub(crate) struct Turn {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    next: u64,
    serving: u64,
    waiting: usize,
    /// Tickets given back before their turn came.
    given_back: BTreeSet<u64>,
}

/// A place in the order. Dropped, it lets the next one go on.
pub(crate) struct Ticket {
    turn: Arc<Turn>,
    number: u64,
}

impl Turn {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ticket(self: &Arc<Self>) -> Ticket {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        Ticket { turn: self.clone(), number }
    }
}

impl Ticket {
    /// Waits until every earlier ticket is gone: each of them has a deadline of its own.
    pub(crate) fn wait(&self) {
        let mut state = self.turn.lock();
        while state.serving != self.number {
            state.waiting += 1;
            state = self.turn.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.turn.lock();
        state.given_back.insert(self.number);
        while let Some(first) = state.given_back.first().copied().filter(|&first| first == state.serving) {
            state.given_back.remove(&first);
            state.serving += 1;
        }
        if state.waiting > 0 {
            self.turn.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_are_served_in_order_and_may_be_given_back_early() {
        let turn = Arc::new(Turn::default());
        let (first, second, third) = (turn.ticket(), turn.ticket(), turn.ticket());
        let (sender, receiver) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            third.wait();
            sender.send(3).ok();
        });
        drop(second);
        assert!(receiver.recv_timeout(std::time::Duration::from_millis(30)).is_err());
        first.wait();
        drop(first);
        assert_eq!(receiver.recv_timeout(std::time::Duration::from_secs(10)), Ok(3));
        waiter.join().expect("the waiter ends");
    }
}
