//! The registry of all pipelines: state, totals and requests.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bevy::platform::time::Instant;
use bevy::prelude::*;

use super::tuning::{TuneOutcome, TuningTable};
use super::warm_up::{WarmUpProgress, WarmUpState};
use super::{CacheFile, PipelineList, PipelineRecord, PipelineReport};
use crate::mailbox::PipelineRequest;
use crate::record::{Aside, Purpose, WarmUpId};

/// Maximum number of tuning results that are listed. The oldest are dropped first.
const LISTED_OUTCOMES: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub offered: AtomicU64,
    pub in_flight: AtomicU64,
    pub evicted: AtomicU64,
    pub compile_nanos: AtomicU64,
}

struct Shared {
    start: Instant,
    records: Mutex<Vec<Arc<PipelineRecord>>>,
    requests: Mutex<Vec<PipelineRequest>>,
    /// Whether an executor handles requests.
    served: AtomicBool,
    totals: Totals,
    file: Mutex<Option<CacheFile>>,
    warm_ups: Mutex<Vec<WarmUpProgress>>,
    /// Number of changes of `warm_ups`.
    warm_up_changes: AtomicU64,
    table: Mutex<TuningTable>,
    outcomes: Mutex<VecDeque<TuneOutcome>>,
    /// Number of results so far.
    outcome_count: AtomicU64,
    tuning: AtomicU64,
}

/// The pipelines of the GPU backend: reports and requests. Clones share the same data.
#[derive(Resource, Clone)]
pub struct TensorPipelines(Arc<Shared>);

