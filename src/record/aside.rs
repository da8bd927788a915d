//! Work that is recorded to be prepared, not to run: warm-ups and tuning.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use super::Part;

/// Names a warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WarmUpId(u64);

impl WarmUpId {
    /// One that no other warm-up has.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// How the tuner goes about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TuneSettings {
    /// Time of the device that measuring may take in a frame. A kernel that takes longer by itself keeps its default.
    pub budget: Duration,
    /// How often each form is measured; the forms take turns.
    pub rounds: usize,
    /// Measure also what has been measured before.
    pub again: bool,
}

impl Default for TuneSettings {
    fn default() -> Self {
        Self { budget: Duration::from_millis(2), rounds: 7, again: false }
    }
}

impl TuneSettings {
    /// As fast as the device allows, for a loading screen: frames may be late.
    pub fn at_once() -> Self {
        Self { budget: Duration::MAX, ..Self::default() }
    }
}

/// A recording that is prepared instead of run.
#[derive(Debug)]
pub(crate) struct Aside {
    pub part: Part,
    pub purpose: Purpose,
}

/// What a recording is prepared for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Purpose {
    /// Its pipelines are compiled, and each is run once.
    WarmUp { id: WarmUpId, label: String, priority: i32 },
    /// The forms of its kernels are measured.
    Tune(TuneSettings),
}
