//! Watches work for a while and adds up.

use core::time::Duration;
use std::collections::VecDeque;

use bevy::platform::collections::HashMap;
use bevy::platform::time::Instant;
use bevy::prelude::*;

use super::{CompiledRow, FrameRow, ReportedModel, TensorReport, TimedRow};
use crate::figures::{FrameTimeline, LaunchSpan, TensorDiagnostics, TensorFigures};
use crate::ir::Backend;
use crate::pipelines::{PipelineReport, TensorPipelines};
use crate::support::TensorSupport;
use crate::tensor::{ModelTensors, Tensor};

/// Launches kept for the trace.
const TRACED: usize = 200_000;
/// Samples of a row kept for its p95.
const SAMPLES: usize = 65_536;
/// Samples of memory kept; beyond, every other goes.
const MEMORY_SAMPLES: usize = 4096;
/// Frames between two looks at what each model takes.
const MODEL_FRAMES: u64 = 8;

/// Measures what tensor work costs from [`start`](Self::start) to [`stop`](Self::stop). A resource.
///
/// ```
/// # use bevy::prelude::*;
/// use bevy_tensor_compute::TensorMonitor;
///
/// fn end_of_level(mut monitor: ResMut<TensorMonitor>) -> Result {
///     if let Some(report) = monitor.stop() {
///         report.save_html("tensors.html")?;
///         report.save_trace("tensors.trace.json")?;
///     }
///     Ok(())
/// }
/// ```
#[derive(Resource)]
pub struct TensorMonitor {
    diagnostics: TensorDiagnostics,
    pipelines: TensorPipelines,
    adapter: String,
    running: Option<Running>,
}

/// What has been added up so far.
struct Running {
    started: Instant,
    before: TensorFigures,
    pipelines_before: PipelineReport,
    timings_before: bool,
    frames: u64,
    /// The last frame of each backend that was added up.
    seen: [Option<u64>; 2],
    kernels: HashMap<(Backend, &'static str, String), Tally>,
    ops: HashMap<(Backend, &'static str, String), Tally>,
    models: HashMap<Entity, ReportedModel>,
    timeline: Vec<FrameRow>,
    traced: Vec<FrameTimeline>,
    spans: usize,
    left_out: u64,
    memory: Vec<(Duration, u64)>,
    /// Frames from one sample of memory to the next.
    stride: u64,
    peak: u64,
}

#[derive(Default)]
struct Tally {
    launches: u64,
    total: Duration,
    min: Option<Duration>,
    max: Duration,
    bytes: u64,
    peak_bytes: u64,
    flops: u64,
    samples: VecDeque<u64>,
}

impl Tally {
    fn add(&mut self, span: &LaunchSpan) {
        let time = span.end.saturating_sub(span.start);
        self.launches += 1;
        self.total += time;
        self.min = Some(self.min.map_or(time, |min| min.min(time)));
        self.max = self.max.max(time);
        self.bytes += span.bytes;
        self.peak_bytes = self.peak_bytes.max(span.bytes);
        self.flops += span.flops;
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(time.as_nanos() as u64);
    }

    fn row(self, (backend, name, detail): (Backend, &'static str, String)) -> TimedRow {
        let mut samples = Vec::from(self.samples);
        samples.sort_unstable();
        let p95 = samples.get(((samples.len() * 95).div_ceil(100)).saturating_sub(1)).copied().unwrap_or(0);
        TimedRow {
            backend,
            name,
            detail,
            launches: self.launches,
            total: self.total,
            min: self.min.unwrap_or_default(),
            p95: Duration::from_nanos(p95),
            max: self.max,
            bytes: self.bytes,
            peak_bytes: self.peak_bytes,
            flops: self.flops,
        }
    }
}

fn rows(tallies: HashMap<(Backend, &'static str, String), Tally>) -> Vec<TimedRow> {
    let mut rows: Vec<TimedRow> = tallies.into_iter().map(|(key, tally)| tally.row(key)).collect();
    rows.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| (a.name, &a.detail).cmp(&(b.name, &b.detail))));
    rows
}

impl TensorMonitor {
    fn new(diagnostics: TensorDiagnostics, pipelines: TensorPipelines) -> Self {
        Self { diagnostics, pipelines, adapter: String::new(), running: None }
    }

    /// Whether it is watching.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Begins to watch, anew if it did already. Launches are timed until [`stop`](Self::stop).
    pub fn start(&mut self) {
        let timings_before = match &self.running {
            Some(running) => running.timings_before,
            None => self.diagnostics.timings_on(),
        };
        self.diagnostics.set_timings(true);
        // What was measured before does not count.
        let last = |backend| self.diagnostics.frames_after(backend, None).last().map(|frame| frame.frame);
        self.running = Some(Running {
            started: Instant::now(),
            before: self.diagnostics.figures(),
            pipelines_before: self.pipelines.report(),
            timings_before,
            frames: 0,
            seen: [last(Backend::Gpu), last(Backend::Cpu)],
            kernels: HashMap::default(),
            ops: HashMap::default(),
            models: HashMap::default(),
            timeline: Vec::new(),
            traced: Vec::new(),
            spans: 0,
            left_out: 0,
            memory: Vec::new(),
            stride: 1,
            peak: 0,
        });
    }

    /// Ends watching and tells what it saw; `None` if it was not watching. Times of the device arrive a frame or two late: those of launches that
    /// have not arrived are not in it.
    pub fn stop(&mut self) -> Option<TensorReport> {
        let mut running = self.running.take()?;
        running.add_frames(&self.diagnostics, true);
        self.diagnostics.set_timings(running.timings_before);
        let (now, before) = (self.diagnostics.figures(), running.before);
        let (pipelines, earlier) = (self.pipelines.report(), &running.pipelines_before);
        let builds = |id: u64| earlier.pipelines.iter().find(|p| p.id == id).map_or(0, |p| p.builds);
        let compiled = pipelines.pipelines.iter().filter(|pipeline| pipeline.builds > builds(pipeline.id));
        let compiled = compiled.filter_map(|pipeline| {
            let (kernel, variant) = (pipeline.kernel.to_string(), pipeline.variant.to_string());
            Some(CompiledRow { kernel, variant, compile: pipeline.compile? })
        });
        let mut compiled: Vec<CompiledRow> = compiled.collect();
        compiled.sort_by_key(|row| core::cmp::Reverse(row.compile));
        let mut models: Vec<ReportedModel> = running.models.into_values().collect();
        models.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| a.name.cmp(&b.name)));
        Some(TensorReport {
            adapter: self.adapter.clone(),
            duration: running.started.elapsed(),
            frames: running.frames,
            launches: now.dispatches - before.dispatches,
            cpu_kernels: now.cpu_steps - before.cpu_steps,
            readbacks: now.readbacks - before.readbacks,
            encode: Duration::from_nanos(now.encode_nanos - before.encode_nanos),
            peak_device_bytes: running.peak.max(now.total_device_bytes),
            evictions: now.evictions - before.evictions,
            plans_built: now.plans_built - before.plans_built,
            plan_hits: now.plan_hits - before.plan_hits,
            pipeline_hits: pipelines.hits - earlier.hits,
            pipeline_misses: pipelines.misses - earlier.misses,
            compile: pipelines.compile.saturating_sub(earlier.compile),
            compiled,
            kernels: rows(running.kernels),
            ops: rows(running.ops),
            models,
            timeline: running.timeline,
            memory: running.memory,
            launches_by_frame: running.traced,
            left_out_of_trace: running.left_out,
        })
    }
}

