//! Convolutions and pooling.

use super::loops::{Input, OFFSET, at, check, indices};
use crate::ir::{Class, DType, PoolKind, Window};
use crate::kernel::*;

const PLAIN: Window = Window { size: [1, 1, 1], stride: [1, 1, 1], dilation: [1, 1, 1], before: [0; 3], after: [0; 3] };

/// Windows with input sizes.
fn windows() -> Vec<(Window, [usize; 3])> {
    vec![
        (PLAIN, [1, 5, 7]),
        (Window { size: [1, 3, 3], before: [0, 1, 1], after: [0, 1, 1], ..PLAIN }, [1, 9, 13]),
        (Window { size: [1, 3, 2], stride: [1, 2, 1], before: [0, 2, 1], after: [0, 1, 0], ..PLAIN }, [2, 41, 10]),
        (Window { size: [1, 1, 5], stride: [1, 1, 2], before: [0, 0, 4], after: [0, 0, 1], ..PLAIN }, [1, 1, 33]),
        (
            Window { size: [2, 3, 2], stride: [1, 2, 3], dilation: [2, 1, 2], before: [1, 2, 0], after: [0, 1, 3] },
            [5, 6, 7],
        ),
    ]
}

fn output_size(window: &Window, input: [usize; 3]) -> [usize; 3] {
    core::array::from_fn(|i| {
        let reach = window.dilation[i] * (window.size[i] - 1) + 1;
        (window.before[i] + input[i] + window.after[i] - reach) / window.stride[i] + 1
    })
}

/// The input index under `tap` of the window at `out`, if it is in range.
fn meets(window: &Window, input: [usize; 3], out: &[usize], tap: &[usize]) -> Option<Vec<usize>> {
    (0..3)
        .map(|i| (out[i] * window.stride[i] + tap[i] * window.dilation[i]).checked_sub(window.before[i]))
        .zip(input)
        .map(|(x, n)| x.filter(|&x| x < n))
        .collect()
}

#[test]
fn conv_matches_loops() {
    for (window, input) in windows() {
        for (groups, channels_in, channels_out) in
            [(1, 3, 5), (1, 1, 1), (2, 4, 6), (6, 6, 6), (3, 3, 12), (2, 4, 22), (1, 5, 70), (2, 2, 80)]
        {
            let (batch, output) = (2, output_size(&window, input));
            let dtype = if groups == 2 { DType::F16 } else { DType::F32 };
            let bias = channels_in != 1;
            let x = Input::random(dtype, [&[batch, channels_in][..], &input].concat(), 1);
            let weight = Input::random(dtype, [&[channels_out, channels_in / groups][..], &window.size].concat(), 2);
            let (xs, ws) = (x.values(), weight.values());
            let mut inputs = vec![x, weight];
            let start = Input::random(DType::F32, [channels_out], 3);
            let starts = start.values();
            if bias {
                inputs.push(start);
            }
            let shape = [&[batch, channels_out][..], &output].concat();
            let expected: Vec<f64> = indices(&shape)
                .iter()
                .map(|o| {
                    let mut sum = if bias { starts[o[1]] } else { 0.0 };
                    for c in 0..channels_in / groups {
                        for tap in indices(&window.size) {
                            let Some(place) = meets(&window, input, &o[2..], &tap) else { continue };
                            let channel = o[1] / (channels_out / groups) * (channels_in / groups) + c;
                            let weight = at(&inputs[1].layout.shape, &[&[o[1], c][..], &tap].concat());
                            sum +=
                                xs[at(&inputs[0].layout.shape, &[&[o[0], channel][..], &place].concat())] * ws[weight];
                        }
                    }
                    sum
                })
                .collect();
            let kernel = ConvKernel { window, groups, bias, batch, channels_in, channels_out, input, output };
            check(Kernel::Conv(kernel), &inputs, DType::F32, shape, &[], &expected);
        }
    }
}

