//! Block-quantised elements: their layout in memory and the conversion from and to `f32`. The CPU backend uses this
//! code. The WGSL of `blocks` and `quantize` must agree with it.
//!
//! Two blocks form a *group* of 32-bit words. The first word holds the half-precision scales of both blocks, the even
//! block in the low half. The quants of the even block follow, then those of the odd block, each in GGUF byte order.
//! All loads are therefore aligned to words, there is no padding, and the position of an element follows from its index
//! alone, which row views rely on. After an odd number of blocks the last group ends early.
//!
//! The blocks of other GGUF types are stored in the same way: those of an odd number of half words have one
//! half-precision scale, which goes to the first word of the group; the rest is the block as it is in the file. The
//! others are whole words and have no first word. [`gguf`] decodes them.

mod gguf;

pub(crate) use gguf::TABLE as GGUF_TABLE;

use bytemuck::{cast_slice, cast_slice_mut};
use half::f16;

use super::GgufType;

/// Blocks whose largest magnitude is below this limit (2⁻¹¹³) are stored as 0. The half-precision scale is already 0
/// for much larger values, so this loses nothing. It keeps subnormal numbers out of the computation, because devices
/// may flush them.
const TINY: f32 = f32::from_bits(0x0700_0000);

/// How a quantised type packs its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockFormat {
    /// Elements per block.
    pub elements: usize,
    /// Bits per element. With [`Coding::Plain`]: 8 (signed), or 4 (with an offset of 8). With 4 bits, byte `j` holds
    /// element `j` in its low half and element `j + elements / 2` in its high half.
    pub bits: usize,
    /// What the words of a block mean.
    pub coding: Coding,
}

/// What the words of a block mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Coding {
    /// One quant per element, and the scale of the block.
    Plain,
    /// The block of a GGUF type.
    Gguf(GgufType),
}

/// Where the half-precision scale of a block is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScaleAt {
    Start,
    End,
    /// The block is whole words. Its scales are among them.
    Inside,
}

impl BlockFormat {
    /// The format of a type of GGUF files.
    pub(crate) const fn of_gguf(kind: GgufType) -> Self {
        let (elements, bits) = match kind {
            GgufType::Q4_1 | GgufType::Iq4Nl => (32, 4),
            GgufType::Q5_0 | GgufType::Q5_1 => (32, 5),
            GgufType::Q2K => (256, 2),
            GgufType::Q3K => (256, 3),
            GgufType::Q4K | GgufType::Iq4Xs => (256, 4),
            GgufType::Q5K => (256, 5),
            GgufType::Q6K => (256, 6),
        };
        Self { elements, bits, coding: Coding::Gguf(kind) }
    }

    /// Words of one block, without a scale that is in the first word of the group.
    pub(crate) const fn words(self) -> usize {
        match self.coding {
            Coding::Plain => self.elements * self.bits / 32,
            Coding::Gguf(kind) => match kind {
                GgufType::Iq4Nl => 4,
                GgufType::Q4_1 | GgufType::Q5_0 => 5,
                GgufType::Q5_1 => 6,
                GgufType::Q2K => 21,
                GgufType::Q3K => 27,
                GgufType::Iq4Xs => 34,
                GgufType::Q4K => 36,
                GgufType::Q5K => 44,
                GgufType::Q6K => 52,
            },
        }
    }

    const fn scale_at(self) -> ScaleAt {
        match self.coding {
            Coding::Plain | Coding::Gguf(GgufType::Q5_0 | GgufType::Iq4Nl) => ScaleAt::Start,
            Coding::Gguf(GgufType::Q3K | GgufType::Q6K) => ScaleAt::End,
            Coding::Gguf(
                GgufType::Q4_1 | GgufType::Q5_1 | GgufType::Q2K | GgufType::Q4K | GgufType::Q5K | GgufType::Iq4Xs,
            ) => ScaleAt::Inside,
        }
    }

    /// Whether the first word of a group holds the scales of its two blocks.
    pub(crate) const fn has_head(self) -> bool {
        !matches!(self.scale_at(), ScaleAt::Inside)
    }

    /// Words of a group of two blocks.
    pub(crate) const fn group_words(self) -> usize {
        self.has_head() as usize + 2 * self.words()
    }

    /// Words that `blocks` blocks take.
    pub(crate) const fn words_of(self, blocks: usize) -> usize {
        blocks * self.words() + if self.has_head() { blocks.div_ceil(2) } else { 0 }
    }

