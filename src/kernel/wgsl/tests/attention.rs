//! Attention.

use super::loops::{Input, check, indices};
use crate::ir::{DType, Shape};
use crate::kernel::*;

/// Scalars of a case.
struct Numbers {
    scale: f64,
    softcap: f64,
    valid: usize,
    position: i32,
}

fn expect(kernel: &AttentionKernel, inputs: &[Input], numbers: &Numbers) -> Vec<f64> {
    let AttentionKernel { causal, batch, heads, groups, queries, keys, qk, value, .. } = *kernel;
    let (q, k, v) = (inputs[0].values(), inputs[1].values(), inputs[2].values());
    let mask = inputs.get(3).map(Input::values);
    let mut out = Vec::new();
    for p in indices(&[batch, heads, queries]) {
        let (b, h, i) = (p[0], p[1], p[2]);
        let group = b * groups + h * groups / heads;
        let sees = |j: usize| j < numbers.valid && (!causal || j as i64 <= i as i64 + i64::from(numbers.position));
        let scores: Vec<(usize, f64)> = (0..keys)
            .filter(|&j| sees(j))
            .map(|j| {
                let row = (b * heads + h) * queries + i;
                let dot: f64 = (0..qk).map(|d| q[row * qk + d] * k[(group * keys + j) * qk + d]).sum();
                let mut score = dot * numbers.scale;
                if numbers.softcap > 0.0 {
                    score = numbers.softcap * (score / numbers.softcap).tanh();
                }
                (j, score + mask.as_ref().map_or(0.0, |m| m[row * keys + j]))
            })
            .filter(|s| s.1 != f64::NEG_INFINITY)
            .collect();
        let largest = scores.iter().fold(f64::NEG_INFINITY, |a, s| a.max(s.1));
        let sum: f64 = scores.iter().map(|s| (s.1 - largest).exp()).sum();
        for e in 0..value {
            let weighted: f64 =
                scores.iter().map(|s| (s.1 - largest).exp() * v[(group * keys + s.0) * value + e]).sum();
            out.push(if scores.is_empty() { 0.0 } else { weighted / sum });
        }
    }
    out
}

fn compare(kernel: AttentionKernel, inputs: &[Input], numbers: &Numbers) {
    let expected = expect(&kernel, inputs, numbers);
    let shape = [kernel.batch, kernel.heads, kernel.queries, kernel.value];
    let scalars = [
        (numbers.scale as f32).to_bits(),
        (numbers.softcap as f32).to_bits(),
        numbers.valid as u32,
        numbers.position as u32,
    ];
    check(Kernel::Attention(kernel), inputs, DType::F32, shape, &scalars, &expected);
}

fn inputs(kernel: &AttentionKernel, dtype: DType, aligned: bool) -> Vec<Input> {
    let AttentionKernel { batch, heads, groups, queries, keys, qk, value, .. } = *kernel;
    let random = |shape: [usize; 4], seed| {
        let input = Input::random(dtype, shape, seed);
        if aligned { input.aligned() } else { input }
    };
    // Stored as `[batch, row, head, column]`, which is the layout that projections produce.
    let swapped = |shape: [usize; 4], seed| {
        let mut input = random(shape, seed);
        input.layout = input.layout.permute(&[0, 2, 1, 3]);
        input
    };
    let mut inputs = vec![
        swapped([batch, queries, heads, qk], 1),
        random([batch, groups, keys, qk], 2),
        swapped([batch, keys, groups, value], 3),
    ];
    // Keys in reverse order, for a negative stride.
    inputs[1].layout = inputs[1].layout.slice(2, keys - 1, keys, -1);
    if kernel.mask {
        let mut mask = Input::random(DType::F32, [queries, keys], 4);
        for hidden in mask.storage.iter_mut().skip(7).step_by(5) {
            *hidden = f64::NEG_INFINITY;
        }
        mask.layout = mask.layout.broadcast_to(&Shape::from([batch, heads, queries, keys])).expect("fits");
        inputs.push(mask);
    }
    inputs
}

#[test]
fn attention_matches_loops() {
    let sizes = [
        // heads, groups, queries, keys, qk, value
        (1, 1, 1, 1, 1, 1),
        (4, 2, 1, 257, 33, 64),
        (2, 1, 3, 65, 64, 129),
        (3, 3, 33, 31, 17, 7),
        (2, 2, 70, 129, 32, 65),
        (1, 1, 13, 40, 8, 300),
        (2, 1, 35, 70, 12, 20),
    ];
    for (turn, (heads, groups, queries, keys, qk, value)) in sizes.into_iter().enumerate() {
        // Two of the four combinations, because compiling texts is slow.
        let flags = if turn / 2 % 2 == 0 { [(false, false), (true, true)] } else { [(true, false), (false, true)] };
        for (causal, mask) in flags {
            let kernel = AttentionKernel { causal, mask, batch: 2, heads, groups, queries, keys, qk, value };
            let inputs = inputs(&kernel, if turn % 2 == 0 { DType::F32 } else { DType::F16 }, turn != 5);
            let softcap = if mask { 3.0 } else { 0.0 };
            let scale = 1.0 / (qk as f64).sqrt();
            let (valid, position) = match (causal, mask) {
                (false, false) => (keys + 10, 0),
                (false, true) => (keys.div_ceil(2), 0),
                // The first queries see no key.
                (true, false) => (keys, -5),
                (true, true) => (keys, (keys as i32 - queries as i32).max(0)),
            };
            compare(kernel, &inputs, &Numbers { scale, softcap, valid, position });
        }
    }
}

#[test]
fn hidden_keys_add_nothing_even_if_not_numbers() {
    for queries in [2, 40] {
        let kernel = AttentionKernel {
            causal: true,
            mask: false,
            batch: 1,
            heads: 1,
            groups: 1,
            queries,
            keys: 50,
            qk: 4,
            value: 5,
        };
        let mut inputs = inputs(&kernel, DType::F32, true);
        // Only the last query sees key `queries - 1`; none sees those after.
        for key in queries - 1..50 {
            for e in 0..5 {
                let first = inputs[2].layout.offset;
                inputs[2].storage[first + key * 5 + e] = f64::NAN;
            }
        }
        compare(kernel, &inputs, &Numbers { scale: 0.5, softcap: 0.0, valid: 50, position: 0 });
    }
}
