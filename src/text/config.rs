//! What the metadata of a GGUF file says about a decoder.

use thiserror::Error;

use super::TokenizerError;
use crate::error::{OpError, ReadError};
use crate::formats::WeightsError;
use crate::formats::gguf::{GgufHeader, GgufValue};
use crate::record::RopeLayout;
use crate::tensor::NameError;

/// Why a model cannot speak, or why a speaker ended.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum TextError {
    /// The file could not be read.
    #[error("{0}")]
    File(String),
    /// The weights could not be loaded.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The architecture is not supported.
    #[error("the architecture \"{architecture}\" is not supported, only llama, qwen2, qwen3 and gemma3")]
    Architecture {
        /// `general.architecture` of the file.
        architecture: String,
    },
    /// The metadata of the file is incomplete or contradictory.
    #[error("\"{key}\" {reason}")]
    Metadata {
        /// The metadata key.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// A tensor of the model is missing.
    #[error(transparent)]
    Tensor(#[from] NameError),
    /// The tokeniser of the file is missing or not supported, or a text could not be tokenised.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The prompt has no tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The prompt does not fit in the context.
    #[error("the prompt has {tokens} tokens; the context has {context}")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// The entity has no model that it speaks for.
    #[error("the speaker has no model")]
    NoModel,
    /// The model gave numbers that are not finite.
    #[error("the model gave logits that are not finite")]
    NotFinite,
    /// Recording a step failed.
    #[error(transparent)]
    Op(#[from] OpError),
    /// Reading the sampled tokens failed.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The architectures that can speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextArchitecture {
    /// Llama, Mistral, SmolLM and many others.
    Llama,
    /// Qwen 2 and 2.5.
    Qwen2,
    /// Qwen 3.
    Qwen3,
    /// Gemma 3.
    Gemma3,
}

/// Sizes and settings of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// The architecture.
    pub architecture: TextArchitecture,
    /// Number of layers.
    pub layers: usize,
    /// Size of a token's vector.
    pub width: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads.
    pub kv_heads: usize,
    /// Size of a head of queries and keys.
    pub key: usize,
    /// Size of a head of values.
    pub value: usize,
    /// Number of tokens that the model was made for.
    pub context: usize,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Number of elements of a head that are rotated.
    pub rotary: usize,
    /// Which elements are rotated together.
    pub layout: RopeLayout,
    /// How positions become angles.
    pub rope: Rope,
    /// How positions become angles in layers with a window.
    pub local_rope: Option<Rope>,
    /// Number of tokens that a layer with a window sees.
    pub window: Option<usize>,
    /// Of so many layers, the last one has no window.
    pub window_pattern: usize,
    /// Scores become `cap · tanh(score / cap)`. 0 is off.
    pub attention_cap: f32,
    /// Logits become `cap · tanh(logit / cap)`. 0 is off.
    pub final_cap: f32,
    /// Factor of the embeddings.
    pub embedding_scale: f32,
}

/// Frequencies of rotary embeddings.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub base: f32,
    /// How positions beyond the original context are reached.
    pub scaling: RopeScaling,
}

/// How rotary embeddings are stretched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Positions are divided by the factor.
    Linear {
        /// The factor.
        factor: f32,
    },
    /// Low frequencies are divided, high ones are kept, with a ramp between them.
    Yarn {
        /// The factor.
        factor: f32,
        /// Context that the model was trained with.
        original: usize,
        /// Factor of the rotated elements. Multiplies that of the method.
        attention: f32,
        /// Rotations in the original context below which a frequency is divided.
        slow: f32,
        /// Rotations in the original context above which a frequency is kept.
        fast: f32,
    },
}

impl Rope {
    /// Frequencies of the pairs, and the factor of the rotated elements. `factors` divide the frequencies.
    pub(super) fn frequencies(&self, rotary: usize, factors: &[f32]) -> (Vec<f64>, f64) {
        let base = f64::from(self.base);
        let plain = (0..rotary / 2).map(|i| {
            let frequency = base.powf(-2.0 * i as f64 / rotary as f64);
            frequency / factors.get(i).copied().map_or(1.0, f64::from)
        });
        match self.scaling {
            RopeScaling::None => (plain.collect(), 1.0),
            RopeScaling::Linear { factor } => (plain.map(|f| f / f64::from(factor)).collect(), 1.0),
            RopeScaling::Yarn { factor, original, attention, slow, fast } => {
                let factor = f64::from(factor);
                // The pair that rotates so often within the original context.
                let pair = |rotations: f32| {
                    let turns = original as f64 / (f64::from(rotations) * 2.0 * core::f64::consts::PI);
                    rotary as f64 * turns.ln() / (2.0 * base.ln())
                };
                let low = pair(fast).floor().max(0.0);
                let high = pair(slow).ceil().min(rotary as f64 - 1.0);
                let blend = |(i, f): (usize, f64)| {
                    let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    f / factor * ramp + f * (1.0 - ramp)
                };
                (plain.enumerate().map(blend).collect(), f64::from(attention) * (1.0 + 0.1 * factor.ln()))
            }
        }
    }
}

