//! What work cost over a while, to keep: as JSON, as one HTML page, and as a trace for Perfetto or `chrome://tracing`.

pub mod diagnostic_paths;
mod export;
mod monitor;

use core::time::Duration;

pub(crate) use diagnostic_paths::plugin as paths_plugin;
pub use monitor::TensorMonitor;
pub(crate) use monitor::plugin;

use crate::figures::FrameTimeline;
use crate::ir::Backend;

/// What tensor work cost between [`TensorMonitor::start`] and [`TensorMonitor::stop`]. Plain data; times are `None` or missing where nothing could
/// be measured, never 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TensorReport {
    /// The adapter, or that there is none.
    pub adapter: String,
    /// How long it was watched.
    pub duration: Duration,
    /// Frames of the app in that time.
    pub frames: u64,
    /// Kernel launches on the device.
    pub launches: u64,
    /// Kernels run by the CPU backend.
    pub cpu_kernels: u64,
    /// Readbacks asked for.
    pub readbacks: u64,
    /// The render world's time for planning, binding, encoding and submitting.
    pub encode: Duration,
    /// The most bytes of the device at a frame's end.
    pub peak_device_bytes: u64,
    /// Tensors that left the device.
    pub evictions: u64,
    /// Plans made.
    pub plans_built: u64,
    /// Batches that found their plan.
    pub plan_hits: u64,
    /// Launches of new plans that found their pipeline.
    pub pipeline_hits: u64,
    /// Pipelines that had to be compiled.
    pub pipeline_misses: u64,
    /// All compilations together.
    pub compile: Duration,
    /// Pipelines compiled in that time.
    pub compiled: Vec<CompiledRow>,
    /// By kernel and form, the longest first.
    pub kernels: Vec<TimedRow>,
    /// By op and where it was recorded, the longest first.
    pub ops: Vec<TimedRow>,
    /// By model, the longest first.
    pub models: Vec<ReportedModel>,
    /// What each frame's kernels took.
    pub timeline: Vec<FrameRow>,
    /// Bytes of the device over time.
    pub memory: Vec<(Duration, u64)>,
    /// Launches with their times, frame by frame, for the trace.
    pub launches_by_frame: Vec<FrameTimeline>,
    /// Launches that are in all figures but not in the trace, because there were too many.
    pub left_out_of_trace: u64,
}

impl TensorReport {
    /// How often new plans found their pipelines, from 0 to 1; `None` if none was looked for.
    pub fn hit_rate(&self) -> Option<f64> {
        let asked = self.pipeline_hits + self.pipeline_misses;
        (asked > 0).then(|| self.pipeline_hits as f64 / asked as f64)
    }
}

/// A kernel, or an op at one place of the code.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedRow {
    /// Where it ran.
    pub backend: Backend,
    /// The kernel or op.
    pub name: &'static str,
    /// The kernel's form, or where the op was recorded.
    pub detail: String,
    /// How often it was launched and measured.
    pub launches: u64,
    /// All launches together.
    pub total: Duration,
    /// The shortest.
    pub min: Duration,
    /// All but a twentieth took no longer; of the last 65,536 launches.
    pub p95: Duration,
    /// The longest.
    pub max: Duration,
    /// Bytes read and written, every element once.
    pub bytes: u64,
    /// The most bytes that one launch read and wrote.
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

/// What a model took.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportedModel {
    /// Its name, or what stands for one.
    pub name: String,
    /// Launches that worked on its tensors, and were measured.
    pub launches: u64,
    /// Their time.
    pub total: Duration,
    /// The most bytes of the device that its tensors were seen to take.
    pub peak_device_bytes: u64,
}

/// A pipeline that was compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct CompiledRow {
    /// The kernel.
    pub kernel: String,
    /// Its form.
    pub variant: String,
    /// How long it took.
    pub compile: Duration,
}

/// What a frame's kernels took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FrameRow {
    /// Where they ran.
    pub backend: Backend,
    /// The number of the frame on its backend.
    pub frame: u64,
    /// Launches.
    pub launches: usize,
    /// The launches' times together.
    pub busy: Duration,
    /// From the beginning of the first to the end of the last.
    pub length: Duration,
}
