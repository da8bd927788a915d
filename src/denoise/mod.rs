//! A neural denoiser for rendered images: the networks of Intel's [Open Image Denoise](https://www.openimagedenoise.org).
//!
//! A path tracer with few samples per pixel gives a noisy image. [`TensorCommands::denoise`] removes the noise, guided by
//! the albedo and the normals of the first hits, which are almost free of noise. It runs on any vendor's GPU and on the
//! CPU, in the frame, and the image never leaves the device.
//!
//! ```
//! # use bevy::prelude::*;
//! # use bevy_tensor_compute::prelude::*;
//! use bevy_tensor_compute::denoise::{DenoiseSettings, Denoiser};
//!
//! #[derive(Resource)]
//! struct Picture { denoiser: Denoiser, color: Entity, albedo: Entity, normal: Entity, clean: Entity }
//!
//! fn clean_up(picture: Res<Picture>, ops: TensorCommands) -> Result {
//!     let Picture { denoiser, color, albedo, normal, clean } = &*picture;
//!     let result = ops.denoise(denoiser, *color, *albedo, *normal, DenoiseSettings::default())?;
//!     ops.store(result, *clean)?;
//!     Ok(())
//! }
//! ```
//!
//! The weights are loaded as those of any model, for example with
//! [`LoadWeights`](crate::formats::LoadWeights). Two files are in `assets/models` of the repository:
//! `denoise_small.safetensors` (0.32 million parameters) and `denoise_base.safetensors` (0.92 million, better and slower).

mod exposure;
mod network;
mod transfer;

pub use network::Denoiser;

use bevy::prelude::*;

use crate::error::{OpError, OpResult};
use crate::ir::DType;
use crate::record::{LAST, PadMode, TensorCommands, TensorOperand, TensorValue};
use network::{ALIGNMENT, OVERLAP};

/// Settings of [`TensorCommands::denoise`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Reflect)]
#[reflect(Default, Debug, Clone, PartialEq)]
pub struct DenoiseSettings {
    /// Factor that brings the colours to a common brightness for the network. `None`, the default, measures it: the
    /// geometric mean of the luminance becomes 0.18.
    pub exposure: Option<f32>,
    /// Largest height and width that the network processes at once. Larger images are split into tiles that overlap, so
    /// that the result is the same and less memory is needed. Rounded up to a multiple of 16. `None`, the default, never
    /// splits.
    pub tile: Option<usize>,
}

