//! The kernel table: plain descriptions of kernels that both backends can run.
//!
//! A kernel describes itself in its own file, through [`KernelSpec`]: what inputs it needs, what may fuse with it, its
//! cost, how it splits, its variants, its WGSL and its CPU twin. The list below generates the enum [`Kernel`], its
//! dispatch and the mapping from ops to kernels. To add a kernel, add an [`Op`] with its recorder, a file here that
//! implements [`KernelSpec`] and `describe`, its text in `assets/kernels`, and a line in the list. The compiler reports
//! what is missing.
//!
//! A plan is a list of [`Step`]s: kernels with operands. These rules hold for every kernel except [`MapKernel`]:
//!
//! * Inputs are contiguous (their layout may have an offset) unless [`KernelSpec::need`] asks for less.
//! * There is one contiguous output of a 32-bit dtype, except for kernels that produce blocks. The planner packs
//!   narrower results with a map. If a step has an [epilogue](crate::kernel::Step::epilogue), the epilogue determines
//!   what is written where.
//! * Inputs may have any dtype and are computed in the 32-bit type of their class. Quantised inputs are contiguous.
//!
//! [`host`] contains the code shared by CPU twins, [`wgsl`] the code shared by shaders.

mod attention;
mod block_copy;
mod conv;
mod conv_transpose;
mod cumsum;
mod cumsum_parts;
pub(crate) mod custom;
mod fft;
mod gather;
pub(crate) mod host;
mod launch;
mod map;
mod matmul;
mod pool;
mod pool_parts;
mod quant_matmul;
mod quantize;
mod recurrent;
mod reduce;
mod roi_pool;
mod row_chain;
mod row_norm;
mod sample;
mod scatter;
mod softmax;
mod sort;
mod spec;
mod split;
mod step;
mod table;
mod taps;
mod top_k;
mod uniformity;
mod variants;
mod wgsl;

pub(crate) use attention::AttentionKernel;
pub(crate) use block_copy::BlockCopyKernel;
pub(crate) use conv::ConvKernel;
pub(crate) use conv_transpose::ConvTransposeKernel;
pub(crate) use cumsum::CumSumKernel;
pub(crate) use cumsum_parts::CumSumPartsKernel;
pub(crate) use fft::{FftKernel, LONGEST as LONGEST_FFT, is_packed, is_possible as can_transform, table as fft_table};
pub(crate) use gather::{GatherElementsKernel, GatherKernel, GatherNdKernel};
pub(crate) use host::{CpuPool, HostWords};
pub(crate) use launch::{Access, Binding, Caps, Launch, LoopBound, Params, buffer_type, wgsl_type};
pub(crate) use map::{MapKernel, merge_axes};
pub(crate) use matmul::MatMulKernel;
pub(crate) use pool::PoolKernel;
pub(crate) use pool_parts::PoolPartsKernel;
pub(crate) use quant_matmul::QuantMatMulKernel;
pub(crate) use quantize::QuantizeKernel;
pub(crate) use recurrent::RecurrentKernel;
pub(crate) use reduce::{LONGEST_ROW, ReduceKernel};
pub(crate) use roi_pool::RoiPoolKernel;
pub(crate) use row_chain::{INPUTS as CHAIN_INPUTS, RowChainKernel, lines_of, links_of, rowed_inputs, width};
pub(crate) use row_norm::RowNormKernel;
pub(crate) use sample::SampleKernel;
pub(crate) use scatter::{ScatterElementsKernel, ScatterNdKernel, ScatterPassKernel};
pub(crate) use softmax::SoftmaxKernel;
pub(crate) use sort::SortKernel;
pub(crate) use spec::{Inputs, KernelSpec, Need, Reads, bytes};
pub(crate) use split::{EVEN, InParts, Levels, Part, PartOutput, PassInput, part};
pub(crate) use step::{Fused, Step};
pub(crate) use table::{Elementwise, Lowering};
pub(crate) use taps::TapsKernel;
pub(crate) use top_k::TopKKernel;
pub(crate) use variants::{Variant, Variants, bucket, choose, variants};
pub(crate) use wgsl::{blocks, lower, non_finite};

