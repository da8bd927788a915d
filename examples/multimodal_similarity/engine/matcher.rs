//! The joint space: a linear map of each encoder's output, and cosines.

use bevy::prelude::*;
use bevy_tensor_compute::nn::{Linear, Weights};
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::{Axis, NameError, OpError, TensorOperand};

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
    pub fn place_texts(&self, ops: &mut TensorCommands, x: impl Into<TensorOperand>) -> Result<TensorValue, OpError> {
        let x = self.text.apply(ops, x)?;
        ops.l2_normalize(x, Axis::LAST)
    }

    /// Picture features `[n, 1280]` to unit points `[n, 256]`. Roots tame the few large ones among them.
    pub fn place_pictures(
        &self,
        ops: &mut TensorCommands,
        x: impl Into<TensorOperand>,
    ) -> Result<TensorValue, OpError> {
        let x = ops.cast(x, DType::F32)?;
        let x = ops.sqrt(x)?;
        let x = self.vision.apply(ops, x)?;
        ops.l2_normalize(x, Axis::LAST)
    }

    /// What points `[n, 256]` near much of everything lose: half their mean cosine with the ten rows of `others` nearest to them, `[n]`.
    pub fn popularity(
        &self,
        ops: &mut TensorCommands,
        points: impl Into<TensorOperand>,
        others: Entity,
    ) -> Result<TensorValue, OpError> {
        let points = ops.cast(points, DType::F32)?;
        let cosines = ops.matmul_nt(points, others)?;
        let (nearest, _) = ops.top_k(cosines, NEIGHBOURS, Axis::LAST, true)?;
        let mean = ops.mean(nearest, -1, false)?;
        ops.mul(mean, 0.5)
    }

    /// Scores `[q, n]` of candidates `[n, 256]` with their popularity `[n]` for queries `[q, 256]`.
    pub fn score(
        &self,
        ops: &mut TensorCommands,
        queries: impl Into<TensorOperand>,
        candidates: impl Into<TensorOperand>,
        popularity: impl Into<TensorOperand>,
    ) -> Result<TensorValue, OpError> {
        let cosines = ops.pairwise_cosine(queries, candidates)?;
        ops.sub(cosines, popularity)
    }
}
