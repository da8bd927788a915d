//! What a step reads and writes.

use super::{DType, Layout};

/// Where an operand's words are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Source {
    /// A storage of the batch.
    Slot(u32),
    /// A scratch value: `Plan::regions`.
    Scratch(u32),
    /// Shared data: `Plan::constants`.
    Constant(u32),
    /// No memory: the element at a position is the position itself, as `i32`. Inputs of maps only.
    Iota,
    /// No memory: what the step computes on the way. In an epilogue the kernel's own value, among a kernel's inputs what its prologue gives.
    Fused,
}

/// An input or output of a step: elements of `dtype` at `layout` in `source`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Operand {
    pub source: Source,
    pub dtype: DType,
    pub layout: Layout,
}

impl Source {
    /// Whether there is anything to bind.
    pub(crate) fn has_memory(self) -> bool {
        !matches!(self, Source::Iota | Source::Fused)
    }
}