use table::kernels;

use crate::ir::{CustomCall, Node, NodeId, Op, Operand};

kernels! {
    kernels {
        Map(MapKernel),
        MatMul(MatMulKernel) for MatMul { inner },
        QuantMatMul(QuantMatMulKernel) for QuantMatMul,
        Quantize(QuantizeKernel) for Quantize,
        BlockCopy(BlockCopyKernel),
        Reduce(ReduceKernel) for Reduce { kind, axis, count },
        Softmax(SoftmaxKernel) for Softmax { axis, log },
        RowChain(RowChainKernel),
        RowNorm(RowNormKernel) for RowNorm { kind, weight, bias },
        CumSum(CumSumKernel) for CumSum { axis, exclusive },
        CumSumParts(CumSumPartsKernel),
        TopK(TopKKernel) for TopK { k, largest },
        Sort(SortKernel),
        Conv(ConvKernel) for Conv { window, groups, bias },
        ConvTranspose(ConvTransposeKernel) for ConvTranspose { window, groups, bias },
        Pool(PoolKernel) for Pool { kind, window },
        PoolParts(PoolPartsKernel),
        Taps(TapsKernel) for Taps { axis },
        Gather(GatherKernel) for Gather { axis },
        GatherElements(GatherElementsKernel) for GatherElements { axis },
        GatherNd(GatherNdKernel) for GatherNd { batch },
        ScatterElements(ScatterElementsKernel) for ScatterElements { axis, reduce },
        ScatterNd(ScatterNdKernel) for ScatterNd { reduce },
        ScatterPasses(ScatterPassKernel),
        Attention(AttentionKernel) for Attention { causal, mask },
        Sample(SampleKernel) for Sample { sampling },
        RoiPool(RoiPoolKernel) for RoiPool { pooling },
        Recurrent(RecurrentKernel) for Recurrent { layer },
        Fft(FftKernel) for Fft { transform },
        /// A custom kernel. Inputs and outputs are contiguous, start at valid binding offsets, and use different
        /// memories except for scratch. Its scratch memories follow the outputs. Scalars: the words of its params.
        Custom(CustomCall),
    }
    planner {
        Op::Load { slot, layout } => Lowering::Load { slot: *slot, layout },
        Op::Host { index } => Lowering::Host { index: *index },
        Op::Const { words } => Lowering::Const { words },
        Op::Scalar => Lowering::Elementwise(Elementwise::Scalar),
        Op::Iota => Lowering::Elementwise(Elementwise::Iota),
        Op::Unary(op) => Lowering::Elementwise(Elementwise::Unary(*op)),
        Op::Binary(op) => Lowering::Elementwise(Elementwise::Binary(*op)),
        Op::Select => Lowering::Elementwise(Elementwise::Select),
        Op::Cast => Lowering::Elementwise(Elementwise::Cast),
        Op::Function(function) => Lowering::Elementwise(Elementwise::Function(function)),
        Op::View(view) => Lowering::View(view),
        Op::Assemble { places, fill } => Lowering::Assemble { places, fill: *fill },
        Op::Custom(call) => Lowering::Custom(call),
        Op::CustomOutput { index } => Lowering::CustomOutput { index: *index },
        Op::Store { slot, layout, at } => Lowering::Store { slot: *slot, layout, at: *at },
        Op::Read { request } => Lowering::Read { request: *request },
    }
}

impl Kernel {
    /// Returns the map, if the kernel is one. Maps can be fused with other kernels.
    pub(crate) fn as_map(&self) -> Option<&MapKernel> {
        if let Kernel::Map(map) = self { Some(map) } else { None }
    }
}
