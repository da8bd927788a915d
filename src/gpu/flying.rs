//! Recordings on the device: each counts as in flight until the device has finished it.

use std::sync::{Arc, Mutex, PoisonError};

use super::device::Gpu;
use crate::schedule::Ticket;

/// Tickets that are dropped by whoever takes them first: the device when it has finished, or the executor when the
/// device is lost.
type Pending = Arc<Mutex<Vec<Arc<Ticket>>>>;

/// The recordings that the device has not finished yet.
#[derive(Default)]
pub(super) struct Flying(Vec<Pending>);

impl Flying {
    /// Drops tickets when the device has finished everything submitted so far.
    pub(super) fn add(&mut self, gpu: &Gpu, tickets: Vec<Arc<Ticket>>) {
        if tickets.is_empty() {
            return;
        }
        let pending = Pending::new(Mutex::new(tickets));
        self.0.push(pending.clone());
        gpu.queue.on_submitted_work_done(move || drop(take(&pending)));
    }

    /// Removes what the device has finished.
    pub(super) fn collect(&mut self) {
        self.0.retain(|pending| !pending.lock().unwrap_or_else(PoisonError::into_inner).is_empty());
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        self.0.iter().for_each(|pending| drop(take(pending)));
    }
}

fn take(pending: &Pending) -> Vec<Arc<Ticket>> {
    core::mem::take(&mut pending.lock().unwrap_or_else(PoisonError::into_inner))
}
