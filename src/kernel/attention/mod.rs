//! Scaled dot-product attention.

pub(crate) mod cpu;
pub(crate) mod registers;
pub(crate) mod wgsl;

/// Scaled dot-product attention with an online softmax. Inputs are strided: `q [batch, heads, queries, qk]`, `k [batch, groups, keys, qk]`,
/// `v [batch, groups, keys, value]`, and `mask [batch, heads, queries, keys]` if flagged. Output `[batch, heads, queries, value]`, contiguous.
/// Query head `h` uses key head `h · groups / heads`. Scalars: scale (f32), softcap (f32, 0 = none), valid keys (u32; later ones are
/// ignored), position of query 0 (i32; with `causal`, query `i` sees keys `0 ..= i + position`). A query that sees no key gives 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AttentionKernel {
    pub causal: bool,
    pub mask: bool,
    pub batch: usize,
    pub heads: usize,
    pub groups: usize,
    pub queries: usize,
    pub keys: usize,
    pub qk: usize,
    pub value: usize,
}
