//! How far work has come, for the watchdog.

use core::sync::atomic::{AtomicU64, Ordering};

/// Counts the pieces of work that have begun and ended at one place.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Progress {
    /// Counts a piece of work. Returns its number.
    pub(crate) fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The piece of work with this number has ended, and all before it.
    pub(crate) fn end(&self, number: u64) {
        self.ended.fetch_max(number, Ordering::Relaxed);
    }

    /// The next piece of work has ended. For work that ends in order.
    pub(crate) fn end_next(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// All work has ended, or was given up.
    pub(crate) fn end_all(&self) {
        self.end(self.begun.load(Ordering::Relaxed));
    }

    /// Sets the number of pieces that wait, after `done` of them have ended since the last call.
    pub(crate) fn advance(&self, done: u64, waiting: u64) {
        let ended = self.ended.fetch_add(done, Ordering::Relaxed) + done;
        self.begun.store(ended + waiting, Ordering::Relaxed);
    }

    /// Pieces of work that have begun and not ended, and how many have ended.
    pub(crate) fn state(&self) -> (u64, u64) {
        let ended = self.ended.load(Ordering::Relaxed);
        (self.begun.load(Ordering::Relaxed).saturating_sub(ended), ended)
    }
}
