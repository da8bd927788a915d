//! Textures and tensors' buffers on the device: one small kernel each way, since copies would need rows of 256 bytes and know no colour spaces.

use std::sync::Arc;

use bevy::asset::AssetId;
use bevy::image::Image;
use bevy::platform::collections::HashMap;
use bevy::prelude::*;
use bevy::render::MainWorld;
use bevy::render::render_asset::RenderAssets;
use bevy::render::texture::GpuImage;

use crate::diagnostics::Count;
use crate::gpu::{Gpu, GpuExecutor};
use crate::tensor::Storage;

/// Pixels and the image they are of.
#[derive(Clone, Debug)]
pub(crate) struct ImageCopy {
    pub storage: Arc<Storage>,
    pub image: AssetId<Image>,
}

/// A frame's copies: collected in the main world, carried out in the render world.
#[derive(Resource, Default)]
pub(crate) struct OutgoingCopies {
    /// Before the frame's tensor work.
    pub into_tensors: Vec<ImageCopy>,
    /// After it.
    pub into_images: Vec<ImageCopy>,
}

pub(crate) fn extract_copies(mut main_world: ResMut<MainWorld>, mut copies: ResMut<OutgoingCopies>) {
    // Of what the last frame could not do nothing is left to do: this frame's pixels are newer.
    if let Some(mut outgoing) = main_world.get_resource_mut::<OutgoingCopies>() {
        *copies = core::mem::take(&mut outgoing);
    }
}

/// The two kernels, by the device they were made for and whether colours have to be encoded.
#[derive(Resource, Default)]
pub(crate) struct ImageKernels(HashMap<(u64, Kernel), wgpu::ComputePipeline>);

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kernel {
    /// A texture's colours to pixels; of a texture that gives linear light, encoded.
    Read { encode: bool },
    /// Pixels to a texture.
    Write,
}

impl Kernel {
    fn source(self) -> &'static str {
        match self {
            Self::Read { .. } => include_str!("read.wgsl"),
            Self::Write => include_str!("write.wgsl"),
        }
    }
}

impl ImageKernels {
    fn pipeline(&mut self, gpu: &Gpu, kernel: Kernel) -> &wgpu::ComputePipeline {
        self.0.entry((gpu.generation, kernel)).or_insert_with(|| {
            let label = Some("tensor:image");
            let source = wgpu::ShaderSource::Wgsl(kernel.source().into());
            let module = gpu.device.create_shader_module(wgpu::ShaderModuleDescriptor { label, source });
            let encode = f64::from(kernel == Kernel::Read { encode: true });
            let constants: &[(&str, f64)] = match kernel {
                Kernel::Read { .. } => &[("encode", encode)],
                Kernel::Write => &[],
            };
            gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label,
                layout: None,
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions { constants, ..Default::default() },
                cache: None,
            })
        })
    }
}

/// Copies textures into tensors, ahead of the frame's work.
pub(crate) fn read_images(
    mut copies: ResMut<OutgoingCopies>,
    images: Res<RenderAssets<GpuImage>>,
    mut kernels: ResMut<ImageKernels>,
    mut executor: ResMut<GpuExecutor>,
) {
    for copy in core::mem::take(&mut copies.into_tensors) {
        let Some(image) = images.get(copy.image) else { continue };
        let view = image.texture.create_view(&wgpu::TextureViewDescriptor::default());
        // Reading an sRGB texture gives linear light; so do textures of floats.
        let format = image.texture.format();
        let encode = format.is_srgb() || is_float(format);
        run(copy, image, &view, Kernel::Read { encode }, &mut kernels, &mut executor);
    }
}

/// Copies tensors into textures, after the frame's work.
pub(crate) fn write_images(
    mut copies: ResMut<OutgoingCopies>,
    images: Res<RenderAssets<GpuImage>>,
    mut kernels: ResMut<ImageKernels>,
    mut executor: ResMut<GpuExecutor>,
) {
    for copy in core::mem::take(&mut copies.into_images) {
        let Some(image) = images.get(copy.image) else { continue };
        let storable = image.texture.usage().contains(wgpu::TextureUsages::STORAGE_BINDING);
        if !storable || image.texture.format() != wgpu::TextureFormat::Rgba8Unorm {
            warn_once!("an image was not made by pixels_image, so that pixels cannot be shown in it");
            continue;
        }
        let view = image.texture.create_view(&wgpu::TextureViewDescriptor {
            format: Some(wgpu::TextureFormat::Rgba8Unorm),
            usage: Some(wgpu::TextureUsages::STORAGE_BINDING),
            ..Default::default()
        });
        run(copy, image, &view, Kernel::Write, &mut kernels, &mut executor);
    }
}

fn is_float(format: wgpu::TextureFormat) -> bool {
    use wgpu::TextureFormat as F;
    matches!(format, F::Rgba16Float | F::Rgba32Float | F::Rg11b10Ufloat)
}

fn run(
    copy: ImageCopy,
    image: &GpuImage,
    view: &wgpu::TextureView,
    kernel: Kernel,
    kernels: &mut ImageKernels,
    executor: &mut GpuExecutor,
) {
    let (width, height) = (image.texture.width(), image.texture.height());
    if copy.storage.elements() != width as usize * height as usize * 4 {
        // The image has another size by now; the next frame's copy knows.
        return;
    }
    let Some(buffer) = executor.hold(&copy.storage) else { return };
    let gpu = executor.gpu();
    let pipeline = kernels.pipeline(gpu, kernel);
    let label = Some("tensor:image");
    let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[
            wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::TextureView(view) },
            wgpu::BindGroupEntry { binding: 1, resource: buffer.buffer.as_entire_binding() },
        ],
    });
    let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label });
    {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label, timestamp_writes: None });
        pass.set_pipeline(pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(width.div_ceil(8), height.div_ceil(8), 1);
    }
    gpu.queue.submit([encoder.finish()]);
    gpu.counters.submits.add(1);
    if matches!(kernel, Kernel::Read { .. }) {
        copy.storage.wrote(None, &gpu.counters);
    }
}
