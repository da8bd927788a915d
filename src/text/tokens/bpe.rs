//! Merging of neighbouring symbols: byte-pair encoding by rank, and SentencePiece by score.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

/// Two neighbouring symbols that may be merged.
struct Pair<K> {
    /// Larger ones are merged first; on a tie the one further to the left.
    key: K,
    left: usize,
    right: usize,
    /// Bytes of both when the pair was found. If it differs later, one of them was merged with another.
    size: usize,
}

impl<K: PartialOrd> PartialEq for Pair<K> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<K: PartialOrd> Eq for Pair<K> {}

impl<K: PartialOrd> PartialOrd for Pair<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K: PartialOrd> Ord for Pair<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = self.key.partial_cmp(&other.key).unwrap_or(Ordering::Equal);
        by_key.then(other.left.cmp(&self.left))
    }
}

/// A symbol: a range of the text. Merged into its neighbour if it is empty.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    end: usize,
    before: usize,
    after: usize,
}

const NONE: usize = usize::MAX;

/// Merges the characters of `text` as long as `key(left, right)` allows. Larger keys come first. Returns the pieces.
pub(super) fn merge<K: PartialOrd>(text: &str, key: impl Fn(&str, &str) -> Option<K>) -> Vec<&str> {
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let count = starts.len() - 1;
    let mut symbols: Vec<Symbol> = (0..count)
        .map(|i| Symbol {
            start: starts[i],
            end: starts[i + 1],
            before: i.checked_sub(1).unwrap_or(NONE),
            after: if i + 1 < count { i + 1 } else { NONE },
        })
        .collect();
    let mut queue = BinaryHeap::new();
    let pair = |symbols: &[Symbol], left: usize, right: usize| {
        let (l, r) = (*symbols.get(left)?, *symbols.get(right)?);
        let key = key(&text[l.start..l.end], &text[r.start..r.end])?;
        Some(Pair { key, left, right, size: r.end - l.start })
    };
    for i in 1..count {
        queue.extend(pair(&symbols, i - 1, i));
    }
    while let Some(Pair { left, right, size, .. }) = queue.pop() {
        let (l, r) = (symbols[left], symbols[right]);
        if l.start == l.end || r.start == r.end || r.end - l.start != size || l.end != r.start {
            continue;
        }
        symbols[left].end = r.end;
        symbols[left].after = r.after;
        symbols[right].end = r.start;
        if let Some(next) = symbols.get_mut(r.after) {
            next.before = left;
        }
        queue.extend(pair(&symbols, l.before, left));
        queue.extend(pair(&symbols, left, r.after));
    }
    symbols.iter().filter(|symbol| symbol.end > symbol.start).map(|symbol| &text[symbol.start..symbol.end]).collect()
}

/// GPT-2's alphabet: a printable character for each byte.
pub(super) struct Alphabet {
    chars: [char; 256],
    bytes: HashMap<char, u8>,
}

impl Alphabet {
    pub(super) fn new() -> Self {
        let mut chars = ['\0'; 256];
        let mut next = 256u32;
        for byte in 0..=255u8 {
            let plain = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            chars[usize::from(byte)] = if plain {
                char::from(byte)
            } else {
                next += 1;
                char::from_u32(next - 1).unwrap_or('?')
            };
        }
        let bytes = chars.iter().enumerate().map(|(byte, &c)| (c, byte as u8)).collect();
        Self { chars, bytes }
    }

    /// The bytes of a text as characters.
    pub(super) fn encode(&self, text: &str) -> String {
        text.bytes().map(|byte| self.chars[usize::from(byte)]).collect()
    }

    /// The bytes of a token. Characters outside the alphabet are kept.
    pub(super) fn decode(&self, token: &str, out: &mut Vec<u8>) {
        for c in token.chars() {
            match self.bytes.get(&c) {
                Some(&byte) => out.push(byte),
                None => out.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }
}