    /// Bytes of a block in a GGUF file.
    pub(crate) const fn gguf_bytes(self) -> usize {
        if self.has_head() { 2 + self.words() * 4 } else { self.words() * 4 }
    }

    /// The bytes of the quants of a block.
    #[inline(always)]
    pub(crate) fn quants(self, words: &[u32], block: usize) -> &[u8] {
        let at = self.quants_at(block);
        cast_slice(&words[at..at + self.words()])
    }

    #[inline(always)]
    fn quants_at(self, block: usize) -> usize {
        block / 2 * self.group_words() + usize::from(self.has_head()) + block % 2 * self.words()
    }

    /// The scale of a block that is in the first word of its group. 0 if there is no such word.
    #[inline(always)]
    pub(crate) fn scale(self, words: &[u32], block: usize) -> f16 {
        if !self.has_head() {
            return f16::ZERO;
        }
        f16::from_bits((words[block / 2 * self.group_words()] >> (block % 2 * 16)) as u16)
    }

    /// Stores the scale and the quants of a block.
    pub(crate) fn put(self, words: &mut [u32], block: usize, scale: f16, quants: &[u8]) {
        let (word, shift) = (block / 2 * self.group_words(), block % 2 * 16);
        if self.has_head() {
            words[word] = words[word] & !(0xffff << shift) | u32::from(scale.to_bits()) << shift;
        }
        let at = self.quants_at(block);
        cast_slice_mut::<_, u8>(&mut words[at..at + self.words()]).copy_from_slice(quants);
    }

    /// Converts a block to `f32`.
    #[inline(always)]
    pub(crate) fn dequantize(self, words: &[u32], block: usize, out: &mut [f32]) {
        let (scale, quants) = (self.scale(words, block).to_f32(), self.quants(words, block));
        if let Coding::Gguf(kind) = self.coding {
            gguf::dequantize(kind, scale, quants, out);
        } else if self.bits == 8 {
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

    /// Quantises a block as the GGUF reference implementation does. 8-bit quants round to nearest, halves away from 0.
    /// 4-bit quants scale the value of largest magnitude (the first one on a tie) to −8. If a value is NaN or infinite,
    /// the whole block becomes NaN. Only for [`Coding::Plain`].
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
            // The cast truncates, and saturates at 0.
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
        if self.coding != Coding::Plain {
            let mut values = [0.0; 256];
            self.dequantize(words, block, &mut values[..self.elements]);
            return values[e];
        }
        let (scale, quants) = (self.scale(words, block).to_f32(), self.quants(words, block));
        let half = self.elements / 2;
        match self.bits {
            8 => f32::from(quants[e] as i8) * scale,
            _ => (i32::from(quants[e % half] >> (e / half * 4) & 15) - 8) as f32 * scale,
        }
    }

    /// Quantises `values`, which must be whole blocks.
    pub(crate) fn pack(self, values: &[f32]) -> Vec<u32> {
        let mut words = vec![0; self.words_of(values.len() / self.elements)];
        for (block, values) in values.chunks_exact(self.elements).enumerate() {
            self.quantize(values, &mut words, block);
        }
        words
    }

    /// Converts blocks from the GGUF file layout to words.
    pub(crate) fn words_of_gguf(self, bytes: &[u8]) -> Vec<u32> {
        let mut words = vec![0; self.words_of(bytes.len() / self.gguf_bytes())];
        let scale = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]);
        for (block, bytes) in bytes.chunks_exact(self.gguf_bytes()).enumerate() {
            let (scale, body) = match self.scale_at() {
                ScaleAt::Start => (scale(bytes), &bytes[2..]),
                ScaleAt::End => (scale(&bytes[bytes.len() - 2..]), &bytes[..bytes.len() - 2]),
                ScaleAt::Inside => (f16::ZERO, bytes),
            };
            self.put(&mut words, block, scale, body);
        }
        words
    }

    /// Converts `blocks` blocks to the GGUF file layout.
    pub(crate) fn to_gguf(self, words: &[u32], blocks: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(blocks * self.gguf_bytes());
        for block in 0..blocks {
            let (scale, body) = (self.scale(words, block).to_le_bytes(), self.quants(words, block));
            match self.scale_at() {
                ScaleAt::Start => bytes.extend(scale.iter().chain(body)),
                ScaleAt::End => bytes.extend(body.iter().chain(&scale)),
                ScaleAt::Inside => bytes.extend(body),
            }
        }
        bytes
    }
}
