//! Tokenisers from the metadata of GGUF files: SentencePiece, byte-pair encoding and WordPiece.

mod bpe;
mod chat;
mod pre;
mod stream;

use core::fmt;
use std::collections::HashMap;

use fancy_regex::Regex;
use thiserror::Error;
use unicode_normalization::UnicodeNormalization;

use crate::formats::gguf::{GgufArray, GgufHeader, GgufValue};
use bpe::{Alphabet, merge};
use pre::Pre;

pub use chat::ChatMessage;
pub use stream::TextStream;

/// The character that stands for a space in SentencePiece and WordPiece vocabularies.
const SPACE: &str = "▁";
/// Maximum bytes of a text that is tokenised at once.
const MAX_TEXT: usize = 1 << 24;

/// Why a file has no usable tokeniser, or why a text could not be tokenised.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file has no tokeniser.
    #[error("the file has no tokeniser: \"{key}\" is missing or has the wrong type")]
    Missing {
        /// The metadata key.
        key: &'static str,
    },
    /// The kind of tokeniser is not supported.
    #[error("the tokeniser \"{model}\" is not supported, only llama, gpt2 and bert")]
    UnknownModel {
        /// `tokenizer.ggml.model` of the file.
        model: String,
    },
    /// The pre-tokeniser is not known.
    #[error("the pre-tokeniser \"{name}\" is not known")]
    UnknownPre {
        /// `tokenizer.ggml.pre` of the file.
        name: String,
    },
    /// A list of the vocabulary is invalid.
    #[error("the vocabulary is invalid: {reason}")]
    Vocabulary {
        /// What is wrong.
        reason: String,
    },
    /// A pre-tokeniser failed on a text.
    #[error("the pre-tokeniser failed: {0}")]
    Expression(String),
    /// The text is too long.
    #[error("the text has {bytes} bytes; the limit is {limit}")]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The chat template failed.
    #[error("the chat template failed: {0}")]
    Template(String),
    /// The file has no chat template.
    #[error("the file has no chat template")]
    NoTemplate,
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// How text becomes tokens.
enum Method {
    /// SentencePiece: merges by score, bytes for what is unknown.
    Scores,
    /// Merges by rank within pieces.
    Ranks { pre: Pre, ranks: HashMap<(u32, u32), u32> },
    /// The longest tokens from the left, word by word.
    Words { split: Regex, longest: usize },
}

