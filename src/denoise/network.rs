//! The network: a U-Net of sixteen convolutions.

use crate::error::OpResult;
use crate::nn::{Conv2d, Weights};
use crate::record::{ConvSettings, Padding, PoolSettings, TensorCommands, TensorValue};
use crate::tensor::NameError;

/// The sides of the network's input are multiples of this, because it halves them four times.
pub(super) const ALIGNMENT: usize = 16;

/// Pixels around a tile that its result depends on (87), rounded up to the alignment.
pub(super) const OVERLAP: usize = 96;

/// The weights of a denoising network for colour, albedo and normals. Find them in a model whose tensors have the names
/// of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denoiser {
    /// Before the first halving.
    first: Conv2d,
    /// Each is followed by a halving.
    encoders: [Conv2d; 4],
    /// At the lowest resolution.
    middle: [Conv2d; 2],
    /// Each pair follows a doubling.
    decoders: [[Conv2d; 2]; 4],
    last: Conv2d,
}

impl Denoiser {
    /// Finds the weights: `enc_conv0.weight`, `enc_conv0.bias`, … `dec_conv0.bias`.
    pub fn find(weights: &Weights) -> Result<Self, NameError> {
        let settings = ConvSettings { padding: Padding::Explicit([[1; 2]; 2]), ..ConvSettings::default() };
        let layer = |name: &str| Conv2d::find(&weights.at(name), settings);
        let pair = |name: &str| Ok([layer(&format!("{name}a"))?, layer(&format!("{name}b"))?]);
        Ok(Self {
            first: layer("enc_conv0")?,
            encoders: [layer("enc_conv1")?, layer("enc_conv2")?, layer("enc_conv3")?, layer("enc_conv4")?],
            middle: pair("enc_conv5")?,
            decoders: [pair("dec_conv4")?, pair("dec_conv3")?, pair("dec_conv2")?, pair("dec_conv1")?],
            last: layer("dec_conv0")?,
        })
    }

    /// `[1, 9, h, w]` to `[1, 3, h, w]`. The sizes are multiples of [`ALIGNMENT`].
    pub(super) fn apply<'a>(&self, ops: &'a TensorCommands, input: TensorValue<'a>) -> OpResult<TensorValue<'a>> {
        let conv = |layer: &Conv2d, x: TensorValue<'a>| ops.relu(layer.apply(ops, x)?);
        let mut y = conv(&self.first, input)?;
        // What each resolution has for the way back: the input, and the results of the first three halvings.
        let mut skips = vec![input];
        for layer in &self.encoders {
            y = ops.max_pool2d(conv(layer, y)?, PoolSettings::default())?;
            skips.push(y);
        }
        skips.pop();
        for layer in &self.middle {
            y = conv(layer, y)?;
        }
        for (pair, skip) in self.decoders.iter().zip(skips.into_iter().rev()) {
            let shape = ops.shape(skip)?;
            y = ops.resize2d_nearest(y, [shape[2], shape[3]])?;
            y = ops.concat([y, skip], 1)?;
            for layer in pair {
                y = conv(layer, y)?;
            }
        }
        self.last.apply(ops, y)
    }
}
