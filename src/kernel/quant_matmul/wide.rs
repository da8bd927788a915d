//! Dot products of quantised rows with AVX-512. The compiler does not vectorise the widening of bytes well by itself.

use core::arch::x86_64::{__m128i, __m512, __m512i};

use pulp::NullaryFnOnce;
use pulp::x86::V4;

use super::cpu::Weights;
use crate::ir::Coding;

/// Bytes widened at a time.
const BYTES: usize = 16;

/// Computes `cells`, the dot products of `x` with the rows from `first` on. Returns false if the machine or the format
/// of the weights does not suit.
pub(super) fn dots(weights: Weights, first: usize, x: &[f32], cells: &mut [f32]) -> bool {
    let Weights::Blocks { format, .. } = weights else { return false };
    if format.coding != Coding::Plain || !format.elements.is_multiple_of(2 * BYTES) {
        return false;
    }
    let Some(simd) = V4::try_new() else { return false };
    simd.vectorize(Dots { simd, weights, first, x, cells });
    true
}

struct Dots<'a> {
    simd: V4,
    weights: Weights<'a>,
    first: usize,
    x: &'a [f32],
    cells: &'a mut [f32],
}

impl NullaryFnOnce for Dots<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { simd, weights, first, x, cells } = self;
        let Weights::Blocks { format, words, first: start } = weights else { return };
        let simd = simd.avx512f;
        let per_row = x.len() / format.elements;
        for (j, cell) in cells.iter_mut().enumerate() {
            let start = start + (first + j) * per_row;
            let mut sums = [simd._mm512_setzero_ps(); 2];
            for (i, x) in x.chunks_exact(format.elements).enumerate() {
                let scale = simd._mm512_set1_ps(format.scale(words, start + i).to_f32());
                let quants = format.quants(words, start + i).as_chunks::<BYTES>().0;
                let mut add = |lane: usize, quants: __m512i, x: &[f32; BYTES]| {
                    let x: __m512 = pulp::cast(*x);
                    let quants = simd._mm512_mul_ps(simd._mm512_cvtepi32_ps(quants), scale);
                    sums[lane] = simd._mm512_fmadd_ps(quants, x, sums[lane]);
                };
                if format.bits == 8 {
                    let (pairs, _) = quants.as_chunks::<2>();
                    for (quants, x) in pairs.iter().zip(x.as_chunks::<BYTES>().0.as_chunks::<2>().0) {
                        for lane in 0..2 {
                            add(lane, simd._mm512_cvtepi8_epi32(pulp::cast::<_, __m128i>(quants[lane])), &x[lane]);
                        }
                    }
                } else {
                    // The low halves of all bytes come first.
                    let (low, high) = x.split_at(x.len() / 2);
                    let (low, high) = (low.as_chunks::<BYTES>().0, high.as_chunks::<BYTES>().0);
                    let (mask, zero) = (simd._mm512_set1_epi32(15), simd._mm512_set1_epi32(8));
                    for ((quants, low), high) in quants.iter().zip(low).zip(high) {
                        let both = simd._mm512_cvtepu8_epi32(pulp::cast::<_, __m128i>(*quants));
                        add(0, simd._mm512_sub_epi32(simd._mm512_and_si512(both, mask), zero), low);
                        add(1, simd._mm512_sub_epi32(simd._mm512_srli_epi32::<4>(both), zero), high);
                    }
                }
            }
            *cell = simd._mm512_reduce_add_ps(simd._mm512_add_ps(sums[0], sums[1]));
        }
    }
}
