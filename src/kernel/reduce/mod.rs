//! Reductions over the middle of `[outer, n, inner]`.

pub(crate) mod cpu;
pub(crate) mod wgsl;

use crate::ir::{Class, ReduceKind};

/// Input `[outer, n, inner]` → output `[outer, inner]`. `n` is at least 1. Output dtype: the input's 32-bit type, `i32` for positions.
/// `Mean` is for floats only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReduceKernel {
    pub kind: ReduceKind,
    pub class: Class,
    pub outer: usize,
    pub n: usize,
    pub inner: usize,
}
