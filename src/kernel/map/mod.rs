//! Any fused chain of elementwise ops.

pub(crate) mod cpu;
pub(crate) mod wgsl;

use crate::ir::{Program, Shape};

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
