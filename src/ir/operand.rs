//! The operands of plan steps.

use super::{DType, Layout};

/// Where the data of an operand comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Source {
    /// A storage of the batch.
    Slot(u32),
    /// A scratch value, an index into `Plan::regions`.
    Scratch(u32),
    /// A constant, an index into `Plan::constants`.
    Constant(u32),
    /// No memory. The element at a position is the position itself, as `i32`. Only for inputs of maps.
    Iota,
    /// No memory. The step computes the value itself: in an epilogue, the kernel's own result; among a kernel's inputs,
    /// the result of its prologue.
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
    /// Whether the operand occupies memory and must be bound.
    pub(crate) fn has_memory(self) -> bool {
        !matches!(self, Source::Iota | Source::Fused)
    }
}
