//! Errors of copies between images and tensors.

use bevy::render::render_resource::TextureFormat;
use thiserror::Error;

use super::{OpError, ReadError, TensorError};
use crate::ir::{DType, Shape};

/// The error of a copy between an image and a tensor.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The image is not a single 2D layer, or has a format that cannot be converted to pixels.
    #[error("an image of format {format:?} and {width} by {height} texels cannot be converted to pixels")]
    Format {
        /// The format.
        format: TextureFormat,
        /// The width.
        width: u32,
        /// The height.
        height: u32,
    },
    /// The data of the image is not in main memory.
    #[error("the data of the image is not in main memory (see RenderAssetUsages)")]
    NoData,
    /// The data of the image is only on the device, and its usage does not allow a copy.
    #[error("the data of the image is only on the device; the CPU backend needs TextureUsages::COPY_SRC to read it")]
    NoCopy,
    /// The usage of the image does not allow shaders to read it.
    #[error("shaders cannot read the image; the GPU backend needs TextureUsages::TEXTURE_BINDING")]
    NoBinding,
    /// The format or usage of the image does not allow pixels to be written.
    #[error("pixels cannot be written to this image; create it with image_for_tensor")]
    NotShown,
    /// The tensor does not have the type and shape of the image's pixels.
    #[error(
        "the pixels of an image of {width} by {height} are u8 of shape [{height}, {width}, 4], but the tensor is {dtype} of shape {shape}"
    )]
    Pixels {
        /// The type of the tensor.
        dtype: DType,
        /// The shape of the tensor.
        shape: Shape,
        /// The width of the image.
        width: u32,
        /// The height of the image.
        height: u32,
    },
    /// The tensor is a view in which the bytes of a pixel or the pixels of a row are not adjacent, or in which rows
    /// overlap.
    #[error("the tensor is a view whose pixels are not adjacent; copy it first")]
    View,
    /// A tensor could not be created.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// An op could not be recorded.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The pixels could not be read back.
    #[error(transparent)]
    Read(#[from] ReadError),
}
