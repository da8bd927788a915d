//! The state of one pipeline, shared between the compile thread and reports.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{PipelineInfo, PipelineState};
use crate::mailbox::ListedKernel;

/// The state of one pipeline. The compile thread writes it, reports read it.
#[derive(Debug)]
pub(crate) struct PipelineRecord {
    pub id: u64,
    pub kernel: ListedKernel,
    pub offered: bool,
    pub hits: AtomicU64,
    launches: AtomicU64,
    /// Nanoseconds since the start of the registry, plus 1. 0 if never used.
    used: AtomicU64,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    state: PipelineState,
    error: Option<String>,
    log: String,
    compile: Option<Duration>,
    builds: u32,
}

impl PipelineRecord {
    pub(crate) fn new(kernel: ListedKernel, id: u64, offered: bool) -> Self {
        let state = PipelineState::Queued;
        Self {
            id,
            kernel,
            offered,
            hits: AtomicU64::new(0),
            launches: AtomicU64::new(0),
            used: AtomicU64::new(0),
            progress: Mutex::new(Progress { state, error: None, log: String::new(), compile: None, builds: 0 }),
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self) {
        self.progress().state = PipelineState::Compiling;
    }

    pub(crate) fn end(&self, took: Duration, log: String, error: Option<String>) {
        let mut progress = self.progress();
        progress.state = if error.is_some() { PipelineState::Failed } else { PipelineState::Ready };
        (progress.error, progress.log, progress.compile) = (error, log, Some(took));
        progress.builds += 1;
    }

    /// A recompilation failed. The old pipeline stays in use, and the error is kept.
    pub(crate) fn keep_old(&self, error: String) {
        let mut progress = self.progress();
        (progress.state, progress.error) = (PipelineState::Ready, Some(error));
    }

    /// Time of the last use, as nanoseconds since the start of the registry, plus 1. 0 if never used.
    pub(crate) fn last_use(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn launched(&self, now: u64) {
        self.launches.fetch_add(1, Ordering::Relaxed);
        self.used.store(now + 1, Ordering::Relaxed);
    }

    pub(super) fn info(&self, now: u64) -> PipelineInfo {
        let progress = self.progress();
        PipelineInfo {
            id: self.id,
            kernel: self.kernel.kernel.clone(),
            variant: self.kernel.variant.clone(),
            state: progress.state,
            error: progress.error.clone(),
            log: progress.log.clone(),
            hits: self.hits.load(Ordering::Relaxed),
            launches: self.launches.load(Ordering::Relaxed),
            compile: progress.compile,
            builds: progress.builds,
            idle: match self.last_use() {
                0 => None,
                used => Some(Duration::from_nanos(now.saturating_sub(used - 1))),
            },
            offered: self.offered,
            wgsl_bytes: self.kernel.wgsl.len(),
        }
    }
}
