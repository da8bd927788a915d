//! The inputs that all contestants get.

use std::sync::Arc;

use bevy_tensor_compute::tensor::{DType, TensorData};

/// Host values of one input.
#[derive(Clone)]
pub struct Array {
    pub shape: Vec<usize>,
    pub values: Arc<[f32]>,
    /// Whether all repetitions share it, like weights of a model. Otherwise every set of inputs has its own copy.
    pub shared: bool,
    /// The quantised data for our crate, if it is not plain numbers.
    quantized: Option<TensorData>,
}

impl Array {
    /// Deterministic uniform numbers in `-scale..scale`.
    pub fn uniform(seed: u64, scale: f32, shape: &[usize]) -> Self {
        let mut state = seed;
        let values = (0..shape.iter().product()).map(|_| scale * next(&mut state)).collect();
        Self { shape: shape.to_vec(), values, shared: false, quantized: None }
    }

    /// Shared by all repetitions.
    pub fn weight(seed: u64, scale: f32, shape: &[usize]) -> Self {
        Self { shared: true, ..Self::uniform(seed, scale, shape) }
    }

    /// The given values, shared by all repetitions.
    pub fn fixed(values: Vec<f32>, shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), values: values.into(), shared: true, quantized: None }
    }

    /// Numbers that our crate gets in a quantised type. Rivals get the dequantised numbers.
    pub fn quantized(seed: u64, scale: f32, shape: &[usize], dtype: DType) -> Self {
        let plain = Self::uniform(seed, scale, shape);
        let data = TensorData::quantized(dtype, shape, &plain.values).expect("rows of whole blocks");
        Self { values: data.to_f32().into(), quantized: Some(data), ..plain }
    }

    /// The input for our crate.
    pub fn data(&self) -> TensorData {
        if let Some(data) = &self.quantized {
            return data.clone();
        }
        TensorData::new(&self.values[..], self.shape.clone()).expect("the shape has as many elements")
    }
}

/// SplitMix64. The upper bits are mapped to −1..1.
fn next(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    (z >> 40) as f32 / (1 << 23) as f32 - 1.0
}
