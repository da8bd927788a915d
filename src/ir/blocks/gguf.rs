//! The block types of GGUF files on the CPU. The WGSL of `kernel/wgsl/gguf_blocks.rs` must agree with it.
//!
//! The order of the operations is that of PyPI's `gguf`, so that the numbers are equal.

use half::f16;

use crate::ir::GgufType;

/// The values of the 4-bit positions of `IQ4_NL` and `IQ4_XS`.
pub(crate) const TABLE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Converts a block to `f32`. `scale` is that in the first word of the group, `bytes` are the rest.
#[inline(always)]
pub(super) fn dequantize(kind: GgufType, scale: f32, bytes: &[u8], out: &mut [f32]) {
    match kind {
        GgufType::Q4_1 => {
            let (d, m) = (half_at(bytes, 0), half_at(bytes, 2));
            halves(&bytes[4..], out, |q| d * f32::from(q) + m);
        }
        GgufType::Q5_0 => fives(bytes, out, |q| scale * (f32::from(q) - 16.0)),
        GgufType::Q5_1 => {
            let (d, m) = (half_at(bytes, 0), half_at(bytes, 2));
            fives(&bytes[4..], out, |q| d * f32::from(q) + m);
        }
        GgufType::Q2K => q2_k(bytes, out),
        GgufType::Q3K => q3_k(scale, bytes, out),
        GgufType::Q4K => q4_k(bytes, out),
        GgufType::Q5K => q5_k(bytes, out),
        GgufType::Q6K => q6_k(scale, bytes, out),
        GgufType::Iq4Nl => halves(bytes, out, |q| scale * f32::from(TABLE[usize::from(q)])),
        GgufType::Iq4Xs => iq4_xs(bytes, out),
    }
}

#[inline(always)]
fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The low halves of the bytes are the first elements, the high halves the others.
#[inline(always)]
fn halves(bytes: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(out.len() / 2);
    for ((low, high), &q) in low.iter_mut().zip(high).zip(bytes) {
        *low = value(q & 15);
        *high = value(q >> 4);
    }
}

/// As [`halves`], with the fifth bits of all elements in a word before.
#[inline(always)]
fn fives(bytes: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    let top = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let (low, high) = out.split_at_mut(16);
    for (i, ((low, high), &q)) in low.iter_mut().zip(high).zip(&bytes[4..20]).enumerate() {
        *low = value(q & 15 | ((top >> i & 1) << 4) as u8);
        *high = value(q >> 4 | ((top >> (i + 16) & 1) << 4) as u8);
    }
}

/// The 6-bit scales and minima of the eight groups of `Q4_K` and `Q5_K`.
#[inline(always)]
pub(crate) fn scales_k4(s: &[u8]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut minima) = ([0; 8], [0; 8]);
    for j in 0..4 {
        scales[j] = s[j] & 63;
        minima[j] = s[j + 4] & 63;
        scales[j + 4] = s[j + 8] & 15 | s[j] >> 6 << 4;
        minima[j + 4] = s[j + 8] >> 4 | s[j + 4] >> 6 << 4;
    }
    (scales, minima)
}

/// The 6-bit scales of the 16 groups of `Q3_K`, with an offset of 32.
#[inline(always)]
pub(crate) fn scales_q3(s: &[u8]) -> [u8; 16] {
    let mut scales = [0; 16];
    for (j, scale) in scales.iter_mut().enumerate() {
        *scale = s[j % 8] >> (j / 8 * 4) & 15 | (s[8 + j % 4] >> (j / 4 * 2) & 3) << 4;
    }
    scales
}

#[inline(always)]
fn q2_k(bytes: &[u8], out: &mut [f32]) {
    let (scales, quants) = (&bytes[..16], &bytes[16..80]);
    let (d, dmin) = (half_at(bytes, 80), half_at(bytes, 82));
    for (j, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (scale, minimum) = (d * f32::from(scales[j] & 15), dmin * f32::from(scales[j] >> 4));
        let quants = &quants[j / 8 * 32 + j % 2 * 16..][..16];
        for (out, &q) in out.iter_mut().zip(quants) {
            *out = scale * f32::from(q >> (j % 8 / 2 * 2) & 3) - minimum;
        }
    }
}

#[inline(always)]
fn q3_k(d: f32, bytes: &[u8], out: &mut [f32]) {
    let (top, quants, scales) = (&bytes[..32], &bytes[32..96], scales_q3(&bytes[96..108]));
    for (j, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * (f32::from(scales[j]) - 32.0);
        let (quants, top) = (&quants[j / 8 * 32 + j % 2 * 16..][..16], &top[j % 2 * 16..][..16]);
        for ((out, &q), &top) in out.iter_mut().zip(quants).zip(top) {
            let q = q >> (j % 8 / 2 * 2) & 3 | (top >> (j / 2) & 1) << 2;
            *out = scale * (f32::from(q) - 4.0);
        }
    }
}

#[inline(always)]
fn q4_k(bytes: &[u8], out: &mut [f32]) {
    let (d, dmin, (scales, minima)) = (half_at(bytes, 0), half_at(bytes, 2), scales_k4(&bytes[4..16]));
    for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = (d * f32::from(scales[j]), dmin * f32::from(minima[j]));
        let quants = &bytes[16 + j / 2 * 32..][..32];
        for (out, &q) in out.iter_mut().zip(quants) {
            *out = scale * f32::from(q >> (j % 2 * 4) & 15) - minimum;
        }
    }
}

#[inline(always)]
fn q5_k(bytes: &[u8], out: &mut [f32]) {
    let (d, dmin, (scales, minima)) = (half_at(bytes, 0), half_at(bytes, 2), scales_k4(&bytes[4..16]));
    let top = &bytes[16..48];
    for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = (d * f32::from(scales[j]), dmin * f32::from(minima[j]));
        let quants = &bytes[48 + j / 2 * 32..][..32];
        for ((out, &q), &top) in out.iter_mut().zip(quants).zip(top) {
            *out = scale * f32::from(q >> (j % 2 * 4) & 15 | (top >> j & 1) << 4) - minimum;
        }
    }
}

#[inline(always)]
fn q6_k(d: f32, bytes: &[u8], out: &mut [f32]) {
    let (low, top, scales) = (&bytes[..128], &bytes[128..192], &bytes[192..208]);
    for (j, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[j] as i8);
        // 128 elements have 64 bytes of low halves and 32 bytes of upper bits.
        let (half, part) = (j / 8, j % 8 / 2);
        let low = &low[half * 64 + part % 2 * 32 + j % 2 * 16..][..16];
        let top = &top[half * 32 + j % 2 * 16..][..16];
        for ((out, &low), &top) in out.iter_mut().zip(low).zip(top) {
            let q = low >> (part / 2 * 4) & 15 | (top >> (part * 2) & 3) << 4;
            *out = scale * (f32::from(q) - 32.0);
        }
    }
}

#[inline(always)]
fn iq4_xs(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    let high = u16::from_le_bytes([bytes[2], bytes[3]]);
    for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = bytes[4 + j / 2] >> (j % 2 * 4) & 15;
        let scale = d * (f32::from(low | ((high >> (2 * j) & 3) << 4) as u8) - 32.0);
        halves(&bytes[8 + j * 16..][..16], out, |q| scale * f32::from(TABLE[usize::from(q)]));
    }
}
