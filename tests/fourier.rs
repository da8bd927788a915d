//! Fourier transforms of every length, along every axis, against NumPy.

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;
use safetensors::SafeTensors;

use crate::common::{BACKENDS, Rig};

/// The file that `tools/sound.py` makes.
pub const REFERENCES: &[u8] = include_bytes!("data/sound.safetensors");

/// A stored array of floats.
pub fn reference(name: &str) -> Vec<f32> {
    let file = SafeTensors::deserialize(REFERENCES).expect("a file");
    let tensor = file.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    bytemuck::pod_collect_to_vec(tensor.data())
}

/// Numbers from −1 to 1, the same as in `tools/sound.py`.
pub fn noise(n: usize, seed: u32) -> Vec<f32> {
    (0..n as u32)
        .map(|i| {
            let mut v = i.wrapping_mul(0x9E37_79B1).wrapping_add(seed);
            v ^= v >> 15;
            v = v.wrapping_mul(0x85EB_CA77);
            v ^= v >> 13;
            v = v.wrapping_mul(0xC2B2_AE3D);
            v ^= v >> 16;
            (v >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()
}

/// The distance of two vectors, relative to the second one.
fn error(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let distance: Vec<f32> = got.iter().zip(expected).map(|(a, b)| a - b).collect();
    norm(&distance) / norm(expected).max(1e-30)
}

/// The relative error that a transform of `n` points may have.
fn bound(n: usize) -> f64 {
    1e-5 * (n as f64).log2().max(1.0)
}

/// What the transforms of one length gave: spectrum, spectrum transformed back, and the same for complex numbers.
type Outcome = [Vec<f32>; 4];

/// Transforms `noise(2 · n, n)`: its first half as real numbers, all of it as complex ones.
fn transforms(rig: &mut Rig, lengths: &[usize]) -> Vec<Outcome> {
    let mut tensors = Vec::new();
    for &n in lengths {
        let x = noise(2 * n, n as u32);
        let real = rig.spawn(Tensor::from_slice(&x[..n], [n]).expect("a tensor"));
        let complex = rig.spawn(Tensor::from_slice(&x, [n, 2]).expect("a tensor"));
        tensors.push((n, real, complex));
    }
    let mut receivers = Vec::new();
    rig.with_ops(|ops| {
        for &(n, real, complex) in &tensors {
            let spectrum = ops.rfft(real, None, LAST).expect("a transform");
            let back = ops.irfft(spectrum, n, LAST).expect("a transform");
            let full = ops.fft(complex, None, LAST).expect("a transform");
            let full_back = ops.ifft(full, None, LAST).expect("a transform");
            receivers.push([spectrum, back, full, full_back].map(|value| ops.read(value).expect("readable")));
        }
    });
    let outcomes =
        receivers.iter().map(|four| four.each_ref().map(|one| rig.wait(one).expect("values").to_f32())).collect();
    for (_, real, complex) in tensors {
        rig.app.world_mut().despawn(real);
        rig.app.world_mut().despawn(complex);
    }
    outcomes
}

/// Compares with the stored frequencies, with the input, and with the energy of the input.
fn check(backend: Backend, n: usize, [spectrum, back, full, full_back]: &Outcome, probes: &[f32]) {
    let x = noise(2 * n, n as u32);
    let allowed = bound(n);
    let what = format!("{backend:?}: {n} points");
    for (got, input, parts) in [(spectrum, &x[..n], 0), (full, &x[..], 4)] {
        let bins = got.len() / 2;
        // A frequency has the energy of the input on average.
        let scale = norm(input);
        for (i, k) in [(n * 5 + 1) % bins, (n * 11 + 3) % bins].into_iter().enumerate() {
            for part in 0..2 {
                let (got, expected) = (got[2 * k + part], probes[parts + 2 * i + part]);
                let off = f64::from((got - expected).abs()) / scale;
                assert!(
                    off <= allowed,
                    "{what}: frequency {k} has {got}, NumPy {expected}: {off:e}, allowed {allowed:e}"
                );
            }
        }
    }
    let energy = norm(full).powi(2) / n as f64 / norm(&x).powi(2);
    assert!((energy - 1.0).abs() <= allowed, "{what}: the energy changed by a factor of {energy}");
    let off = [error(back, &x[..n]), error(full_back, &x)];
    assert!(off.iter().all(|&off| off <= allowed), "{what}: there and back is off by {off:?}, allowed {allowed:e}");
}

fn check_lengths(backend: Backend, lengths: &[usize], probes: impl Fn(usize) -> Vec<f32>) {
    let mut rig = Rig::new(backend);
    for (at, lengths) in lengths.chunks(64).enumerate() {
        for (i, (&n, outcome)) in lengths.iter().zip(transforms(&mut rig, lengths)).enumerate() {
            check(backend, n, &outcome, &probes(at * 64 + i));
        }
    }
    assert_eq!(rig.faults(), []);
    let pipelines = rig.figures().pipelines_built;
    assert!(pipelines <= 40, "{pipelines} pipelines");
}

fn every_length(backend: Backend, step: usize) {
    let stored = reference("every_length");
    let lengths: Vec<usize> = (1..=4096).filter(|n| n % step == 0 || *n < 70 || n.is_power_of_two()).collect();
    let of = lengths.clone();
    check_lengths(backend, &lengths, |i| stored[(of[i] - 1) * 8..of[i] * 8].to_vec());
}

#[test]
fn every_length_to_4096_is_numpys_on_the_cpu() {
    every_length(Backend::Cpu, 1);
}

#[test]
fn many_lengths_to_4096_are_numpys_on_the_gpu() {
    every_length(Backend::Gpu, 29);
}

#[test]
#[ignore = "takes minutes on a software adapter; scripts/test runs it if there is time"]
fn every_length_to_4096_is_numpys_on_the_gpu() {
    every_length(Backend::Gpu, 1);
}

#[test]
fn primes_and_powers_of_two_to_a_million_are_numpys() {
    let lengths: Vec<usize> = {
        let file = SafeTensors::deserialize(REFERENCES).expect("a file");
        let stored: Vec<i32> = bytemuck::pod_collect_to_vec(file.tensor("long_lengths").expect("stored").data());
        stored.into_iter().map(|n| n as usize).collect()
    };
    let stored = reference("long");
    for backend in BACKENDS {
        check_lengths(backend, &lengths, |i| stored[i * 8..i * 8 + 8].to_vec());
    }
}

#[test]
fn every_axis_and_batch_is_the_same_line() {
    // A line alone, and the same line among others along each axis.
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for n in [1usize, 7, 64, 97, 400, 1500] {
            for batch in [1usize, 3, 64] {
                let x = noise(n * batch, n as u32);
                let rows = rig.spawn(Tensor::from_slice(&x, [batch, n]).expect("a tensor"));
                let expected = rig.compute(move |ops| ops.rfft(rows, None, LAST)).expect("a transform").to_f32();
                let bins = n / 2 + 1;
                for axis in 0..3isize {
                    let got = rig
                        .compute(move |ops| {
                            // The axis of the lines is at `axis`, that of the batch follows in order.
                            let x = ops.reshape(rows, &[batch as isize, 1, n as isize])?;
                            let order: [isize; 3] = [[2, 0, 1], [0, 2, 1], [0, 1, 2]][axis as usize];
                            let y = ops.rfft(ops.permute(x, &order)?, None, axis)?;
                            let back: [isize; 4] = [[1, 2, 0, 3], [0, 2, 1, 3], [0, 1, 2, 3]][axis as usize];
                            ops.permute(y, &back)
                        })
                        .expect("a transform");
                    assert_eq!(got.shape()[..], [batch, 1, bins, 2]);
                    let off = error(&got.to_f32(), &expected);
                    assert!(off < 1e-6, "{backend:?}: {batch} × {n} along axis {axis}: {off}");
                }
                let first = rig.spawn(Tensor::from_slice(&x[..n], [n]).expect("a tensor"));
                let alone = rig.compute(move |ops| ops.rfft(first, None, 0)).expect("a transform").to_f32();
                assert!(error(&alone, &expected[..bins * 2]) < 1e-6);
            }
        }
    }
}

#[test]
fn lines_are_cropped_or_continued_with_zeros() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for (given, n) in [(10, 16), (16, 10), (5, 1), (1, 9), (900, 1024), (900, 2000), (700, 1009)] {
            let x = noise(given * 2, 1);
            let mut fitted = x.clone();
            fitted.resize(2 * n, 0.0);
            let x = rig.spawn(Tensor::from_slice(&x, [given, 2]).expect("a tensor"));
            let fitted = rig.spawn(Tensor::from_slice(&fitted, [n, 2]).expect("a tensor"));
            let [short, long] = [(x, Some(n)), (fitted, None)].map(|(x, length)| {
                let full = rig.compute(move |ops| ops.fft(x, length, LAST)).expect("a transform").to_f32();
                let real = rig
                    .compute(move |ops| {
                        let real = ops.squeeze(ops.slice(x, 1, 0, 1)?, 1)?;
                        ops.rfft(real, length, LAST)
                    })
                    .expect("a transform")
                    .to_f32();
                let inverse = rig.compute(move |ops| ops.irfft(x, n, LAST));
                (full, real, inverse.expect("a transform").to_f32())
            });
            assert!(error(&short.0, &long.0) < 1e-5, "{backend:?}: fft of {given} as {n}");
            assert!(error(&short.1, &long.1) < 1e-5, "{backend:?}: rfft of {given} as {n}");
            assert!(error(&short.2, &long.2) < 1e-5, "{backend:?}: irfft of {given} as {n}");
        }
    }
}

