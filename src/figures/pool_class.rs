//! Pooled device buffers, as figures.

/// What pooled buffers can stand in for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PoolKind {
    /// Tensors and scratch memory.
    Tensors,
    /// Parameters and constants of plans.
    Plans,
    /// Copies to the host.
    Staging,
}

/// Buffers of one kind and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolClass {
    /// What they are for.
    pub kind: PoolKind,
    /// Bytes of each.
    pub bytes: u64,
    /// How many are in use.
    pub used: usize,
    /// How many wait to be used again.
    pub idle: usize,
}
