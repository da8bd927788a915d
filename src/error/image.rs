//! Errors of copying between images and tensors.

use bevy::render::render_resource::TextureFormat;
use thiserror::Error;

use super::{OpError, ReadError, TensorError};
use crate::ir::{DType, Shape};

/// An image that has no pixels to give, or cannot take those it is given.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The image is not flat, or of a format without colours, or of one that Bevy cannot read.
    #[error("an image of {format:?}, {width} by {height}, cannot become pixels")]
    Format {
        /// The format.
        format: TextureFormat,
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
    },
    /// Its data is only on the device.
    #[error("the image's data is not in main memory (see RenderAssetUsages)")]
    NoData,
    /// Its data is only on the device, and may not be copied from there.
    #[error("the image's data is only on the device; the CPU backend needs TextureUsages::COPY_SRC to read it")]
    NoCopy,
    /// No shader may read it.
    #[error("no shader may read the image; the GPU backend needs TextureUsages::TEXTURE_BINDING")]
    NoBinding,
    /// It cannot show pixels.
    #[error("pixels cannot be shown in this image; make it with pixels_image")]
    NotShown,
    /// The tensor is not this image's pixels.
    #[error("the pixels of an image of {width} by {height} are u8 of [{height}, {width}, 4], not {dtype} of {shape}")]
    Pixels {
        /// The tensor's type.
        dtype: DType,
        /// The tensor's shape.
        shape: Shape,
        /// The image's width.
        width: u32,
        /// The image's height.
        height: u32,
    },
    /// A view in which the bytes of a pixel, or the pixels of a row, do not lie together, or whose rows are one.
    #[error("the tensor is a view whose pixels do not lie side by side; copy it first")]
    View,
    /// A tensor that could not be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// An op that could not be recorded.
    #[error(transparent)]
    Op(#[from] OpError),
    /// Pixels that did not come.
    #[error(transparent)]
    Read(#[from] ReadError),
}
