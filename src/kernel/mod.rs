//! What can run: the kernels, as plain descriptions that both backends carry out.
//!
//! A plan is a list of [`Kernel`]s with operands. `gpu` lowers a kernel to WGSL ([`wgsl`]), `cpu` has a twin of the same name. Rules that
//! hold for every kernel but [`MapKernel`]:
//! * inputs are contiguous (their layout may have an offset) unless the field docs say they are strided;
//! * there is one output, contiguous, of a 32-bit dtype (but for those that make blocks); the planner packs narrower results with a map. A plan may
//!   have elementwise work done on each value before it is written (see [`Step::epilogue`](crate::kernel::Step)), which then decides what is
//!   written where;
//! * inputs may be of any dtype; they are computed in the 32-bit type of their class. Quantised inputs are contiguous.

pub(crate) mod custom;
mod launch;
mod step;
mod uniformity;
mod variants;
mod wgsl;

use crate::ir::{
    Class, CustomCall, DType, InnerOp, NormKind, PoolKind, Program, ReduceKind, ScatterReduce, Shape, Window,
};
use smallvec::SmallVec;

pub(crate) use launch::{Access, Binding, Caps, Launch, Params, buffer_type, wgsl_type};
pub(crate) use step::{Fused, Step};
pub(crate) use variants::{Variant, Variants, bucket, choose, variants};
pub(crate) use wgsl::{lower, non_finite};

/// One kernel launch, without its operands. Everything here is structure.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kernel {
    Map(MapKernel),
    MatMul(MatMulKernel),
    QuantMatMul(QuantMatMulKernel),
    Quantize(BlocksKernel),
    BlockCopy(BlocksKernel),
    Reduce(ReduceKernel),
    Softmax(SoftmaxKernel),
    RowNorm(RowNormKernel),
    CumSum(CumSumKernel),
    TopK(TopKKernel),
    Conv(ConvKernel),
    ConvTranspose(ConvKernel),
    Pool(PoolKernel),
    Taps(TapsKernel),
    Gather(GatherKernel),
    GatherElements(GatherElementsKernel),
    GatherNd(GatherNdKernel),
    ScatterElements(ScatterElementsKernel),
    ScatterNd(ScatterNdKernel),
    Attention(AttentionKernel),
    /// A kernel of the user's. Inputs and outputs are contiguous, start where bindings may start, and lie in different memories but for scratch;
    /// behind the outputs come its own scratch memories. Scalars: the words of its params.
    Custom(CustomCall),
}

/// Any fused chain of elementwise ops, copies, fills, casts and generators, over one iteration shape.
///
/// Inputs and outputs are strided; their layouts all have the iteration shape ([`MapKernel::shape`]). An output may name the same
/// storage as inputs only if every such input has the output's very layout and dtype, or touches none of its elements.
/// Scalars: [`Expr::Scalar`] numbers index the step's scalar list. With `dynamic_out`, the last scalar (u32) times that stride is added to
/// the (single) output's offset.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MapKernel {
    /// The iteration space, with axes merged as far as all operands allow.
    pub shape: Shape,
    pub program: Program,
    pub dynamic_out: Option<isize>,
}

/// `out[b, i, j] = Σₖ a[b, i, k] · b[b, k, j]`. Inputs are strided, with layouts `[batch…, m, k]` and `[batch…, k, n]` of one rank; the batch
/// axes are merged as far as possible. `class` is that of both inputs and the output.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MatMulKernel {
    pub inner: InnerOp,
    pub class: Class,
    pub batch: SmallVec<[usize; 4]>,
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

/// `out[i, j] = Σₖ x[i, k] · weight[j, k]` in `f32`, for `x [m, k]` of floats and `weight [n, k]` of a quantised type, or of `i8` that begins at a
/// word, with `k` a multiple of 4 and without a scale.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QuantMatMulKernel {
    pub weight: DType,
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

/// So many blocks of a quantised type, the output's. [`Kernel::Quantize`] makes them of floats, and its output begins with a group and ends with
/// one or with its memory. [`Kernel::BlockCopy`] copies them from anywhere to anywhere, but not within one memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlocksKernel {
    pub dtype: DType,
    pub blocks: usize,
}

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

/// Over the middle of `[outer, n, inner]`; the maximum is subtracted first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SoftmaxKernel {
    pub log: bool,
    pub outer: usize,
    pub n: usize,
    pub inner: usize,
}

/// Each row of `[rows, n]`. Inputs: x, weight `[n]` if flagged, bias `[n]` if flagged. Scalar 0: epsilon.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RowNormKernel {
    pub kind: NormKind,
    pub weight: bool,
    pub bias: bool,
    pub rows: usize,
    pub n: usize,
}

/// Running sums along the middle of `[outer, n, inner]`; exclusive sums start at 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CumSumKernel {
    pub class: Class,
    pub exclusive: bool,
    pub outer: usize,
    pub n: usize,
    pub inner: usize,
}

/// `[rows, n]` → `i32 [rows, k]`: positions, best first, equal values by position. NaN counts as largest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TopKKernel {
    pub class: Class,
    pub largest: bool,
    pub rows: usize,
    pub n: usize,
    pub k: usize,
}

