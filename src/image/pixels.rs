//! Images as pixels, and pixels as images, on whichever backend the tensor lives.

use crate::error::{ImageError, TensorFault};
use crate::mailbox::{CopyWay, ImageCopy, Outbox, PixelRows};
use bevy::asset::RenderAssetUsages;
use bevy::ecs::entity::{EntityHashMap, EntityHashSet};
use bevy::image::Image;
use bevy::prelude::*;
use bevy::render::gpu_readback::{Readback, ReadbackComplete};
use bevy::render::render_resource::{Extent3d, TextureDimension, TextureFormat, TextureUsages, TextureViewDescriptor};

use super::{pixels_of, red_first};
use crate::ir::{Backend, DType};
use crate::readback::TensorReceiver;
use crate::record::TensorCommands;
use crate::support::{ModelBackend, TensorSupport};
use crate::tensor::{Tensor, TensorData, TensorOf};

/// Makes the tensor beside it the pixels of an image: `u8 [height, width, 4]`, spawned with it if there is none, and replaced when the image changes its size.
///
/// The image may be a camera's render target. On the GPU backend its texture is copied on the device, ahead of the frame's tensor work; a render target
/// shows the frame before. On the CPU backend the image's data is taken from main memory; a render target, and an image that is only on the device, is read
/// back by Bevy, a few frames late, for which it needs `TextureUsages::COPY_SRC`.
///
/// An image that is still loading is copied when it is there. One that cannot be copied is a [`TensorFault::Image`].
#[derive(Component, Clone, Debug)]
pub struct ImagePixels {
    /// The image.
    pub image: Handle<Image>,
    /// Whether it is copied every frame; else whenever this component changes.
    pub live: bool,
}

/// Shows the pixels beside it (`u8 [height, width, 4]`, a view too) as an image, which [`pixels_image`] makes. On the GPU backend they are copied on the
/// device, after the frame's tensor work; on the CPU backend they become the image's data, a few frames late. Pixels that cannot be shown are a
/// [`TensorFault::Image`].
#[derive(Component, Clone, Debug)]
pub struct PixelsImage {
    /// The image, of the tensor's size.
    pub image: Handle<Image>,
    /// Whether it is copied every frame; else whenever this component changes.
    pub live: bool,
}

/// Pixels on their way to an image in main memory.
#[derive(Component)]
pub(crate) struct Arriving(TensorReceiver, Handle<Image>);

/// An image that [`PixelsImage`] can show pixels in: materials and sprites see it as any other.
pub fn pixels_image(width: u32, height: u32) -> Image {
    let size = Extent3d { width, height, depth_or_array_layers: 1 };
    let usage = RenderAssetUsages::default();
    // Shaders cannot write sRGB textures, but what is written can be looked at as one.
    let format = TextureFormat::Rgba8Unorm;
    let mut image = Image::new_fill(size, TextureDimension::D2, &[0, 0, 0, 255], format, usage);
    image.texture_descriptor.usage |= TextureUsages::STORAGE_BINDING | TextureUsages::COPY_SRC;
    image.texture_descriptor.view_formats = &[TextureFormat::Rgba8UnormSrgb];
    let format = Some(TextureFormat::Rgba8UnormSrgb);
    // The view that materials use: without the use that its format does not allow.
    let usage = Some(TextureUsages::TEXTURE_BINDING);
    image.texture_view_descriptor = Some(TextureViewDescriptor { format, usage, ..default() });
    image
}

/// Tells of what goes wrong with an entity when it begins to, not again every frame that it lasts.
#[derive(Default)]
pub(crate) struct Complaints {
    before: EntityHashMap<ImageError>,
    now: EntityHashMap<ImageError>,
}

impl Complaints {
    fn hear(&mut self, entity: Entity, result: Result<(), ImageError>, commands: &mut Commands) {
        if let Err(error) = result {
            if self.before.get(&entity) != Some(&error) {
                commands.trigger(TensorFault::Image { entity, error: error.clone() });
            }
            self.now.insert(entity, error);
        }
    }

    fn end_frame(&mut self) {
        self.before = core::mem::take(&mut self.now);
    }
}

