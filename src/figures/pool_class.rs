//! Figures about pooled device buffers.

/// What pooled buffers are used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PoolKind {
    /// Tensors and scratch memory.
    Tensors,
    /// Parameters and constants of plans.
    Plans,
    /// Staging buffers for copies to the host.
    Staging,
}

/// Buffers of one kind and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolClass {
    /// What the buffers are used for.
    pub kind: PoolKind,
    /// Bytes per buffer.
    pub bytes: u64,
    /// Number of buffers in use.
    pub used: usize,
    /// Number of idle buffers that are kept for reuse.
    pub idle: usize,
}
