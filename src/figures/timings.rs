//! Kernel timings, by kernel, op and model, and timelines of frames. The backends measure, all other modules only read.

use core::hash::Hash;
use core::panic::Location;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bevy::platform::collections::HashMap;
use bevy::prelude::*;

use super::{PlanReport, StepNodes};
use crate::ir::Backend;

/// Number of samples in the window of [`TimingStats`].
const WINDOW: usize = 120;
/// Number of frames in a [`TimingReport`].
const FRAMES: usize = 16;
/// Number of frames whose launches are kept, so that readers that sum them up can be late.
const KEPT_FRAMES: usize = 128;
/// Maximum number of kernels, ops or models. The least recently seen ones are dropped.
const KEPT: usize = 4096;

/// How a backend measures times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TimingSource {
    /// Not measured: the backend does not exist, or the device has no timestamps (`Features::TIMESTAMP_QUERY`).
    #[default]
    Unsupported,
    /// GPU timestamps between the launches of a pass.
    InsidePasses,
    /// GPU timestamps around passes. While timings are on, every launch has its own pass, which is slower.
    SplitPasses,
    /// The host clock on the thread that runs the kernels.
    HostClock,
}

/// Statistics over the most recent samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimingStats {
    /// Total number of measurements.
    pub count: u64,
    /// Number of recent samples that the other figures cover.
    pub window: usize,
    /// The most recent sample.
    pub last: Duration,
    /// Minimum.
    pub min: Duration,
    /// Mean.
    pub mean: Duration,
    /// 95th percentile.
    pub p95: Duration,
    /// Bytes read and written in the window. Each element is counted once.
    pub bytes: u64,
    /// Arithmetic operations in the window.
    pub flops: u64,
}

impl TimingStats {
    /// Bandwidth in GB/s (10⁹ bytes per second). `None` if the measured time is 0.
    pub fn gigabytes_per_second(&self) -> Option<f64> {
        self.rate(self.bytes)
    }

    /// Throughput in GFLOP/s (10⁹ operations per second). `None` if the measured time is 0.
    pub fn gigaflops(&self) -> Option<f64> {
        self.rate(self.flops)
    }

    fn rate(&self, amount: u64) -> Option<f64> {
        let seconds = self.mean.as_secs_f64() * self.window as f64;
        (seconds > 0.0).then(|| amount as f64 / seconds / 1e9)
    }
}

/// Timing of one variant of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTiming {
    /// The backend it ran on.
    pub backend: Backend,
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Name of the variant. Empty if the kernel has only one.
    pub variant: Arc<str>,
    /// Per launch.
    pub stats: TimingStats,
}

/// Timing of an op, by the source location that recorded it. If several ops share a launch, the time belongs to the
/// main op of the launch.
#[derive(Clone, Debug, PartialEq)]
pub struct OpTiming {
    /// The backend it ran on.
    pub backend: Backend,
    /// Name of the op.
    pub op: &'static str,
    /// Where it was recorded. If several locations share a plan, the first one.
    pub site: &'static Location<'static>,
    /// Per launch.
    pub stats: TimingStats,
}

/// Timing of a node of a model's graph. If a launch computes several nodes, they share one entry.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeTiming {
    /// The backend it ran on.
    pub backend: Backend,
    /// The nodes of the launch, as errors name them: "node `/conv1/Conv` (Conv)".
    pub nodes: Arc<[Arc<str>]>,
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Per launch.
    pub stats: TimingStats,
}

/// Timing of all launches that work on a model's tensors or on values computed from them.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelTiming {
    /// The backend it ran on.
    pub backend: Backend,
    /// The model.
    pub model: Entity,
    /// Per batch. A batch is the recorded work of one frame.
    pub stats: TimingStats,
}

/// One launch in a [`FrameTimeline`].
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchSpan {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Name of the variant.
    pub variant: Arc<str>,
    /// The main op of the launch.
    pub op: &'static str,
    /// Where the op was recorded.
    pub site: &'static Location<'static>,
    /// The model whose tensors it works on, if any.
    pub model: Option<Entity>,
    /// Index of its pass in the frame.
    pub pass: u32,
    /// Start time, relative to the start of the frame's first launch.
    pub start: Duration,
    /// End time, relative to the start of the frame's first launch.
    pub end: Duration,
    /// Bytes read and written. Each element is counted once.
    pub bytes: u64,
    /// Arithmetic operations.
    pub flops: u64,
}

/// The launches of one frame, with their times.
#[derive(Clone, Debug, PartialEq)]
pub struct FrameTimeline {
    /// The backend they ran on.
    pub backend: Backend,
    /// Frame number of the backend.
    pub frame: u64,
    /// Start of the first launch, by the clock of the backend. The clock has an arbitrary origin.
    pub origin: Duration,
    /// The launches, in order.
    pub spans: Vec<LaunchSpan>,
}

impl FrameTimeline {
    /// Sum of the launch times.
    pub fn busy(&self) -> Duration {
        self.spans.iter().map(|span| span.end.saturating_sub(span.start)).sum()
    }

