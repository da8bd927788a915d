//! Copies between images and pixels, on both backends.

use crate::error::{ImageError, TensorFault};
use crate::mailbox::{CopyWay, ImageCopy, Outbox, PixelRows};
use bevy::asset::RenderAssetUsages;
use bevy::ecs::entity::{EntityHashMap, EntityHashSet};
use bevy::image::Image;
use bevy::prelude::*;
use bevy::render::gpu_readback::{Readback, ReadbackComplete};
use bevy::render::render_resource::{Extent3d, TextureDimension, TextureFormat, TextureUsages, TextureViewDescriptor};

use super::{data_from_image, red_first};
use crate::ir::{Backend, DType};
use crate::readback::TensorReceiver;
use crate::record::TensorCommands;
use crate::support::{ModelBackend, TensorSupport};
use crate::tensor::{Tensor, TensorData, TensorOf};

/// Copies an image to the [`Tensor`] of the same entity, as pixels: `u8 [height, width, 4]`. The tensor is inserted if
/// there is none, and replaced if the size of the image changes.
///
/// The image can be a camera's render target. On the GPU backend the texture is copied on the device, before the tensor
/// work of the frame; a render target has the content of the previous frame. On the CPU backend the data of the image
/// is read from main memory. Render targets, and images that are only on the device, are read back by Bevy a few frames
/// later, and need `TextureUsages::COPY_SRC`.
///
/// An image that is still loading is copied once it is loaded. An image that cannot be copied triggers a
/// [`TensorFault::Image`].
#[derive(Component, Clone, Debug, Reflect)]
#[reflect(Component, Debug, Clone)]
pub struct TensorFromImage {
    /// The image.
    pub image: Handle<Image>,
    /// Whether to copy every frame. If not, the copy happens whenever this component changes.
    pub live: bool,
}

/// Copies the [`Tensor`] of the same entity, pixels `u8 [height, width, 4]` or a view of such, to an image made with
/// [`image_for_tensor`]. On the GPU backend it is copied on the device, after the tensor work of the frame. On the CPU
/// backend it becomes the data of the image, a few frames later. Pixels that cannot be copied trigger a
/// [`TensorFault::Image`].
#[derive(Component, Clone, Debug, Reflect)]
#[reflect(Component, Debug, Clone)]
pub struct ImageFromTensor {
    /// The image, of the tensor's size.
    pub image: Handle<Image>,
    /// Whether to copy every frame. If not, the copy happens whenever this component changes.
    pub live: bool,
}

/// Pixels that are being read back for an image in main memory.
#[derive(Component)]
pub(crate) struct Arriving(TensorReceiver, Handle<Image>);

/// Creates an image that [`ImageFromTensor`] can write. Materials and sprites can use it like any other image.
pub fn image_for_tensor(width: u32, height: u32) -> Image {
    let size = Extent3d { width, height, depth_or_array_layers: 1 };
    let usage = RenderAssetUsages::default();
    // Shaders cannot write to sRGB textures, but a linear texture can have an sRGB view.
    let format = TextureFormat::Rgba8Unorm;
    let mut image = Image::new_fill(size, TextureDimension::D2, &[0, 0, 0, 255], format, usage);
    image.texture_descriptor.usage |= TextureUsages::STORAGE_BINDING | TextureUsages::COPY_SRC;
    image.texture_descriptor.view_formats = &[TextureFormat::Rgba8UnormSrgb];
    let format = Some(TextureFormat::Rgba8UnormSrgb);
    // The view for materials. The sRGB format does not allow storage use.
    let usage = Some(TextureUsages::TEXTURE_BINDING);
    image.texture_view_descriptor = Some(TextureViewDescriptor { format, usage, ..default() });
    image
}

/// Reports an error of an entity once, not every frame that it lasts.
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

/// Requests the copies of the frame from images to tensors, on the device or through the host.
#[expect(clippy::type_complexity, clippy::too_many_arguments, reason = "a system's parameters")]
pub(crate) fn copy_pixels(
    images: Option<Res<Assets<Image>>>,
    sources: Query<(Entity, Ref<TensorFromImage>, Option<&Tensor>, Option<&TensorOf>)>,
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
                // Inserting the component is a change, so the image is copied next frame, when the tensor exists.
                commands.entity(entity).try_insert((tensor, TensorFromImage::clone(&pixels)));
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

/// Writes the data of an image to pixels on the CPU, or starts a readback by Bevy.
fn bring(
    entity: Entity,
    tensor: &Tensor,
    handle: &Handle<Image>,
    image: &Image,
    ops: &TensorCommands,
    commands: &mut Commands,
) -> Result<(), ImageError> {
    let usage = image.texture_descriptor.usage;
    // A render target changes on the device. Its data in main memory is only the initial content.
    if image.data.is_some() && !usage.contains(TextureUsages::RENDER_ATTACHMENT) {
        return put(tensor, &data_from_image(image)?, ops);
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
            // Bevy's readback would repeat every frame.
            commands.entity(ready.entity).try_despawn();
            let Ok(tensor) = tensors.get(entity) else { return };
            let row = width * 4;
            let stride = if ready.data.len() == row * height { row } else { row.next_multiple_of(256) };
            let rows = ready.data.chunks(stride.max(1)).take(height).flat_map(|bytes| &bytes[..row.min(bytes.len())]);
            let mut bytes: Vec<u8> = rows.copied().collect();
            red_first(format, &mut bytes);
            let data = TensorData::new(&bytes, [height, width, 4]).map_err(ImageError::from);
            // If the image was resized, these pixels are skipped. The new ones are copied to the new tensor.
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

/// Whether a texel of this format is four bytes, with red or blue first.
fn is_bytes(format: TextureFormat) -> bool {
    matches!(format.remove_srgb_suffix(), TextureFormat::Rgba8Unorm | TextureFormat::Bgra8Unorm)
}

/// Requests the copies of the frame from tensors to images, on the device or through the host.
#[expect(clippy::too_many_arguments, reason = "a system's parameters")]
pub(crate) fn show_pixels(
    images: Option<Res<Assets<Image>>>,
    targets: Query<(Entity, Ref<ImageFromTensor>, &Tensor), Without<Arriving>>,
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
                    commands.entity(entity).try_insert(Arriving(ops.read(entity)?, target.image.clone()));
                }
            }
            Ok(())
        });
        complaints.hear(entity, result, &mut commands);
    }
    complaints.end_frame();
}

/// Writes pixels that have arrived to their images.
pub(crate) fn land_pixels(
    arriving: Query<(Entity, &Arriving)>,
    images: Option<ResMut<Assets<Image>>>,
    mut commands: Commands,
) {
    let Some(mut images) = images else { return };
    for (entity, Arriving(receiver, handle)) in &arriving {
        let Some(answer) = receiver.try_recv() else { continue };
        commands.entity(entity).try_remove::<Arriving>();
        match answer {
            Ok(data) => {
                // If the image was resized, these pixels are skipped.
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
    /// A copy on the device. Fails if the image or the tensor does not allow it.
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
