//! Figures about tensor work: counters, timings, plan reports. Backends count; everything else only reads.

mod plan_report;
mod pool_class;
mod timings;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bevy::prelude::*;

pub use plan_report::{PlanReport, StepReport, Unfused, UnfusedReason};
pub use pool_class::{PoolClass, PoolKind};
pub use timings::{
    FrameTimeline, KernelTiming, LaunchSpan, ModelTiming, OpTiming, TimingReport, TimingSource, TimingStats,
};

pub(crate) use timings::{TimedBatch, TimedLaunch, Timings};

use crate::ir::Backend;

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
    /// Devices that work could run on, one after the other: more than one if a device was lost and replaced.
    devices,
}

/// Shared between the worlds and with the threads that count.
#[derive(Resource, Clone, Debug, Default)]
pub struct TensorDiagnostics {
    counters: Arc<Counters>,
    reports: Arc<Mutex<[Option<Arc<PlanReport>>; 2]>>,
    pools: Arc<Mutex<Option<Weak<dyn PoolClasses>>>>,
    timing: Arc<Timings>,
    /// Whether debug mode is on.
    debug: Arc<AtomicBool>,
    /// Whether passes are split to be timed although they need not be; to compare.
    split_passes: Arc<AtomicBool>,
}

impl TensorDiagnostics {
    pub(crate) fn new(debug: bool, timings: bool) -> Self {
        let diagnostics = Self::default();
        diagnostics.set_debug(debug);
        diagnostics.set_timings(timings);
        diagnostics.timing.set_source(Backend::Cpu, TimingSource::HostClock);
        diagnostics
    }

    /// Whether launches are timed. Off, it costs nothing.
    pub fn timings_on(&self) -> bool {
        self.timing.is_on()
    }

    /// Times launches from the next frame on, or no longer. What was measured stays until [`TensorDiagnostics::clear_timings`].
    pub fn set_timings(&self, on: bool) {
        self.timing.set_on(on);
    }

    /// Times launches in a pass each, as on devices that have no clock inside passes. It costs more; for comparison.
    pub fn set_split_passes(&self, on: bool) {
        self.split_passes.store(on, Ordering::Relaxed);
    }

    /// Where a backend's times come from.
    pub fn timing_source(&self, backend: Backend) -> TimingSource {
        self.timing.source(backend)
    }

    /// What has been measured; `None` if nothing was: timings are off, nothing ran, or the device has no clock.
    pub fn timings(&self) -> Option<TimingReport> {
        self.timing.report()
    }

    /// The launches of the frames that come after a given one, oldest first; a few frames back. The last may not be complete yet.
    pub fn frames_after(&self, backend: Backend, frame: Option<u64>) -> Vec<FrameTimeline> {
        self.timing.frames_after(backend, frame)
    }

    /// The last frame whose times are all here: its number, and its launches' times together.
    pub fn last_complete_frame(&self, backend: Backend) -> Option<(u64, Duration)> {
        self.timing.last_complete_frame(backend)
    }

    /// Forgets what was measured.
    pub fn clear_timings(&self) {
        self.timing.clear();
    }

    /// Whether debug mode is on.
    pub fn debug(&self) -> bool {
        self.debug.load(Ordering::Relaxed)
    }

    /// Debug mode: new plans are logged, every launch has a debug group that names its op and where that was recorded, and the first op that makes
    /// a NaN or an infinity of finite numbers is reported as [`RunError::NonFinite`](crate::RunError::NonFinite). All operands are looked at for
    /// that, so work takes several times as long.
    pub fn set_debug(&self, on: bool) {
        self.debug.store(on, Ordering::Relaxed);
    }

    pub(crate) fn timing(&self) -> &Timings {
        &self.timing
    }

    pub(crate) fn splits_passes(&self) -> bool {
        self.split_passes.load(Ordering::Relaxed)
    }

    /// The figures as they are now.
    pub fn figures(&self) -> TensorFigures {
        self.counters.figures()
    }

    /// What became of the ops of the last batch a backend ran.
    pub fn last_plan(&self, backend: Backend) -> Option<PlanReport> {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports[backend as usize].as_ref().map(|report| PlanReport::clone(report))
    }

    /// Device and staging buffers by size, in use and idle; none without a device.
    pub fn pool(&self) -> Vec<PoolClass> {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(Weak::upgrade);
        pools.map_or_else(Vec::new, |pools| pools.classes())
    }

    pub(crate) fn set_pools(&self, pools: Weak<dyn PoolClasses>) {
        *self.pools.lock().unwrap_or_else(PoisonError::into_inner) = Some(pools);
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub(crate) fn set_last_plan(&self, backend: Backend, report: &Arc<PlanReport>) {
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let last = &mut reports[backend as usize];
        if last.as_ref().is_some_and(|last| Arc::ptr_eq(last, report)) {
            return;
        }
        if self.debug() {
            info!("plan on the {backend}: {report:#?}");
        }
        *last = Some(report.clone());
    }
}

/// A device's buffers, as figures.
pub(crate) trait PoolClasses: Send + Sync + core::fmt::Debug {
    fn classes(&self) -> Vec<PoolClass>;
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
