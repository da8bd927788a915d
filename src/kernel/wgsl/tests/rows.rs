//! Reductions, softmax and row norms on the device against plain host loops.

use super::device::{assert_close, floats, noise, operand, run_step_with, step, variants, words};
use crate::ir::{Class, DType, NormKind, ReduceKind, Source};
use crate::kernel::{Kernel, ReduceKernel, RowNormKernel, SoftmaxKernel};

/// Shapes that are processed by a thread, a subgroup or a workgroup per row, with full and partial reductions, or by
/// quads of columns.
const SHAPES: [[usize; 3]; 11] = [
    [1, 1, 1],
    [3, 64, 1],
    [3, 65, 1],
    [2, 129, 3],
    [1, 1757, 1],
    [2, 1000, 2],
    [1100, 68, 1],
    [33, 70, 33],
    [70, 1, 1],
    [2, 130, 132],
    [65, 7, 4],
];

/// Runs `kernel` on `x [outer, n, inner]` and returns the words of the output, for every variant, with and without
/// aligned quads.
fn run(kernel: Kernel, x: &[u32], class: Class, shape: &[usize], out: &[usize], result: DType) -> Vec<Vec<u32>> {
    let mut results = Vec::new();
    for (x_offset, y_offset) in [(1, 2), (4, 4)] {
        let (input, output) = (operand(0, class.dtype(), shape, x_offset), operand(1, result, out, y_offset));
        let step = step(kernel.clone(), vec![input], vec![output], &[0]);
        let count: usize = out.iter().product();
        let x: Vec<u32> = [&vec![9; x_offset], x].concat();
        let buffers = [(Source::Slot(0), x), (Source::Slot(1), vec![7; y_offset + count + 3])];
        for caps in variants(&step) {
            let mut got = run_step_with(&step, &buffers, &[0], &caps).0.swap_remove(1).1;
            assert!(got.drain(y_offset + count..).all(|word| word == 7), "what lies after the output");
            assert!(got.drain(..y_offset).all(|word| word == 7), "what lies before the output");
            results.push(got);
        }
    }
    results
}

/// The rows of `[outer, n, inner]`, in output order.
fn rows<T: Copy>(x: &[T], [outer, n, inner]: [usize; 3]) -> Vec<Vec<T>> {
    let row = |r: usize| (0..n).map(|p| x[(r / inner * n + p) * inner + r % inner]).collect();
    (0..outer * inner).map(row).collect()
}

#[test]
fn float_reductions_match() {
    for shape in SHAPES {
        let [outer, n, inner] = shape;
        let x = noise(outer * n * inner, 5);
        type FloatCase = (ReduceKind, fn(&[f32]) -> f64);
        let cases: [FloatCase; 6] = [
            (ReduceKind::Sum, |r| r.iter().map(|&v| f64::from(v)).sum()),
            (ReduceKind::Mean, |r| r.iter().map(|&v| f64::from(v)).sum::<f64>() / r.len() as f64),
            (ReduceKind::SumSquares, |r| r.iter().map(|&v| f64::from(v).powi(2)).sum()),
            (ReduceKind::Prod, |r| r.iter().map(|&v| f64::from(v)).product()),
            (ReduceKind::Max, |r| f64::from(r.iter().copied().fold(f32::MIN, f32::max))),
            (ReduceKind::Min, |r| f64::from(r.iter().copied().fold(f32::MAX, f32::min))),
        ];
        for (kind, want) in cases {
            let kernel = Kernel::Reduce(ReduceKernel { kind, class: Class::Float, outer, n, inner });
            let want: Vec<f32> = rows(&x, shape).iter().map(|r| want(r) as f32).collect();
            for got in run(kernel, &words(&x), Class::Float, &shape, &[outer, inner], DType::F32) {
                assert_close(&floats(&got), &want, 1e-5, &format!("{kind:?} of {shape:?}"));
            }
        }
    }
}

#[test]
fn positions_take_nan_first_and_the_asked_for_end_among_equals() {
    for shape in SHAPES {
        let [outer, n, inner] = shape;
        // Many equal values, and some NaNs.
        let mut x: Vec<f32> = noise(outer * n * inner, 6).iter().map(|v| (v * 5.0).trunc()).collect();
        x.iter_mut().step_by(331).skip(1).for_each(|v| *v = f32::NAN);
        for (last, max) in [(false, false), (true, false), (false, true), (true, true)] {
            let kind = if max { ReduceKind::ArgMax { last } } else { ReduceKind::ArgMin { last } };
            let want = rows(&x, shape).into_iter().map(|row| {
                let mut best = 0;
                for (p, &v) in row.iter().enumerate().skip(1) {
                    let b = row[best];
                    let beats = v.is_nan() && !b.is_nan() || !b.is_nan() && if max { v > b } else { v < b };
                    if beats || last && (v == b || v.is_nan() && b.is_nan()) {
                        best = p;
                    }
                }
                best as u32
            });
            let want: Vec<_> = want.collect();
            let kernel = Kernel::Reduce(ReduceKernel { kind, class: Class::Float, outer, n, inner });
            for got in run(kernel, &words(&x), Class::Float, &shape, &[outer, inner], DType::I32) {
                assert_eq!(got, want, "{kind:?} of {shape:?}");
            }
        }
        let kernel = ReduceKernel { kind: ReduceKind::Max, class: Class::Float, outer, n, inner };
        for got in run(Kernel::Reduce(kernel), &words(&x), Class::Float, &shape, &[outer, inner], DType::F32) {
            for (got, row) in floats(&got).into_iter().zip(rows(&x, shape)) {
                assert_eq!(got.is_nan(), row.iter().any(|v| v.is_nan()), "NaN wins in {shape:?}");
            }
        }
    }
}