#[test]
fn half_precision_is_stored_and_computed_in_32_bits() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for n in [6usize, 128, 1031] {
            let x = rig.spawn(Tensor::from_slice(&noise(3 * n, 9), [3, n]).expect("a tensor"));
            let (narrow, wide) = (
                rig.compute(move |ops| ops.rfft(ops.cast(x, DType::F16)?, None, LAST)).expect("a transform"),
                rig.compute(move |ops| ops.rfft(ops.cast(ops.cast(x, DType::F16)?, DType::F32)?, None, LAST))
                    .expect("a transform"),
            );
            assert_eq!(narrow.dtype(), DType::F16);
            assert!(error(&narrow.to_f32(), &wide.to_f32()) < 1e-3, "{backend:?}: {n}");
        }
    }
}

#[test]
fn work_before_and_after_a_transform_is_fused_into_it() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for n in [12usize, 256, 1500, 1013] {
            let x = rig.spawn(Tensor::from_slice(&noise(4 * n, 2), [4, n]).expect("a tensor"));
            let fused = rig.compute(move |ops| {
                let spectrum = ops.rfft(ops.value(ops.value(x)? * 2.0 + 1.0)?, None, LAST)?;
                ops.value(spectrum * 3.0)
            });
            let apart = {
                let input = rig.compute(move |ops| ops.value(ops.value(x)? * 2.0 + 1.0)).expect("values");
                let input = rig.spawn(Tensor::from(input));
                rig.compute(move |ops| ops.rfft(input, None, LAST)).expect("a transform").to_f32()
            };
            let apart: Vec<f32> = apart.iter().map(|x| x * 3.0).collect();
            assert!(error(&fused.expect("a transform").to_f32(), &apart) < 1e-6, "{backend:?}: {n}");
        }
    }
}