/// Asks for the copies of the frame, on the device or over the host.
#[expect(clippy::type_complexity, clippy::too_many_arguments, reason = "a system's parameters")]
pub(crate) fn copy_pixels(
    images: Option<Res<Assets<Image>>>,
    sources: Query<(Entity, Ref<ImagePixels>, Option<&Tensor>, Option<&TensorOf>)>,
    models: Query<&ModelBackend>,
    support: Res<TensorSupport>,
    mut outbox: ResMut<Outbox>,
    ops: TensorCommands,
    mut commands: Commands,
    mut complaints: Local<Complaints>,
    mut loading: Local<EntityHashSet>,
) {
    let Some(images) = images else { return };
    let loading_before = core::mem::take(&mut *loading);
    for (entity, pixels, tensor, of) in &sources {
        let due = pixels.live || pixels.is_changed() || loading_before.contains(&entity);
        let Some(image) = images.get(&pixels.image) else {
            loading.extend(due.then_some(entity));
            continue;
        };
        let shape = [image.height() as usize, image.width() as usize, 4];
        let Some(tensor) = tensor.filter(|tensor| tensor.shape()[..] == shape && tensor.dtype() == DType::U8) else {
            let inserted = Tensor::zeros(shape, DType::U8).map(|tensor| {
                // Copied next frame, when there is something to copy to: inserting is a change.
                commands.entity(entity).insert((tensor, ImagePixels::clone(&pixels)));
            });
            complaints.hear(entity, inserted.map_err(ImageError::from), &mut commands);
            continue;
        };
        if due {
            let wish = of.and_then(|of| models.get(of.0).ok()).map(|wish| support.available(wish.0));
            let home = tensor.storage().home(wish.unwrap_or(support.backend));
            let result = match home {
                Backend::Gpu => {
                    ImageCopy::of(tensor, &pixels.image, image, CopyWay::IntoTensor).map(|copy| outbox.post(copy))
                }
                Backend::Cpu => bring(entity, tensor, &pixels.image, image, &ops, &mut commands),
            };
            complaints.hear(entity, result, &mut commands);
        }
    }
    complaints.end_frame();
}

/// Writes an image's data into pixels on the CPU, or lets Bevy bring it from the device.
fn bring(
    entity: Entity,
    tensor: &Tensor,
    handle: &Handle<Image>,
    image: &Image,
    ops: &TensorCommands,
    commands: &mut Commands,
) -> Result<(), ImageError> {
    let usage = image.texture_descriptor.usage;
    // What a camera renders into changes on the device; the data in main memory is only what it began with.
    if image.data.is_some() && !usage.contains(TextureUsages::RENDER_ATTACHMENT) {
        return put(tensor, &pixels_of(image)?, ops);
    }
    if !usage.contains(TextureUsages::COPY_SRC) {
        return Err(ImageError::NoCopy);
    }
    let (width, height, format) = (image.width() as usize, image.height() as usize, image.texture_descriptor.format);
    if format.block_copy_size(None) != Some(4) || !is_bytes(format) {
        return Err(ImageError::of_format(image));
    }
    let arrive =
        move |ready: On<ReadbackComplete>, tensors: Query<&Tensor>, ops: TensorCommands, mut commands: Commands| {
            // It would come again every frame.
            commands.entity(ready.entity).try_despawn();
            let Ok(tensor) = tensors.get(entity) else { return };
            let row = width * 4;
            let stride = if ready.data.len() == row * height { row } else { row.next_multiple_of(256) };
            let rows = ready.data.chunks(stride.max(1)).take(height).flat_map(|bytes| &bytes[..row.min(bytes.len())]);
            let mut bytes: Vec<u8> = rows.copied().collect();
            red_first(format, &mut bytes);
            let data = TensorData::new(&bytes, [height, width, 4]).map_err(ImageError::from);
            // An image that has another size by now comes again.
            let data = data.map(|data| Some(data).filter(|data| data.shape() == tensor.shape()));
            let result = data.and_then(|data| data.map_or(Ok(()), |data| put(tensor, &data, &ops)));
            if let Err(error) = result {
                commands.trigger(TensorFault::Image { entity, error });
            }
        };
    commands.spawn(Readback::texture(handle.clone())).observe(arrive);
    Ok(())
}