impl Running {
    /// Adds frames that are new. The newest may still be arriving, and waits unless this is the end.
    fn add_frames(&mut self, diagnostics: &TensorDiagnostics, end: bool) {
        for (backend, seen) in [Backend::Gpu, Backend::Cpu].into_iter().zip([0, 1]) {
            let mut frames = diagnostics.frames_after(backend, self.seen[seen]);
            if !end {
                frames.pop();
            }
            for frame in frames {
                self.seen[seen] = Some(frame.frame);
                self.add_frame(frame);
            }
        }
    }

    fn add_frame(&mut self, frame: FrameTimeline) {
        let backend = frame.backend;
        for span in &frame.spans {
            self.kernels.entry((backend, span.kernel, span.variant.to_string())).or_default().add(span);
            self.ops.entry((backend, span.op, span.site.to_string())).or_default().add(span);
            if let Some(model) = span.model {
                let row = self.models.entry(model).or_insert_with(|| unnamed(model));
                row.launches += 1;
                row.total += span.end.saturating_sub(span.start);
            }
        }
        let (busy, length, launches) = (frame.busy(), frame.length(), frame.spans.len());
        self.timeline.push(FrameRow { backend, frame: frame.frame, launches, busy, length });
        if self.spans + launches > TRACED {
            self.left_out += launches as u64;
        } else {
            self.spans += launches;
            self.traced.push(frame);
        }
    }

    fn sample_memory(&mut self, bytes: u64) {
        self.peak = self.peak.max(bytes);
        if self.memory.len() == MEMORY_SAMPLES {
            let mut keep = false;
            self.memory.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride *= 2;
        }
        if self.frames.is_multiple_of(self.stride) {
            self.memory.push((self.started.elapsed(), bytes));
        }
    }
}

fn unnamed(model: Entity) -> ReportedModel {
    ReportedModel { name: format!("model {model}"), launches: 0, total: Duration::ZERO, peak_device_bytes: 0 }
}

pub(crate) fn plugin(app: &mut App) {
    let diagnostics = app.world().resource::<TensorDiagnostics>().clone();
    let pipelines = app.world().resource::<TensorPipelines>().clone();
    app.insert_resource(TensorMonitor::new(diagnostics, pipelines))
        .add_systems(Last, watch.run_if(|monitor: Res<TensorMonitor>| monitor.is_running()));
}

fn watch(
    mut monitor: ResMut<TensorMonitor>,
    models: Query<(Entity, &ModelTensors, Option<&Name>)>,
    tensors: Query<&Tensor>,
    support: Option<Res<TensorSupport>>,
) {
    let TensorMonitor { diagnostics, adapter, running: Some(running), .. } = &mut *monitor else { return };
    if adapter.is_empty() {
        let name =
            support.map(|support| support.adapter.as_ref().map_or("no device", |adapter| &adapter.name).to_owned());
        *adapter = name.unwrap_or_default();
    }
    running.add_frames(diagnostics, false);
    running.sample_memory(diagnostics.figures().total_device_bytes);
    if running.frames.is_multiple_of(MODEL_FRAMES) {
        for (entity, members, name) in &models {
            let row = running.models.entry(entity).or_insert_with(|| unnamed(entity));
            if let Some(name) = name.filter(|name| name.as_str() != row.name) {
                row.name = name.to_string();
            }
            // Tensors on one storage take its bytes once.
            let members = members.iter().filter_map(|member| tensors.get(member).ok()).map(Tensor::usage);
            let storages: HashMap<u64, u64> = members.map(|usage| (usage.storage, usage.device_bytes)).collect();
            row.peak_device_bytes = row.peak_device_bytes.max(storages.values().sum());
        }
    }
    running.frames += 1;
}
