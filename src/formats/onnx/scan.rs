//! Counts the messages of a file before they are decoded. An empty message takes two bytes in a file but hundreds in
//! memory.

use super::error::OnnxFormatError;

/// The largest number of messages of a file. Ten thousand nodes with their attributes and weights have about a hundred
/// thousand.
const MAX_MESSAGES: usize = 1 << 21;

/// The kinds of messages, for finding those inside.
#[derive(Clone, Copy)]
enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    Function,
    Tensor,
    Sparse,
    Value,
    Type,
    TensorType,
    Shape,
    Element,
    Leaf,
}

impl Kind {
    /// The kind of the messages in a field, if it has messages.
    fn inside(self, field: u64) -> Option<Self> {
        Some(match (self, field) {
            (Self::Model, 7) | (Self::Attribute, 6) => Self::Graph,
            (Self::Model, 25) => Self::Function,
            (Self::Graph, 1) | (Self::Function, 7) => Self::Node,
            (Self::Node, 5) | (Self::Function, 11) => Self::Attribute,
            (Self::Graph, 5) | (Self::Attribute, 5) | (Self::Sparse, 1 | 2) => Self::Tensor,
            (Self::Graph, 15) | (Self::Attribute, 22) => Self::Sparse,
            (Self::Graph, 11 | 12) => Self::Value,
            (Self::Value, 2) | (Self::Attribute, 14) | (Self::Element, 1) => Self::Type,
            (Self::Type, 1 | 8) => Self::TensorType,
            (Self::Type, 4 | 9) => Self::Element,
            (Self::TensorType, 2) => Self::Shape,
            (Self::Model, 8) | (Self::Function, 9) | (Self::Tensor, 13) | (Self::Shape, 1) | (Self::Type, 5) => {
                Self::Leaf
            }
            _ => return None,
        })
    }
}

/// Fails if a file has too many messages. What is not valid otherwise is left to the decoder.
pub(super) fn check_size(file: &[u8]) -> Result<(), OnnxFormatError> {
    let mut count = 0;
    let mut open = vec![(Kind::Model, file)];
    while let Some((kind, mut bytes)) = open.pop() {
        while let Some((key, rest)) = varint(bytes) {
            let skipped = match key & 7 {
                0 => varint(rest).map(|(_, rest)| rest),
                1 => rest.get(8..),
                5 => rest.get(4..),
                2 => varint(rest).and_then(|(length, rest)| {
                    let (content, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                    if let Some(inner) = kind.inside(key >> 3) {
                        count += 1;
                        open.push((inner, content));
                    }
                    Some(rest)
                }),
                _ => None,
            };
            if count > MAX_MESSAGES {
                return Err(OnnxFormatError::TooMany { what: "messages", limit: MAX_MESSAGES });
            }
            let Some(rest) = skipped else { break };
            bytes = rest;
        }
    }
    Ok(())
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (i, &byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * i as u32).min(63);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[i + 1..]));
        }
    }
    None
}
