//! Figures about tensor work. Backends count; everything else only reads.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bevy::prelude::*;

use crate::plan::{Plan, PlanReport};
use crate::support::Backend;

macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Totals since the app started, and what is in use now. All but the `_bytes` and `_now` figures only ever grow.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct TensorFigures { $($(#[$doc])* pub $name: u64),* }

        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub $name: AtomicU64),* }

        impl Counters {
            fn figures(&self) -> TensorFigures {
                TensorFigures { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }
    };
}

figures! {
    /// Plans made because no earlier frame had the same structure.
    plans_built,
    /// Batches that found their plan.
    plan_hits,
    /// Batches run.
    batches_run,
    /// Batches waiting for pipelines.
    batches_waiting_now,
    /// Nanoseconds the render world spent on planning, binding, encoding and submitting.
    encode_nanos,
    /// Kernel launches on the device.
    dispatches,
    /// Compute passes.
    passes,
    /// Queue submissions.
    submits,
    /// Device buffers of any kind made.
    buffers_allocated,
    /// Device buffers of any kind that were idle and used again instead.
    buffers_reused,
    /// Bind groups made.
    bind_groups_made,
    /// Pipelines compiled.
    pipelines_built,
    /// Pipelines being compiled.
    pipelines_compiling_now,
    /// Bytes of tensors on the device, each storage once, as buffers are sized (up to 1/16 more than the tensors).
    device_bytes,
    /// Bytes of scratch memory on the device.
    scratch_bytes,
    /// Bytes of parameters and constants that plans keep on the device.
    plan_bytes,
    /// Bytes of idle device buffers that wait to be used again.
    pool_idle_bytes,
    /// Bytes of the device in all: the four above. This is what a budget bounds.
    total_device_bytes,
    /// The most that `total_device_bytes` has been.
    peak_device_bytes,
    /// Bytes of staging buffers, in use or idle; memory that the host can map.
    staging_bytes,
    /// The most that `staging_bytes` has been.
    peak_staging_bytes,
    /// Bytes of tensors on the CPU backend, each storage once.
    host_bytes,
    /// Bytes on the host of tensors that belong to the device: copies kept, and tensors moved there to make room.
    host_copy_bytes,
    /// Tensors that left the device: for a budget, by the policy, or when asked to.
    evictions,
    /// Bytes copied from the device to the host so that tensors could leave it, or to have a copy.
    downloaded_bytes,
    /// Bytes of tensors' contents brought from the host to the device, first uploads included.
    uploaded_bytes,
    /// Copies to the host on their way.
    downloads_now,
    /// Bytes of weights that the CPU backend keeps packed for products, besides the tensors themselves.
    packed_bytes,
    /// Readbacks asked for.
    readbacks,
    /// Readbacks not answered yet.
    readbacks_now,
    /// Kernels run by the CPU backend.
    cpu_steps,
}

/// Shared between the worlds and with the threads that count.
#[derive(Resource, Clone, Debug, Default)]
pub struct TensorDiagnostics {
    counters: Arc<Counters>,
    reports: Arc<Mutex<[Option<Arc<Plan>>; 2]>>,
    /// Whether new plans are logged.
    debug: bool,
}

impl TensorDiagnostics {
    pub(crate) fn new(debug: bool) -> Self {
        Self { debug, ..Self::default() }
    }

    /// The figures as they are now.
    pub fn figures(&self) -> TensorFigures {
        self.counters.figures()
    }

    /// What became of the ops of the last batch a backend ran.
    pub fn last_plan(&self, backend: Backend) -> Option<PlanReport> {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports[backend as usize].as_ref().map(|plan| plan.report.clone())
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub(crate) fn set_last_plan(&self, backend: Backend, plan: &Arc<Plan>) {
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let last = &mut reports[backend as usize];
        if last.as_ref().is_some_and(|last| Arc::ptr_eq(last, plan)) {
            return;
        }
        if self.debug {
            info!("plan on the {backend}: {:#?}", plan.report);
        }
        *last = Some(plan.clone());
    }
}

/// Counting, in one word.
pub(crate) trait Count {
    fn add(&self, n: u64);
    fn sub(&self, n: u64);
    fn put(&self, n: u64);
    /// Adds, and keeps the largest value there ever was in `peak`.
    fn raise(&self, n: u64, peak: &Self);
}

impl Count for AtomicU64 {
    fn add(&self, n: u64) {
        self.fetch_add(n, Ordering::Relaxed);
    }

    fn sub(&self, n: u64) {
        self.fetch_sub(n, Ordering::Relaxed);
    }

    fn put(&self, n: u64) {
        self.store(n, Ordering::Relaxed);
    }

    fn raise(&self, n: u64, peak: &Self) {
        let now = self.fetch_add(n, Ordering::Relaxed) + n;
        peak.fetch_max(now, Ordering::Relaxed);
    }
}