fn put(tensor: &Tensor, data: &TensorData, ops: &TensorCommands) -> Result<(), ImageError> {
    if tensor.layout().overlaps_itself() {
        return Err(ImageError::View);
    }
    Ok(ops.write_tensor(tensor, data)?)
}

/// Whether a texel of this format is four bytes, red or blue first.
fn is_bytes(format: TextureFormat) -> bool {
    matches!(format.remove_srgb_suffix(), TextureFormat::Rgba8Unorm | TextureFormat::Bgra8Unorm)
}

/// Asks for the frame's pixels that are to be shown.
#[expect(clippy::too_many_arguments, reason = "a system's parameters")]
pub(crate) fn show_pixels(
    images: Option<Res<Assets<Image>>>,
    targets: Query<(Entity, Ref<PixelsImage>, &Tensor), Without<Arriving>>,
    support: Res<TensorSupport>,
    mut outbox: ResMut<Outbox>,
    ops: TensorCommands,
    mut commands: Commands,
    mut complaints: Local<Complaints>,
    mut loading: Local<EntityHashSet>,
) {
    let Some(images) = images else { return };
    let loading_before = core::mem::take(&mut *loading);
    for (entity, target, tensor) in &targets {
        if !target.live && !target.is_changed() && !loading_before.contains(&entity) {
            continue;
        }
        let Some(image) = images.get(&target.image) else {
            loading.insert(entity);
            continue;
        };
        let result = ImageError::check_pixels(tensor, image).and_then(|()| {
            match tensor.storage().home(support.backend) {
                Backend::Gpu => {
                    outbox.post(ImageCopy::of(tensor, &target.image, image, CopyWay::IntoImage)?);
                }
                Backend::Cpu if !is_bytes(image.texture_descriptor.format) => return Err(ImageError::NotShown),
                Backend::Cpu => {
                    commands.entity(entity).insert(Arriving(ops.read(entity)?, target.image.clone()));
                }
            }
            Ok(())
        });
        complaints.hear(entity, result, &mut commands);
    }
    complaints.end_frame();
}

/// Puts pixels that have arrived into their images.
pub(crate) fn land_pixels(
    arriving: Query<(Entity, &Arriving)>,
    images: Option<ResMut<Assets<Image>>>,
    mut commands: Commands,
) {
    let Some(mut images) = images else { return };
    for (entity, Arriving(receiver, handle)) in &arriving {
        let Some(answer) = receiver.try_recv() else { continue };
        commands.entity(entity).remove::<Arriving>();
        match answer {
            Ok(data) => {
                // An image that has another size by now is shown the next pixels.
                if let Some(mut image) = images.get_mut(handle)
                    && data.shape()[..] == [image.height() as usize, image.width() as usize, 4]
                {
                    let mut bytes = data.bytes().to_vec();
                    red_first(image.texture_descriptor.format, &mut bytes);
                    image.data = Some(bytes);
                }
            }
            Err(error) => commands.trigger(TensorFault::Image { entity, error: error.into() }),
        }
    }
}

impl ImageCopy {
    /// A copy on the device, if both sides allow it.
    fn of(tensor: &Tensor, handle: &Handle<Image>, image: &Image, way: CopyWay) -> Result<Self, ImageError> {
        let texture = &image.texture_descriptor;
        let flat = texture.dimension == TextureDimension::D2
            && texture.size.depth_or_array_layers == 1
            && texture.sample_count == 1
            && matches!(texture.format.sample_type(None, None), Some(wgpu::TextureSampleType::Float { .. }));
        match way {
            CopyWay::IntoTensor if !flat => return Err(ImageError::of_format(image)),
            CopyWay::IntoTensor if !texture.usage.contains(TextureUsages::TEXTURE_BINDING) => {
                return Err(ImageError::NoBinding);
            }
            CopyWay::IntoImage
                if texture.format != TextureFormat::Rgba8Unorm
                    || !flat
                    || !texture.usage.contains(TextureUsages::STORAGE_BINDING) =>
            {
                return Err(ImageError::NotShown);
            }
            CopyWay::IntoTensor | CopyWay::IntoImage => {}
        }
        let rows = PixelRows::of(tensor.layout()).ok_or(ImageError::View)?;
        Ok(Self { pixels: tensor.clone(), rows, image: handle.id(), way })
    }
}
