//! Matrix products.

pub(crate) mod cpu;
pub(crate) mod gemm;
pub(crate) mod matvec;
pub(crate) mod registers;
pub(crate) mod wgsl;

use smallvec::SmallVec;

use crate::ir::{Class, InnerOp};

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
