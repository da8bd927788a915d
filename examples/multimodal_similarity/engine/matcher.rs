//! The joint space: a linear map of the output of each encoder, and cosine similarities.

use bevy::prelude::*;
use bevy_tensor_compute::nn::{Linear, Weights};
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::tensor::NameError;

/// Number of dimensions of the joint space.
pub const JOINT_WIDTH: usize = 256;

/// Number of neighbours that the popularity of a picture or caption is computed from.
const NEIGHBOURS: usize = 10;

/// Projections into the joint space, and the captions they were fitted on, already projected.
#[derive(Component, Clone, Copy, Debug)]
pub struct Matcher {
    text: Linear,
    vision: Linear,
    /// `[n, 256]`, unit rows. Their names are in `captions.json`.
    pub captions: Entity,
    /// `[n]`: the popularity penalty of each caption, measured on the pictures of the fit.
    pub caption_popularity: Entity,
    /// `[pictures, 1280]`: precomputed features of the gallery.
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

    /// Projects text embeddings `[n, 384]` to unit points `[n, 256]`.
    pub fn place_texts<'a>(
        &self,
        ops: &'a TensorCommands,
        x: impl Into<TensorOperand<'a>>,
    ) -> OpResult<TensorValue<'a>> {
        ops.l2_normalize(self.text.apply(ops, x)?, LAST)
    }

    /// Projects picture features `[n, 1280]` to unit points `[n, 256]`. Square roots reduce the few large features.
    pub fn place_pictures<'a>(
        &self,
        ops: &'a TensorCommands,
        x: impl Into<TensorOperand<'a>>,
    ) -> OpResult<TensorValue<'a>> {
        let roots = ops.sqrt(ops.cast(x, DType::F32)?)?;
        ops.l2_normalize(self.vision.apply(ops, roots)?, LAST)
    }

    /// The penalty `[n]` of points `[n, 256]` that are near many others: half their mean cosine with the ten nearest
    /// rows of `others`.
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

    /// Scores `[q, n]` of candidates `[n, 256]` with popularity `[n]` for queries `[q, 256]`.
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
