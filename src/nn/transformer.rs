//! Attention and encoder blocks.

use super::{LayerNorm, Linear, Weights};
use crate::error::{OpError, OpResult};
use crate::record::{AttentionSettings, TensorCommands, TensorOperand, TensorValue};
use crate::tensor::NameError;

/// The function between the two linear layers of a block.
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
    /// Applies the function to each element.
    pub fn apply<'a>(self, ops: &'a TensorCommands, x: impl Into<TensorOperand<'a>>) -> OpResult<TensorValue<'a>> {
        match self {
            Self::Gelu => ops.gelu(x),
            Self::Relu => ops.relu(x),
            Self::Silu => ops.silu(x),
        }
    }
}

/// Multi-head attention of a sequence to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelfAttention {
    /// Computes the queries.
    pub query: Linear,
    /// Computes the keys.
    pub key: Linear,
    /// Computes the values.
    pub value: Linear,
    /// Combines the heads.
    pub output: Linear,
    /// Number of heads. Each has `width / heads` elements.
    pub heads: usize,
}

impl SelfAttention {
    /// `[batch, length, width]` to the same shape.
    pub fn apply<'a>(
        &self,
        ops: &'a TensorCommands,
        x: impl Into<TensorOperand<'a>>,
        settings: AttentionSettings<'a>,
    ) -> OpResult<TensorValue<'a>> {
        let x = ops.value(x)?;
        let [query, key, value] = [self.query, self.key, self.value].map(|layer| self.split(ops, layer.apply(ops, x)?));
        let mixed = ops.attention(query?, key?, value?, settings)?;
        let mixed = ops.flatten(ops.permute(mixed, &[0, 2, 1, 3])?, 2, 3)?;
        self.output.apply(ops, mixed)
    }

    /// `[batch, length, width]` as `[batch, heads, length, width / heads]`.
    fn split<'a>(&self, ops: &'a TensorCommands, x: TensorValue<'a>) -> OpResult<TensorValue<'a>> {
        let shape = ops.shape(x)?;
        let [batch, length, _] = shape[..] else {
            let reason = format!("the operand must be [batch, length, width], not {shape}");
            return Err(OpError::Argument { op: "attention", reason });
        };
        let x = ops.reshape(x, &[batch as isize, length as isize, self.heads as isize, -1])?;
        ops.permute(x, &[0, 2, 1, 3])
    }
}

/// A block of a transformer encoder that normalises after each half (post-norm), as in BERT.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderBlock {
    /// The first half.
    pub attention: SelfAttention,
    /// The norm after the first half.
    pub attention_norm: LayerNorm,
    /// The first linear layer, which widens.
    pub up: Linear,
    /// The second linear layer, which narrows again.
    pub down: Linear,
    /// The function between the two linear layers.
    pub activation: Activation,
    /// The norm after the second half.
    pub norm: LayerNorm,
}

impl EncoderBlock {
    /// Finds the weights of a block by the names they have in BERT.
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

    /// `[batch, length, width]` to the same shape.
    pub fn apply<'a>(
        &self,
        ops: &'a TensorCommands,
        x: impl Into<TensorOperand<'a>>,
        settings: AttentionSettings<'a>,
    ) -> OpResult<TensorValue<'a>> {
        let x = ops.value(x)?;
        let x = self.attention_norm.apply(ops, self.attention.apply(ops, x, settings)? + x)?;
        let y = self.activation.apply(ops, self.up.apply(ops, x)?)?;
        self.norm.apply(ops, self.down.apply(ops, y)? + x)
    }
}

/// The weighted sum of rows: `x [batch, length, width]` and `weights [batch, length]` to `[batch, width]`.
///
/// With weights of 1 / n for n rows and 0 for the others it is the mean of these rows. Changing n needs no new plan.
pub fn mean_rows<'a>(
    ops: &'a TensorCommands,
    x: impl Into<TensorOperand<'a>>,
    weights: impl Into<TensorOperand<'a>>,
) -> OpResult<TensorValue<'a>> {
    ops.squeeze(ops.matmul(ops.unsqueeze(weights, &[1])?, x)?, 1)
}
