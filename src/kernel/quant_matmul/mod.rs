//! Products with quantised weights.

pub(crate) mod cpu;
pub(crate) mod wgsl;

use crate::ir::DType;

/// `out[i, j] = Σₖ x[i, k] · weight[j, k]` in `f32`, for `x [m, k]` of floats and `weight [n, k]` of a quantised type, or of `i8` that begins at a
/// word, with `k` a multiple of 4 and without a scale.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QuantMatMulKernel {
    pub weight: DType,
    pub m: usize,
    pub n: usize,
    pub k: usize,
}
