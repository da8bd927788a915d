//! The two encoders, built from the crate's layers. Weights are found by their names in the files.

use bevy::prelude::*;
use bevy_tensor_compute::image::{ImageCrop, ImageSettings};
use bevy_tensor_compute::nn::{
    Conv2d, Embedding, EncoderBlock, InvertedResidual, LayerNorm, Linear, Weights, global_average, mean_rows,
};
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::tensor::NameError;

/// Size of a text embedding.
pub const TEXT_WIDTH: usize = 384;

/// Number of features of a picture.
pub const VISION_WIDTH: usize = 1280;

/// all-MiniLM-L6-v2: six BERT blocks, then the mean of the token states.
#[derive(Component, Clone, Debug)]
pub struct TextEncoder {
    words: Embedding,
    positions: Embedding,
    kinds: Embedding,
    norm: LayerNorm,
    blocks: Vec<EncoderBlock>,
}

impl TextEncoder {
    const BLOCKS: usize = 6;
    const HEADS: usize = 12;
    const EPSILON: f32 = 1e-12;

    pub fn find(weights: &Weights) -> Result<Self, NameError> {
        let embeddings = weights.at("embeddings");
        let block = |i| EncoderBlock::find_bert(&weights.at("encoder.layer").at(i), Self::HEADS, Self::EPSILON);
        Ok(Self {
            words: Embedding::find(&embeddings.at("word_embeddings"))?,
            positions: Embedding::find(&embeddings.at("position_embeddings"))?,
            kinds: Embedding::find(&embeddings.at("token_type_embeddings"))?,
            norm: LayerNorm::find(&embeddings.at("LayerNorm"), Self::EPSILON)?,
            blocks: (0..Self::BLOCKS).map(block).collect::<Result<_, _>>()?,
        })
    }

    /// Encodes token ids `[1, length]`, of which the first `count` are valid, to a unit embedding `[1, 384]`. `mean` is
    /// `[1, length]`: 1 / count for valid tokens, 0 for padding. Texts of the same padded length share one plan.
    pub fn encode<'a>(
        &self,
        ops: &'a TensorCommands,
        ids: impl Into<TensorOperand<'a>>,
        mean: impl Into<TensorOperand<'a>>,
        count: usize,
    ) -> OpResult<TensorValue<'a>> {
        let words = self.words.apply(ops, ids)?;
        let length = ops.shape(words)?[1];
        let places = self.positions.apply(ops, ops.arange(0.0, 1.0, length, DType::I32)?)?;
        // All tokens have type 0, because there is only one sentence.
        let kind = self.kinds.apply(ops, ops.full([1], 0.0, DType::I32)?)?;
        let mut x = self.norm.apply(ops, words + places + kind)?;
        for block in &self.blocks {
            let settings = AttentionSettings { valid_keys: Some(count), ..default() };
            x = block.apply(ops, x, settings)?;
        }
        ops.l2_normalize(mean_rows(ops, x, mean)?, LAST)
    }
}

/// EfficientNet-Lite0, with batch norms folded into the convolutions.
#[derive(Component, Clone, Debug)]
pub struct VisionEncoder {
    stem: Conv2d,
    blocks: Vec<InvertedResidual>,
    head: Conv2d,
    classifier: Linear,
}

impl VisionEncoder {
    /// Side length of the input pictures.
    pub const SIDE: usize = 224;

    /// Repeats, stride, whether the block expands, and channels in and out. Kernel sizes and widths follow from the
    /// weights.
    const STAGES: [(usize, usize, bool, usize, usize); 7] = [
        (1, 1, false, 32, 16),
        (2, 2, true, 16, 24),
        (2, 2, true, 24, 40),
        (3, 2, true, 40, 80),
        (3, 1, true, 80, 112),
        (4, 2, true, 112, 192),
        (1, 1, true, 192, 320),
    ];

    /// The preprocessing of pictures.
    pub fn input() -> ImageSettings {
        ImageSettings {
            crop: ImageCrop::Square,
            size: Some([Self::SIDE; 2]),
            mean: [127.0 / 255.0; 3],
            deviation: [128.0 / 255.0; 3],
            ..default()
        }
    }

    pub fn find(weights: &Weights) -> Result<Self, NameError> {
        let same = |stride: usize, groups: usize| ConvSettings {
            stride: [stride; 2],
            padding: Padding::Same,
            groups,
            ..default()
        };
        let mut blocks = Vec::new();
        for (repeats, stride, widens, input, output) in Self::STAGES {
            for repeat in 0..repeats {
                let weights = weights.at("blocks").at(blocks.len());
                let (stride, input) = if repeat == 0 { (stride, input) } else { (1, output) };
                let wide = if widens { input * 6 } else { input };
                let expand = weights.at("expand");
                blocks.push(InvertedResidual {
                    expand: widens.then(|| Conv2d::find(&expand, same(1, 1))).transpose()?,
                    depthwise: Conv2d::find(&weights.at("depthwise"), same(stride, wide))?,
                    project: Conv2d::find(&weights.at("project"), same(1, 1))?,
                    residual: stride == 1 && input == output,
                });
            }
        }
        Ok(Self {
            stem: Conv2d::find(&weights.at("stem"), same(2, 1))?,
            blocks,
            head: Conv2d::find(&weights.at("head"), same(1, 1))?,
            classifier: Linear::find(&weights.at("classifier"))?,
        })
    }

    /// Pictures `[n, 3, 224, 224]` to features `[n, 1280]`.
    pub fn encode<'a>(&self, ops: &'a TensorCommands, x: impl Into<TensorOperand<'a>>) -> OpResult<TensorValue<'a>> {
        let x = self.stem.apply(ops, x)?;
        let mut x = ops.clamp(x, 0.0, 6.0)?;
        for block in &self.blocks {
            x = block.apply(ops, x)?;
        }
        let x = self.head.apply(ops, x)?;
        let x = ops.clamp(x, 0.0, 6.0)?;
        global_average(ops, x)
    }

    /// Features `[n, 1280]` to the thousand classes that it was trained on.
    #[cfg_attr(not(test), expect(dead_code, reason = "only the tests look at the classes"))]
    pub fn classify<'a>(
        &self,
        ops: &'a TensorCommands,
        features: impl Into<TensorOperand<'a>>,
    ) -> OpResult<TensorValue<'a>> {
        self.classifier.apply(ops, features)
    }
}
