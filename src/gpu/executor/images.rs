//! Copies between textures and tensors, in their place among all other work. A small kernel each way: plain copies would need rows of 256 bytes and know
//! no colour spaces.

use std::sync::{Arc, OnceLock};

use bevy::platform::collections::HashMap;
use bevy::tasks::AsyncComputeTaskPool;

use super::super::buffers::{DeviceBuffer, ErrorScope, Gpu, Purpose};
use super::{GpuExecutor, Outcome, Work, fills};
use crate::error::RunError;
use crate::figures::Count;
use crate::ir::Backend;
use crate::mailbox::{CopyWay, ImageCopy, PixelRows};
use crate::plan::Effect;
use crate::tensor::Storage;

const LABEL: Option<&str> = Some("tensor:image");

/// Pixels along a side of a workgroup.
const SIDE: u32 = 8;

/// A copy whose texture has been found.
#[derive(Debug)]
pub(crate) struct ImageJob {
    pub copy: ImageCopy,
    pub texture: wgpu::Texture,
}

/// The kernels, and what they were bound to lately.
#[derive(Default)]
pub(super) struct ImageKernels {
    kernels: HashMap<Kernel, Arc<OnceLock<Compiled>>>,
    bound: HashMap<Binding, Bound>,
}

type Compiled = Result<wgpu::ComputePipeline, RunError>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kernel {
    /// A texture's colours to pixels; of a texture that gives linear light, encoded.
    Read { encode: bool },
    /// Pixels to a texture.
    Write,
}

/// What a copy is bound to: a kernel, a texture, a buffer by its number, and places in it.
#[derive(PartialEq, Eq, Hash)]
struct Binding {
    kernel: Kernel,
    texture: wgpu::Texture,
    buffer: u64,
    rows: PixelRows,
}

struct Bound {
    /// Bind groups, and the rows that each is for.
    groups: Vec<(wgpu::BindGroup, u32)>,
    /// Where the rows lie, for all groups.
    _params: Arc<DeviceBuffer>,
    /// The frame that last used it.
    used: u64,
}

/// Rows that one binding shows.
#[derive(Debug, PartialEq, Eq)]
struct Band {
    row: usize,
    count: usize,
    /// Words of the buffer.
    start: usize,
    words: usize,
    /// The first row's first word among those.
    first: usize,
}

/// Rows in as few bands as bindings of `limit` words allow, which begin at multiples of `alignment`.
fn bands(rows: &PixelRows, limit: usize, alignment: usize) -> Vec<Band> {
    let most = (limit.saturating_sub(alignment + rows.width) / rows.pitch.max(1) + 1).min(rows.height);
    let band = |row: usize| {
        let (count, word) = (most.min(rows.height - row), rows.first + row * rows.pitch);
        let first = word % alignment;
        Band { row, count, start: word - first, words: first + (count - 1) * rows.pitch + rows.width, first }
    };
    (0..rows.height).step_by(most.max(1)).map(band).collect()
}

impl Kernel {
    fn of(ImageJob { copy, texture }: &ImageJob) -> Self {
        use wgpu::TextureFormat as F;
        match (copy.way, texture.format()) {
            // Reading textures of floats gives linear light; so does reading sRGB textures.
            (CopyWay::IntoTensor, F::Rgba16Float | F::Rgba32Float | F::Rg11b10Ufloat) => Self::Read { encode: true },
            (CopyWay::IntoTensor, format) => Self::Read { encode: format.is_srgb() },
            (CopyWay::IntoImage, _) => Self::Write,
        }
    }

    fn compile(self, device: &wgpu::Device) -> Compiled {
        let (source, encode) = match self {
            Self::Read { encode } => (include_str!("read_image.wgsl"), Some(encode)),
            Self::Write => (include_str!("write_image.wgsl"), None),
        };
        let scope = ErrorScope::new(device);
        let source = wgpu::ShaderSource::Wgsl(source.into());
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: LABEL, source });
        let constants: Vec<(&str, f64)> = encode.iter().map(|&encode| ("encode", f64::from(encode))).collect();
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: LABEL,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions { constants: &constants, ..Default::default() },
            cache: None,
        });
        match scope.pop() {
            None => Ok(pipeline),
            Some(error) => Err(RunError::Kernel { kernel: "image".to_owned(), message: error.to_string() }),
        }
    }

    /// How a texture is looked at.
    fn view(self, texture: &wgpu::Texture) -> wgpu::TextureView {
        texture.create_view(&match self {
            Self::Read { .. } => wgpu::TextureViewDescriptor::default(),
            Self::Write => wgpu::TextureViewDescriptor {
                format: Some(wgpu::TextureFormat::Rgba8Unorm),
                usage: Some(wgpu::TextureUsages::STORAGE_BINDING),
                ..Default::default()
            },
        })
    }
}

