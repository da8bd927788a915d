//! Reports about tensor work over a period of time, as JSON, as an HTML page, and as a trace for Perfetto or
//! `chrome://tracing`.

pub mod diagnostic_paths;
mod export;
mod monitor;
mod watchdog;

use core::time::Duration;

pub(crate) use diagnostic_paths::plugin as paths_plugin;
pub use monitor::TensorMonitor;
pub(crate) use monitor::plugin;
pub(crate) use watchdog::watch;
pub use watchdog::{WatchdogClock, WatchdogSettings};

use crate::figures::FrameTimeline;
use crate::ir::Backend;

/// The cost of tensor work between [`TensorMonitor::start`] and [`TensorMonitor::stop`]. Kernels, ops and frames that
/// could not be measured are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TensorReport {
    /// Name of the adapter, or `no device`.
    pub adapter: String,
    /// Duration of the measurement.
    pub duration: Duration,
    /// Number of frames of the app.
    pub frames: u64,
    /// Kernel launches on the device.
    pub launches: u64,
    /// Kernels that the CPU backend ran.
    pub cpu_kernels: u64,
    /// Readbacks that were requested.
    pub readbacks: u64,
    /// Time that the render world spent on planning, binding, encoding and submitting.
    pub encode: Duration,
    /// Peak bytes on the device, sampled once per frame.
    pub peak_device_bytes: u64,
    /// Tensors that were evicted from the device.
    pub evictions: u64,
    /// Plans that were built.
    pub plans_built: u64,
    /// Batches that reused a cached plan.
    pub plan_hits: u64,
    /// Launches in new plans that found their pipeline in the cache.
    pub pipeline_hits: u64,
    /// Pipelines that had to be compiled.
    pub pipeline_misses: u64,
    /// Total duration of all compilations.
    pub compile: Duration,
    /// Pipelines that were compiled, longest compilation first.
    pub compiled: Vec<CompiledRow>,
    /// By kernel and variant, highest total time first.
    pub kernels: Vec<TimedRow>,
    /// By op and source location, highest total time first.
    pub ops: Vec<TimedRow>,
    /// By model, highest total time first.
    pub models: Vec<ReportedModel>,
    /// Kernel time of each frame.
    pub timeline: Vec<FrameRow>,
    /// Total bytes on the device over time.
    pub memory: Vec<(Duration, u64)>,
    /// All launches with their times, by frame, for the trace.
    pub launches_by_frame: Vec<FrameTimeline>,
    /// Number of launches that are missing in the trace because there were too many. They are included in all other
    /// figures.
    pub left_out_of_trace: u64,
}

impl TensorReport {
    /// Pipeline cache hit rate of new plans, from 0 to 1. `None` if there were no lookups.
    pub fn hit_rate(&self) -> Option<f64> {
        let asked = self.pipeline_hits + self.pipeline_misses;
        (asked > 0).then(|| self.pipeline_hits as f64 / asked as f64)
    }
}

/// Times of a kernel variant, or of an op at one source location.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedRow {
    /// The backend it ran on.
    pub backend: Backend,
    /// Name of the kernel or op.
    pub name: &'static str,
    /// The variant of the kernel, or the source location of the op.
    pub detail: String,
    /// Number of measured launches.
    pub launches: u64,
    /// Total time of all launches.
    pub total: Duration,
    /// Shortest launch.
    pub min: Duration,
    /// 95th percentile of the last 65,536 launches.
    pub p95: Duration,
    /// Longest launch.
    pub max: Duration,
    /// Bytes read and written. Each element is counted once.
    pub bytes: u64,
    /// Highest number of bytes that one launch read and wrote.
    pub peak_bytes: u64,
    /// Arithmetic operations.
    pub flops: u64,
}

impl TimedRow {
    /// The mean time of a launch.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos((self.total.as_nanos() / u128::from(self.launches.max(1))) as u64)
    }
}

/// Time and memory of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportedModel {
    /// Its name, or `model` and its entity.
    pub name: String,
    /// Number of measured launches that worked on its tensors.
    pub launches: u64,
    /// Total time of these launches.
    pub total: Duration,
    /// Peak bytes of its tensors on the device, sampled every few frames.
    pub peak_device_bytes: u64,
}

/// A pipeline that was compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct CompiledRow {
    /// Name of the kernel.
    pub kernel: String,
    /// Name of the variant.
    pub variant: String,
    /// Duration of the compilation.
    pub compile: Duration,
}

/// Kernel times of one frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FrameRow {
    /// The backend they ran on.
    pub backend: Backend,
    /// Frame number of the backend.
    pub frame: u64,
    /// Number of launches.
    pub launches: usize,
    /// Sum of the launch times.
    pub busy: Duration,
    /// Time from the start of the first launch to the end of the last one.
    pub length: Duration,
}
