//! Copies between images and tensors. *Pixels* are a tensor `[height, width, 4]` of `u8` with sRGB colours, red to
//! alpha.
//!
//! [`TensorFromImage`] copies an [`Image`], which can be a camera's render target, to a tensor. [`ImageFromTensor`]
//! copies a tensor to an image. On the GPU backend neither copy leaves the device. [`TensorCommands::image_input`]
//! converts pixels to the input of a network, and [`TensorCommands::image_pixels`] converts the output of a network to
//! pixels.

mod pixels;

use crate::error::{ImageError, OpError};
use bevy::app::{App, PostUpdate};
use bevy::ecs::schedule::IntoScheduleConfigs;
use bevy::image::Image;
use bevy::math::URect;
use bevy::prelude::ReflectDefault;
use bevy::reflect::Reflect;
use bevy::render::render_resource::TextureFormat;

pub use pixels::{ImageFromTensor, TensorFromImage, image_for_tensor};

use crate::error::OpResult;
use crate::ir::DType;
use crate::record::{LAST, ResizeSettings, ResizeTo, TensorCommands, TensorOperand, TensorValue};
use crate::tensor::{Tensor, TensorData};

/// The part of an image to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Reflect)]
pub enum ImageCrop {
    /// The whole image.
    #[default]
    Whole,
    /// The largest square in the centre.
    Square,
    /// A rectangle, in pixels.
    Rect(URect),
}

/// The axis order of a network's input or output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Reflect)]
pub enum ImageLayout {
    /// `[1, channels, height, width]`.
    #[default]
    Nchw,
    /// `[1, height, width, channels]`.
    Nhwc,
}

/// The conversion of pixels to the input of a network with three channels, and back.
#[derive(Clone, Copy, Debug, PartialEq, Reflect)]
#[reflect(Default)]
pub struct ImageSettings {
    /// The part of the image to use. Default: the whole image.
    pub crop: ImageCrop,
    /// `[height, width]` to resize to, with an antialiased linear filter. Default: the size is kept.
    pub size: Option<[usize; 2]>,
    /// The axis order. Default: channels first.
    pub layout: ImageLayout,
    /// Subtracted from each channel. Channels are in `0..=1`. Default: 0.
    pub mean: [f32; 3],
    /// Divides each channel, after the mean was subtracted. Default: 1.
    pub deviation: [f32; 3],
    /// The colour behind transparent pixels. Default: white.
    pub background: [f32; 3],
}

impl Default for ImageSettings {
    fn default() -> Self {
        Self {
            crop: ImageCrop::Whole,
            size: None,
            layout: ImageLayout::Nchw,
            mean: [0.0; 3],
            deviation: [1.0; 3],
            background: [1.0; 3],
        }
    }
}

impl ImageError {
    fn of_format(image: &Image) -> Self {
        let (width, height) = (image.width(), image.height());
        Self::Format { format: image.texture_descriptor.format, width, height }
    }

    /// Fails if a tensor does not have the type and shape of an image's pixels.
    fn check_pixels(tensor: &Tensor, image: &Image) -> Result<(), Self> {
        let (width, height) = (image.width(), image.height());
        let (dtype, shape) = (tensor.dtype(), tensor.shape().clone());
        match dtype == DType::U8 && shape[..] == [height as usize, width as usize, 4] {
            true => Ok(()),
            false => Err(Self::Pixels { dtype, shape, width, height }),
        }
    }
}

/// Converts an image to pixels. Its data must be in main memory.
pub fn data_from_image(image: &Image) -> Result<TensorData, ImageError> {
    let format = image.texture_descriptor.format;
    let wrong = || ImageError::of_format(image);
    let data = image.data.as_ref().ok_or(ImageError::NoData)?;
    let shape = [image.height() as usize, image.width() as usize, 4];
    let count = shape.iter().product();
    let mut bytes = match format {
        TextureFormat::Rgba8Unorm
        | TextureFormat::Rgba8UnormSrgb
        | TextureFormat::Bgra8Unorm
        | TextureFormat::Bgra8UnormSrgb => data.get(..count).ok_or_else(wrong)?.to_vec(),
        _ => {
            let converted = image.convert(TextureFormat::Rgba8UnormSrgb).ok_or_else(wrong)?;
            converted.data.and_then(|data| data.get(..count).map(<[u8]>::to_vec)).ok_or_else(wrong)?
        }
    };
    red_first(format, &mut bytes);
    Ok(TensorData::new(&bytes, shape)?)
}

/// Swaps red and blue if the format has blue first.
fn red_first(format: TextureFormat, bytes: &mut [u8]) {
    if matches!(format, TextureFormat::Bgra8Unorm | TextureFormat::Bgra8UnormSrgb) {
        bytes.chunks_exact_mut(4).for_each(|pixel| pixel.swap(0, 2));
    }
}

