//! Counters, timings and plan reports of tensor work. The backends write them, all other modules only read them.

mod failures;
mod plan_report;
mod pool_class;
mod progress;
mod timings;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bevy::prelude::*;

pub use plan_report::{NodePlace, PlanReport, StepReport, Unfused, UnfusedReason};
pub use pool_class::{PoolClass, PoolKind};
pub use timings::{
    FrameTimeline, KernelTiming, LaunchSpan, ModelTiming, NodeTiming, OpTiming, TimingReport, TimingSource, TimingStats,
};

pub(crate) use failures::Failures;
pub(crate) use plan_report::StepNodes;
pub(crate) use progress::Progress;
pub(crate) use timings::{TimedBatch, TimedLaunch, Timings};

use crate::error::{Stall, StallStage};
use crate::ir::Backend;

macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Totals since the app started, and current values. Figures whose names end in `_bytes` or `_now` can fall.
        /// All others only grow.
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
    /// Plans that were built. A plan is built if no earlier frame had the same structure.
    plans_built,
    /// Batches that reused a cached plan.
    plan_hits,
    /// Batches that were run.
    batches_run,
    /// Batches that wait for pipelines or memory.
    batches_waiting_now,
    /// Recordings that wait in the main world because a backend has enough of their model. Recordings of one frame and
    /// the same models count as one.
    recordings_waiting_now,
    /// Recordings that a backend has taken and not finished. Recordings of a model in one frame count as one.
    recordings_in_flight_now,
    /// Nanoseconds that the oldest waiting recording has waited.
    oldest_waiting_nanos_now,
    /// Waiting recordings that newer ones replaced.
    recordings_replaced,
    /// Ops that returned an error because their model was busy.
    ops_refused,
    /// Nanoseconds that the render world spent on planning, binding, encoding and submitting.
    encode_nanos,
    /// Kernel launches on the device.
    dispatches,
    /// Compute passes.
    passes,
    /// Queue submissions.
    submits,
    /// Device buffers of any kind that were created.
    buffers_allocated,
    /// Idle device buffers of any kind that were reused.
    buffers_reused,
    /// Bind groups that were created.
    bind_groups_made,
    /// Pipelines that were compiled.
    pipelines_built,
    /// Pipelines that are being compiled.
    pipelines_compiling_now,
    /// Bytes of tensors on the device. Each storage is counted once, with the size of its buffer, which can be up to
    /// 1/16 larger than the tensor.
    device_bytes,
    /// Bytes of scratch memory on the device.
    scratch_bytes,
    /// Bytes of plan parameters and constants on the device.
    plan_bytes,
    /// Bytes of idle device buffers that are kept for reuse.
    pool_idle_bytes,
    /// Total bytes on the device: tensors, scratch memory, plans and idle buffers. The memory budget limits this
    /// figure.
    total_device_bytes,
    /// Highest value of `total_device_bytes` so far.
    peak_device_bytes,
    /// Bytes of staging buffers, in use or idle. They are in host-visible memory.
    staging_bytes,
    /// Highest value of `staging_bytes` so far.
    peak_staging_bytes,
    /// Bytes of tensors on the CPU backend. Each storage is counted once.
    host_bytes,
    /// Host bytes of GPU tensors: host copies, and tensors that were evicted.
    host_copy_bytes,
    /// Tensors that were evicted from the device: for the budget, by the policy, or on request.
    evictions,
    /// Bytes copied from the device to the host, to evict tensors or to make host copies.
    downloaded_bytes,
    /// Bytes of tensor contents copied from the host to the device, including first uploads.
    uploaded_bytes,
    /// Copies to the host that are in progress.
    downloads_now,
    /// Bytes of scratch memory of the CPU backend. Small buffers that its threads keep do not count.
    cpu_scratch_bytes,
    /// Bytes of packed weights that the CPU backend caches for matrix products, in addition to the tensors.
    packed_bytes,
    /// Readbacks that were requested.
    readbacks,
    /// Readbacks that are pending.
    readbacks_now,
    /// Kernels that the CPU backend ran.
    cpu_steps,
    /// Devices used so far. More than one if a device was lost and replaced.
    devices,
}

/// Counters, timings and plan reports of tensor work. Clones share the same data, also between the main world and the
/// render world.
#[derive(Resource, Clone, Debug, Default)]
pub struct TensorDiagnostics {
    counters: Arc<Counters>,
    reports: Arc<Mutex<[Option<Arc<PlanReport>>; 2]>>,
    pools: Arc<Mutex<Option<Weak<dyn PoolClasses>>>>,
    timing: Arc<Timings>,
    /// Whether debug mode is on.
    debug: Arc<AtomicBool>,
    /// Whether each launch is timed in its own pass although the device does not need that. For comparison.
    split_passes: Arc<AtomicBool>,
    failures: Arc<Failures>,
    /// Whether answers of the device are held back.
    held: Arc<AtomicBool>,
    progress: Arc<[Progress; 4]>,
    stalls: Arc<Mutex<Vec<Stall>>>,
    /// The nodes of models' graphs in each launch of the last plan of each backend.
    nodes: Arc<Mutex<[Arc<[StepNodes]>; 2]>>,
}

impl TensorDiagnostics {
    pub(crate) fn new(debug: bool, timings: bool) -> Self {
        let diagnostics = Self::default();
        diagnostics.set_debug(debug);
        diagnostics.set_timings(timings);
        diagnostics.timing.set_source(Backend::Cpu, TimingSource::HostClock);
        diagnostics
    }

