//! Bytes with one scale for all or one per channel.

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

use super::{floats, noise, relative_error};
use crate::common::{BACKENDS, Rig, assert_close};

/// The bytes and scales by definition, for channels of `row` numbers each.
fn by_definition(values: &[f32], row: usize) -> (Vec<i8>, Vec<f32>) {
    let scales: Vec<f32> =
        values.chunks(row).map(|row| row.iter().fold(0f32, |most, v| most.max(v.abs())) / 127.0).collect();
    let bytes = values.chunks(row).zip(&scales).flat_map(|(row, &scale)| {
        let step = if scale == 0.0 { 1.0 } else { scale };
        row.iter().map(move |v| (v / step).round_ties_even().clamp(-127.0, 127.0) as i8)
    });
    (bytes.collect(), scales)
}

fn pair(rig: &mut Rig, x: Entity, axis: Option<isize>) -> (TensorData, TensorData) {
    let (bytes, scale) = rig
        .record(move |ops| {
            let (bytes, scale) = match axis {
                Some(axis) => ops.quantize_i8_channels(x, axis)?,
                None => ops.quantize_i8(x)?,
            };
            Ok((ops.read(bytes)?, ops.read(scale)?))
        })
        .expect("floats");
    (rig.wait(&bytes).expect("bytes"), rig.wait(&scale).expect("scales"))
}

#[test]
fn bytes_and_scales_follow_the_definition() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for (rows, row) in [(1, 1), (3, 7), (65, 33), (128, 768)] {
            let mut values = noise(rows * row, 1);
            values[rows * row - row..].fill(0.0);
            let x = floats(&mut rig, &[rows, row], &values);
            let (bytes, scale) = pair(&mut rig, x, None);
            let (want, scales) = by_definition(&values, rows * row);
            assert_eq!((bytes.dtype(), scale.dtype(), scale.shape()), (DType::I8, DType::F32, &Shape::from([1, 1])));
            assert_close(&scale.to_f32(), &scales, 0.0, 1e-6, "the scale");
            // A division with an error in the last bit may break a tie differently.
            let off = bytes.as_slice::<i8>().expect("bytes").iter().zip(&want).filter(|(a, b)| a != b).count();
            assert!(off <= rows * row / 1000, "{off} bytes differ on the {backend}");

            let (bytes, scale) = pair(&mut rig, x, Some(0));
            let (want, scales) = by_definition(&values, row);
            assert_eq!(scale.shape(), &Shape::from([rows, 1]));
            assert_close(&scale.to_f32(), &scales, 0.0, 1e-6, "the scales");
            let off = bytes.as_slice::<i8>().expect("bytes").iter().zip(&want).filter(|(a, b)| a != b).count();
            assert!(off <= rows * row / 1000, "{off} bytes differ on the {backend}");
        }
    }
}

#[test]
fn ties_go_to_even_and_zeros_have_scale_zero() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = floats(&mut rig, &[6], &[127.0, 0.5, 1.5, 2.5, -0.5, -3.5]);
        let (bytes, scale) = pair(&mut rig, x, None);
        assert_eq!((bytes.to_f32(), scale.to_f32()), (vec![127.0, 0.0, 2.0, 2.0, 0.0, -4.0], vec![1.0]));
        let x = floats(&mut rig, &[2, 3], &[0.0; 6]);
        for axis in [None, Some(1)] {
            let (bytes, scale) = pair(&mut rig, x, axis);
            assert!(bytes.to_f32().iter().chain(&scale.to_f32()).all(|&v| v == 0.0));
            let round = rig.compute(move |ops| {
                let (bytes, scale) = ops.quantize_i8(x)?;
                ops.dequantize_i8(bytes, scale)
            });
            assert_eq!(round.expect("floats").to_f32(), [0.0; 6]);
        }
        let none = floats(&mut rig, &[0, 3], &[]);
        let (bytes, scale) = pair(&mut rig, none, Some(1));
        assert_eq!((bytes.to_f32(), scale.to_f32()), (vec![], vec![0.0; 3]));
    }
}

#[test]
fn what_is_not_finite_spoils_its_channel_alone() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for bad in [f32::NAN, f32::INFINITY] {
            let mut values = noise(3 * 40, 2);
            values[45] = bad;
            let x = floats(&mut rig, &[3, 40], &values);
            let (bytes, scale) = pair(&mut rig, x, Some(0));
            let scale = scale.to_f32();
            assert!(!scale[1].is_finite() && scale[0].is_finite() && scale[2].is_finite(), "{scale:?}");
            assert!(bytes.to_f32()[40..80].iter().all(|&v| v == 0.0), "on the {backend} with {bad}");
            let (want, _) = by_definition(&values[80..], 40);
            assert_eq!(&bytes.as_slice::<i8>().expect("bytes")[80..], want);
        }
    }
}