/// Convolution of `x [batch, channels_in, in…]` with `weight [channels_out, channels_in / groups, window…]` (or, transposed,
/// `[channels_in, channels_out / groups, window…]`), bias `[channels_out]` if flagged, to `[batch, channels_out, out…]`. Floats.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConvKernel {
    pub window: Window,
    pub groups: usize,
    pub bias: bool,
    pub batch: usize,
    pub channels_in: usize,
    pub channels_out: usize,
    pub input: [usize; 3],
    pub output: [usize; 3],
}

/// Each plane of `[planes, in…]` → `[planes, out…]`. A window wholly outside the input gives 0 (average) or the lowest value (max).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PoolKernel {
    pub kind: PoolKind,
    pub class: Class,
    pub window: Window,
    pub planes: usize,
    pub input: [usize; 3],
    pub output: [usize; 3],
}

/// `out[o, j, i] = Σₜ weight[j, t] · x[o, position[j, t], i]` for `x [outer, n, inner]`. Positions are in range. Floats.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TapsKernel {
    pub outer: usize,
    pub n: usize,
    pub inner: usize,
    pub out: usize,
    pub taps: usize,
}

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

impl Kernel {
    /// The name of the kernel, its `.wgsl` file, its CPU twin and its label.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Kernel::Map(_) => "map",
            Kernel::MatMul(_) => "matmul",
            Kernel::QuantMatMul(_) => "quant_matmul",
            Kernel::Quantize(_) => "quantize",
            Kernel::BlockCopy(_) => "block_copy",
            Kernel::Reduce(_) => "reduce",
            Kernel::Softmax(_) => "softmax",
            Kernel::RowNorm(_) => "row_norm",
            Kernel::CumSum(_) => "cumsum",
            Kernel::TopK(_) => "top_k",
            Kernel::Conv(_) => "conv",
            Kernel::ConvTranspose(_) => "conv_transpose",
            Kernel::Pool(_) => "pool",
            Kernel::Taps(_) => "taps",
            Kernel::Gather(_) => "gather",
            Kernel::GatherElements(_) => "gather_elements",
            Kernel::GatherNd(_) => "gather_nd",
            Kernel::ScatterElements(_) => "scatter_elements",
            Kernel::ScatterNd(_) => "scatter_nd",
            Kernel::Attention(_) => "attention",
            Kernel::Custom(call) => call.code.name,
        }
    }

    /// Whether the kernel reads positions from memory, and so counts those out of range as faults.
    pub(crate) fn counts_faults(&self) -> bool {
        matches!(
            self,
            Kernel::Gather(_)
                | Kernel::GatherElements(_)
                | Kernel::GatherNd(_)
                | Kernel::ScatterElements(_)
                | Kernel::ScatterNd(_)
        )
    }

    /// Whether every result is written once, through `store_y`, and never read back, so that more work can be done on it there.
    pub(crate) fn takes_epilogue(&self) -> bool {
        match self {
            Kernel::Map(_) | Kernel::ScatterNd(_) | Kernel::Quantize(_) => false,
            Kernel::BlockCopy(_) | Kernel::Custom(_) => false,
            Kernel::Gather(kernel) => kernel.rows == kernel.n,
            _ => true,
        }
    }

    /// Whether input 0 is one contiguous operand that is read through `load_x` alone, so that it can be computed there.
    pub(crate) fn takes_prologue(&self) -> bool {
        matches!(
            self,
            Kernel::Reduce(_)
                | Kernel::Softmax(_)
                | Kernel::RowNorm(_)
                | Kernel::CumSum(_)
                | Kernel::TopK(_)
                | Kernel::Pool(_)
        )
    }

    /// Names of the inputs, in operand order; WGSL and reports use them.
    pub(crate) fn input_names(&self) -> SmallVec<[&'static str; 4]> {
        let flagged = |base: &[&'static str], flags: &[(bool, &'static str)]| {
            base.iter().copied().chain(flags.iter().filter(|f| f.0).map(|f| f.1)).collect()
        };
        match self {
            Kernel::Map(_) | Kernel::Custom(_) => SmallVec::new(),
            Kernel::MatMul(_) => flagged(&["a", "b"], &[]),
            Kernel::QuantMatMul(_) => flagged(&["x", "weight"], &[]),
            Kernel::Quantize(_) | Kernel::BlockCopy(_) => flagged(&["x"], &[]),
            Kernel::Reduce(_) | Kernel::Softmax(_) | Kernel::CumSum(_) | Kernel::TopK(_) | Kernel::Pool(_) => {
                flagged(&["x"], &[])
            }
            Kernel::RowNorm(k) => flagged(&["x"], &[(k.weight, "weight"), (k.bias, "bias")]),
            Kernel::Conv(k) | Kernel::ConvTranspose(k) => flagged(&["x", "weight"], &[(k.bias, "bias")]),
            Kernel::Taps(_) => flagged(&["x", "position", "weight"], &[]),
            Kernel::Gather(_) | Kernel::GatherElements(_) | Kernel::GatherNd(_) => flagged(&["data", "index"], &[]),
            Kernel::ScatterElements(_) | Kernel::ScatterNd(_) => flagged(&["data", "index", "updates"], &[]),
            Kernel::Attention(k) => flagged(&["q", "k", "v"], &[(k.mask, "mask")]),
        }
    }
}
