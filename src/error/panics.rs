//! Panics of code that must not take other work with it.

use core::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work`. If it panics, returns the message of the panic.
///
/// For work in queues: a panic fails its own piece of work, and the queue goes on. For detached tasks too: one that
/// panics ends without a word, and whoever waits for its answer would wait for ever. State that `work` has changed is
/// not used after a panic, except for counters.
pub(crate) fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| message(&*payload))
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".to_owned())
}
