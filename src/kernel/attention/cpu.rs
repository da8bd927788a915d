//! Scaled dot-product attention on the CPU. Processes blocks of queries against blocks of keys with a running softmax,
//! so the whole score matrix is never stored.
//!
//! The soft cap is applied before the mask, so that a mask of −∞ stays −∞. A query whose keys are all masked by −∞
//! gives 0, like a query that sees no key.

use crate::ir::Layout;
use crate::kernel::AttentionKernel;
use crate::kernel::host::memory::{Elements, Input};
use crate::kernel::host::number::Number;
use crate::kernel::host::scratch::with_scratch;
use crate::kernel::host::simd::{Contraction, contracted};
use crate::kernel::host::{CpuPool, math, rows};
use crate::kernel::matmul::gemm::{Matrix, multiply, pack_panels, packed_len};
use crate::kernel::matmul::matvec::{Strided, matvec};

/// Queries and keys of a block. The scores of a block fit the L2 cache.
const QUERIES: usize = 64;
const KEYS: usize = 256;
/// Queries of a task. They share the packed keys and values.
const TASK: usize = 256;
/// Up to this number of queries, packing keys and values does not pay.
const FEW: usize = 4;

/// The matrix of a 4-axis layout at the given first two indices.
fn matrix<'a>(data: &'a [f32], layout: &Layout, outer: usize, head: usize) -> Matrix<'a> {
    let s = &layout.strides;
    let offset = layout.offset as isize + outer as isize * s[0] + head as isize * s[1];
    Matrix { data, offset, row: s[2], column: s[3] }
}

/// Scalars passed with the batch.
struct Numbers {
    scale: f32,
    cap: f32,
    valid: usize,
    position: i64,
}

/// The operands of one head: queries, keys, values, mask.
struct Head<'a> {
    q: Matrix<'a>,
    k: Matrix<'a>,
    v: Matrix<'a>,
    mask: Option<Matrix<'a>>,
}

/// The CPU twin. Inputs: q, k, v, and the mask if flagged.
pub(crate) fn attention(kernel: &AttentionKernel, inputs: &[Input], out: &mut [f32], scalars: &[u32], pool: &CpuPool) {
    let ([q, k, v, ..], &[scale, cap, valid, position]) = (inputs, scalars) else { return };
    let numbers = Numbers {
        scale: f32::from_bits(scale),
        cap: f32::from_bits(cap),
        valid: (valid as usize).min(kernel.keys),
        position: i64::from(position as i32),
    };
    if out.is_empty() {
        return;
    }
    let (q, k, v) = (q.strided::<f32>(pool), k.strided::<f32>(pool), v.strided::<f32>(pool));
    let mask = if kernel.mask { inputs.get(3).map(|mask| mask.strided::<f32>(pool)) } else { None };
    // A score costs its products plus about two dozen additions for the exponential.
    let scores = kernel.batch * kernel.heads * kernel.queries * numbers.valid;
    let parts = pool.parts(scores * ((kernel.qk + kernel.value) / 8 + 3));
    let planes = kernel.batch * kernel.heads;
    let plane = kernel.queries * kernel.value;
    let work = |index: usize, first: usize, out: &mut [f32]| {
        let (batch, head) = (index / kernel.heads, index % kernel.heads);
        let group = head * kernel.groups / kernel.heads;
        let head = Head {
            q: matrix(&q.0, &q.1, batch, head),
            k: matrix(&k.0, &k.1, batch, group),
            v: matrix(&v.0, &v.1, batch, group),
            mask: mask.as_ref().map(|mask| matrix(&mask.0, &mask.1, batch, head)),
        };
        for (i, out) in out.chunks_mut(TASK * kernel.value).enumerate() {
            let rows = Rows { kernel, numbers: &numbers, head: &head, first: first + i * TASK };
            if out.len() <= FEW * kernel.value { rows.few(out) } else { rows.many(out) }
        }
    };
    if parts <= planes {
        let per = planes.div_ceil(parts);
        return pool.each(out.chunks_mut(per * plane).enumerate(), |(i, out)| {
            out.chunks_mut(plane).enumerate().for_each(|(j, out)| work(i * per + j, 0, out));
        });
    }
    let height = kernel.queries.div_ceil(parts.div_ceil(planes)).clamp(16.min(kernel.queries), TASK);
    let tasks = out.chunks_mut(plane).enumerate().flat_map(|(index, out)| {
        out.chunks_mut(height * kernel.value).enumerate().map(move |(i, out)| (index, i * height, out))
    });
    pool.each(tasks, |(index, first, out)| work(index, first, out));
}

/// The queries of one head, starting at `first`.
struct Rows<'a> {
    kernel: &'a AttentionKernel,
    numbers: &'a Numbers,
    head: &'a Head<'a>,
    first: usize,
}

