//! Work that is recorded but not run: warm-ups and tuning.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use super::Part;

/// The id of a warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WarmUpId(u64);

impl WarmUpId {
    /// A new id.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Settings of [`tune`](super::TensorCommands::tune).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TuneSettings {
    /// Device time that measurements may take in one frame. A kernel that takes longer keeps its default form.
    pub budget: Duration,
    /// How often each form is measured. The forms take turns.
    pub rounds: usize,
    /// Measures kernels again that were measured before.
    pub again: bool,
}

impl Default for TuneSettings {
    fn default() -> Self {
        Self { budget: Duration::from_millis(2), rounds: 7, again: false }
    }
}

impl TuneSettings {
    /// Measures without a limit per frame, for a loading screen. Frames may take long.
    pub fn at_once() -> Self {
        Self { budget: Duration::MAX, ..Self::default() }
    }
}

/// A recording that is not run.
#[derive(Debug)]
pub(crate) struct Aside {
    pub part: Part,
    pub purpose: Purpose,
}

/// The purpose of a recording that is not run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Purpose {
    /// Its pipelines are compiled, and each runs once on scratch memory.
    WarmUp { id: WarmUpId, label: String, priority: i32 },
    /// The forms of its kernels are measured.
    Tune(TuneSettings),
}
