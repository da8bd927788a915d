//! Layers of image networks, over `[batch, channels, height, width]`.

use bevy::prelude::*;

use super::Weights;
use crate::error::OpError;
use crate::record::{ConvSettings, TensorCommands, TensorOperand, TensorValue};
use crate::tensor::NameError;

/// A convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2d {
    /// `[out, in / groups, height, width]`.
    pub weight: Entity,
    /// `[out]`.
    pub bias: Option<Entity>,
    /// Steps, padding and groups.
    pub settings: ConvSettings<2>,
}

impl Conv2d {
    /// `weight`, and `bias` if there is one.
    pub fn find(weights: &Weights, settings: ConvSettings<2>) -> Result<Self, NameError> {
        Ok(Self { weight: weights.find("weight")?, bias: weights.find_optional("bias")?, settings })
    }

    /// `[n, in, h, w]` to `[n, out, …]`.
    pub fn apply(&self, ops: &mut TensorCommands, x: impl Into<TensorOperand>) -> Result<TensorValue, OpError> {
        ops.conv2d(x, self.weight, self.bias.map(Into::into), self.settings)
    }
}

/// Batch norm with the statistics of training.
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
    /// `running_mean` and `running_var`, and `weight` and `bias` if there are any.
    pub fn find(weights: &Weights, eps: f32) -> Result<Self, NameError> {
        Ok(Self {
            mean: weights.find("running_mean")?,
            variance: weights.find("running_var")?,
            weight: weights.find_optional("weight")?,
            bias: weights.find_optional("bias")?,
            eps,
        })
    }

    /// `[n, channels, …]` to the same.
    pub fn apply(&self, ops: &mut TensorCommands, x: impl Into<TensorOperand>) -> Result<TensorValue, OpError> {
        let (weight, bias) = (self.weight.map(Into::into), self.bias.map(Into::into));
        ops.batch_norm(x, self.mean, self.variance, weight, bias, self.eps)
    }
}

/// The block of MobileNets and EfficientNets: widen, filter each channel by itself, narrow; with ReLU6 between, and what came in added to what goes out where
/// both have one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvertedResidual {
    /// Widens; not there where the block does not.
    pub expand: Option<Conv2d>,
    /// Filters; as many groups as channels.
    pub depthwise: Conv2d,
    /// Narrows.
    pub project: Conv2d,
    /// Whether what came in is added.
    pub residual: bool,
}

impl InvertedResidual {
    /// `[n, c, h, w]` to `[n, out, …]`.
    pub fn apply(&self, ops: &mut TensorCommands, x: impl Into<TensorOperand>) -> Result<TensorValue, OpError> {
        let x = x.into();
        let mut y = x.clone();
        for layer in self.expand.iter().chain([&self.depthwise]) {
            let wide = layer.apply(ops, y)?;
            y = ops.clamp(wide, 0.0, 6.0)?.into();
        }
        let y = self.project.apply(ops, y)?;
        if self.residual { ops.add(y, x) } else { Ok(y) }
    }
}

/// The mean of every channel: `[n, c, h, w]` to `[n, c]`.
pub fn global_average(ops: &mut TensorCommands, x: impl Into<TensorOperand>) -> Result<TensorValue, OpError> {
    let pooled = ops.global_avg_pool(x)?;
    ops.flatten(pooled, 1, -1)
}