    /// Time from the start of the first launch to the end of the last one.
    pub fn length(&self) -> Duration {
        self.spans.iter().map(|span| span.end).max().unwrap_or_default()
    }
}

/// All measurements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimingReport {
    /// By kernel, highest total time first.
    pub kernels: Vec<KernelTiming>,
    /// By op, highest total time first.
    pub ops: Vec<OpTiming>,
    /// By model, highest total time first.
    pub models: Vec<ModelTiming>,
    /// By node of a model's graph, highest total time first.
    pub nodes: Vec<NodeTiming>,
    /// The most recent measured frames, oldest first.
    pub frames: Vec<FrameTimeline>,
}

/// The timed launches of one batch, as a backend reports them.
pub(crate) struct TimedBatch {
    pub backend: Backend,
    pub frame: u64,
    pub report: Arc<PlanReport>,
    /// The nodes of models' graphs that each step computes.
    pub nodes: Arc<[StepNodes]>,
    /// The model of each step.
    pub models: Vec<Option<Entity>>,
    pub launches: Vec<TimedLaunch>,
}

/// One launch, with times in nanoseconds of the backend's clock.
pub(crate) struct TimedLaunch {
    pub step: usize,
    pub variant: Arc<str>,
    pub pass: u32,
    pub start: u64,
    pub end: u64,
}

/// Collects timings. Shared by the backends and the readers.
#[derive(Debug, Default)]
pub(crate) struct Timings {
    on: AtomicBool,
    /// By backend.
    sources: [AtomicU8; 2],
    tables: Mutex<Tables>,
}

type Keyed<K> = HashMap<K, Window>;

