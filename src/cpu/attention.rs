//! Scaled dot-product attention: blocks of queries against blocks of keys with a running softmax, so the whole score matrix never exists.
//!
//! The soft cap comes before the mask, so that a mask of −∞ stays −∞. A query all of whose keys are masked by −∞ gives 0, as one that sees none.

use super::matmul::{Matrix, gemm};
use super::memory::Input;
use super::number::Number;
use super::reduce::{max_f32, sum_f32};
use super::{CpuPool, math};
use crate::kernel::AttentionKernel;
use crate::tensor::Layout;

/// Queries and keys of a block.
const QUERIES: usize = 64;
const KEYS: usize = 256;

/// A matrix of a 4-axis layout at its first two indices.
fn matrix<'a>(data: &'a [f32], layout: &Layout, outer: usize, head: usize) -> Matrix<'a> {
    let s = &layout.strides;
    let offset = layout.offset as isize + outer as isize * s[0] + head as isize * s[1];
    Matrix { data, offset, row: s[2], column: s[3] }
}

/// The numbers that come with the batch.
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

/// The twin. Inputs: q, k, v, mask if flagged.
pub(super) fn attention(kernel: &AttentionKernel, inputs: &[Input], out: &mut [f32], scalars: &[u32], pool: &CpuPool) {
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
    let blocks: Vec<(usize, usize, &mut [f32])> = out
        .chunks_mut(kernel.queries * kernel.value)
        .enumerate()
        .flat_map(|(plane, out)| {
            let blocks = out.chunks_mut(QUERIES * kernel.value).enumerate();
            blocks.map(move |(i, out)| (plane, i * QUERIES, out))
        })
        .collect();
    // A few blocks to a task, because a block of few queries is little work.
    let work = |(plane, first, out): (usize, usize, &mut [f32])| {
        let (batch, head) = (plane / kernel.heads, plane % kernel.heads);
        let group = head * kernel.groups / kernel.heads;
        let head = Head {
            q: matrix(&q.0, &q.1, batch, head).at(first, 0),
            k: matrix(&k.0, &k.1, batch, group),
            v: matrix(&v.0, &v.1, batch, group),
            mask: mask.as_ref().map(|mask| matrix(&mask.0, &mask.1, batch, head).at(first, 0)),
        };
        block(kernel, &numbers, &head, first, out);
    };
    let per = blocks.len().div_ceil(pool.threads() * 8);
    let mut tasks: Vec<Vec<_>> = Vec::new();
    for block in blocks {
        match tasks.last_mut() {
            Some(task) if task.len() < per => task.push(block),
            _ => tasks.push(vec![block]),
        }
    }
    pool.each(tasks, |task| task.into_iter().for_each(work));
}

/// Queries `first..` of one head, as many as `out` has rows.
fn block(kernel: &AttentionKernel, numbers: &Numbers, head: &Head, first: usize, out: &mut [f32]) {
    let width = kernel.value;
    let count = out.len() / width;
    // Keys that query `i` of the block sees.
    let seen = |i: usize| {
        let causal = (first + i) as i64 + numbers.position + 1;
        if kernel.causal { causal.clamp(0, numbers.valid as i64) as usize } else { numbers.valid }
    };
    let most = seen(count - 1);
    let (mut max, mut sum) = ([f32::NEG_INFINITY; QUERIES], [0.0f32; QUERIES]);
    let mut scores = vec![0.0; count * KEYS.min(most)];
    out.fill(0.0);
    for start in (0..most).step_by(KEYS) {
        let keys = KEYS.min(most - start);
        let scores = &mut scores[..count * keys];
        // Keys as columns.
        let k = head.k.at(start, 0);
        let k = Matrix { row: k.column, column: k.row, ..k };
        gemm([count, keys, kernel.qk], scores, keys, false, head.q, k);
        for (i, row) in scores.chunks_mut(keys).enumerate() {
            let (here, hidden) = row.split_at_mut(seen(i).saturating_sub(start).min(keys));
            // Hidden keys get weight 0 in the product below.
            hidden.fill(0.0);
            if numbers.cap > 0.0 {
                let (before, cap) = (numbers.scale / numbers.cap, numbers.cap);
                here.iter_mut().for_each(|s| *s = cap * math::tanh(*s * before));
            } else {
                here.iter_mut().for_each(|s| *s *= numbers.scale);
            }
            if let Some(mask) = &head.mask {
                let mut at = mask.at(i, start).offset;
                for s in here.iter_mut() {
                    *s += mask.data[at as usize];
                    at += mask.column;
                }
            }
            let top = max[i].larger(max_f32(here));
            if top == f32::NEG_INFINITY {
                // Nothing seen yet, and nothing here.
                here.fill(0.0);
                continue;
            }
            let shrink = math::exp(max[i] - top);
            max[i] = top;
            here.iter_mut().for_each(|s| *s = math::exp(*s - top));
            sum[i] = sum[i] * shrink + sum_f32(here, |s| s) as f32;
            if shrink != 1.0 {
                out[i * width..(i + 1) * width].iter_mut().for_each(|o| *o *= shrink);
            }
        }
        let scores = Matrix { data: scores, offset: 0, row: keys as isize, column: 1 };
        gemm([count, width, keys], out, width, true, scores, head.v.at(start, 0));
    }
    for (row, &sum) in out.chunks_mut(width).zip(&sum) {
        // Also where the sum is not a number.
        let scale = if sum == 0.0 { 0.0 } else { 1.0 / sum };
        row.iter_mut().for_each(|o| *o *= scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::memory::Elements;

    /// By the definition, in double precision.
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
            // Heads inside rows, as projections leave them.
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