impl ImageKernels {
    /// A kernel, or why there will be none; `None` while it compiles, off the frame unless `synchronous`.
    fn kernel(&mut self, kernel: Kernel, gpu: &Gpu, synchronous: bool) -> Option<Compiled> {
        let entry = self.kernels.entry(kernel).or_insert_with(|| {
            let entry = Arc::new(OnceLock::new());
            let (to, device) = (entry.clone(), gpu.device.clone());
            // Set once: it is begun once.
            let compile = move || drop(to.set(kernel.compile(&device)));
            if synchronous {
                compile();
            } else {
                AsyncComputeTaskPool::get().spawn(async move { compile() }).detach();
            }
            entry
        });
        entry.get().cloned()
    }

    /// Bind groups for a copy, made once for as long as every frame has such a copy.
    fn bind(
        &mut self,
        gpu: &Gpu,
        binding: Binding,
        pipeline: &wgpu::ComputePipeline,
        buffer: &DeviceBuffer,
        frame: u64,
    ) -> Result<&Bound, RunError> {
        use bevy::platform::collections::hash_map::Entry;
        match self.bound.entry(binding) {
            Entry::Occupied(entry) => {
                let bound = entry.into_mut();
                bound.used = frame;
                Ok(bound)
            }
            Entry::Vacant(entry) => {
                let bands = bands(&entry.key().rows, gpu.binding_words(), gpu.binding_alignment());
                let stride = (gpu.limits.min_uniform_buffer_offset_alignment as usize / 4).max(4);
                let params = gpu.allocate(Purpose::Plan, stride * bands.len())?;
                let (view, layout) = (entry.key().kernel.view(&entry.key().texture), pipeline.get_bind_group_layout(0));
                let mut groups = Vec::with_capacity(bands.len());
                for (i, band) in bands.iter().enumerate() {
                    let rows = [band.row, band.count, band.first, entry.key().rows.pitch].map(|n| n as u32);
                    gpu.write(&params.buffer, i * stride, &rows);
                    let part = |buffer, word: usize, bytes: u64| {
                        let (offset, size) = (word as u64 * 4, core::num::NonZeroU64::new(bytes));
                        wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size })
                    };
                    // Whole 16-byte groups, which buffers are made of.
                    let bytes = (band.words as u64 * 4).next_multiple_of(16);
                    let resources = [
                        wgpu::BindingResource::TextureView(&view),
                        part(&buffer.buffer, band.start, bytes),
                        part(&params.buffer, i * stride, 16),
                    ];
                    let mut binding = 0..;
                    let entries = resources
                        .map(|resource| wgpu::BindGroupEntry { binding: binding.next().unwrap_or(0), resource });
                    gpu.counters.bind_groups_made.add(1);
                    let descriptor = wgpu::BindGroupDescriptor { label: LABEL, layout: &layout, entries: &entries };
                    groups.push((gpu.device.create_bind_group(&descriptor), band.count as u32));
                }
                Ok(entry.insert(Bound { groups, _params: params, used: frame }))
            }
        }
    }

    /// Forgets what this frame and the last had no use for, and the textures with it.
    pub(super) fn end_frame(&mut self, frame: u64) {
        self.bound.retain(|_, bound| bound.used + 1 >= frame);
    }
}

impl GpuExecutor {
    /// Copies in one pass. Those of which something is wrong fail alone.
    pub(super) fn copy_images(&mut self, mut jobs: Vec<ImageJob>) -> Outcome {
        // The image has another size by now, of which the next copy knows; or the tensor has moved to the CPU.
        jobs.retain(|ImageJob { copy, texture }| {
            let PixelRows { width, height, .. } = copy.rows;
            [width, height] == [texture.width() as usize, texture.height() as usize]
                && copy.pixels.storage().home(Backend::Gpu) == Backend::Gpu
        });
        let kernels: Vec<Option<Compiled>> =
            jobs.iter().map(|job| self.images.kernel(Kernel::of(job), &self.gpu, self.synchronous)).collect();
        if kernels.iter().any(Option::is_none) {
            return Outcome::Wait(Work::Images(jobs));
        }
        let mut pipelines = Vec::with_capacity(jobs.len());
        let mut kernels = kernels.into_iter().flatten();
        jobs.retain(|_| match kernels.next() {
            Some(Ok(pipeline)) => {
                pipelines.push(pipeline);
                true
            }
            Some(Err(error)) => {
                self.report(error);
                false
            }
            None => false,
        });
        if jobs.is_empty() {
            return Outcome::Done;
        }
        match self.bring_in_pixels(&jobs) {
            Ok(Some(fills)) if fills.is_empty() => {}
            Ok(Some(fills)) => return Outcome::After(fills, Work::Images(jobs)),
            Ok(None) => return Outcome::Wait(Work::Images(jobs)),
            // One of them, or all of them together: each by itself will show.
            Err(_) if jobs.len() > 1 => {
                let rest = jobs.split_off(jobs.len() / 2);
                return Outcome::After(vec![Work::Images(jobs)], Work::Images(rest));
            }
            Err(error) => {
                self.report(error);
                return Outcome::Done;
            }
        }
        if let Err(error) = self.submit_images(&jobs, &pipelines) {
            self.report(error);
        }
        Outcome::Done
    }