impl Rows<'_> {
    /// Number of keys that query `i` of these sees.
    #[inline(always)]
    fn seen(&self, i: usize) -> usize {
        let causal = (self.first + i) as i64 + self.numbers.position + 1;
        let valid = self.numbers.valid;
        if self.kernel.causal { causal.clamp(0, valid as i64) as usize } else { valid }
    }

    /// Processes each query separately, without packing keys and values.
    fn few(&self, out: &mut [f32]) {
        let Head { q, k, v, .. } = self.head;
        let (k, v) = (Strided::of(k.transposed()), Strided::of(*v));
        with_scratch(self.kernel.qk + self.numbers.valid, |buffer: &mut [f32]| {
            let (query, scores) = buffer.split_at_mut(self.kernel.qk);
            for (i, out) in out.chunks_mut(self.kernel.value).enumerate() {
                let at = q.at(self.first + i, 0);
                Elements::F32(q.data).load(at.offset, at.column, bytemuck::cast_slice_mut(query));
                let scores = &mut scores[..self.seen(i)];
                matvec(query, k, scores);
                let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
                contracted(
                    #[inline(always)]
                    |c| self.soften(c, i, 0, scores, &mut max, &mut sum),
                );
                matvec(scores, v, out);
                finish(out, sum);
            }
        });
    }

    /// Processes blocks of queries against blocks of keys, for up to [`TASK`] queries.
    fn many(&self, out: &mut [f32]) {
        let Head { q, k, v, .. } = self.head;
        let (width, depth) = (self.kernel.value, self.kernel.qk);
        let count = out.len() / width;
        let most = self.seen(count - 1);
        let (mut max, mut sum) = ([f32::NEG_INFINITY; TASK], [0.0f32; TASK]);
        let keys = KEYS.min(most);
        let sizes = [packed_len(depth, keys), packed_len(keys, width), QUERIES.min(count) * keys];
        out.fill(0.0);
        with_scratch(sizes.iter().sum(), |buffer: &mut [f32]| {
            let (key_panels, rest) = buffer.split_at_mut(sizes[0]);
            let (value_panels, scores) = rest.split_at_mut(sizes[1]);
            for start in (0..most).step_by(KEYS) {
                let keys = KEYS.min(most - start);
                let key_panels = &mut key_panels[..packed_len(depth, keys)];
                let value_panels = &mut value_panels[..packed_len(keys, width)];
                pack_panels(k.at(start, 0).transposed(), depth, keys, key_panels);
                pack_panels(v.at(start, 0), keys, width, value_panels);
                for block in (0..count).step_by(QUERIES) {
                    let rows = QUERIES.min(count - block);
                    if self.seen(block + rows - 1) <= start {
                        continue;
                    }
                    let scores = &mut scores[..rows * keys];
                    let out = &mut out[block * width..(block + rows) * width];
                    let q = q.at(self.first + block, 0);
                    multiply([rows, keys, depth], scores, keys, false, q, &*key_panels);
                    contracted(
                        #[inline(always)]
                        |c| {
                            for (i, row) in scores.chunks_mut(keys).enumerate() {
                                let (max, sum) = (&mut max[block + i], &mut sum[block + i]);
                                let shrink = self.soften(c, block + i, start, row, max, sum);
                                if shrink != 1.0 {
                                    out[i * width..(i + 1) * width].iter_mut().for_each(|o| *o *= shrink);
                                }
                            }
                        },
                    );
                    let scores = Matrix { data: scores, offset: 0, row: keys as isize, column: 1 };
                    multiply([rows, width, keys], out, width, true, scores, &*value_panels);
                }
            }
        });
        for (row, &sum) in out.chunks_mut(width).zip(&sum) {
            finish(row, sum);
        }
    }

    /// Turns the products of query `i` with the keys from `start` on into weights, relative to the largest score so
    /// far. Returns the factor by which the earlier weights shrink.
    #[inline(always)]
    fn soften(&self, c: Contraction, i: usize, start: usize, row: &mut [f32], max: &mut f32, sum: &mut f32) -> f32 {
        let numbers = self.numbers;
        let seen = self.seen(i).saturating_sub(start).min(row.len());
        let (here, hidden) = row.split_at_mut(seen);
        // Hidden keys get weight 0 in the product with the values.
        hidden.fill(0.0);
        if numbers.cap > 0.0 {
            let (before, cap) = (numbers.scale / numbers.cap, numbers.cap);
            here.iter_mut().for_each(|s| *s = cap * math::tanh(c, *s * before));
        } else {
            here.iter_mut().for_each(|s| *s *= numbers.scale);
        }
        if let Some(mask) = &self.head.mask {
            let at = mask.at(self.first + i, start);
            if mask.column == 1 {
                here.iter_mut().zip(at.row(0, seen)).for_each(|(s, &m)| *s += m);
            } else {
                let mut place = at.offset;
                for s in here.iter_mut() {
                    *s += mask.data[place as usize];
                    place += mask.column;
                }
            }
        }
        let top = max.larger(rows::largest(here));
        if top == f32::NEG_INFINITY && !here.iter().any(|s| s.is_nan()) {
            // No key has been visible so far.
            here.fill(0.0);
            return 1.0;
        }
        let shrink = math::exp_decay(c, *max - top);
        *max = top;
        *sum = *sum * shrink + rows::exponentials(None, here, top) as f32;
        shrink
    }
}