    /// Whether launches are timed. There is no overhead while this is off.
    pub fn timings_on(&self) -> bool {
        self.timing.is_on()
    }

    /// Switches timing on or off from the next frame on. Earlier measurements are kept until
    /// [`TensorDiagnostics::clear_timings`].
    pub fn set_timings(&self, on: bool) {
        self.timing.set_on(on);
    }

    /// Times each launch in its own pass, as on devices without timestamps inside passes. This is slower, and meant for
    /// comparison.
    pub fn set_split_passes(&self, on: bool) {
        self.split_passes.store(on, Ordering::Relaxed);
    }

    /// How a backend measures times.
    pub fn timing_source(&self, backend: Backend) -> TimingSource {
        self.timing.source(backend)
    }

    /// All measurements. `None` if there are none: timings are off, nothing ran, or the device has no timestamps.
    pub fn timings(&self) -> Option<TimingReport> {
        self.timing.report()
    }

    /// The launches of the frames after `frame`, oldest first. Only the most recent 128 frames are kept. The last one
    /// may be incomplete.
    pub fn frames_after(&self, backend: Backend, frame: Option<u64>) -> Vec<FrameTimeline> {
        self.timing.frames_after(backend, frame)
    }

    /// The last frame with complete measurements: its number, and the sum of its launch times.
    pub fn last_complete_frame(&self, backend: Backend) -> Option<(u64, Duration)> {
        self.timing.last_complete_frame(backend)
    }

    /// Deletes all measurements.
    pub fn clear_timings(&self) {
        self.timing.clear();
    }

    /// Whether debug mode is on.
    pub fn debug(&self) -> bool {
        self.debug.load(Ordering::Relaxed)
    }

    /// Switches debug mode. In debug mode, new plans are logged, and every launch has a debug group with its op and
    /// source location. The first op that produces a NaN or an infinity from finite inputs is reported as
    /// [`RunError::NonFinite`](crate::error::RunError::NonFinite). This check reads all operands, so work takes several
    /// times as long.
    pub fn set_debug(&self, on: bool) {
        self.debug.store(on, Ordering::Relaxed);
    }

    pub(crate) fn timing(&self) -> &Timings {
        &self.timing
    }

    pub(crate) fn splits_passes(&self) -> bool {
        self.split_passes.load(Ordering::Relaxed)
    }

    /// The current figures.
    pub fn figures(&self) -> TensorFigures {
        self.counters.figures()
    }

    /// The report of the last plan that a backend ran.
    pub fn last_plan(&self, backend: Backend) -> Option<PlanReport> {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports[backend as usize].as_ref().map(|report| PlanReport::clone(report))
    }

    /// The nodes of models' graphs that each launch of the last plan computes, by launch. A launch that computes none
    /// has an empty list.
    pub fn last_plan_nodes(&self, backend: Backend) -> Vec<Arc<[Arc<str>]>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)[backend as usize].to_vec()
    }

    /// Device and staging buffers by size class. Empty without a device.
    pub fn pool(&self) -> Vec<PoolClass> {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(Weak::upgrade);
        pools.map_or_else(Vec::new, |pools| pools.classes())
    }

    pub(crate) fn set_pools(&self, pools: Weak<dyn PoolClasses>) {
        *self.pools.lock().unwrap_or_else(PoisonError::into_inner) = Some(pools);
    }

    /// For tests: the next `count` allocations of device buffers with this label (`tensor:storage`, `tensor:scratch`,
    /// `tensor:plan` or `tensor:staging`) fail as if the device was out of memory.
    #[doc(hidden)]
    pub fn fail_allocations(&self, label: &str, count: u64) {
        self.failures.set(label, count);
    }

    /// For tests: while this is on, the watchdog does not hear that the device has finished work.
    #[doc(hidden)]
    pub fn hold_answers(&self, on: bool) {
        self.held.store(on, Ordering::Relaxed);
        if !on {
            self.progress(StallStage::Device).end_all();
        }
    }

    /// The device has finished a submission.
    pub(crate) fn device_answered(&self, number: u64) {
        if !self.held.load(Ordering::Relaxed) {
            self.progress(StallStage::Device).end(number);
        }
    }

    pub(crate) fn failures(&self) -> &Arc<Failures> {
        &self.failures
    }

    /// Recorded work that has not moved on for longer than the watchdog allows, at most one place per backend. Empty
    /// again as soon as something happens.
    pub fn stalls(&self) -> Vec<Stall> {
        self.stalls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_stalls(&self, stalls: Vec<Stall>) {
        *self.stalls.lock().unwrap_or_else(PoisonError::into_inner) = stalls;
    }

    pub(crate) fn progress(&self, stage: StallStage) -> &Progress {
        &self.progress[stage as usize]
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub(crate) fn set_last_plan(&self, backend: Backend, report: &Arc<PlanReport>, nodes: &Arc<[StepNodes]>) {
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let last = &mut reports[backend as usize];
        if last.as_ref().is_some_and(|last| Arc::ptr_eq(last, report)) {
            return;
        }
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)[backend as usize] = nodes.clone();
        if self.debug() {
            info!("plan on the {backend}: {report:#?}");
        }
        *last = Some(report.clone());
    }
}

/// Provides figures about the buffers of a device.
pub(crate) trait PoolClasses: Send + Sync + core::fmt::Debug {
    fn classes(&self) -> Vec<PoolClass>;
}

/// Shorthands for relaxed counting.
pub(crate) trait Count {
    fn add(&self, n: u64);
    fn sub(&self, n: u64);
    fn put(&self, n: u64);
    /// Adds `n`, and updates `peak` if the new value is higher.
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
