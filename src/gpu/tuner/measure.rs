//! Runs variants on the device and times them.

use std::sync::Arc;

use crossbeam_channel::Sender;

use super::trial::{Form, Trial};
use crate::error::RunError;
use crate::gpu::buffers::{DeviceBuffer, Purpose};
use crate::gpu::device::Gpu;

/// Maximum number of samples per submission.
pub(super) const MAX_TOGETHER: usize = 32;
/// Words at the start of a staging buffer that hold the timestamps. The results follow.
const STAMPS: usize = MAX_TOGETHER * 4;

const LABEL: Option<&str> = Some("tensor:tuning");

/// The results of a submission.
pub(super) struct Measured {
    /// Nanoseconds per sample.
    pub nanos: Vec<u64>,
    /// The content of the written memory, if it was a check.
    pub results: Vec<u32>,
}

/// Timestamp queries, and the buffer that they are resolved to.
pub(super) struct Clock {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    /// Nanoseconds per tick.
    period: f64,
}

impl Clock {
    pub(super) fn new(gpu: &Gpu, period: f64) -> Self {
        let (label, count) = (LABEL, MAX_TOGETHER as u32 * 2);
        let ty = wgpu::QueryType::Timestamp;
        let queries = gpu.device.create_query_set(&wgpu::QuerySetDescriptor { label, ty, count });
        let resolved = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label,
            size: u64::from(count) * 8,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        Self { queries, resolved, period }
    }

    /// Takes timestamps around the pass of sample number `sample`.
    fn around(&self, sample: u32) -> wgpu::ComputePassTimestampWrites<'_> {
        wgpu::ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: Some(sample * 2),
            end_of_pass_write_index: Some(sample * 2 + 1),
        }
    }
}

impl Trial {
    /// Runs and times forms. With `check`, the single form runs twice on fresh test data, and its results are returned
    /// too.
    pub(super) fn submit(
        &mut self,
        gpu: &Gpu,
        clock: &Clock,
        forms: Vec<usize>,
        check: bool,
        sender: &Sender<Option<Measured>>,
    ) -> Result<(), RunError> {
        if check {
            self.memory.iter().filter(|memory| memory.written).for_each(|memory| memory.reset(gpu));
        }
        for &at in &forms {
            if self.forms[at].group.is_none() {
                self.forms[at].group = Some(self.group(gpu, &self.forms[at])?);
            }
        }
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: LABEL });
        for (sample, &at) in forms.iter().enumerate() {
            if check {
                // Some drivers finish the compilation only in the first run, so that one is not timed.
                self.forms[at].encode(&mut encoder, None);
            }
            self.forms[at].encode(&mut encoder, Some(clock.around(sample as u32)));
        }
        let count = forms.len() * 2;
        encoder.resolve_query_set(&clock.queries, 0..count as u32, &clock.resolved, 0);
        let (staging, words) = self.copy_to_host(gpu, &mut encoder, clock, count, check)?;
        gpu.queue.submit([encoder.finish()]);
        send_when_mapped(staging, words, count, clock.period, sender.clone());
        self.flying = forms;
        Ok(())
    }

    /// Encodes the copies of the timestamps and, with `check`, of the results. Returns the staging buffer and its
    /// words.
    fn copy_to_host(
        &self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        clock: &Clock,
        stamps: usize,
        check: bool,
    ) -> Result<(Arc<DeviceBuffer>, usize), RunError> {
        let results = || self.memory.iter().filter(|memory| check && memory.written);
        let words = STAMPS + results().map(|memory| memory.words.len()).sum::<usize>();
        let staging = gpu.allocate(Purpose::Staging, words)?;
        encoder.copy_buffer_to_buffer(&clock.resolved, 0, &staging.buffer, 0, stamps as u64 * 8);
        let mut at = STAMPS;
        for memory in results() {
            let bytes = memory.words.len() as u64 * 4;
            encoder.copy_buffer_to_buffer(&memory.buffer.buffer, 0, &staging.buffer, at as u64 * 4, bytes);
            at += memory.words.len();
        }
        Ok((staging, words))
    }

    fn group(&self, gpu: &Gpu, form: &Form) -> Result<wgpu::BindGroup, RunError> {
        let missing = || RunError::Device(format!("a buffer of kernel \"{}\" is missing", form.launch.name));
        let layout = &form.pipeline.as_ref().ok_or_else(missing)?.layout;
        let mut buffers: Vec<(wgpu::Buffer, u64)> =
            vec![(form.params.buffer.clone(), form.launch.params.len() as u64 * 4)];
        for binding in &form.launch.bindings {
            let memory = self.memory.iter().find(|memory| memory.source == binding.source).ok_or_else(missing)?;
            buffers.push((memory.buffer.buffer.clone(), memory.words.len() as u64 * 4));
        }
        let entries: Vec<wgpu::BindGroupEntry> = buffers
            .iter()
            .enumerate()
            .map(|(i, (buffer, bytes))| wgpu::BindGroupEntry {
                binding: i as u32,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer,
                    offset: 0,
                    size: core::num::NonZeroU64::new(*bytes),
                }),
            })
            .collect();
        let label = format!("tensor:tuning {}", form.launch.name);
        Ok(gpu.device.create_bind_group(&wgpu::BindGroupDescriptor { label: Some(&label), layout, entries: &entries }))
    }
}

impl Form {
    /// Encodes one sample in a pass of its own.
    fn encode(&self, encoder: &mut wgpu::CommandEncoder, timestamp_writes: Option<wgpu::ComputePassTimestampWrites>) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: LABEL, timestamp_writes });
        if let (Some(pipeline), Some(group)) = (&self.pipeline, &self.group) {
            pass.set_pipeline(&pipeline.pipeline);
            pass.set_bind_group(0, group, &[]);
            let [x, y, z] = self.launch.workgroups;
            for _ in 0..self.repeats {
                pass.dispatch_workgroups(x, y, z);
            }
        }
    }
}

/// Sends the times and results when the staging buffer is mapped, or `None` if the device is lost.
fn send_when_mapped(
    staging: Arc<DeviceBuffer>,
    words: usize,
    stamps: usize,
    period: f64,
    sender: Sender<Option<Measured>>,
) {
    let (buffer, bytes) = (staging.buffer.clone(), words as u64 * 4);
    buffer.slice(..bytes).map_async(wgpu::MapMode::Read, move |result| {
        let measured = result.is_ok().then(|| {
            let view = staging.buffer.slice(..bytes).get_mapped_range();
            let ticks: &[u64] = bytemuck::cast_slice(&view[..stamps * 8]);
            let nanos = |pair: &[u64]| (pair[1].saturating_sub(pair[0]) as f64 * period) as u64;
            let nanos = ticks.chunks_exact(2).map(nanos).collect();
            let results = bytemuck::cast_slice::<_, u32>(&view)[STAMPS..].to_vec();
            drop(view);
            staging.buffer.unmap();
            Measured { nanos, results }
        });
        // Fails only when the executor is gone.
        let _ = sender.send(measured);
    });
}
