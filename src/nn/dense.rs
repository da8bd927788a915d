//! Layers over the last axis.

use bevy::prelude::*;

use super::Weights;
use crate::error::OpError;
use crate::record::{Axis, TensorCommands, TensorOperand, TensorValue};
use crate::tensor::NameError;

/// `x · weightᵀ + bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// `[out, in]`, of floats or quantised.
    pub weight: Entity,
    /// `[out]`.
    pub bias: Option<Entity>,
}

impl Linear {
    /// `weight`, and `bias` if there is one.
    pub fn find(weights: &Weights) -> Result<Self, NameError> {
        Ok(Self { weight: weights.find("weight")?, bias: weights.find_optional("bias")? })
    }

    /// `[…, in]` to `[…, out]`.
    pub fn apply(&self, ops: &mut TensorCommands, x: impl Into<TensorOperand>) -> Result<TensorValue, OpError> {
        ops.linear(x, self.weight, self.bias.map(Into::into))
    }
}

/// Rows of a table by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embedding {
    /// `[rows, size]`, of any type.
    pub weight: Entity,
}

impl Embedding {
    /// `weight`.
    pub fn find(weights: &Weights) -> Result<Self, NameError> {
        Ok(Self { weight: weights.find("weight")? })
    }

    /// Integers `[…]` to `[…, size]`.
    pub fn apply(&self, ops: &mut TensorCommands, ids: impl Into<TensorOperand>) -> Result<TensorValue, OpError> {
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
    /// `weight`, and `bias` if there is one.
    pub fn find(weights: &Weights, eps: f32) -> Result<Self, NameError> {
        Ok(Self { weight: weights.find("weight")?, bias: weights.find_optional("bias")?, eps })
    }

    /// `[…, size]` to the same.
    pub fn apply(&self, ops: &mut TensorCommands, x: impl Into<TensorOperand>) -> Result<TensorValue, OpError> {
        ops.layer_norm(x, Some(self.weight.into()), self.bias.map(Into::into), Axis::LAST, self.eps)
    }
}