#[test]
fn the_round_trip_loses_as_little_as_promised_in_one_map_after_the_reduction() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let values = noise(128 * 768, 3);
        let x = floats(&mut rig, &[128, 768], &values);
        for channels in [false, true] {
            let back = rig.compute(move |ops| {
                let (bytes, scale) = if channels { ops.quantize_i8_channels(x, 0)? } else { ops.quantize_i8(x)? };
                ops.dequantize_i8(bytes, scale)
            });
            let back = back.expect("floats").to_f32();
            let error: f64 = back.iter().zip(&values).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            assert!(error / (128.0 * 768.0) <= 6e-6, "a mean square of {} on the {backend}", error / (128.0 * 768.0));
            let plan = rig.app.world().resource::<TensorDiagnostics>().last_plan(backend).expect("something ran");
            let kernels: Vec<_> = plan.steps.iter().map(|step| step.kernel).collect();
            // Magnitudes are computed inside the reduction, which a device may split into two launches. Everything
            // after it is one map.
            assert!(kernels == ["reduce", "map"] || kernels == ["reduce", "reduce", "map"], "{kernels:?}");
        }
    }
}

#[test]
fn products_widen_bytes_inside_the_kernel() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for (m, n, k) in [(1, 65, 64), (3, 5, 100), (7, 63, 32), (33, 40, 96), (2, 9, 33), (5, 3, 7)] {
            let (x, w, b) = (noise(m * k, 4), noise(n * k, 5), noise(n, 6));
            let mut exact = vec![0f32; m * n];
            for (at, out) in exact.iter_mut().enumerate() {
                let (i, j) = (at / n, at % n);
                *out = (0..k).map(|p| x[i * k + p] * w[j * k + p]).sum::<f32>() + b[j];
            }
            let (x, weight, bias) =
                (floats(&mut rig, &[m, k], &x), floats(&mut rig, &[n, k], &w), floats(&mut rig, &[n], &b));
            for channels in [false, true] {
                let product = rig.compute(move |ops| {
                    let (bytes, scale) =
                        if channels { ops.quantize_i8_channels(weight, 0)? } else { ops.quantize_i8(weight)? };
                    ops.linear_i8(x, bytes, scale, bias)
                });
                let product = product.expect("it fits");
                assert_eq!(product.shape(), &Shape::from([m, n]));
                let error = relative_error(&product.to_f32(), &exact);
                assert!(error <= 0.01, "{m}×{n}×{k} is off by {error} on the {backend}");
            }
            // Stored as a tensor and viewed from its second row on, which may begin inside a word.
            let kept = rig.spawn(Tensor::zeros([n, k], DType::I8).expect("small"));
            rig.record(move |ops| {
                let (bytes, _) = ops.quantize_i8(weight)?;
                ops.store(bytes, kept)
            })
            .expect("it fits");
            let rows = rig.app.world().get::<Tensor>(kept).expect("a tensor").slice(0, 1, n as isize).expect("rows");
            let rows = rig.spawn(rows);
            let direct = rig.compute(move |ops| ops.linear_i8(x, rows, 0.5, None)).expect("it fits");
            let plain = rig.compute(move |ops| {
                let wide = ops.cast(rows, DType::F32)?;
                ops.matmul_nt(x, wide * 0.5)
            });
            let plain = plain.expect("it fits").to_f32();
            assert_close(&direct.to_f32(), &plain, 1e-3, 1e-4, &format!("{m}×{n}×{k} on the {backend}"));
            rig.app.world_mut().despawn(kept);
        }
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn mistakes_are_typed_errors() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let (x, w) =
            (floats(&mut rig, &[2, 8], &[0.0; 16]), rig.spawn(Tensor::zeros([3, 8], DType::I8).expect("small")));
        let two = floats(&mut rig, &[2], &[1.0; 2]);
        let error = rig.compute(move |ops| ops.linear_i8(x, w, two, None)).expect_err("three rows");
        assert!(matches!(error, OpError::Shape { op: "linear_i8", .. }), "{error}");
        let error = rig.compute(move |ops| ops.linear_i8(two, w, 1.0, None)).expect_err("two and eight");
        assert!(matches!(error, OpError::Shape { op: "linear_i8", .. }), "{error}");
        let error = rig.compute(move |ops| ops.dequantize_i8(w, two)).expect_err("it does not broadcast");
        assert!(matches!(error, OpError::Shape { op: "dequantize_i8", .. }), "{error}");
        let error = rig.compute(move |ops| Ok(ops.quantize_i8_channels(x, 2)?.0)).expect_err("two axes");
        assert!(matches!(error, OpError::Axis { op: "quantize_i8_channels", .. }), "{error}");
    }
}
