//! The kernels that copy between textures and tensors, and their bind groups. Plain buffer copies would need rows of
//! 256 bytes and would not convert between colour spaces.

use std::sync::{Arc, OnceLock};

use bevy::platform::collections::HashMap;
use bevy::platform::collections::hash_map::Entry;
use bevy::tasks::AsyncComputeTaskPool;

use super::buffers::{DeviceBuffer, Purpose};
use super::device::{ErrorScope, Gpu};
use super::image_copies::ImageJob;
use crate::error::{RunError, catch};
use crate::figures::Count;
use crate::mailbox::{CopyWay, PixelRows};

pub(super) const LABEL: Option<&str> = Some("tensor:image");

/// Width and height of a workgroup, in pixels.
pub(super) const SIDE: u32 = 8;

/// The copy kernels, and the bind groups of recent copies.
pub(super) struct ImageKernels {
    gpu: Gpu,
    /// Compile immediately instead of in the background.
    synchronous: bool,
    kernels: HashMap<ImageKernel, Arc<OnceLock<CompiledKernel>>>,
    bound: HashMap<Binding, Bound>,
    /// Number of frames so far.
    frame: u64,
}

pub(super) type CompiledKernel = Result<wgpu::ComputePipeline, RunError>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ImageKernel {
    /// Texture to pixels. With `encode`, linear colours are encoded as sRGB.
    Read { encode: bool },
    /// Pixels to texture.
    Write,
}

/// Everything that the bind groups of a copy depend on.
#[derive(PartialEq, Eq, Hash)]
struct Binding {
    kernel: ImageKernel,
    texture: wgpu::Texture,
    /// Id of the buffer.
    buffer: u64,
    rows: PixelRows,
}

/// The bind groups of a copy.
pub(super) struct Bound {
    /// Each bind group with its number of rows.
    pub groups: Vec<(wgpu::BindGroup, u32)>,
    /// The parameters of all groups.
    _params: Arc<DeviceBuffer>,
    /// The frame that used it last.
    used: u64,
}

/// A range of rows that fits in one binding.
#[derive(Debug, PartialEq, Eq)]
struct Band {
    row: usize,
    count: usize,
    /// First word of the binding.
    start: usize,
    /// Size of the binding, in words.
    words: usize,
    /// Word of the binding at which the first row starts.
    first: usize,
}

/// Splits rows into as few bands as possible. A band has at most `limit` words and starts at a multiple of `alignment`.
fn bands(rows: &PixelRows, limit: usize, alignment: usize) -> Vec<Band> {
    let most = (limit.saturating_sub(alignment + rows.width) / rows.pitch.max(1) + 1).min(rows.height);
    let band = |row: usize| {
        let (count, word) = (most.min(rows.height - row), rows.first + row * rows.pitch);
        let first = word % alignment;
        Band { row, count, start: word - first, words: first + (count - 1) * rows.pitch + rows.width, first }
    };
    (0..rows.height).step_by(most.max(1)).map(band).collect()
}

impl ImageKernel {
    pub(super) fn of(ImageJob { copy, texture }: &ImageJob) -> Self {
        use wgpu::TextureFormat as F;
        match (copy.way, texture.format()) {
            // Float textures and sRGB textures are read as linear colours.
            (CopyWay::IntoTensor, F::Rgba16Float | F::Rgba32Float | F::Rg11b10Ufloat) => Self::Read { encode: true },
            (CopyWay::IntoTensor, format) => Self::Read { encode: format.is_srgb() },
            (CopyWay::IntoImage, _) => Self::Write,
        }
    }

