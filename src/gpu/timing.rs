//! The device's clock around launches. While timings are off there is no query, no buffer and no copy.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use super::buffers::{DeviceBuffer, Gpu, Purpose};
use super::compiled::Compiled;
use crate::error::RunError;
use crate::figures::{Count, Counters, TensorDiagnostics, TimedBatch, TimedLaunch, TimingSource};
use crate::ir::Backend;
use crate::plan::step_models;
use crate::record::Batch;

/// Queries of one set: as many as any device allows.
const SET: u32 = wgpu::QUERY_SET_MAX_QUERIES;

/// Measures launches, if that is asked for and possible.
pub(crate) struct Timer {
    source: TimingSource,
    /// Nanoseconds of a tick.
    period: f64,
    /// Used by one submission after the other: the queue keeps them apart.
    queries: Option<Queries>,
    diagnostics: TensorDiagnostics,
    sender: Sender<TimedBatch>,
    receiver: Receiver<TimedBatch>,
}

/// Where timestamps are written, and where they are made numbers.
pub(crate) struct Queries {
    sets: Vec<wgpu::QuerySet>,
    count: u32,
    resolved: wgpu::Buffer,
    inside: bool,
    counters: Arc<Counters>,
}

/// Timestamps on their way to the host.
pub(crate) struct Stamps {
    staging: Arc<DeviceBuffer>,
    count: u32,
    inside: bool,
}

impl Timer {
    pub(crate) fn new(gpu: &Gpu, diagnostics: TensorDiagnostics) -> Self {
        let features = gpu.device.features();
        let source = if features.contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES) {
            TimingSource::InsidePasses
        } else if features.contains(wgpu::Features::TIMESTAMP_QUERY) {
            TimingSource::SplitPasses
        } else {
            TimingSource::Unsupported
        };
        diagnostics.timing().set_source(Backend::Gpu, source);
        let (sender, receiver) = crossbeam_channel::unbounded();
        let period = f64::from(gpu.queue.get_timestamp_period());
        Self { source, period, queries: None, diagnostics, sender, receiver }
    }

    /// Takes in what has arrived.
    pub(crate) fn collect(&self) {
        for batch in self.receiver.try_iter() {
            self.diagnostics.timing().record(&batch);
        }
    }

    /// Queries for so many launches; `None` unless they are to be measured.
    pub(crate) fn queries(&mut self, gpu: &Gpu, launches: usize) -> Option<&Queries> {
        if self.source == TimingSource::Unsupported || !self.diagnostics.timing().is_on() {
            self.queries = None;
            return None;
        }
        let inside = self.source == TimingSource::InsidePasses && !self.diagnostics.splits_passes();
        // One before each launch and one after the last; or, around passes, two for each.
        let count = if inside { launches as u32 + 1 } else { launches as u32 * 2 };
        if self.queries.as_ref().is_none_or(|queries| queries.count < count || queries.inside != inside) {
            self.queries = None;
            self.queries = Some(Queries::new(gpu, count, inside));
        }
        self.queries.as_ref()
    }

    /// Tells of a batch's times when they have arrived.
    pub(crate) fn watch(&self, stamps: Stamps, frame: u64, compiled: &Compiled, batch: &Batch) {
        let Stamps { staging, count, inside } = stamps;
        let (report, models) = (compiled.plan.report.clone(), step_models(&compiled.plan, &batch.owners()));
        let launches: Vec<(usize, Arc<str>)> = compiled.timed().collect();
        let (sender, period) = (self.sender.clone(), self.period);
        let bytes = u64::from(count) * 8;
        let buffer = staging.buffer.clone();
        buffer.slice(..bytes).map_async(wgpu::MapMode::Read, move |result| {
            if result.is_err() {
                return;
            }
            let view = staging.buffer.slice(..bytes).get_mapped_range();
            let ticks: &[u64] = bytemuck::cast_slice(&view);
            let nanos = |at: usize| (ticks[at] as f64 * period) as u64;
            let timed = |(i, (step, variant)): (usize, (usize, Arc<str>))| {
                let (start, end, pass) = if inside { (i, i + 1, 0) } else { (i * 2, i * 2 + 1, i as u32) };
                TimedLaunch { step, variant, pass, start: nanos(start), end: nanos(end) }
            };
            let launches = launches.into_iter().enumerate().map(timed).collect();
            drop(view);
            staging.buffer.unmap();
            // The executor may be gone.
            let _ = sender.send(TimedBatch { backend: Backend::Gpu, frame, report, models, launches });
        });
    }
}

impl Queries {
    fn new(gpu: &Gpu, count: u32, inside: bool) -> Self {
        let count = count.next_multiple_of(64);
        let sets = (0..count.div_ceil(SET)).map(|set| {
            gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("tensor:timestamps"),
                ty: wgpu::QueryType::Timestamp,
                count: (count - set * SET).min(SET),
            })
        });
        let resolved = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("tensor:timestamps"),
            size: u64::from(count) * 8,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        let counters = gpu.counters.clone();
        counters.buffers_allocated.add(1);
        counters.plan_bytes.add(resolved.size());
        counters.total_device_bytes.raise(resolved.size(), &counters.peak_device_bytes);
        Self { sets: sets.collect(), count, resolved, inside, counters }
    }

    fn set(&self, query: u32) -> (&wgpu::QuerySet, u32) {
        (&self.sets[(query / SET) as usize], query % SET)
    }

    /// Whether launches share a pass.
    pub(crate) fn inside(&self) -> bool {
        self.inside
    }

    /// Reads the clock between launches: before launch number `at`, or after the last.
    pub(crate) fn stamp(&self, pass: &mut wgpu::ComputePass, at: usize) {
        let (set, index) = self.set(at as u32);
        pass.write_timestamp(set, index);
    }

    /// Reads the clock around the pass of launch number `at`.
    pub(crate) fn around(&self, at: usize) -> wgpu::ComputePassTimestampWrites<'_> {
        let (query_set, index) = self.set(at as u32 * 2);
        wgpu::ComputePassTimestampWrites {
            query_set,
            beginning_of_pass_write_index: Some(index),
            end_of_pass_write_index: Some(index + 1),
        }
    }

    /// Sends the timestamps of so many launches on their way.
    pub(crate) fn resolve(
        &self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        launches: usize,
    ) -> Result<Stamps, RunError> {
        let count = if self.inside { launches as u32 + 1 } else { launches as u32 * 2 };
        let staging = gpu.allocate(Purpose::Staging, count as usize * 2)?;
        for (i, set) in self.sets.iter().enumerate() {
            let first = i as u32 * SET;
            if first < count {
                encoder.resolve_query_set(set, 0..(count - first).min(SET), &self.resolved, u64::from(first) * 8);
            }
        }
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &staging.buffer, 0, u64::from(count) * 8);
        Ok(Stamps { staging, count, inside: self.inside })
    }
}

impl Drop for Queries {
    fn drop(&mut self) {
        self.counters.plan_bytes.sub(self.resolved.size());
        self.counters.total_device_bytes.sub(self.resolved.size());
        self.resolved.destroy();
    }
}
