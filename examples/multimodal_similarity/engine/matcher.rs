//! The joint space: a linear map of each encoder's output, and cosines.

use bevy::prelude::*;
use bevy_tensor_compute::nn::{Linear, Weights};
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::tensor::NameError;

/// Numbers of a point of the joint space.
pub const JOINT_WIDTH: usize = 256;

/// Neighbours that a picture's or caption's popularity is measured by.
const NEIGHBOURS: usize = 10;

/// Projections into the joint space, and the captions they were fitted on, mapped there.
#[derive(Component, Clone, Copy, Debug)]
pub struct Matcher {
    text: Linear,
    vision: Linear,
    /// `[n, 256]`, unit rows; their names are in `captions.json`.
    pub captions: Entity,
    /// `[n]`: what each caption loses by being popular, measured on the pictures of the fit.
    pub caption_popularity: Entity,
    /// `[pictures, 1280]`: what the vision encoder makes of the gallery, made beforehand.
    pub gallery: Entity,
}

impl Matcher {
    pub fn find(weights: &Weights) -> Result<Self, NameError> {
        Ok(Self {
            text: Linear::find(&weights.at("text"))?,
            vision: Linear::find(&weights.at("vision"))?,
            captions: weights.find("captions")?,
            caption_popularity: weights.find("captions.popularity")?,
            gallery: weights.find("gallery")?,
        })
    }

    /// Text embeddings `[n, 384]` to unit points `[n, 256]`.
    pub fn place_texts<'a>(
        &self,
        ops: &'a TensorCommands,
        x: impl Into<TensorOperand<'a>>,
    ) -> OpResult<TensorValue<'a>> {
        ops.l2_normalize(self.text.apply(ops, x)?, LAST)
    }

    /// Picture features `[n, 1280]` to unit points `[n, 256]`. Roots tame the few large ones among them.
    pub fn place_pictures<'a>(
        &self,
        ops: &'a TensorCommands,
        x: impl Into<TensorOperand<'a>>,
    ) -> OpResult<TensorValue<'a>> {
        let roots = ops.sqrt(ops.cast(x, DType::F32)?)?;
        ops.l2_normalize(self.vision.apply(ops, roots)?, LAST)
    }

    /// What points `[n, 256]` near much of everything lose: half their mean cosine with the ten rows of `others`
    /// nearest to them, `[n]`.
    pub fn popularity<'a>(
        &self,
        ops: &'a TensorCommands,
        points: impl Into<TensorOperand<'a>>,
        others: Entity,
    ) -> OpResult<TensorValue<'a>> {
        let points = ops.cast(points, DType::F32)?;
        let cosines = ops.matmul_nt(points, others)?;
        let (nearest, _) = ops.top_k(cosines, NEIGHBOURS, LAST)?;
        ops.mul(ops.mean(nearest, LAST)?, 0.5)
    }

    /// Scores `[q, n]` of candidates `[n, 256]` with their popularity `[n]` for queries `[q, 256]`.
    pub fn score<'a>(
        &self,
        ops: &'a TensorCommands,
        queries: impl Into<TensorOperand<'a>>,
        candidates: impl Into<TensorOperand<'a>>,
        popularity: impl Into<TensorOperand<'a>>,
    ) -> OpResult<TensorValue<'a>> {
        ops.sub(ops.pairwise_cosine(queries, candidates)?, popularity)
    }
}