    fn compile(self, device: &wgpu::Device) -> CompiledKernel {
        let (source, encode) = match self {
            Self::Read { encode } => (include_str!("../../assets/kernels/read_image.wgsl"), Some(encode)),
            Self::Write => (include_str!("../../assets/kernels/write_image.wgsl"), None),
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

    /// The view through which the kernel uses a texture.
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
    pub(super) fn new(gpu: Gpu, synchronous: bool) -> Self {
        Self { gpu, synchronous, kernels: HashMap::default(), bound: HashMap::default(), frame: 0 }
    }

    /// The pipeline of a kernel or its compile error. `None` while it compiles.
    pub(super) fn kernel(&mut self, kernel: ImageKernel) -> Option<CompiledKernel> {
        let entry = self.kernels.entry(kernel).or_insert_with(|| {
            let entry = Arc::new(OnceLock::new());
            let (to, device) = (entry.clone(), self.gpu.device.clone());
            // Never set already: each kernel is compiled once.
            let compile = move || {
                let compiled = catch(|| kernel.compile(&device)).unwrap_or_else(|panic| {
                    let message = format!("the shader compiler panicked: {panic}");
                    Err(RunError::Kernel { kernel: "image".to_owned(), message })
                });
                let _ = to.set(compiled);
            };
            if self.synchronous {
                compile();
            } else {
                AsyncComputeTaskPool::get().spawn(async move { compile() }).detach();
            }
            entry
        });
        entry.get().cloned()
    }

    /// Bytes of the parameters of a copy that has not been bound.
    pub(super) fn missing_bytes(&self, job: &ImageJob) -> u64 {
        let kernel = ImageKernel::of(job);
        let same =
            |bound: &Binding| bound.kernel == kernel && bound.texture == job.texture && bound.rows == job.copy.rows;
        match self.bound.keys().any(same) {
            true => 0,
            false => {
                let bands = bands(&job.copy.rows, self.gpu.binding_words(), self.gpu.binding_alignment());
                self.gpu.bytes(Purpose::Plan, params_stride(&self.gpu) * bands.len())
            }
        }
    }

    /// The bind groups for a copy. They are cached while the same copy happens every frame.
    pub(super) fn bind(
        &mut self,
        job: &ImageJob,
        pipeline: &wgpu::ComputePipeline,
        buffer: &DeviceBuffer,
    ) -> Result<&Bound, RunError> {
        let (kernel, texture, rows) = (ImageKernel::of(job), job.texture.clone(), job.copy.rows);
        match self.bound.entry(Binding { kernel, texture, buffer: buffer.id, rows }) {
            Entry::Occupied(entry) => {
                let bound = entry.into_mut();
                bound.used = self.frame;
                Ok(bound)
            }
            Entry::Vacant(entry) => {
                let bound = Bound::new(&self.gpu, entry.key(), pipeline, buffer, self.frame)?;
                Ok(entry.insert(bound))
            }
        }
    }

    /// Ends a frame: drops the bind groups, and their textures, that neither this frame nor the last one used.
    pub(super) fn end_frame(&mut self) {
        self.bound.retain(|_, bound| bound.used + 1 >= self.frame);
        self.frame += 1;
    }
}

impl Bound {
    fn new(
        gpu: &Gpu,
        binding: &Binding,
        pipeline: &wgpu::ComputePipeline,
        buffer: &DeviceBuffer,
        frame: u64,
    ) -> Result<Self, RunError> {
        let bands = bands(&binding.rows, gpu.binding_words(), gpu.binding_alignment());
        let stride = params_stride(gpu);
        let params = gpu.allocate(Purpose::Plan, stride * bands.len())?;
        let (view, layout) = (binding.kernel.view(&binding.texture), pipeline.get_bind_group_layout(0));
        let group = |(i, band): (usize, &Band)| {
            let rows = [band.row, band.count, band.first, binding.rows.pitch].map(|n| n as u32);
            gpu.write(&params.buffer, i * stride, &rows);
            let part = |buffer, word: usize, bytes: u64| {
                let (offset, size) = (word as u64 * 4, core::num::NonZeroU64::new(bytes));
                wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size })
            };
            // Rounded up to 16 bytes, as buffers are.
            let bytes = (band.words as u64 * 4).next_multiple_of(16);
            let entries = [
                (0, wgpu::BindingResource::TextureView(&view)),
                (1, part(&buffer.buffer, band.start, bytes)),
                (2, part(&params.buffer, i * stride, 16)),
            ]
            .map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource });
            gpu.counters.bind_groups_made.add(1);
            let descriptor = wgpu::BindGroupDescriptor { label: LABEL, layout: &layout, entries: &entries };
            (gpu.device.create_bind_group(&descriptor), band.count as u32)
        };
        let groups = bands.iter().enumerate().map(group).collect();
        Ok(Self { groups, _params: params, used: frame })
    }
}

/// Words from the parameters of one band to those of the next.
fn params_stride(gpu: &Gpu) -> usize {
    (gpu.limits.min_uniform_buffer_offset_alignment as usize / 4).max(4)
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
