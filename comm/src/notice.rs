//! What a user should hear of although nothing failed: a library prints nothing, so it collects.

use std::sync::{Arc, Mutex, PoisonError};

/// Warnings and refused connections, for the program to print. Clones share one list, bounded in length; a notice that
/// comes again is counted, not kept twice.
#[derive(Clone, Default, Debug)]
pub struct Notices(Arc<Mutex<List>>);

#[derive(Default, Debug)]
struct List {
    lines: Vec<(String, u64)>,
    left_out: u64,
}

const MOST_LINES: usize = 64;

impl Notices {
    /// Adds a line.
    pub fn add(&self, line: impl Into<String>) {
        let line = line.into();
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, times)) = list.lines.iter_mut().find(|(known, _)| *known == line) {
            *times += 1;
        } else if list.lines.len() < MOST_LINES {
            list.lines.push((line, 1));
        } else {
            list.left_out += 1;
        }
    }

    /// Takes the lines collected since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<String> {
        let list = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let counted = |(line, times)| if times == 1 { line } else { format!("{line} ({times} times)") };
        let mut lines: Vec<String> = list.lines.into_iter().map(counted).collect();
        if list.left_out > 0 {
            lines.push(format!("and {} more", list.left_out));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_counted_and_bounded() {
        let notices = Notices::default();
        let same = notices.clone();
        notices.add("a");
        same.add("a");
        assert_eq!(notices.take(), ["a (2 times)"]);
        (0..MOST_LINES + 3).for_each(|index| notices.add(index.to_string()));
        let lines = same.take();
        assert_eq!(lines.len(), MOST_LINES + 1);
        assert_eq!(lines.last().map(String::as_str), Some("and 3 more"));
        assert!(notices.take().is_empty());
    }
}
