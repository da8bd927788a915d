//! Quantised types: the blocks of GGUF, and bytes with scales, on the host and on both backends.

mod blocks;
mod bytes;
mod effects;
mod products;

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

use crate::common::Rig;

/// Deterministic pseudo-random numbers between -1 and 1.
fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b1) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

fn block(dtype: DType) -> usize {
    dtype.block().expect("a quantised type")
}

fn floats(rig: &mut Rig, shape: &[usize], values: &[f32]) -> Entity {
    rig.spawn(Tensor::from_slice(values, shape).expect("it fits"))
}

/// The norm of the differences divided by the norm of the expected values.
fn relative_error(actual: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = squares(&mut actual.iter().zip(expected).map(|(&a, &e)| f64::from(a) - f64::from(e)));
    difference / squares(&mut expected.iter().map(|&e| f64::from(e)))
}
