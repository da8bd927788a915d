//! The state of one pipeline: whoever compiles it writes here, whoever looks reads it.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{PipelineInfo, PipelineState};
use crate::mailbox::ListedKernel;

/// Whoever compiles a pipeline writes down here what happens; whoever looks reads it.
#[derive(Debug)]
pub(crate) struct PipelineRecord {
    pub id: u64,
    pub kernel: ListedKernel,
    pub offered: bool,
    pub hits: AtomicU64,
    launches: AtomicU64,
    /// Nanoseconds after the registry's start, plus one; 0 if never.
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

    /// A compilation that changed nothing: the pipeline that was there stays, and so does the complaint.
    pub(crate) fn keep_old(&self, error: String) {
        let mut progress = self.progress();
        (progress.state, progress.error) = (PipelineState::Ready, Some(error));
    }

    /// When it was last used, as nanoseconds after the registry's start.
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