impl Default for TensorPipelines {
    fn default() -> Self {
        Self(Arc::new(Shared {
            start: Instant::now(),
            records: Mutex::default(),
            requests: Mutex::default(),
            served: AtomicBool::new(false),
            totals: Totals::default(),
            file: Mutex::default(),
            warm_ups: Mutex::default(),
            warm_up_changes: AtomicU64::new(0),
            table: Mutex::default(),
            outcomes: Mutex::default(),
            outcome_count: AtomicU64::new(0),
            tuning: AtomicU64::new(0),
        }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TensorPipelines {
    /// The current state of all pipelines, and totals.
    pub fn report(&self) -> PipelineReport {
        let now = self.now();
        let load = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let totals = &self.0.totals;
        PipelineReport {
            pipelines: lock(&self.0.records).iter().map(|record| record.info(now)).collect(),
            hits: load(&totals.hits),
            misses: load(&totals.misses),
            offered: load(&totals.offered),
            in_flight: load(&totals.in_flight),
            evicted: load(&totals.evicted),
            compile: Duration::from_nanos(load(&totals.compile_nanos)),
            file: lock(&self.0.file).clone(),
        }
    }

    /// The complete WGSL source of a pipeline, by [`PipelineInfo::id`](super::PipelineInfo::id).
    pub fn wgsl(&self, id: u64) -> Option<Arc<str>> {
        self.record(id).map(|record| record.kernel.wgsl.clone())
    }

    /// Compiles a pipeline again. The old pipeline stays in use until the new one is ready, and if compilation fails.
    pub fn rebuild(&self, id: u64) {
        self.request(PipelineRequest::Rebuild(id));
    }

    /// Drops every pipeline that no plan uses.
    pub fn trim(&self) {
        self.request(PipelineRequest::Evict);
    }

    /// Writes the cache file now, on a background thread. Does nothing without
    /// [`PipelineSettings::cache`](crate::PipelineSettings::cache).
    pub fn save(&self) {
        self.request(PipelineRequest::Save);
    }

    /// The kernels compiled so far. Save the list and pass it to [`TensorPipelines::precompile`] at the next start.
    pub fn list(&self) -> PipelineList {
        PipelineList { kernels: lock(&self.0.records).iter().map(|record| record.kernel.clone()).collect() }
    }

    /// Compiles the kernels of a list in the background, higher priorities first.
    /// [`TensorWarmUp`](crate::pipelines::TensorWarmUp) events and [`WarmUpStatus`](crate::pipelines::WarmUpStatus)
    /// report the progress. Kernels in the list that this version of the crate does not generate are compiled but never
    /// run.
    pub fn precompile(&self, label: &str, priority: i32, list: &PipelineList) -> WarmUpId {
        let id = WarmUpId::next();
        self.begin_warm_up(id, label, list.kernels.len());
        self.request_or_finish(id, PipelineRequest::Precompile { id, priority, list: list.kernels.clone() });
        id
    }

    /// The latest results of the tuner, oldest first. At most 512 are kept.
    pub fn tuned(&self) -> Vec<TuneOutcome> {
        lock(&self.0.outcomes).iter().cloned().collect()
    }

    /// Number of results that the tuner measured since the app started. It changes when [`TensorPipelines::tuned`] does.
    pub fn tuned_count(&self) -> u64 {
        self.0.outcome_count.load(Ordering::Relaxed)
    }

    /// The kernel variants that are in use because of tuning, in this run or an earlier one.
    pub fn tuning(&self) -> TuningTable {
        lock(&self.0.table).clone()
    }

    /// Number of kernels that are queued for tuning or being measured.
    pub fn tuning_now(&self) -> u64 {
        self.0.tuning.load(Ordering::Relaxed)
    }

    /// The progress of the warm-ups: all that are in progress, and the last 256 that have finished.
    pub fn warm_ups(&self) -> Vec<WarmUpProgress> {
        lock(&self.0.warm_ups).clone()
    }

    pub(crate) fn now(&self) -> u64 {
        self.0.start.elapsed().as_nanos() as u64
    }

    pub(crate) fn totals(&self) -> &Totals {
        &self.0.totals
    }

    pub(crate) fn add(&self, record: Arc<PipelineRecord>) {
        lock(&self.0.records).push(record);
    }

    pub(crate) fn remove(&self, id: u64) {
        lock(&self.0.records).retain(|record| record.id != id);
    }

    /// Resets the state for a new device.
    pub(crate) fn serve(&self) {
        self.0.served.store(true, Ordering::Relaxed);
        lock(&self.0.records).clear();
        self.0.totals.in_flight.store(0, Ordering::Relaxed);
        self.0.tuning.store(0, Ordering::Relaxed);
    }

    pub(crate) fn record(&self, id: u64) -> Option<Arc<PipelineRecord>> {
        lock(&self.0.records).iter().find(|record| record.id == id).cloned()
    }

    pub(crate) fn ids(&self) -> Vec<u64> {
        lock(&self.0.records).iter().map(|record| record.id).collect()
    }

    /// Queues a request. Returns false if no executor handles requests.
    pub(crate) fn request(&self, request: PipelineRequest) -> bool {
        let served = self.0.served.load(Ordering::Relaxed);
        if served {
            lock(&self.0.requests).push(request);
        }
        served
    }

    pub(crate) fn request_or_finish(&self, id: WarmUpId, request: PipelineRequest) {
        if !self.request(request) {
            self.update_warm_up(id, |progress| progress.state = WarmUpState::Ready);
        }
    }

    pub(crate) fn take_requests(&self) -> Vec<PipelineRequest> {
        core::mem::take(&mut *lock(&self.0.requests))
    }

    /// Accepts a recording that is only prepared: a warm-up or tuning.
    pub(crate) fn accept(&self, Aside { part, purpose }: Aside) {
        // Empty if the work runs on the CPU, which has nothing to compile.
        let nothing = part.graph.nodes.is_empty();
        match purpose {
            Purpose::WarmUp { id, label, priority } => {
                self.begin_warm_up(id, &label, 0);
                if nothing {
                    self.update_warm_up(id, |progress| progress.state = WarmUpState::Ready);
                } else {
                    self.request_or_finish(id, PipelineRequest::WarmUp { id, priority, part });
                }
            }
            Purpose::Tune(settings) if !nothing => {
                self.request(PipelineRequest::Tune { settings, part });
            }
            Purpose::Tune(_) => {}
        }
    }

    fn begin_warm_up(&self, id: WarmUpId, label: &str, total: usize) {
        let progress = WarmUpProgress { id, label: label.into(), done: 0, total, state: WarmUpState::Compiling };
        lock(&self.0.warm_ups).push(progress);
        self.0.warm_up_changes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn update_warm_up(&self, id: WarmUpId, update: impl FnOnce(&mut WarmUpProgress)) {
        if let Some(progress) = lock(&self.0.warm_ups).iter_mut().find(|progress| progress.id == id) {
            let state =
                |progress: &WarmUpProgress| (progress.done, progress.total, core::mem::discriminant(&progress.state));
            let before = state(progress);
            update(progress);
            let changed = state(progress) != before;
            self.0.warm_up_changes.fetch_add(u64::from(changed), Ordering::Relaxed);
        }
    }

    /// Removes warm-ups from the list.
    pub(crate) fn forget_warm_ups(&self, ids: &[WarmUpId]) {
        lock(&self.0.warm_ups).retain(|warm_up| !ids.contains(&warm_up.id));
    }

    /// Number of changes of [`TensorPipelines::warm_ups`] so far.
    pub(crate) fn warm_up_changes(&self) -> u64 {
        self.0.warm_up_changes.load(Ordering::Relaxed)
    }

    pub(crate) fn update_file(&self, update: impl FnOnce(&mut Option<CacheFile>)) {
        update(&mut lock(&self.0.file));
    }

    pub(crate) fn update_table<T>(&self, update: impl FnOnce(&mut TuningTable) -> T) -> T {
        update(&mut lock(&self.0.table))
    }

    pub(crate) fn add_outcome(&self, outcome: TuneOutcome) {
        let mut outcomes = lock(&self.0.outcomes);
        outcomes.push_back(outcome);
        if outcomes.len() > LISTED_OUTCOMES {
            outcomes.pop_front();
        }
        self.0.outcome_count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_tuning_now(&self, jobs: usize) {
        self.0.tuning.store(jobs as u64, Ordering::Relaxed);
    }
}
