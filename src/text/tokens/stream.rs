//! Text from tokens, one at a time.

use super::Tokenizer;

/// Collects the bytes of tokens and gives the text of whole characters. A character may be spread over several tokens.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    pending: Vec<u8>,
}

impl TextStream {
    /// Adds a token. Gives the characters that are complete now. Bytes that cannot become a character give U+FFFD.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        tokenizer.decode_token(id, &mut self.pending);
        self.take(false)
    }

    /// The text of what is left. An incomplete character gives U+FFFD.
    pub fn finish(&mut self) -> String {
        self.take(true)
    }

    fn take(&mut self, all: bool) -> String {
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match core::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    // Checked to be valid just now.
                    text.push_str(core::str::from_utf8(valid).unwrap_or_default());
                    match error.error_len() {
                        Some(wrong) => {
                            text.push('\u{fffd}');
                            rest = &after[wrong..];
                        }
                        None if all => {
                            text.push('\u{fffd}');
                            rest = &[];
                            break;
                        }
                        None => {
                            rest = after;
                            break;
                        }
                    }
                }
            }
        }
        self.pending = rest.to_vec();
        text
    }
}