/// Divides by the sum of the weights.
fn finish(row: &mut [f32], sum: f32) {
    // A NaN sum propagates.
    let scale = if sum == 0.0 { 0.0 } else { 1.0 / sum };
    row.iter_mut().for_each(|o| *o *= scale);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, in double precision.
    fn naive(kernel: &AttentionKernel, scalars: [u32; 4], inputs: &[(&[f32], Layout)], at: usize) -> f64 {
        let [scale, cap, valid, position] = scalars;
        let (scale, cap) = (f64::from(f32::from_bits(scale)), f64::from(f32::from_bits(cap)));
        let (e, i) = (at % kernel.value, at / kernel.value % kernel.queries);
        let (h, b) =
            (at / kernel.value / kernel.queries % kernel.heads, at / kernel.value / kernel.queries / kernel.heads);
        let g = h * kernel.groups / kernel.heads;
        let get = |n: usize, index: [usize; 4]| {
            let (data, layout) = &inputs[n];
            let at: isize = index.iter().zip(&layout.strides).map(|(&i, &s)| i as isize * s).sum();
            f64::from(data[(layout.offset as isize + at) as usize])
        };
        let (mut sum, mut total) = (0.0, 0.0);
        for t in 0..kernel.keys.min(valid as usize) {
            if kernel.causal && t as i64 > i as i64 + i64::from(position as i32) {
                break;
            }
            let mut score = (0..kernel.qk).map(|d| get(0, [b, h, i, d]) * get(1, [b, g, t, d])).sum::<f64>() * scale;
            if cap > 0.0 {
                score = cap * (score / cap).tanh();
            }
            if kernel.mask {
                score += get(3, [b, h, i, t]);
            }
            sum += score.exp();
            total += score.exp() * get(2, [b, g, t, e]);
        }
        if sum == 0.0 { 0.0 } else { total / sum }
    }

    #[test]
    fn attention_matches_the_definition() {
        crate::kernel::host::simd::forced::each(attention_matches);
    }

    fn attention_matches() {
        let pool = CpuPool::new(3);
        for (causal, mask, queries, keys, valid, position, cap) in [
            (false, false, 1, 1, 1, 0, 0.0f32),
            (true, false, 65, 65, 65, 0, 0.0),
            (true, true, 7, 300, 290, 283, 5.0),
            (false, true, 63, 513, 400, 0, 0.0),
            (true, false, 5, 9, 9, -3, 0.0),
            (false, false, 3, 4, 0, 0, 0.0),
        ] {
            let (batch, heads, groups, qk, value) = (2, 4, 2, 7, 9);
            let kernel = AttentionKernel { causal, mask, batch, heads, groups, queries, keys, qk, value };
            let values =
                |n: usize, seed: usize| (0..n).map(|i| ((i * 37 + seed) % 41) as f32 * 0.1 - 2.0).collect::<Vec<_>>();
            // Heads inside rows, which is the layout that projections produce.
            let heads_inside =
                |n: usize, h: usize, d: usize| Layout::contiguous([batch, n, h, d]).permute(&[0, 2, 1, 3]);
            let mut m = values(queries * keys, 9);
            m.iter_mut().step_by(7).for_each(|v| *v = f32::NEG_INFINITY);
            let data = [
                values(batch * queries * heads * qk, 1),
                values(batch * keys * groups * qk, 2),
                values(batch * keys * groups * value, 3),
                m,
            ];
            let shape = [batch, heads, queries, keys].into();
            let layouts = [
                heads_inside(queries, heads, qk),
                heads_inside(keys, groups, qk),
                heads_inside(keys, groups, value),
                Layout::contiguous([queries, keys]).broadcast_to(&shape).expect("fits"),
            ];
            let pairs: Vec<(&[f32], Layout)> = data.iter().zip(&layouts).map(|(d, l)| (&d[..], l.clone())).collect();
            let inputs: Vec<Input> = pairs
                .iter()
                .take(if mask { 4 } else { 3 })
                .map(|(data, layout)| Input { elements: Elements::F32(data), layout: layout.clone() })
                .collect();
            let scalars = [0.37f32.to_bits(), cap.to_bits(), valid, position as u32];
            let mut out = vec![f32::NAN; batch * heads * queries * value];
            attention(&kernel, &inputs, &mut out, &scalars, &pool);
            for (at, &got) in out.iter().enumerate() {
                let expected = naive(&kernel, scalars, &pairs, at);
                assert!((f64::from(got) - expected).abs() < 2e-5, "{kernel:?} at {at}: {got} {expected}");
            }
        }
    }
}