/// Converts between text and tokens, as the vocabulary of a GGUF file says.
pub struct Tokenizer {
    method: Method,
    tokens: Vec<String>,
    scores: Vec<f32>,
    kinds: Vec<Kind>,
    by_text: HashMap<String, u32>,
    /// Tokens whose text is found before anything else, longest first.
    special: Vec<u32>,
    alphabet: Alphabet,
    bos: Option<u32>,
    eos: Option<u32>,
    ends: Vec<u32>,
    unknown: Option<u32>,
    separator: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    space_prefix: bool,
    template: Option<String>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("tokens", &self.tokens.len()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// The tokeniser that the metadata of a file describes.
    pub fn from_gguf(header: &GgufHeader) -> Result<Self, TokenizerError> {
        let text = |key: &'static str| header.get(key).and_then(GgufValue::as_str);
        let id = |key: &str| header.get(key).and_then(GgufValue::as_i64).and_then(|id| u32::try_from(id).ok());
        let flag = |key: &str| header.get(key).and_then(GgufValue::as_bool);
        let model = text("tokenizer.ggml.model").ok_or(TokenizerError::Missing { key: "tokenizer.ggml.model" })?;
        let Some(GgufArray::String(tokens)) = header.get("tokenizer.ggml.tokens").and_then(GgufValue::as_array) else {
            return Err(TokenizerError::Missing { key: "tokenizer.ggml.tokens" });
        };
        let tokens = tokens.clone();
        let invalid = |reason: String| TokenizerError::Vocabulary { reason };
        if u32::try_from(tokens.len()).is_err() || tokens.is_empty() {
            return Err(invalid(format!("there are {} tokens", tokens.len())));
        }
        let scores = match header.get("tokenizer.ggml.scores").and_then(GgufValue::as_array) {
            Some(GgufArray::F32(scores)) if scores.len() == tokens.len() => scores.clone(),
            Some(other) => return Err(invalid(format!("{} scores for {} tokens", other.len(), tokens.len()))),
            None => Vec::new(),
        };
        let kinds = match header.get("tokenizer.ggml.token_type").and_then(GgufValue::as_array) {
            Some(kinds) => {
                let numbers = kinds.to_i64().filter(|kinds| kinds.len() == tokens.len());
                let numbers = numbers.ok_or_else(|| invalid("the token types do not fit the tokens".to_owned()))?;
                numbers.into_iter().map(kind).collect()
            }
            None => vec![Kind::Normal; tokens.len()],
        };
        let mut by_text = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            by_text.insert(token.clone(), id as u32);
        }
        let pre_name = text("tokenizer.ggml.pre").unwrap_or("default");
        let method = match model {
            "llama" if scores.is_empty() => return Err(TokenizerError::Missing { key: "tokenizer.ggml.scores" }),
            "llama" => Method::Scores,
            "gpt2" | "gemma4" => {
                let pre = pre::find(if model == "gemma4" { "gemma4" } else { pre_name })?;
                let Some(GgufArray::String(merges)) = header.get("tokenizer.ggml.merges").and_then(GgufValue::as_array)
                else {
                    return Err(TokenizerError::Missing { key: "tokenizer.ggml.merges" });
                };
                Method::Ranks { ranks: ranks(merges, &by_text), pre }
            }
            "bert" => {
                let split = Regex::new(
                    "[\\p{P}$+<=>^`|~\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b820}-\u{2ceaf}\u{f900}-\u{faff}\u{2f800}-\u{2fa1f}]|[^\\s\\p{P}$+<=>^`|~\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b820}-\u{2ceaf}\u{f900}-\u{faff}\u{2f800}-\u{2fa1f}]+",
                );
                let split = split.map_err(|error| TokenizerError::Expression(error.to_string()))?;
                Method::Words { split, longest: tokens.iter().map(String::len).max().unwrap_or(0) }
            }
            other => return Err(TokenizerError::UnknownModel { model: other.to_owned() }),
        };
        let known = |id: Option<u32>| id.filter(|&id| (id as usize) < tokens.len());
        let mut special: Vec<u32> = (0..tokens.len() as u32)
            .filter(|&id| matches!(kinds[id as usize], Kind::Control | Kind::UserDefined | Kind::Unknown))
            .filter(|&id| !tokens[id as usize].is_empty())
            .collect();
        special.sort_by_key(|&id| core::cmp::Reverse(tokens[id as usize].len()));
        let (bos, eos) = (id("tokenizer.ggml.bos_token_id"), known(id("tokenizer.ggml.eos_token_id")));
        let default_bos = match &method {
            Method::Scores | Method::Words { .. } => true,
            Method::Ranks { pre, .. } => pre.add_bos || pre.raw,
        };
        let words = matches!(method, Method::Words { .. });
        let mut ends: Vec<u32> = eos.into_iter().collect();
        ends.extend(known(id("tokenizer.ggml.eot_token_id")));
        ends.extend(known(id("tokenizer.ggml.eom_token_id")));
        for text in ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<turn|>"] {
            ends.extend(by_text.get(text).filter(|&&id| kinds[id as usize] != Kind::Normal));
        }
        ends.sort_unstable();
        ends.dedup();
        Ok(Self {
            bos: known(bos),
            eos,
            ends,
            unknown: known(id("tokenizer.ggml.unknown_token_id")),
            separator: known(id("tokenizer.ggml.seperator_token_id"))
                .or(known(id("tokenizer.ggml.separator_token_id"))),
            add_bos: flag("tokenizer.ggml.add_bos_token").unwrap_or(default_bos),
            add_eos: flag("tokenizer.ggml.add_eos_token").unwrap_or(words),
            space_prefix: flag("tokenizer.ggml.add_space_prefix").unwrap_or(true),
            template: text("tokenizer.chat_template").map(str::to_owned),
            method,
            tokens,
            scores,
            kinds,
            by_text,
            special,
            alphabet: Alphabet::new(),
        })
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no tokens. Never true.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The text of a token as it is in the vocabulary.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize).map(String::as_str)
    }

    /// The token with this text in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.by_text.get(token).copied()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether a model that gives this token has finished.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// Tokens of a text without those for its beginning and end. The text of special tokens is ordinary text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(text, false, false)
    }

    /// Tokens of a text. `add_special` adds the tokens for the beginning and the end as the file says. `parse_special`
    /// recognises the text of control tokens, as chat templates need it.
    pub fn encode_with(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>, TokenizerError> {
        if text.len() > MAX_TEXT {
            return Err(TokenizerError::TooLong { bytes: text.len(), limit: MAX_TEXT });
        }
        let mut out = Vec::new();
        if add_special && self.add_bos {
            out.extend(self.bos);
        }
        let mut after_special = true;
        for part in self.partition(text, parse_special) {
            match part {
                Part::Token(id) => {
                    out.push(id);
                    after_special = true;
                }
                Part::Text(text) => {
                    self.encode_text(text, after_special, &mut out)?;
                    after_special = false;
                }
            }
        }
        if add_special && self.add_eos {
            match self.method {
                Method::Words { .. } => out.extend(self.separator.or(self.eos)),
                Method::Scores | Method::Ranks { .. } => out.extend(self.eos),
            }
        }
        Ok(out)
    }

    /// Cuts a text at special tokens.
    fn partition<'t>(&self, text: &'t str, parse_special: bool) -> Vec<Part<'t>> {
        let mut parts = if text.is_empty() { Vec::new() } else { vec![Part::Text(text)] };
        for &id in &self.special {
            if !parse_special && self.kinds[id as usize] != Kind::UserDefined {
                continue;
            }
            let token = self.tokens[id as usize].as_str();
            if !text.contains(token) {
                continue;
            }
            let mut cut = Vec::with_capacity(parts.len());
            for part in parts {
                let Part::Text(mut text) = part else {
                    cut.push(part);
                    continue;
                };
                while let Some(at) = text.find(token) {
                    if at > 0 {
                        cut.push(Part::Text(&text[..at]));
                    }
                    cut.push(Part::Token(id));
                    text = &text[at + token.len()..];
                }
                if !text.is_empty() {
                    cut.push(Part::Text(text));
                }
            }
            parts = cut;
        }
        parts
    }

    fn encode_text(&self, text: &str, after_special: bool, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        match &self.method {
            Method::Scores => {
                let prefix = if self.space_prefix && after_special { SPACE } else { "" };
                let text = format!("{prefix}{}", text.replace(' ', SPACE));
                let mut joined = String::new();
                let pieces = {
                    let joined = core::cell::RefCell::new(&mut joined);
                    merge(&text, |left, right| {
                        let mut joined = joined.borrow_mut();
                        joined.clear();
                        joined.push_str(left);
                        joined.push_str(right);
                        self.by_text.get(joined.as_str()).map(|&id| self.scores[id as usize])
                    })
                };
                pieces.into_iter().for_each(|piece| self.token_or_bytes(piece, out));
            }
            Method::Ranks { pre, ranks } => {
                let text = if pre.raw { text.replace(' ', SPACE) } else { text.to_owned() };
                for piece in pre.cut(&text)? {
                    let piece = if pre.raw { piece.to_owned() } else { self.alphabet.encode(piece) };
                    if let Some(&id) = self.by_text.get(&piece).filter(|_| pre.whole_pieces) {
                        out.push(id);
                        continue;
                    }
                    let rank = |left: &str, right: &str| {
                        let pair = (*self.by_text.get(left)?, *self.by_text.get(right)?);
                        // Small ranks come first.
                        ranks.get(&pair).map(|&rank| core::cmp::Reverse(rank))
                    };
                    merge(&piece, rank).into_iter().for_each(|piece| self.token_or_bytes(piece, out));
                }
            }
            Method::Words { split, longest } => {
                let text: String = text.nfd().filter(|&c| !is_mark(c)).flat_map(char::to_lowercase).collect();
                let text: String = text.chars().filter(|&c| c.is_whitespace() || !is_control(c)).collect();
                for word in split.find_iter(&text) {
                    let word = word.map_err(|error| TokenizerError::Expression(error.to_string()))?;
                    self.encode_word(word.as_str(), *longest, out);
                }
            }
        }
        Ok(())
    }

    /// The longest tokens of a word, from the left. A word that is not covered is unknown as a whole.
    fn encode_word(&self, word: &str, longest: usize, out: &mut Vec<u32>) {
        let word = format!("{SPACE}{word}");
        let before = out.len();
        let mut at = 0;
        while at < word.len() {
            let ends = (at + 1..=word.len().min(at + longest)).rev().filter(|&end| word.is_char_boundary(end));
            match ends.filter_map(|end| self.by_text.get(&word[at..end]).map(|&id| (end, id))).next() {
                Some((end, id)) => {
                    out.push(id);
                    at = end;
                }
                None => {
                    out.truncate(before);
                    out.extend(self.unknown);
                    return;
                }
            }
        }
    }

    /// A token, or the bytes of a piece that is none.
    fn token_or_bytes(&self, piece: &str, out: &mut Vec<u32>) {
        if let Some(&id) = self.by_text.get(piece) {
            out.push(id);
            return;
        }
        for byte in piece.bytes() {
            out.extend(self.by_text.get(format!("<0x{byte:02X}>").as_str()).copied().or(self.unknown));
        }
    }

    /// Appends the bytes of a token to `out`. Control tokens have none.
    pub fn decode_token(&self, id: u32, out: &mut Vec<u8>) {
        let (Some(token), Some(kind)) = (self.tokens.get(id as usize), self.kinds.get(id as usize)) else { return };
        match (kind, &self.method) {
            (Kind::Control | Kind::Unknown | Kind::Unused, _) => {}
            (Kind::UserDefined, _) => out.extend(token.replace(SPACE, " ").as_bytes()),
            (Kind::Byte, _) => match token.get(3..5).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                Some(byte) => out.push(byte),
                None => out.extend(token.as_bytes()),
            },
            (Kind::Normal, Method::Ranks { pre, .. }) if !pre.raw => self.alphabet.decode(token, out),
            (Kind::Normal, _) => out.extend(token.replace(SPACE, " ").as_bytes()),
        }
    }

    /// The text of tokens. Bytes that are not UTF-8 become U+FFFD. The space that SentencePiece adds in front is dropped.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::new();
        ids.iter().for_each(|&id| self.decode_token(id, &mut bytes));
        let text = String::from_utf8_lossy(&bytes);
        let prefixed = match self.method {
            Method::Scores => self.space_prefix,
            Method::Words { .. } => true,
            Method::Ranks { .. } => false,
        };
        match text.strip_prefix(' ').filter(|_| prefixed) {
            Some(rest) => rest.to_owned(),
            None => text.into_owned(),
        }
    }

    /// The chat template of the file.
    pub fn chat_template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// The text of a conversation as the chat template of the file writes it, up to where the model answers.
    pub fn chat(&self, messages: &[ChatMessage]) -> Result<String, TokenizerError> {
        let template = self.template.as_deref().ok_or(TokenizerError::NoTemplate)?;
        let text = |id: Option<u32>| id.and_then(|id| self.token(id)).unwrap_or_default();
        chat::render(template, messages, text(self.bos), text(self.eos))
    }
}

enum Part<'t> {
    Text(&'t str),
    Token(u32),
}

fn kind(number: i64) -> Kind {
    match number {
        2 => Kind::Unknown,
        3 => Kind::Control,
        4 => Kind::UserDefined,
        5 => Kind::Unused,
        6 => Kind::Byte,
        _ => Kind::Normal,
    }
}

/// Ranks of the merges, by the ids of both sides. A merge of texts that are no tokens can never happen.
fn ranks(merges: &[String], by_text: &HashMap<String, u32>) -> HashMap<(u32, u32), u32> {
    let mut ranks = HashMap::with_capacity(merges.len());
    for (rank, merge) in merges.iter().enumerate() {
        // A space inside a token is written otherwise, but the first character may be one.
        let Some(at) = merge.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| at) else { continue };
        if let (Some(&left), Some(&right)) = (by_text.get(&merge[..at]), by_text.get(&merge[at + 1..])) {
            ranks.entry((left, right)).or_insert(rank as u32);
        }
    }
    ranks
}

fn is_mark(c: char) -> bool {
    unicode_normalization::char::is_combining_mark(c)
}

/// Control and format characters, which WordPiece drops.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffd}' | '\u{e000}'..='\u{f8ff}')
}
