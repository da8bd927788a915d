//! Gathers: elements at positions that are read from memory.

pub(crate) mod cpu;
pub(crate) mod wgsl;

use crate::ir::{Class, Shape};

/// `out[o, j, i] = data[o, index[j], i]` for `data [outer, n, inner]` and `indices` indices. As in all gathers and scatters, a negative index
/// counts from the end, and one out of range is clamped and counted as a fault. `n` is at least 1.
///
/// Of a large table the launch may see only the `rows` from `first` on: then `outer` is 1, `data` is those rows, and what belongs to other rows is
/// left as it is. The launch that sees the first row counts the faults.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GatherKernel {
    pub class: Class,
    pub outer: usize,
    pub n: usize,
    pub inner: usize,
    pub indices: usize,
    pub first: usize,
    pub rows: usize,
}

/// `out[p] = data[p with axis := index[p]]`, for every position `p` of `indices` (the output's shape); `data` has the same rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GatherElementsKernel {
    pub class: Class,
    pub axis: usize,
    pub data: Shape,
    pub indices: Shape,
}

/// For each of `batch · tuples` index tuples of `depth` numbers into `data [batch, dims…, inner]` (`dims` has `depth` axes), `inner` elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GatherNdKernel {
    pub class: Class,
    pub batch: usize,
    pub tuples: usize,
    pub dims: Shape,
    pub inner: usize,
}