#[derive(Debug, Default)]
struct Tables {
    kernels: Keyed<(Backend, &'static str, Arc<str>)>,
    ops: Keyed<(Backend, &'static str, &'static Location<'static>)>,
    models: Keyed<(Backend, Entity)>,
    nodes: Keyed<(Backend, StepNodes, &'static str)>,
    frames: VecDeque<Frame>,
    /// Number of batches so far.
    clock: u64,
}

#[derive(Debug)]
struct Frame {
    timeline: FrameTimeline,
    /// Start of its first launch, by the clock of the backend.
    origin: u64,
    passes: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    nanos: u64,
    bytes: u64,
    flops: u64,
}

#[derive(Debug, Default)]
struct Window {
    samples: VecDeque<Sample>,
    count: u64,
    touched: u64,
}

impl Window {
    fn push(&mut self, sample: Sample, clock: u64) {
        if self.samples.len() == WINDOW {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        self.count += 1;
        self.touched = clock;
    }

    fn stats(&self) -> Option<TimingStats> {
        let last = self.samples.back()?;
        let mut sorted: Vec<u64> = self.samples.iter().map(|sample| sample.nanos).collect();
        sorted.sort_unstable();
        let window = sorted.len();
        let sum: u64 = sorted.iter().sum();
        Some(TimingStats {
            count: self.count,
            window,
            last: Duration::from_nanos(last.nanos),
            min: Duration::from_nanos(sorted[0]),
            mean: Duration::from_nanos(sum / window as u64),
            p95: Duration::from_nanos(sorted[(window * 95).div_ceil(100) - 1]),
            bytes: self.samples.iter().map(|sample| sample.bytes).sum(),
            flops: self.samples.iter().map(|sample| sample.flops).sum(),
        })
    }
}

impl Timings {
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub(crate) fn set_on(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    pub(crate) fn set_source(&self, backend: Backend, source: TimingSource) {
        self.sources[backend as usize].store(source as u8, Ordering::Relaxed);
    }

    pub(crate) fn source(&self, backend: Backend) -> TimingSource {
        use TimingSource::{HostClock, InsidePasses, SplitPasses, Unsupported};
        let number = self.sources[backend as usize].load(Ordering::Relaxed);
        [InsidePasses, SplitPasses, HostClock].into_iter().find(|&s| s as u8 == number).unwrap_or(Unsupported)
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn clear(&self) {
        *self.tables() = Tables::default();
    }

    pub(crate) fn record(&self, batch: &TimedBatch) {
        self.tables().record(batch);
    }

    /// The kept frames after `frame`, oldest first. The last one may be incomplete.
    pub(crate) fn frames_after(&self, backend: Backend, frame: Option<u64>) -> Vec<FrameTimeline> {
        let tables = self.tables();
        let later = |f: &&Frame| f.timeline.backend == backend && frame.is_none_or(|frame| f.timeline.frame > frame);
        tables.frames.iter().filter(later).map(|frame| frame.timeline.clone()).collect()
    }

    /// The second newest frame, which is complete: its number, and the sum of its launch times.
    pub(crate) fn last_complete_frame(&self, backend: Backend) -> Option<(u64, Duration)> {
        let tables = self.tables();
        let mut frames = tables.frames.iter().rev().filter(|frame| frame.timeline.backend == backend);
        frames.nth(1).map(|frame| (frame.timeline.frame, frame.timeline.busy()))
    }

    /// Returns `None` if nothing was measured.
    pub(crate) fn report(&self) -> Option<TimingReport> {
        let tables = self.tables();
        if tables.kernels.is_empty() {
            return None;
        }
        let kernels = longest_first(&tables.kernels, |(backend, kernel, variant), stats| KernelTiming {
            backend: *backend,
            kernel,
            variant: variant.clone(),
            stats,
        });
        let ops = longest_first(&tables.ops, |&(backend, op, site), stats| OpTiming { backend, op, site, stats });
        let models = longest_first(&tables.models, |&(backend, model), stats| ModelTiming { backend, model, stats });
        let nodes = longest_first(&tables.nodes, |(backend, nodes, kernel), stats| NodeTiming {
            backend: *backend,
            nodes: nodes.clone(),
            kernel,
            stats,
        });
        let frames = tables.frames.iter().skip(tables.frames.len().saturating_sub(FRAMES));
        let frames = frames.map(|frame| frame.timeline.clone()).collect();
        Some(TimingReport { kernels, ops, models, nodes, frames })
    }
}

impl Tables {
    fn record(&mut self, batch: &TimedBatch) {
        let Some(first) = batch.launches.first() else { return };
        self.clock += 1;
        let (backend, clock) = (batch.backend, self.clock);
        let known = self.frames.iter().any(|f| f.timeline.frame == batch.frame && f.timeline.backend == backend);
        if !known {
            if self.frames.len() == KEPT_FRAMES {
                self.frames.pop_front();
            }
            let origin = Duration::from_nanos(first.start);
            let timeline = FrameTimeline { backend, frame: batch.frame, origin, spans: Vec::new() };
            self.frames.push_back(Frame { timeline, origin: first.start, passes: 0 });
        }
        let frame = self.frames.iter_mut().find(|f| f.timeline.frame == batch.frame && f.timeline.backend == backend);
        let Some(frame) = frame else { return };
        let mut models: HashMap<Entity, Sample> = HashMap::default();
        for launch in &batch.launches {
            let Some(report) = batch.report.steps.get(launch.step) else { continue };
            let nanos = launch.end.saturating_sub(launch.start);
            let sample = Sample { nanos, bytes: report.bytes, flops: report.flops };
            let kernel = (backend, report.kernel, launch.variant.clone());
            self.kernels.entry(kernel).or_default().push(sample, clock);
            self.ops.entry((backend, report.op, report.site)).or_default().push(sample, clock);
            if let Some(nodes) = batch.nodes.get(launch.step).filter(|nodes| !nodes.is_empty()) {
                let key = (backend, nodes.clone(), report.kernel);
                self.nodes.entry(key).or_default().push(sample, clock);
            }
            let model = batch.models.get(launch.step).copied().flatten();
            if let Some(model) = model {
                let sum = models.entry(model).or_default();
                sum.nanos += nanos;
                sum.bytes += sample.bytes;
                sum.flops += sample.flops;
            }
            let since = |stamp: u64| Duration::from_nanos(stamp.saturating_sub(frame.origin));
            frame.timeline.spans.push(LaunchSpan {
                kernel: report.kernel,
                variant: launch.variant.clone(),
                op: report.op,
                site: report.site,
                model,
                pass: frame.passes + launch.pass,
                start: since(launch.start),
                end: since(launch.end),
                bytes: report.bytes,
                flops: report.flops,
            });
        }
        frame.passes += batch.launches.last().map_or(0, |launch| launch.pass + 1);
        for (model, sample) in models {
            self.models.entry((backend, model)).or_default().push(sample, clock);
        }
        forget(&mut self.kernels);
        forget(&mut self.ops);
        forget(&mut self.nodes);
        forget(&mut self.models);
    }
}

/// Drops the least recently seen half if there are too many entries, because models and call sites come and go.
fn forget<K: Eq + Hash>(map: &mut Keyed<K>) {
    if map.len() > KEPT {
        let mut touched: Vec<u64> = map.values().map(|window| window.touched).collect();
        touched.sort_unstable();
        let middle = touched[touched.len() / 2];
        map.retain(|_, window| window.touched > middle);
    }
}

fn longest_first<K, T>(map: &Keyed<K>, row: impl Fn(&K, TimingStats) -> T) -> Vec<T> {
    let mut rows: Vec<(Duration, T)> = map
        .iter()
        .filter_map(|(key, window)| window.stats().map(|stats| (stats.mean * stats.window as u32, row(key, stats))))
        .collect();
    rows.sort_by_key(|row| core::cmp::Reverse(row.0));
    rows.into_iter().map(|(_, row)| row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_window_forget_what_is_older() {
        let mut window = Window::default();
        assert!(window.stats().is_none());
        for nanos in 1..=200 {
            window.push(Sample { nanos, bytes: 10, flops: 20 }, nanos);
        }
        let stats = window.stats().unwrap();
        assert_eq!((stats.count, stats.window), (200, WINDOW));
        assert_eq!((stats.min, stats.last), (Duration::from_nanos(81), Duration::from_nanos(200)));
        assert_eq!((stats.mean, stats.p95), (Duration::from_nanos(140), Duration::from_nanos(194)));
        let flops = stats.gigaflops().unwrap();
        assert!((flops - 20.0 / 140.0).abs() < 1e-9, "{flops}");
    }
}
