//! Tokenisation for the text encoder.

use std::path::Path;

use bevy::prelude::*;
use tokenizers::{Tokenizer, TruncationParams};

/// Maximum number of tokens of a text, as in the training of the encoder.
pub const MAX_TOKENS: usize = 256;

/// The tokenizer.
#[derive(Resource)]
pub struct Tokens(Tokenizer);

/// The input of the encoder for a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIds {
    pub ids: Vec<u32>,
    /// Whether the text was truncated.
    pub truncated: bool,
}

impl Tokens {
    /// Reads `tokenizer.json`.
    pub fn load(path: &Path) -> Result<Self, String> {
        let message = |error: tokenizers::Error| format!("{}: {error}", path.display());
        let mut tokenizer = Tokenizer::from_file(path).map_err(message)?;
        let truncation = TruncationParams { max_length: MAX_TOKENS, ..default() };
        tokenizer.with_truncation(Some(truncation)).map_err(message)?.with_padding(None);
        Ok(Self(tokenizer))
    }

    /// The ids of a text.
    pub fn encode(&self, text: &str) -> Result<TokenIds, String> {
        let encoding =
            self.0.encode(text, true).map_err(|error| format!("this text cannot be split into tokens: {error}"))?;
        Ok(TokenIds { ids: encoding.get_ids().to_vec(), truncated: !encoding.get_overflowing().is_empty() })
    }
}

impl TokenIds {
    /// The length that the text is padded to. There are few lengths, so that there are few plans.
    pub fn padded(&self) -> usize {
        match self.ids.len() {
            0..=32 => self.ids.len().next_multiple_of(8).max(8),
            long => long.next_multiple_of(32),
        }
    }

    /// The ids padded with zeros, and the weight of each token in the mean.
    pub fn rows(&self) -> (Vec<i32>, Vec<f32>) {
        let (count, padded) = (self.ids.len(), self.padded());
        let ids = self.ids.iter().map(|&id| id as i32).chain(core::iter::repeat_n(0, padded - count));
        let weights = (0..padded).map(|i| if i < count { 1.0 / count as f32 } else { 0.0 });
        (ids.collect(), weights.collect())
    }
}
