//! Block-quantised elements: how they lie in words, and how numbers become them. The CPU backend uses the same lines; the WGSL of `blocks`
//! and `quantize` must agree with them.
//!
//! Two blocks make a *group* of words: first a word with the half-precision scales of both (the even block's in the low half), then the quants
//! of the even block, then those of the odd one, each in GGUF's order of bytes. So everything is loaded in aligned words, an element's
//! place follows from its position alone (which views of rows rely on), and no bytes are lost. After an odd number of blocks the last
//! group ends early.

use bytemuck::{cast_slice, cast_slice_mut};
use half::f16;

/// Below this (2⁻¹¹³) the largest number of a block counts as 0. Its scale is 0 as a half long before, and so no step of the way meets
/// subnormal numbers, which devices may flush.
const TINY: f32 = f32::from_bits(0x0700_0000);

/// How a quantised type packs its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockFormat {
    /// Elements of a block.
    pub elements: usize,
    /// Bits of an element: 8 (signed) or 4 (less 8). Of the latter, byte `j` has element `j` in its low half and element
    /// `j + elements / 2` in its high half.
    pub bits: usize,
}

impl BlockFormat {
    /// Words that the quants of a block take.
    pub(crate) const fn words(self) -> usize {
        self.elements * self.bits / 32
    }

    /// Words of a group of two blocks.
    pub(crate) const fn group_words(self) -> usize {
        1 + 2 * self.words()
    }

    /// Words of so many blocks.
    pub(crate) const fn words_of(self, blocks: usize) -> usize {
        blocks * self.words() + blocks.div_ceil(2)
    }

    /// Bytes of a block in a GGUF file: the scale, then the quants.
    pub(crate) const fn gguf_bytes(self) -> usize {
        2 + self.words() * 4
    }

    /// The bytes of the quants of a block.
    #[inline(always)]
    pub(crate) fn quants(self, words: &[u32], block: usize) -> &[u8] {
        let at = self.quants_at(block);
        cast_slice(&words[at..at + self.words()])
    }

    #[inline(always)]
    fn quants_at(self, block: usize) -> usize {
        block / 2 * self.group_words() + 1 + block % 2 * self.words()
    }

    /// The scale of a block.
    #[inline(always)]
    pub(crate) fn scale(self, words: &[u32], block: usize) -> f16 {
        f16::from_bits((words[block / 2 * self.group_words()] >> (block % 2 * 16)) as u16)
    }

    /// Puts a block's scale and the bytes of its quants in place.
    pub(crate) fn put(self, words: &mut [u32], block: usize, scale: f16, quants: &[u8]) {
        let (word, shift) = (block / 2 * self.group_words(), block % 2 * 16);
        words[word] = words[word] & !(0xffff << shift) | u32::from(scale.to_bits()) << shift;
        let at = self.quants_at(block);
        cast_slice_mut::<_, u8>(&mut words[at..at + self.words()]).copy_from_slice(quants);
    }

    /// The numbers of a block.
    #[inline(always)]
    pub(crate) fn dequantize(self, words: &[u32], block: usize, out: &mut [f32]) {
        let (scale, quants) = (self.scale(words, block).to_f32(), self.quants(words, block));
        if self.bits == 8 {
            for (out, &q) in out.iter_mut().zip(quants) {
                *out = f32::from(q as i8) * scale;
            }
        } else {
            let (low, high) = out.split_at_mut(self.elements / 2);
            for ((low, high), &q) in low.iter_mut().zip(high).zip(quants) {
                *low = (i32::from(q & 15) - 8) as f32 * scale;
                *high = (i32::from(q >> 4) - 8) as f32 * scale;
            }
        }
    }

    /// Rounds a block's numbers as GGUF's reference does: 8 bits to the nearest with halves away from 0, 4 bits so that the number
    /// of largest magnitude (the first of equals) becomes −8. A block with a NaN or an infinity becomes NaN as a whole.
    pub(crate) fn quantize(self, values: &[f32], words: &mut [u32], block: usize) {
        let magnitude = |v: f32| v.to_bits() & 0x7fff_ffff;
        let largest = values.iter().copied().reduce(|a, b| if magnitude(b) > magnitude(a) { b } else { a });
        let largest = largest.unwrap_or(0.0);
        let finite = largest.is_finite();
        let step = if self.bits == 8 { largest.abs() / 127.0 } else { largest / -8.0 };
        let inverse = if finite && largest.abs() >= TINY { 1.0 / step } else { 0.0 };
        let scale = if finite { f16::from_f32(step) } else { f16::NAN };
        let scaled = |v: f32| if finite { v * inverse } else { 0.0 };
        let mut quants = [0u8; 64];
        let quants = &mut quants[..self.words() * 4];
        if self.bits == 8 {
            for (q, &v) in quants.iter_mut().zip(values) {
                *q = scaled(v).round() as i8 as u8;
            }
        } else {
            // Truncating and saturating at 0 is what the cast does.
            let level = |v: f32| ((scaled(v) + 8.5) as u8).min(15);
            let (low, high) = values.split_at(self.elements / 2);
            for ((q, &low), &high) in quants.iter_mut().zip(low).zip(high) {
                *q = level(low) | level(high) << 4;
            }
        }
        self.put(words, block, scale, quants);
    }

    /// Element `at`.
    pub(crate) fn get(self, words: &[u32], at: usize) -> f32 {
        let (block, e) = (at / self.elements, at % self.elements);
        let (scale, quants) = (self.scale(words, block).to_f32(), self.quants(words, block));
        let half = self.elements / 2;
        match self.bits {
            8 => f32::from(quants[e] as i8) * scale,
            _ => (i32::from(quants[e % half] >> (e / half * 4) & 15) - 8) as f32 * scale,
        }
    }

    /// All numbers of whole blocks as words.
    pub(crate) fn pack(self, values: &[f32]) -> Vec<u32> {
        let mut words = vec![0; self.words_of(values.len() / self.elements)];
        for (block, values) in values.chunks_exact(self.elements).enumerate() {
            self.quantize(values, &mut words, block);
        }
        words
    }

    /// The words of blocks as they stand in a GGUF file.
    pub(crate) fn words_of_gguf(self, bytes: &[u8]) -> Vec<u32> {
        let mut words = vec![0; self.words_of(bytes.len() / self.gguf_bytes())];
        for (block, bytes) in bytes.chunks_exact(self.gguf_bytes()).enumerate() {
            self.put(&mut words, block, f16::from_le_bytes([bytes[0], bytes[1]]), &bytes[2..]);
        }
        words
    }

    /// So many blocks as they stand in a GGUF file.
    pub(crate) fn to_gguf(self, words: &[u32], blocks: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(blocks * self.gguf_bytes());
        for block in 0..blocks {
            bytes.extend(self.scale(words, block).to_le_bytes());
            bytes.extend(self.quants(words, block));
        }
        bytes
    }
}
