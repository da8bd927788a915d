//! Layers of image networks, for `[batch, channels, height, width]`.

use bevy::prelude::*;

use super::Weights;
use crate::error::OpResult;
use crate::record::{ConvSettings, TensorCommands, TensorOperand, TensorValue};
use crate::tensor::NameError;

/// A convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2d {
    /// `[out, in / groups, height, width]`.
    pub weight: Entity,
    /// `[out]`.
    pub bias: Option<Entity>,
    /// Stride, padding, dilation and groups.
    pub settings: ConvSettings<2>,
}

impl Conv2d {
    /// Finds `weight`, and `bias` if it exists.
    pub fn find(weights: &Weights, settings: ConvSettings<2>) -> Result<Self, NameError> {
        Ok(Self { weight: weights.find("weight")?, bias: weights.find_optional("bias")?, settings })
    }

    /// `[n, in, h, w]` to `[n, out, …]`.
    pub fn apply<'a>(&self, ops: &'a TensorCommands, x: impl Into<TensorOperand<'a>>) -> OpResult<TensorValue<'a>> {
        ops.conv2d(x, self.weight, self.bias.map(Into::into), self.settings)
    }
}

/// Batch norm with the statistics of the training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNorm {
    /// `[channels]`.
    pub mean: Entity,
    /// `[channels]`.
    pub variance: Entity,
    /// `[channels]`.
    pub weight: Option<Entity>,
    /// `[channels]`.
    pub bias: Option<Entity>,
    /// Added to the variance.
    pub eps: f32,
}

impl BatchNorm {
    /// Finds `running_mean` and `running_var`, and `weight` and `bias` if they exist.
    pub fn find(weights: &Weights, eps: f32) -> Result<Self, NameError> {
        Ok(Self {
            mean: weights.find("running_mean")?,
            variance: weights.find("running_var")?,
            weight: weights.find_optional("weight")?,
            bias: weights.find_optional("bias")?,
            eps,
        })
    }

    /// `[n, channels, …]` to the same shape.
    pub fn apply<'a>(&self, ops: &'a TensorCommands, x: impl Into<TensorOperand<'a>>) -> OpResult<TensorValue<'a>> {
        let (weight, bias) = (self.weight.map(Into::into), self.bias.map(Into::into));
        ops.batch_norm(x, self.mean, self.variance, weight, bias, self.eps)
    }
}

/// The block of MobileNets and EfficientNets.
///
/// It expands the channels, convolves each of them (depthwise), and projects to fewer channels. ReLU6 follows each of the
/// first two convolutions. With `residual`, the input is added to the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvertedResidual {
    /// Expands the channels, if the block does.
    pub expand: Option<Conv2d>,
    /// Convolves each channel. It has as many groups as channels.
    pub depthwise: Conv2d,
    /// Projects to the output channels.
    pub project: Conv2d,
    /// Whether the input is added to the output. Both must have the same shape.
    pub residual: bool,
}

impl InvertedResidual {
    /// `[n, c, h, w]` to `[n, out, …]`.
    pub fn apply<'a>(&self, ops: &'a TensorCommands, x: impl Into<TensorOperand<'a>>) -> OpResult<TensorValue<'a>> {
        let x = ops.value(x)?;
        let mut y = x;
        for layer in self.expand.iter().chain([&self.depthwise]) {
            y = ops.clamp(layer.apply(ops, y)?, 0.0, 6.0)?;
        }
        let y = self.project.apply(ops, y)?;
        if self.residual { ops.add(y, x) } else { Ok(y) }
    }
}

/// The mean of each channel: `[n, c, h, w]` to `[n, c]`.
pub fn global_average<'a>(ops: &'a TensorCommands, x: impl Into<TensorOperand<'a>>) -> OpResult<TensorValue<'a>> {
    ops.flatten(ops.global_avg_pool(x)?, 1, -1)
}
