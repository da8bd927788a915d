//! Images as pixels, and pixels as images, on whichever backend the tensor lives.

use bevy::asset::RenderAssetUsages;
use bevy::image::Image;
use bevy::prelude::*;
use bevy::render::gpu_readback::{Readback, ReadbackComplete};
use bevy::render::render_resource::{Extent3d, TextureDimension, TextureFormat, TextureUsages, TextureViewDescriptor};

use super::device::{ImageCopy, OutgoingCopies};
use super::{ImageError, pixels_of, red_first};
use crate::readback::TensorReceiver;
use crate::record::TensorCommands;
use crate::support::{Backend, ModelBackend, TensorSupport};
use crate::tensor::{DType, Tensor, TensorData, TensorOf};

/// Makes the tensor beside it the pixels of an image: `u8 [height, width, 4]`, spawned with it if there is none, and replaced when the image changes its size.
///
/// The image may be a camera's render target. On the GPU backend its texture is copied on the device, ahead of the frame's tensor work; a render target
/// shows the frame before. On the CPU backend the image's data is taken from main memory; a render target, and an image that is only on the device, is read
/// back by Bevy, a few frames late, for which it needs `TextureUsages::COPY_SRC`.
#[derive(Component, Clone, Debug)]
pub struct ImagePixels {
    /// The image.
    pub image: Handle<Image>,
    /// Whether it is copied every frame; else whenever this component changes.
    pub live: bool,
}

/// Shows the pixels beside it (`u8 [height, width, 4]`) as an image, which [`pixels_image`] makes. On the GPU backend they are copied on the device, after the
/// frame's tensor work; on the CPU backend they become the image's data, a few frames late.
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

/// Asks for the copies of the frame, on the device or over the host.
#[expect(clippy::type_complexity, reason = "a system's query")]
pub(crate) fn copy_pixels(
    images: Option<Res<Assets<Image>>>,
    sources: Query<(Entity, Ref<ImagePixels>, Option<&Tensor>, Option<&TensorOf>)>,
    models: Query<&ModelBackend>,
    support: Res<TensorSupport>,
    mut outgoing: ResMut<OutgoingCopies>,
    mut ops: TensorCommands,
    mut commands: Commands,
) -> Result {
    let Some(images) = images else { return Ok(()) };
    for (entity, pixels, tensor, of) in &sources {
        let Some(image) = images.get(&pixels.image) else { continue };
        let shape = [image.height() as usize, image.width() as usize, 4];
        let Some(tensor) = tensor.filter(|tensor| tensor.shape()[..] == shape && tensor.dtype() == DType::U8) else {
            // Copied next frame, when there is something to copy to: inserting is a change.
            commands.entity(entity).insert((Tensor::zeros(shape, DType::U8)?, ImagePixels::clone(&pixels)));
            continue;
        };
        if !pixels.live && !pixels.is_changed() {
            continue;
        }
        let usage = image.texture_descriptor.usage;
        let wish = of.and_then(|of| models.get(of.0).ok()).map_or(support.backend, |wish| support.available(wish.0));
        match tensor.storage().home(wish) {
            Backend::Gpu => {
                let storage = tensor.storage().clone();
                outgoing.into_tensors.push(ImageCopy { storage, image: pixels.image.id() });
            }
            // What a camera renders into changes on the device; the data in main memory is only what it began with.
            Backend::Cpu if image.data.is_none() || usage.contains(TextureUsages::RENDER_ATTACHMENT) => {
                if !usage.contains(TextureUsages::COPY_SRC) {
                    return Err(ImageError::NoCopy.into());
                }
                read_back(entity, image, pixels.image.clone(), &mut commands);
            }
            Backend::Cpu => ops.write_tensor(tensor, &pixels_of(image)?)?,
        }
    }
    Ok(())
}

/// Lets Bevy bring an image that is only on the device.
fn read_back(entity: Entity, image: &Image, handle: Handle<Image>, commands: &mut Commands) {
    let (width, height, format) = (image.width() as usize, image.height() as usize, image.texture_descriptor.format);
    let arrive = move |ready: On<ReadbackComplete>,
                       tensors: Query<&Tensor>,
                       mut ops: TensorCommands,
                       mut commands: Commands|
          -> Result {
        // It would come again every frame.
        commands.entity(ready.entity).try_despawn();
        let Ok(tensor) = tensors.get(entity) else { return Ok(()) };
        let row = width * 4;
        let stride = if ready.data.len() == row * height { row } else { row.next_multiple_of(256) };
        let rows = ready.data.chunks(stride.max(1)).take(height).flat_map(|bytes| &bytes[..row.min(bytes.len())]);
        let mut bytes: Vec<u8> = rows.copied().collect();
        red_first(format, &mut bytes);
        let data = TensorData::new(&bytes, [height, width, 4])?;
        if data.shape() == tensor.shape() {
            ops.write_tensor(tensor, &data)?;
        }
        Ok(())
    };
    commands.spawn(Readback::texture(handle)).observe(arrive);
}

/// Asks for the frame's pixels that are to be shown.
pub(crate) fn show_pixels(
    targets: Query<(Entity, Ref<PixelsImage>, &Tensor), Without<Arriving>>,
    support: Res<TensorSupport>,
    mut outgoing: ResMut<OutgoingCopies>,
    mut ops: TensorCommands,
    mut commands: Commands,
) -> Result {
    for (entity, target, tensor) in &targets {
        if !target.live && !target.is_changed() {
            continue;
        }
        match tensor.storage().home(support.backend) {
            Backend::Gpu => {
                let storage = tensor.storage().clone();
                outgoing.into_images.push(ImageCopy { storage, image: target.image.id() });
            }
            Backend::Cpu => {
                commands.entity(entity).insert(Arriving(ops.read(entity)?, target.image.clone()));
            }
        }
    }
    Ok(())
}

/// Puts pixels that have arrived into their images.
pub(crate) fn land_pixels(
    arriving: Query<(Entity, &Arriving)>,
    images: Option<ResMut<Assets<Image>>>,
    mut commands: Commands,
) -> Result {
    let Some(mut images) = images else { return Ok(()) };
    for (entity, Arriving(receiver, handle)) in &arriving {
        let Some(answer) = receiver.try_recv() else { continue };
        commands.entity(entity).remove::<Arriving>();
        let data = answer?;
        if let Some(mut image) = images.get_mut(handle)
            && data.shape()[..] == [image.height() as usize, image.width() as usize, 4]
        {
            image.data = Some(data.bytes().to_vec());
        }
    }
    Ok(())
}