impl DecoderConfig {
    /// The settings in the metadata of a file.
    pub fn from_gguf(header: &GgufHeader) -> Result<Self, TextError> {
        let name = header.architecture().unwrap_or_default();
        let architecture = match name {
            "llama" => TextArchitecture::Llama,
            "qwen2" => TextArchitecture::Qwen2,
            "qwen3" => TextArchitecture::Qwen3,
            "gemma3" => TextArchitecture::Gemma3,
            other => return Err(TextError::Architecture { architecture: other.to_owned() }),
        };
        let metadata = Metadata { header, name };
        if let Some(experts) = metadata.size("expert_count")?.filter(|&count| count > 0) {
            return Err(metadata.error("expert_count", format!("is {experts}; mixtures of experts are not supported")));
        }
        let (layers, width) = (metadata.needed("block_count")?, metadata.needed("embedding_length")?);
        let heads = metadata.needed("attention.head_count")?;
        let kv_heads = metadata.size("attention.head_count_kv")?.unwrap_or(heads);
        if heads == 0 || kv_heads == 0 || heads % kv_heads != 0 {
            return Err(metadata.error("attention.head_count_kv", format!("is {kv_heads}, with {heads} heads")));
        }
        if layers == 0 || layers > 1024 || width == 0 {
            return Err(metadata.error("block_count", format!("is {layers}, with vectors of {width}")));
        }
        let key = metadata.size("attention.key_length")?.unwrap_or(width / heads);
        let value = metadata.size("attention.value_length")?.unwrap_or(width / heads);
        let rotary = metadata.size("rope.dimension_count")?.unwrap_or(key);
        if rotary > key || rotary % 2 != 0 || key == 0 || value == 0 {
            return Err(metadata.error("rope.dimension_count", format!("is {rotary}, with heads of {key}")));
        }
        let gemma = architecture == TextArchitecture::Gemma3;
        let base = metadata.number("rope.freq_base")?.unwrap_or(if gemma { 1e6 } else { 1e4 });
        let window = metadata.size("attention.sliding_window")?.filter(|&window| gemma && window > 0);
        Ok(Self {
            architecture,
            layers,
            width,
            heads,
            kv_heads,
            key,
            value,
            context: metadata.needed("context_length")?.max(1),
            eps: metadata.number("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5),
            rotary,
            layout: match architecture {
                TextArchitecture::Llama => RopeLayout::Interleaved,
                TextArchitecture::Qwen2 | TextArchitecture::Qwen3 | TextArchitecture::Gemma3 => RopeLayout::Half,
            },
            rope: Rope { base, scaling: metadata.scaling()? },
            local_rope: gemma.then_some(Rope { base: 1e4, scaling: RopeScaling::None }),
            window,
            window_pattern: 6,
            attention_cap: metadata.number("attn_logit_softcapping")?.unwrap_or(0.0),
            final_cap: metadata.number("final_logit_softcapping")?.unwrap_or(0.0),
            embedding_scale: if gemma { (width as f32).sqrt() } else { 1.0 },
        })
    }

    /// Whether a layer sees only the last tokens.
    pub(super) fn is_local(&self, layer: usize) -> bool {
        self.window.is_some() && layer % self.window_pattern != self.window_pattern - 1
    }
}

/// The metadata of one architecture.
struct Metadata<'a> {
    header: &'a GgufHeader,
    name: &'a str,
}

impl Metadata<'_> {
    fn error(&self, key: &str, reason: impl Into<String>) -> TextError {
        TextError::Metadata { key: format!("{}.{key}", self.name), reason: reason.into() }
    }

    fn get(&self, key: &str) -> Option<&GgufValue> {
        self.header.get(&format!("{}.{key}", self.name))
    }

    /// A size. A list with one value for each layer must repeat one.
    fn size(&self, key: &str) -> Result<Option<usize>, TextError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = match value.as_array() {
            None => value.as_i64(),
            Some(list) => {
                let list = list.to_i64().unwrap_or_default();
                list.first().copied().filter(|first| list.iter().all(|value| value == first))
            }
        };
        match number.and_then(|number| usize::try_from(number).ok()).filter(|&number| number < 1 << 31) {
            Some(number) => Ok(Some(number)),
            None => Err(self.error(key, "is not one size for all layers")),
        }
    }

    fn needed(&self, key: &str) -> Result<usize, TextError> {
        self.size(key)?.ok_or_else(|| self.error(key, "is missing"))
    }

    fn number(&self, key: &str) -> Result<Option<f32>, TextError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match value.as_f32().filter(|number| number.is_finite()) {
                Some(number) => Ok(Some(number)),
                None => Err(self.error(key, "is not a finite number")),
            },
        }
    }

    fn scaling(&self) -> Result<RopeScaling, TextError> {
        let factor = self.number("rope.scaling.factor")?.or(self.number("rope.scale_linear")?);
        let factor = factor.filter(|&factor| factor > 0.0).unwrap_or(1.0);
        let kind = self.get("rope.scaling.type").and_then(GgufValue::as_str);
        match kind.unwrap_or(if factor == 1.0 { "none" } else { "linear" }) {
            "none" | "longrope" => Ok(RopeScaling::None),
            "linear" if factor == 1.0 => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor }),
            "yarn" => Ok(RopeScaling::Yarn {
                factor,
                original: self
                    .size("rope.scaling.original_context_length")?
                    .map_or_else(|| self.needed("context_length"), Ok)?,
                attention: self.number("rope.scaling.attn_factor")?.unwrap_or(1.0),
                slow: self.number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                fast: self.number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
            }),
            other => Err(self.error("rope.scaling.type", format!("\"{other}\" is not supported"))),
        }
    }
}
