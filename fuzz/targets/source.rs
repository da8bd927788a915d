//! Bytes as decisions.

/// Reads decisions from bytes. After the last byte all decisions are 0.
pub struct Source<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Source<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        let high = if n > 256 { usize::from(self.byte()) << 8 } else { 0 };
        (high | usize::from(self.byte())) % n.max(1)
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Whether something that happens once in `n` times happens.
    pub fn rare(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    pub fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}
