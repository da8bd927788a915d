//! Layers composed from ops: they hold the tensors that are their weights and record what a layer does. No kernels here; whatever a layer leaves out can
//! be recorded between layers.
//!
//! A layer finds its weights by name in a model, which is how files name them:
//!
//! ```
//! # use bevy::prelude::*;
//! # use bevy_tensor_compute::{NameError, OpError, prelude::*};
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
//! fn forward(network: &Network, x: TensorValue, ops: &mut TensorCommands) -> Result<TensorValue, OpError> {
//!     let x = network.hidden.apply(ops, x)?;
//!     let x = ops.relu(x)?;
//!     network.out.apply(ops, x)
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

/// A model's tensors under a common beginning of their names.
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
    /// A model's tensors, for layers to find theirs in.
    pub fn weights(&self, model: Entity) -> Weights<'_> {
        Weights { names: self.names(), model, prefix: String::new() }
    }
}

impl Weights<'_> {
    /// The tensors whose names go on with `part` and a dot.
    pub fn at(&self, part: impl core::fmt::Display) -> Self {
        Self { prefix: format!("{}{part}.", self.prefix), ..self.clone() }
    }

    /// The tensor of that name.
    pub fn find(&self, name: &str) -> Result<Entity, NameError> {
        self.names.find(self.model, &format!("{}{name}", self.prefix))
    }

    /// The tensor of that name, if there is one; several are still an error.
    pub fn find_optional(&self, name: &str) -> Result<Option<Entity>, NameError> {
        match self.find(name) {
            Ok(tensor) => Ok(Some(tensor)),
            Err(NameError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