#[test]
fn conv_transpose_matches_loops() {
    for (window, output) in windows() {
        for (groups, channels_in, channels_out) in [(1, 3, 2), (2, 4, 6), (3, 3, 3)] {
            // The forward convolution of the output has the size of the input.
            let (batch, input) = (2, output_size(&window, output));
            let bias = groups == 2;
            let x = Input::random(DType::F32, [&[batch, channels_in][..], &input].concat(), 1);
            let weight =
                Input::random(DType::F16, [&[channels_in, channels_out / groups][..], &window.size].concat(), 2);
            let start = Input::random(DType::F32, [channels_out], 3);
            let shape = [&[batch, channels_out][..], &output].concat();
            let starts = start.values();
            let mut expected: Vec<f64> =
                indices(&shape).iter().map(|o| if bias { starts[o[1]] } else { 0.0 }).collect();
            for (index, value) in indices(&x.layout.shape).iter().zip(x.values()) {
                for (w, factor) in indices(&weight.layout.shape).iter().zip(weight.values()) {
                    let Some(place) = meets(&window, output, &index[2..], &w[2..]) else { continue };
                    if w[0] == index[1] {
                        let channel = index[1] / (channels_in / groups) * (channels_out / groups) + w[1];
                        expected[at(&shape, &[&[index[0], channel][..], &place].concat())] += value * factor;
                    }
                }
            }
            let mut inputs = vec![x, weight];
            if bias {
                inputs.push(start);
            }
            let kernel = ConvKernel { window, groups, bias, batch, channels_in, channels_out, input, output };
            check(ConvTransposeKernel(kernel).into(), &inputs, DType::F32, shape, &[], &expected);
        }
    }
}

#[test]
fn pool_matches_loops() {
    let kinds = [
        PoolKind::Max,
        PoolKind::ArgMax,
        PoolKind::Average { include_pad: false },
        PoolKind::Average { include_pad: true },
    ];
    for (window, input) in windows() {
        for dtype in DType::ALL {
            for kind in kinds {
                let (planes, class) = (3, dtype.class());
                if matches!(kind, PoolKind::Average { .. }) && class != Class::Float {
                    continue;
                }
                // One more than the padding allows, as with ceil mode.
                let mut output = output_size(&window, input);
                output[2] += 1;
                let mut x = Input::random(dtype, [&[planes][..], &input].concat(), 4);
                if class == Class::Float {
                    x.storage[OFFSET + 11] = f64::NAN;
                }
                let xs = x.values();
                let shape = [&[planes][..], &output].concat();
                let plane = input.iter().product::<usize>();
                let expected: Vec<f64> = indices(&shape)
                    .iter()
                    .map(|o| {
                        let taps = indices(&window.size);
                        let places: Vec<usize> = taps
                            .iter()
                            .filter_map(|tap| Some(at(&input, &meets(&window, input, &o[1..], tap)?)))
                            .collect();
                        let value = |p: usize| xs[o[0] * plane + p];
                        let padded = |tap: &&Vec<usize>| {
                            (0..3).all(|i| {
                                o[i + 1] * window.stride[i] + tap[i] * window.dilation[i]
                                    < window.before[i] + input[i] + window.after[i]
                            })
                        };
                        let best = places.iter().copied().reduce(|a, b| {
                            let better = value(b) > value(a) || (value(b).is_nan() && !value(a).is_nan());
                            if better { b } else { a }
                        });
                        let sum: f64 = places.iter().map(|&p| value(p)).sum();
                        match kind {
                            PoolKind::Max => best.map_or(
                                match class {
                                    Class::Float => f64::NEG_INFINITY,
                                    Class::Int => f64::from(i32::MIN),
                                    Class::Uint => 0.0,
                                },
                                value,
                            ),
                            PoolKind::ArgMax => best.unwrap_or(0) as f64,
                            PoolKind::Average { include_pad: false } => sum / places.len().max(1) as f64,
                            PoolKind::Average { include_pad: true } => {
                                sum / taps.iter().filter(padded).count().max(1) as f64
                            }
                        }
                    })
                    .collect();
                let out = if kind == PoolKind::ArgMax { DType::I32 } else { dtype.wide() };
                let lowest = crate::ir::scalar_bits(class.dtype().lowest(), class.dtype());
                let kernel = PoolKernel { kind, class, window, planes, input, output, lowest };
                check(Kernel::Pool(kernel), &[x], out, shape, &[], &expected);
            }
        }
    }
}
