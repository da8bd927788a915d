//! Allocations that fail on purpose, to test how work recovers.

use std::sync::{Mutex, PoisonError};

/// The next allocations that fail.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<Option<(String, u64)>>);

impl Failures {
    /// Lets the next `count` allocations of buffers with this label fail.
    pub(super) fn set(&self, label: &str, count: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (count > 0).then(|| (label.to_owned(), count));
    }

    /// Whether an allocation has to fail. Counts it if so.
    pub(crate) fn strike(&self, label: &str) -> bool {
        let mut next = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((_, count)) = next.as_mut().filter(|(of, _)| of == label) else { return false };
        *count -= 1;
        if *count == 0 {
            *next = None;
        }
        true
    }
}