#[test]
fn integer_reductions_wrap() {
    for shape in SHAPES {
        let [outer, n, inner] = shape;
        let x: Vec<i32> = noise(outer * n * inner, 7).iter().map(|v| (v * 2e9) as i32).collect();
        type IntegerCase = (ReduceKind, fn(&[i32]) -> i32);
        let cases: [IntegerCase; 4] = [
            (ReduceKind::Sum, |r| r.iter().fold(0, |a, &b| a.wrapping_add(b))),
            (ReduceKind::Prod, |r| r.iter().fold(1, |a, &b| a.wrapping_mul(b))),
            (ReduceKind::Max, |r| r.iter().copied().max().unwrap_or(0)),
            (ReduceKind::ArgMin { last: false }, |r| {
                r.iter().enumerate().min_by_key(|(_, v)| **v).map_or(0, |(p, _)| p as i32)
            }),
        ];
        let bits: Vec<u32> = x.iter().map(|&v| v as u32).collect();
        for (kind, want) in cases {
            let want: Vec<u32> = rows(&x, shape).iter().map(|r| want(r) as u32).collect();
            let kernel = Kernel::Reduce(ReduceKernel { kind, class: Class::Int, outer, n, inner });
            for got in run(kernel, &bits, Class::Int, &shape, &[outer, inner], DType::I32) {
                assert_eq!(got, want, "{kind:?} of {shape:?}");
            }
        }
    }
}

#[test]
fn softmax_matches_and_survives_large_and_infinite_numbers() {
    for shape in SHAPES {
        let [outer, n, inner] = shape;
        let mut x: Vec<f32> = noise(outer * n * inner, 8).iter().map(|v| v * 300.0).collect();
        x.iter_mut().skip(1).step_by(97).for_each(|v| *v = f32::NEG_INFINITY);
        for log in [false, true] {
            let mut want = vec![0.0; x.len()];
            for (r, row) in rows(&x, shape).iter().enumerate() {
                let top = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
                let sum: f64 = row.iter().map(|&v| (f64::from(v) - top).exp()).sum();
                for (p, &v) in row.iter().enumerate() {
                    let d = f64::from(v) - top;
                    let value = if log { d - sum.ln() } else { d.exp() / sum };
                    want[(r / inner * n + p) * inner + r % inner] = value as f32;
                }
            }
            let kernel = Kernel::Softmax(SoftmaxKernel { log, outer, n, inner });
            for got in run(kernel, &words(&x), Class::Float, &shape, &shape, DType::F32) {
                assert_close(&floats(&got), &want, 2e-6, &format!("softmax of {shape:?}, log {log}"));
            }
        }
    }
}

#[test]
fn row_norms_match() {
    for (rows, n) in [(1, 1), (3, 64), (5, 129), (2, 1760), (1100, 66)] {
        let x: Vec<f32> = noise(rows * n, 9).iter().map(|v| v + 30.0).collect();
        let (weight, bias) = (noise(n, 10), noise(n, 11));
        for kind in [NormKind::Layer, NormKind::Rms, NormKind::L2] {
            for (has_weight, has_bias) in [(false, false), (true, true), (true, false)] {
                let epsilon = 1e-3;
                let mut want = Vec::new();
                for row in x.chunks(n) {
                    let wide = || row.iter().map(|&v| f64::from(v));
                    let mean = if kind == NormKind::Layer { wide().sum::<f64>() / n as f64 } else { 0.0 };
                    let squares: f64 = wide().map(|v| (v - mean).powi(2)).sum();
                    let scale = match kind {
                        NormKind::L2 => 1.0 / squares.sqrt().max(epsilon),
                        _ => 1.0 / (squares / n as f64 + epsilon).sqrt(),
                    };
                    want.extend(wide().enumerate().map(|(p, v)| {
                        let w = if has_weight { f64::from(weight[p]) } else { 1.0 };
                        let b = if has_bias { f64::from(bias[p]) } else { 0.0 };
                        ((v - mean) * scale * w + b) as f32
                    }));
                }
                let mut inputs = vec![operand(0, DType::F32, &[rows, n], 0)];
                inputs.extend(has_weight.then(|| operand(1, DType::F32, &[n], 0)));
                inputs.extend(has_bias.then(|| operand(2, DType::F32, &[n], 0)));
                let kernel = RowNormKernel { kind, weight: has_weight, bias: has_bias, rows, n };
                let output = operand(3, DType::F32, &[rows, n], 0);
                let step = step(Kernel::RowNorm(kernel), inputs, vec![output], &[1]);
                let buffers = [x.as_slice(), &weight, &bias, &vec![0.0; rows * n]];
                let buffers: Vec<_> =
                    buffers.iter().enumerate().map(|(i, b)| (Source::Slot(i as u32), words(b))).collect();
                for caps in variants(&step) {
                    let scalars = [0, (epsilon as f32).to_bits()];
                    let got = floats(&run_step_with(&step, &buffers, &scalars, &caps).0[3].1);
                    assert_close(&got, &want, 1e-4, &format!("{kind:?} of {rows} x {n}"));
                }
            }
        }
    }
}