#[test]
fn a_nan_stays_in_its_line() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for n in [8usize, 100, 1031, 2048] {
            let mut x = noise(2 * n, 3);
            x[n / 2] = f32::NAN;
            let x = rig.spawn(Tensor::from_slice(&x, [2, n]).expect("a tensor"));
            let y = rig.compute(move |ops| ops.rfft(x, None, LAST)).expect("a transform").to_f32();
            let (first, second) = y.split_at(y.len() / 2);
            assert!(first.iter().any(|x| x.is_nan()), "{backend:?}: {n}: the NaN is lost");
            assert!(second.iter().all(|x| x.is_finite()), "{backend:?}: {n}: the NaN spreads");
        }
    }
}

#[test]
fn lengths_that_no_backend_can_transform_are_errors() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::zeros([3, 2], DType::F32).expect("small"));
        let odd = rig.spawn(Tensor::zeros([3, 3], DType::F32).expect("small"));
        rig.with_ops(|ops| {
            for n in [0, (1 << 20) - 3, (1 << 20) + 1, usize::MAX] {
                assert!(matches!(ops.fft(x, n, 0), Err(OpError::Argument { op: "fft", .. })), "{n}");
            }
            assert!(matches!(ops.rfft(x, None, 2), Err(OpError::Axis { op: "rfft", axis: 2, .. })));
            // The axis of the parts is not one of the signal.
            assert!(matches!(ops.fft(x, None, 1), Err(OpError::Axis { op: "fft", .. })));
            assert!(matches!(ops.ifft(odd, None, 0), Err(OpError::Shape { op: "ifft", .. })));
            let empty = ops.full([0, 4], 0.0, DType::F32).expect("small");
            assert_eq!(ops.shape(ops.rfft(empty, None, LAST).expect("nothing to do")).expect("a value")[..], [0, 3, 2]);
            assert!(matches!(ops.rfft(empty, None, 0), Err(OpError::Argument { op: "rfft", .. })));
        });
    }
}