/// Denoising.
impl TensorCommands<'_, '_> {
    /// Removes the noise of an image. `color` has linear, unbounded colours, `albedo` the colours of the surfaces in
    /// `0..=1`, `normal` their normals, of length 1 or 0, in any space. All are floats `[height, width, 3]`, as is the
    /// result.
    ///
    /// NaN counts as 0, negative colours as 0, and infinite colours as the largest number.
    #[track_caller]
    pub fn denoise<'a>(
        &'a self,
        denoiser: &Denoiser,
        color: impl Into<TensorOperand<'a>>,
        albedo: impl Into<TensorOperand<'a>>,
        normal: impl Into<TensorOperand<'a>>,
        settings: DenoiseSettings,
    ) -> OpResult<TensorValue<'a>> {
        let images = [self.value(color)?, self.value(albedo)?, self.value(normal)?];
        let [height, width] = self.image_size(images)?;
        if settings.exposure.is_some_and(|exposure| !(exposure > 0.0 && exposure.is_finite())) {
            return Err(argument(format!("an exposure of {:?} is not positive and finite", settings.exposure)));
        }
        if settings.tile == Some(0) {
            return Err(argument("tiles of 0 pixels".to_owned()));
        }
        let [color, albedo, normal] = images;
        let color = sanitize(self, self.cast(color, DType::F32)?)?;
        let albedo = sanitize(self, self.cast(albedo, DType::F32)?)?;
        let normal = sanitize(self, self.cast(normal, DType::F32)?)?;
        let scale = match settings.exposure {
            Some(exposure) => self.constant_like(color, &[exposure], [1, 1, 1])?,
            None => exposure::measure(self, self.clamp(color, 0.0, f64::from(f32::MAX))?, [height, width])?,
        };
        let exposed = self.clamp(color * scale, 0.0, f64::from(f32::MAX))?;
        let color = transfer::encode(self, exposed)?;
        let albedo = self.clamp(albedo, 0.0, 1.0)?;
        let normal = self.clamp(normal, -1.0, 1.0)?;
        let normal = self.add(normal * 0.5, 0.5)?;
        let x = self.concat([color, albedo, normal], LAST)?;
        let x = self.unsqueeze(self.permute(x, &[2, 0, 1])?, &[0])?;
        let padded = [height, width].map(|size| size.next_multiple_of(ALIGNMENT));
        let after = |from: usize, to: usize| (0, (to - from) as isize);
        let pads = [(0, 0), (0, 0), after(height, padded[0]), after(width, padded[1])];
        let x = self.pad(x, &pads, PadMode::Constant(0.0))?;
        let y = self.denoise_tiles(denoiser, x, padded, settings.tile)?;
        let y = self.slice(self.slice(y, 2, 0, height as isize)?, 3, 0, width as isize)?;
        let y = self.permute(self.squeeze(y, 0)?, &[1, 2, 0])?;
        let y = transfer::decode(self, self.clamp(sanitize(self, y)?, 0.0, f64::from(f32::MAX))?)?;
        self.div(y, scale)
    }

    /// Runs the network over a padded image, in tiles if it is larger than one.
    fn denoise_tiles<'a>(
        &'a self,
        denoiser: &Denoiser,
        x: TensorValue<'a>,
        size: [usize; 2],
        tile: Option<usize>,
    ) -> OpResult<TensorValue<'a>> {
        let Some(tile) = tile.map(|tile| tile.next_multiple_of(ALIGNMENT)) else { return denoiser.apply(self, x) };
        // What a tile gives and what it reads. Both begin at multiples of the alignment, as the whole image does.
        let parts = |size: usize| {
            (0..size).step_by(tile).map(move |start| {
                let end = (start + tile).min(size);
                (start..end, start.saturating_sub(OVERLAP)..(end + OVERLAP).min(size))
            })
        };
        let mut rows = Vec::new();
        for (give_rows, read_rows) in parts(size[0]) {
            let band = self.slice(x, 2, read_rows.start as isize, read_rows.end as isize)?;
            let mut tiles = Vec::new();
            for (give, read) in parts(size[1]) {
                let y = denoiser.apply(self, self.slice(band, 3, read.start as isize, read.end as isize)?)?;
                let cut = |range: &core::ops::Range<usize>, from: usize| {
                    [(range.start - from) as isize, (range.end - from) as isize]
                };
                let ([top, bottom], [left, right]) = (cut(&give_rows, read_rows.start), cut(&give, read.start));
                tiles.push(self.slice(self.slice(y, 2, top, bottom)?, 3, left, right)?);
            }
            rows.push(self.concat(tiles, 3)?);
        }
        self.concat(rows, 2)
    }

    /// The height and width that all images have.
    fn image_size(&self, images: [TensorValue<'_>; 3]) -> OpResult<[usize; 2]> {
        let mut size = None;
        for (image, name) in images.into_iter().zip(["color", "albedo", "normal"]) {
            let (shape, dtype) = (self.shape(image)?, self.dtype(image)?);
            let &[height, width, 3] = &shape[..] else {
                return Err(argument(format!("{name} must be [height, width, 3], not {shape}")));
            };
            if height == 0 || width == 0 || !dtype.is_float() {
                return Err(argument(format!("{name} must have pixels of floats, not {dtype} {shape}")));
            }
            if *size.get_or_insert([height, width]) != [height, width] {
                return Err(argument(format!("{name} is {shape}, but color has another size")));
            }
        }
        size.ok_or_else(|| argument("no images".to_owned()))
    }
}

fn argument(reason: String) -> OpError {
    OpError::Argument { op: "denoise", reason }
}

/// NaN becomes 0.
fn sanitize<'a>(ops: &'a TensorCommands, x: TensorValue<'a>) -> OpResult<TensorValue<'a>> {
    ops.select(ops.is_nan(x)?, 0.0, x)
}
