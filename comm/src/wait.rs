//! Deadlines, and the time that a wait has taken.

use std::time::{Duration, Instant};

/// More than any job lasts, and no more than an `Instant` holds.
const CENTURY: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// The moment `after` from now; no deadline is further away than a century.
pub(crate) fn deadline(after: Duration) -> Instant {
    Instant::now() + after.min(CENTURY)
}

/// The time spent waiting. It stands still while this process does not run: whoever was stopped for a minute (Ctrl-Z) and
/// goes on has not heard the others for a minute, but has not waited for them either.
pub(crate) struct Patience {
    longest: Duration,
    looked: Instant,
    spent: Duration,
}

impl Patience {
    /// For a thread that looks again within `longest`: a longer time between two looks is one in which it did not run, of
    /// which no more than this counts.
    pub(crate) fn looking_within(longest: Duration) -> Self {
        Self { longest, looked: Instant::now(), spent: Duration::ZERO }
    }

    /// Looks at the clock: the time spent since the beginning.
    pub(crate) fn spent(&mut self) -> Duration {
        let now = Instant::now();
        self.spent += now.saturating_duration_since(self.looked).min(self.longest);
        self.looked = now;
        self.spent
    }
}

#[cfg(test)]
impl Patience {
    /// As after a time in which the process was stopped.
    pub(crate) fn stopped_for(&mut self, time: Duration) {
        self.looked = self.looked.checked_sub(time).expect("the system has run for longer");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_timeout_has_a_deadline() {
        assert!(deadline(Duration::MAX) > Instant::now() + Duration::from_secs(1 << 31));
        assert!(deadline(Duration::ZERO) <= Instant::now());
    }

    #[test]
    fn time_in_which_the_process_was_stopped_is_not_waiting() {
        let longest = Duration::from_secs(10);
        let mut patience = Patience::looking_within(longest);
        std::thread::sleep(Duration::from_millis(20));
        let before = patience.spent();
        assert!(before >= Duration::from_millis(20), "{before:?}");
        patience.stopped_for(Duration::from_secs(300));
        assert!(patience.spent() - before <= longest);
    }
}
