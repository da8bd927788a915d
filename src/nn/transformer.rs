//! Attention and the blocks of encoders.

use super::{LayerNorm, Linear, Weights};
use crate::error::OpError;
use crate::record::{AttentionSettings, TensorCommands, TensorOperand, TensorValue};
use crate::tensor::NameError;

/// The function between a block's two linear layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Activation {
    /// [`gelu`](TensorCommands::gelu), with the error function.
    #[default]
    Gelu,
    /// [`relu`](TensorCommands::relu).
    Relu,
    /// [`silu`](TensorCommands::silu).
    Silu,
}

impl Activation {
    /// The function of every element.
    pub fn apply(self, ops: &mut TensorCommands, x: impl Into<TensorOperand>) -> Result<TensorValue, OpError> {
        match self {
            Self::Gelu => ops.gelu(x),
            Self::Relu => ops.relu(x),
            Self::Silu => ops.silu(x),
        }
    }
}

/// Several heads of attention over one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelfAttention {
    /// Makes the queries.
    pub query: Linear,
    /// Makes the keys.
    pub key: Linear,
    /// Makes the values.
    pub value: Linear,
    /// Mixes the heads.
    pub output: Linear,
    /// How many heads share the width.
    pub heads: usize,
}

impl SelfAttention {
    /// `[batch, length, width]` to the same.
    pub fn apply(
        &self,
        ops: &mut TensorCommands,
        x: impl Into<TensorOperand>,
        settings: AttentionSettings,
    ) -> Result<TensorValue, OpError> {
        let x = x.into();
        let [query, key, value] = [self.query, self.key, self.value].map(|layer| {
            let y = layer.apply(ops, &x)?;
            self.split(ops, y)
        });
        let mixed = ops.attention(query?, key?, value?, settings)?;
        let mixed = ops.permute(mixed, &[0, 2, 1, 3])?;
        let mixed = ops.flatten(mixed, 2, 3)?;
        self.output.apply(ops, mixed)
    }

    /// `[batch, length, width]` as `[batch, heads, length, width / heads]`.
    fn split(&self, ops: &mut TensorCommands, x: TensorValue) -> Result<TensorValue, OpError> {
        let shape = ops.shape(x)?;
        let [batch, length, _] = shape[..] else {
            let reason = format!("attention takes [batch, length, width], not {shape}");
            return Err(OpError::Argument { op: "attention", reason });
        };
        let x = ops.reshape(x, &[batch as isize, length as isize, self.heads as isize, -1])?;
        ops.permute(x, &[0, 2, 1, 3])
    }
}

/// A block of a transformer encoder that normalises after each of its halves, as BERT's do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderBlock {
    /// The first half.
    pub attention: SelfAttention,
    /// After the first half.
    pub attention_norm: LayerNorm,
    /// Widens.
    pub up: Linear,
    /// Narrows again.
    pub down: Linear,
    /// Between the two.
    pub activation: Activation,
    /// After the second half.
    pub norm: LayerNorm,
}

impl EncoderBlock {
    /// A block under the names that BERT's weights have.
    pub fn find_bert(weights: &Weights, heads: usize, eps: f32) -> Result<Self, NameError> {
        let attention = weights.at("attention");
        let heads_of = attention.at("self");
        Ok(Self {
            attention: SelfAttention {
                query: Linear::find(&heads_of.at("query"))?,
                key: Linear::find(&heads_of.at("key"))?,
                value: Linear::find(&heads_of.at("value"))?,
                output: Linear::find(&attention.at("output.dense"))?,
                heads,
            },
            attention_norm: LayerNorm::find(&attention.at("output.LayerNorm"), eps)?,
            up: Linear::find(&weights.at("intermediate.dense"))?,
            down: Linear::find(&weights.at("output.dense"))?,
            activation: Activation::Gelu,
            norm: LayerNorm::find(&weights.at("output.LayerNorm"), eps)?,
        })
    }

    /// `[batch, length, width]` to the same.
    pub fn apply(
        &self,
        ops: &mut TensorCommands,
        x: impl Into<TensorOperand>,
        settings: AttentionSettings,
    ) -> Result<TensorValue, OpError> {
        let x = x.into();
        let seen = self.attention.apply(ops, &x, settings)?;
        let x = self.attention_norm.apply(ops, seen + x)?;
        let y = self.up.apply(ops, x)?;
        let y = self.activation.apply(ops, y)?;
        let y = self.down.apply(ops, y)?;
        self.norm.apply(ops, y + x)
    }
}

/// The weighted sum of rows: `x [batch, length, width]` and `weights [batch, length]` to `[batch, width]`. With weights of 1 / n for the n rows that count
/// and 0 for the rest it is their mean, of a length that may change from frame to frame at no cost.
pub fn mean_rows(
    ops: &mut TensorCommands,
    x: impl Into<TensorOperand>,
    weights: impl Into<TensorOperand>,
) -> Result<TensorValue, OpError> {
    let weights = ops.unsqueeze(weights, &[1])?;
    let sum = ops.matmul(weights, x)?;
    ops.squeeze(sum, 1)
}
