//! Layers composed of ops. A layer holds the tensors that are its weights and records what it computes. Other ops can be
//! recorded between layers.
//!
//! A layer finds its weights in a model by the names they have in files:
//!
//! ```
//! # use bevy::prelude::*;
//! # use bevy_tensor_compute::{NameError, prelude::*};
//! use bevy_tensor_compute::nn::Linear;
//!
//! #[derive(Component)]
//! struct Network { hidden: Linear, out: Linear }
//!
//! fn find(model: Entity, models: &TensorModels) -> Result<Network, NameError> {
//!     let weights = models.weights(model);
//!     Ok(Network { hidden: Linear::find(&weights.at("hidden"))?, out: Linear::find(&weights.at("out"))? })
//! }
//!
//! fn forward<'a>(network: &Network, ops: &'a TensorCommands, x: Entity) -> OpResult<TensorValue<'a>> {
//!     network.out.apply(ops, ops.relu(network.hidden.apply(ops, x)?)?)
//! }
//! ```

mod conv;
mod dense;
mod transformer;

use bevy::prelude::*;

pub use conv::{BatchNorm, Conv2d, InvertedResidual, global_average};
pub use dense::{Embedding, LayerNorm, Linear};
pub use transformer::{Activation, EncoderBlock, SelfAttention, mean_rows};

use crate::tensor::{NameError, TensorModels, TensorNames};

/// The tensors of a model whose names have a common prefix.
#[derive(Clone)]
pub struct Weights<'a> {
    names: &'a TensorNames,
    model: Entity,
    prefix: String,
}

impl core::fmt::Debug for Weights<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Weights").field("model", &self.model).field("prefix", &self.prefix).finish()
    }
}

impl TensorModels<'_, '_> {
    /// The tensors of a model, in which layers find their weights.
    pub fn weights(&self, model: Entity) -> Weights<'_> {
        Weights { names: self.names(), model, prefix: String::new() }
    }
}

impl Weights<'_> {
    /// The tensors whose names continue with `part` and a dot.
    pub fn at(&self, part: impl core::fmt::Display) -> Self {
        Self { prefix: format!("{}{part}.", self.prefix), ..self.clone() }
    }

    /// The tensor with this name.
    pub fn find(&self, name: &str) -> Result<Entity, NameError> {
        self.names.find(self.model, &format!("{}{name}", self.prefix))
    }

    /// The tensor with this name, if it exists. Several tensors with this name are an error.
    pub fn find_optional(&self, name: &str) -> Result<Option<Entity>, NameError> {
        match self.find(name) {
            Ok(tensor) => Ok(Some(tensor)),
            Err(NameError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
