//! Layers over the last axis.

use bevy::prelude::*;

use super::Weights;
use crate::error::OpResult;
use crate::record::{LAST, TensorCommands, TensorOperand, TensorValue};
use crate::tensor::NameError;

/// `x · weightᵀ + bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// `[out, in]`, of a float or quantised type.
    pub weight: Entity,
    /// `[out]`.
    pub bias: Option<Entity>,
}

impl Linear {
    /// Finds `weight`, and `bias` if it exists.
    pub fn find(weights: &Weights) -> Result<Self, NameError> {
        Ok(Self { weight: weights.find("weight")?, bias: weights.find_optional("bias")? })
    }

    /// `[…, in]` to `[…, out]`.
    pub fn apply<'a>(&self, ops: &'a TensorCommands, x: impl Into<TensorOperand<'a>>) -> OpResult<TensorValue<'a>> {
        ops.linear(x, self.weight, self.bias.map(Into::into))
    }
}

/// Rows of a table by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embedding {
    /// `[rows, size]`, of any type.
    pub weight: Entity,
}

impl Embedding {
    /// Finds `weight`.
    pub fn find(weights: &Weights) -> Result<Self, NameError> {
        Ok(Self { weight: weights.find("weight")? })
    }

    /// Integers `[…]` to `[…, size]`.
    pub fn apply<'a>(&self, ops: &'a TensorCommands, ids: impl Into<TensorOperand<'a>>) -> OpResult<TensorValue<'a>> {
        ops.embedding(self.weight, ids)
    }
}

/// Layer norm over the last axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// `[size]`.
    pub weight: Entity,
    /// `[size]`.
    pub bias: Option<Entity>,
    /// Added to the variance.
    pub eps: f32,
}

impl LayerNorm {
    /// Finds `weight`, and `bias` if it exists.
    pub fn find(weights: &Weights, eps: f32) -> Result<Self, NameError> {
        Ok(Self { weight: weights.find("weight")?, bias: weights.find_optional("bias")?, eps })
    }

    /// `[…, size]` to the same shape.
    pub fn apply<'a>(&self, ops: &'a TensorCommands, x: impl Into<TensorOperand<'a>>) -> OpResult<TensorValue<'a>> {
        ops.layer_norm(x, self.weight, self.bias.map(Into::into), LAST, self.eps)
    }
}
