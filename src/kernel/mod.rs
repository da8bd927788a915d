//! What can run: the kernels, as plain descriptions that both backends carry out.
//!
//! A plan is a list of [`Kernel`]s with operands. `gpu` lowers a kernel to WGSL ([`wgsl`]), `cpu` has a twin of the same name. Rules that
//! hold for every kernel but [`MapKernel`]:
//! * inputs are contiguous (their layout may have an offset) unless the field docs say they are strided;
//! * there is one output, contiguous, of a 32-bit dtype (but for those that make blocks); the planner packs narrower results with a map. A plan may
//!   have elementwise work done on each value before it is written (see [`Step::epilogue`](crate::kernel::Step)), which then decides what is
//!   written where;
//! * inputs may be of any dtype; they are computed in the 32-bit type of their class. Quantised inputs are contiguous.

pub(crate) mod attention;
pub(crate) mod block_copy;
pub(crate) mod conv;
pub(crate) mod conv_transpose;
pub(crate) mod cumsum;
pub(crate) mod custom;
pub(crate) mod gather;
pub(crate) mod host;
mod launch;
pub(crate) mod map;
pub(crate) mod matmul;
pub(crate) mod pool;
pub(crate) mod quant_matmul;
pub(crate) mod quantize;
pub(crate) mod reduce;
pub(crate) mod row_norm;
pub(crate) mod scatter;
pub(crate) mod softmax;
mod step;
pub(crate) mod taps;
pub(crate) mod top_k;
mod uniformity;
mod variants;
mod wgsl;

use crate::ir::CustomCall;
use smallvec::SmallVec;

pub(crate) use attention::AttentionKernel;
pub(crate) use conv::ConvKernel;
pub(crate) use cumsum::CumSumKernel;
pub(crate) use gather::{GatherElementsKernel, GatherKernel, GatherNdKernel};
pub(crate) use host::{CpuPool, HostWords};
pub(crate) use launch::{Access, Binding, Caps, Launch, Params, buffer_type, wgsl_type};
pub(crate) use map::MapKernel;
pub(crate) use matmul::MatMulKernel;
pub(crate) use pool::PoolKernel;
pub(crate) use quant_matmul::QuantMatMulKernel;
pub(crate) use quantize::BlocksKernel;
pub(crate) use reduce::ReduceKernel;
pub(crate) use row_norm::RowNormKernel;
pub(crate) use scatter::{ScatterElementsKernel, ScatterNdKernel};
pub(crate) use softmax::SoftmaxKernel;
pub(crate) use step::{Fused, Step};
pub(crate) use taps::TapsKernel;
pub(crate) use top_k::TopKKernel;
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