    /// Gives all pixels a place on the device: what has to run first for that, or `None` while there is no room.
    fn bring_in_pixels(&mut self, jobs: &[ImageJob]) -> Result<Option<Vec<Work>>, RunError> {
        let mut slots: Vec<Arc<Storage>> = Vec::with_capacity(jobs.len());
        let mut effects: Vec<Effect> = Vec::with_capacity(jobs.len());
        for ImageJob { copy, .. } in jobs {
            let storage = copy.pixels.storage();
            if slots.iter().all(|slot| slot.id() != storage.id()) {
                let writes = copy.way == CopyWay::IntoTensor;
                let whole =
                    copy.pixels.layout().is_contiguous() && copy.pixels.layout().elements() == storage.elements();
                slots.push(storage.clone());
                effects.push(Effect { writes, replaces: writes && whole, host: None });
            }
        }
        if !self.admit(&slots, None)? {
            return Ok(None);
        }
        let make = self.residents.bring_in(&self.gpu, &slots, &effects)?;
        self.residents.touch(&slots);
        Ok(Some(fills(make)))
    }

    fn submit_images(&mut self, jobs: &[ImageJob], pipelines: &[wgpu::ComputePipeline]) -> Result<(), RunError> {
        let scope = ErrorScope::new(&self.gpu.device);
        let mut encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: LABEL });
        let descriptor = wgpu::ComputePassDescriptor { label: LABEL, timestamp_writes: None };
        let mut pass = encoder.begin_compute_pass(&descriptor);
        for (job, pipeline) in jobs.iter().zip(pipelines) {
            let ImageJob { copy, texture } = job;
            let storage = copy.pixels.storage();
            let lost = || RunError::Device("pixels have no buffer".to_owned());
            let buffer = self.gpu.buffer(storage).ok_or_else(lost)?;
            let binding =
                Binding { kernel: Kernel::of(job), texture: texture.clone(), buffer: buffer.id, rows: copy.rows };
            let bound = self.images.bind(&self.gpu, binding, pipeline, &buffer, self.frame)?;
            pass.set_pipeline(pipeline);
            for (group, rows) in &bound.groups {
                pass.set_bind_group(0, group, &[]);
                pass.dispatch_workgroups(texture.width().div_ceil(SIDE), rows.div_ceil(SIDE), 1);
            }
            self.gpu.counters.dispatches.add(bound.groups.len() as u64);
            if copy.way == CopyWay::IntoTensor {
                storage.wrote(None, &self.gpu.counters);
            }
        }
        drop(pass);
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.counters.submits.add(1);
        self.gpu.counters.passes.add(1);
        scope.pop().map_or(Ok(()), |error| Err(RunError::Device(error.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_beyond_a_binding_come_in_bands_that_begin_where_bindings_may() {
        let rows = PixelRows { first: 70, pitch: 100, width: 90, height: 10 };
        let all = bands(&rows, 1 << 20, 64);
        assert_eq!(all, [Band { row: 0, count: 10, start: 64, words: 6 + 9 * 100 + 90, first: 6 }]);
        for limit in [200, 333, 500, 900] {
            let parts = bands(&rows, limit, 64);
            assert!(parts.len() > 1);
            assert_eq!(parts.iter().map(|band| band.count).sum::<usize>(), 10);
            let mut row = 0;
            for band in parts {
                assert_eq!((band.row, band.start % 64), (row, 0));
                assert_eq!(band.start + band.first, rows.first + row * rows.pitch);
                assert!(band.words <= limit && band.words >= band.first + (band.count - 1) * rows.pitch + rows.width);
                row += band.count;
            }
        }
    }
}