/// Adds the systems of the main world. Those of the render world are in the plugin's schedule.
pub(crate) fn plugin(app: &mut App) {
    app.register_type::<TensorFromImage>()
        .register_type::<ImageFromTensor>()
        .register_type::<ImageSettings>()
        .add_systems(PostUpdate, (pixels::land_pixels, pixels::copy_pixels, pixels::show_pixels).chain());
}

/// Images.
impl TensorCommands<'_, '_> {
    /// Converts pixels `[height, width, 4]` of `u8` to the input of a network: blended with the background, cropped,
    /// resized and normalised.
    #[track_caller]
    pub fn image_input<'a>(
        &'a self,
        pixels: impl Into<TensorOperand<'a>>,
        settings: &ImageSettings,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "image_input";
        let mut x = self.reshape_pixels(OP, pixels.into())?;
        let shape = self.shape(x)?;
        let (height, width) = (shape[0] as u32, shape[1] as u32);
        let rect = match settings.crop {
            ImageCrop::Whole => URect::new(0, 0, width, height),
            ImageCrop::Square => {
                let side = width.min(height);
                let (left, top) = ((width - side) / 2, (height - side) / 2);
                URect::new(left, top, left + side, top + side)
            }
            ImageCrop::Rect(rect) => rect,
        };
        if rect.is_empty() || rect.max.x > width || rect.max.y > height {
            let reason = format!("{rect:?} is not inside an image of {width} by {height} pixels");
            return Err(OpError::Argument { op: OP, reason });
        }
        x = self.slice(x, 0, rect.min.y as isize, rect.max.y as isize)?;
        x = self.slice(x, 1, rect.min.x as isize, rect.max.x as isize)?;
        let x = self.cast(x, DType::F32)?;
        let x = self.mul(x, 1.0 / 255.0)?;
        let (colour, alpha) = (self.slice(x, 2, 0, 3)?, self.slice(x, 2, 3, 4)?);
        let background = self.constant_like(x, &settings.background, [1, 1, 3])?;
        // background + alpha · (colour − background)
        let above = self.sub(colour, background)?;
        let shown = self.add(above * alpha, background)?;
        let x = self.permute(shown, &[2, 0, 1])?;
        let mut x = self.unsqueeze(x, &[0])?;
        if let Some(size) = settings.size {
            let resize = ResizeSettings { antialias: true, ..ResizeSettings::default() };
            x = self.resize(x, &[2, 3], ResizeTo::Sizes(&size), resize)?;
        }
        let mean = self.constant_like(x, &settings.mean, [1, 3, 1, 1])?;
        let deviation = self.constant_like(x, &settings.deviation, [1, 3, 1, 1])?;
        let x = self.div(x - mean, deviation)?;
        match settings.layout {
            ImageLayout::Nchw => Ok(x),
            ImageLayout::Nhwc => self.permute(x, &[0, 2, 3, 1]),
        }
    }

    /// Converts the output of a network with three channels to pixels `[height, width, 4]` of `u8`. This reverses the
    /// mean and deviation of the settings and resizes if a size is given. The crop and the background are not used.
    #[track_caller]
    pub fn image_pixels<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        settings: &ImageSettings,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "image_pixels";
        let mut x = self.value(x)?;
        if settings.layout == ImageLayout::Nhwc {
            x = self.permute(x, &[0, 3, 1, 2])?;
        }
        let shape = self.shape(x)?;
        let &[1, 3, _, _] = &shape[..] else {
            let reason = format!("the operand must be one image of three channels, not {shape}");
            return Err(OpError::Argument { op: OP, reason });
        };
        if let Some(size) = settings.size {
            let resize = ResizeSettings { antialias: true, ..ResizeSettings::default() };
            x = self.resize(x, &[2, 3], ResizeTo::Sizes(&size), resize)?;
        }
        let mean = self.constant_like(x, &settings.mean, [1, 3, 1, 1])?;
        let deviation = self.constant_like(x, &settings.deviation, [1, 3, 1, 1])?;
        let x = self.add(x * deviation, mean)?;
        let x = self.clamp(x, 0.0, 1.0)?;
        let x = self.round(x * 255.0)?;
        let x = self.squeeze(x, 0)?;
        let x = self.permute(x, &[1, 2, 0])?;
        let shape = self.shape(x)?;
        let opaque = self.constant_like(x, &[255.0], [1, 1, 1])?;
        let opaque = self.broadcast_to(opaque, [shape[0], shape[1], 1])?;
        let x = self.concat([x, opaque], LAST)?;
        self.cast(x, DType::U8)
    }

    #[track_caller]
    fn reshape_pixels<'a>(&'a self, op: &'static str, pixels: TensorOperand<'a>) -> OpResult<TensorValue<'a>> {
        let (shape, dtype) = (self.shape(&pixels)?, self.dtype(&pixels)?);
        if !matches!(shape[..], [_, _, 4]) || shape.elements() == 0 || dtype != DType::U8 {
            let reason = format!("pixels must be u8 [height, width, 4], not {dtype} {shape}");
            return Err(OpError::Argument { op, reason });
        }
        self.slice(pixels, 2, 0, 4)
    }
}
