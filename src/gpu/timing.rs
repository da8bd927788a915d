//! Measures launches with timestamp queries. While timings are off there are no queries, buffers or copies.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use super::buffers::{DeviceBuffer, Purpose};
use super::device::Gpu;
use super::program::Program;
use crate::error::RunError;
use crate::figures::{Count, Counters, TensorDiagnostics, TimedBatch, TimedLaunch, TimingSource};
use crate::ir::Backend;
use crate::plan::step_models;
use crate::record::Batch;

/// Size of a query set: the maximum that all devices support.
const SET: u32 = wgpu::QUERY_SET_MAX_QUERIES;

/// Measures launches, if timings are on and the device supports them.
pub(crate) struct Timer {
    source: TimingSource,
    /// Nanoseconds per tick.
    period: f64,
    /// Shared by all submissions, which run one after the other on the queue.
    queries: Option<Queries>,
    diagnostics: TensorDiagnostics,
    sender: Sender<TimedBatch>,
    receiver: Receiver<TimedBatch>,
}

/// Query sets, and the buffer that they are resolved to.
pub(crate) struct Queries {
    sets: Vec<wgpu::QuerySet>,
    count: u32,
    resolved: wgpu::Buffer,
    /// Whether timestamps are taken inside a pass instead of around passes.
    inside: bool,
    counters: Arc<Counters>,
}

/// Timestamps in flight to the host.
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

    /// Records the times that have arrived.
    pub(crate) fn collect(&self) {
        for batch in self.receiver.try_iter() {
            self.diagnostics.timing().record(&batch);
        }
    }

    /// Queries for `launches` launches. `None` if they are not measured.
    pub(crate) fn queries(&mut self, gpu: &Gpu, launches: usize) -> Option<&Queries> {
        if self.source == TimingSource::Unsupported || !self.diagnostics.timing().is_on() {
            self.queries = None;
            return None;
        }
        let inside = self.source == TimingSource::InsidePasses && !self.diagnostics.splits_passes();
        // Inside a pass: one before each launch and one after the last. Around passes: two for each launch.
        let count = if inside { launches as u32 + 1 } else { launches as u32 * 2 };
        if self.queries.as_ref().is_none_or(|queries| queries.count < count || queries.inside != inside) {
            self.queries = None;
            self.queries = Some(Queries::new(gpu, count, inside));
        }
        self.queries.as_ref()
    }

    /// Reports the times of a batch when they have arrived.
    pub(crate) fn watch(&self, stamps: Stamps, frame: u64, program: &Program, batch: &Batch) {
        let Stamps { staging, count, inside } = stamps;
        let (report, models) = (program.plan.report.clone(), step_models(&program.plan, &batch.owners()));
        let nodes = program.plan.nodes.clone();
        let launches: Vec<(usize, Arc<str>)> = program.timed().collect();
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
            // Fails only when the executor is gone.
            let _ = sender.send(TimedBatch { backend: Backend::Gpu, frame, report, nodes, models, launches });
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

    /// Whether all launches are in one pass.
    pub(crate) fn inside(&self) -> bool {
        self.inside
    }

    /// Takes a timestamp before launch number `at`, or after the last.
    pub(crate) fn stamp(&self, pass: &mut wgpu::ComputePass, at: usize) {
        let (set, index) = self.set(at as u32);
        pass.write_timestamp(set, index);
    }

    /// Takes timestamps around the pass of launch number `at`.
    pub(crate) fn around(&self, at: usize) -> wgpu::ComputePassTimestampWrites<'_> {
        let (query_set, index) = self.set(at as u32 * 2);
        wgpu::ComputePassTimestampWrites {
            query_set,
            beginning_of_pass_write_index: Some(index),
            end_of_pass_write_index: Some(index + 1),
        }
    }

    /// Encodes the copy of the timestamps of `launches` launches to a staging buffer.
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
