//! Scatters: elements written to positions that are read from memory.

pub(crate) mod cpu;
pub(crate) mod wgsl;

use crate::ir::{Class, ScatterReduce, Shape};

/// The output is `data` with `updates[p]` combined in at `p with axis := index[p]`, in order of `p`. Shapes of `indices` and `updates` are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ScatterElementsKernel {
    pub class: Class,
    pub reduce: ScatterReduce,
    pub axis: usize,
    pub data: Shape,
    pub indices: Shape,
}

/// The output is `data [dims…, inner]` with `updates [tuples, inner]` combined in at the index tuples, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ScatterNdKernel {
    pub class: Class,
    pub reduce: ScatterReduce,
    pub tuples: usize,
    pub dims: Shape,
    pub inner: usize,
}
