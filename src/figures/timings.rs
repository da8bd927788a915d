//! How long kernels take, by kernel, by op and by model, and when in a frame each ran. Backends measure; everything else only reads.

use core::hash::Hash;
use core::panic::Location;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bevy::platform::collections::HashMap;
use bevy::prelude::*;

use super::PlanReport;
use crate::ir::Backend;

/// Samples that a [`TimingStats`] is about.
const WINDOW: usize = 120;
/// Frames of a report.
const FRAMES: usize = 16;
/// Frames of which the launches are kept: enough for whoever adds them up to be late.
const KEPT_FRAMES: usize = 128;
/// Kernels, ops or models that are kept; beyond, those not seen for longest go.
const KEPT: usize = 4096;

/// Where a backend's times come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TimingSource {
    /// Nothing: there is no such backend here, or the device has no timestamps (`Features::TIMESTAMP_QUERY`).
    #[default]
    Unsupported,
    /// The device's clock, read between the launches of a pass.
    InsidePasses,
    /// The device's clock, read around passes: while timings are on, every launch has one of its own, which costs more.
    SplitPasses,
    /// The clock of the thread that runs the kernels.
    HostClock,
}

/// A few figures over the last samples of something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimingStats {
    /// How often it was measured, in all.
    pub count: u64,
    /// Samples that the other figures are about, the latest ones.
    pub window: usize,
    /// The latest.
    pub last: Duration,
    /// The shortest.
    pub min: Duration,
    /// The mean.
    pub mean: Duration,
    /// All but a twentieth took no longer.
    pub p95: Duration,
    /// Bytes read and written in the window, every element once.
    pub bytes: u64,
    /// Arithmetic operations in the window.
    pub flops: u64,
}

impl TimingStats {
    /// Bytes moved in a second, in units of 10⁹; `None` if it took no time that the clock could see.
    pub fn gigabytes_per_second(&self) -> Option<f64> {
        self.rate(self.bytes)
    }

    /// Operations in a second, in units of 10⁹; `None` if it took no time that the clock could see.
    pub fn gigaflops(&self) -> Option<f64> {
        self.rate(self.flops)
    }

    fn rate(&self, amount: u64) -> Option<f64> {
        let seconds = self.mean.as_secs_f64() * self.window as f64;
        (seconds > 0.0).then(|| amount as f64 / seconds / 1e9)
    }
}

/// All launches of a kernel in one of its forms.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTiming {
    /// Where it ran.
    pub backend: Backend,
    /// The kernel.
    pub kernel: &'static str,
    /// The form of it that was chosen; empty where there is one only.
    pub variant: Arc<str>,
    /// Per launch.
    pub stats: TimingStats,
}

/// All launches for an op recorded at one place. The time of ops that share a launch is that of the op the kernel is for.
#[derive(Clone, Debug, PartialEq)]
pub struct OpTiming {
    /// Where it ran.
    pub backend: Backend,
    /// The op.
    pub op: &'static str,
    /// Where it was recorded; of ops that share a plan, the first such place.
    pub site: &'static Location<'static>,
    /// Per launch.
    pub stats: TimingStats,
}

/// All launches that work on a model's tensors, or on values made from them.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelTiming {
    /// Where it ran.
    pub backend: Backend,
    /// The model.
    pub model: Entity,
    /// Per batch, which is what a frame recorded.
    pub stats: TimingStats,
}

/// One launch in a [`FrameTimeline`].
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchSpan {
    /// The kernel.
    pub kernel: &'static str,
    /// The form of it.
    pub variant: Arc<str>,
    /// The op that the kernel is for.
    pub op: &'static str,
    /// Where that was recorded.
    pub site: &'static Location<'static>,
    /// The model whose tensors it works on.
    pub model: Option<Entity>,
    /// The number of its pass in the frame.
    pub pass: u32,
    /// When it began, after the frame's first launch did.
    pub start: Duration,
    /// When it ended.
    pub end: Duration,
    /// Bytes read and written, every element once.
    pub bytes: u64,
    /// Arithmetic operations.
    pub flops: u64,
}

/// When the launches of one frame ran.
#[derive(Clone, Debug, PartialEq)]
pub struct FrameTimeline {
    /// Where they ran.
    pub backend: Backend,
    /// The number of the frame on its backend.
    pub frame: u64,
    /// When its first launch began, by the backend's own clock, which starts anywhere.
    pub origin: Duration,
    /// In order.
    pub spans: Vec<LaunchSpan>,
}

impl FrameTimeline {
    /// The launches' times together.
    pub fn busy(&self) -> Duration {
        self.spans.iter().map(|span| span.end.saturating_sub(span.start)).sum()
    }

    /// From the beginning of the first launch to the end of the last.
    pub fn length(&self) -> Duration {
        self.spans.iter().map(|span| span.end).max().unwrap_or_default()
    }
}

/// What has been measured, as plain data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimingReport {
    /// The longest in all first.
    pub kernels: Vec<KernelTiming>,
    /// The longest in all first.
    pub ops: Vec<OpTiming>,
    /// The longest in all first.
    pub models: Vec<ModelTiming>,
    /// The last frames that were measured, oldest first.
    pub frames: Vec<FrameTimeline>,
}

/// Launches of one batch with their times, as backends hand them in.
pub(crate) struct TimedBatch {
    pub backend: Backend,
    pub frame: u64,
    pub report: Arc<PlanReport>,
    /// The model of each step.
    pub models: Vec<Option<Entity>>,
    pub launches: Vec<TimedLaunch>,
}

/// One launch, its times in nanoseconds of the backend's clock.
pub(crate) struct TimedLaunch {
    pub step: usize,
    pub variant: Arc<str>,
    pub pass: u32,
    pub start: u64,
    pub end: u64,
}

/// Where timings are gathered; shared by all who measure and read.
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
    frames: VecDeque<Frame>,
    /// Counts batches.
    clock: u64,
}

#[derive(Debug)]
struct Frame {
    timeline: FrameTimeline,
    /// When its first launch began, by the backend's clock.
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

    /// The frames of which launches are kept and that come after a given one, oldest first. The last may not be complete yet.
    pub(crate) fn frames_after(&self, backend: Backend, frame: Option<u64>) -> Vec<FrameTimeline> {
        let tables = self.tables();
        let later = |f: &&Frame| f.timeline.backend == backend && frame.is_none_or(|frame| f.timeline.frame > frame);
        tables.frames.iter().filter(later).map(|frame| frame.timeline.clone()).collect()
    }

    /// The newest frame before the last, which is complete: its number and its launches' times together.
    pub(crate) fn last_complete_frame(&self, backend: Backend) -> Option<(u64, Duration)> {
        let tables = self.tables();
        let mut frames = tables.frames.iter().rev().filter(|frame| frame.timeline.backend == backend);
        frames.nth(1).map(|frame| (frame.timeline.frame, frame.timeline.busy()))
    }

    /// `None` before anything has been measured.
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
        let frames = tables.frames.iter().skip(tables.frames.len().saturating_sub(FRAMES));
        let frames = frames.map(|frame| frame.timeline.clone()).collect();
        Some(TimingReport { kernels, ops, models, frames })
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
        forget(&mut self.models);
    }
}

/// Drops the half not seen for longest when there are too many: models and call sites come and go.
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
