//! The minimal work of a launch, independent of backend and implementation: bytes moved and arithmetic operations.

use crate::kernel::{Step, bytes};

/// Bytes and operations of one launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Size of all elements read or written, each counted once, as stored.
    pub bytes: u64,
    /// Additions, multiplications and comparisons. A function such as `exp` counts as several.
    pub flops: u64,
}

/// The cost of a step: that of its kernel and of everything fused to it, plus the bytes it writes.
pub(crate) fn cost(step: &Step) -> Cost {
    let spec = step.kernel.spec();
    let fused = || step.prologue.iter().chain(&step.epilogue);
    let joined = fused().flat_map(|fused| &fused.inputs).filter(|operand| operand.source.has_memory());
    let moved = spec.bytes_read(step) + joined.chain(&step.outputs).map(bytes).sum::<usize>();
    let elementwise: usize = fused().map(|fused| fused.map.flops()).sum();
    Cost { bytes: moved as u64, flops: (spec.flops() + elementwise) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Class, DType, InnerOp, Layout, Operand, Source};
    use crate::kernel::MatMulKernel;

    #[test]
    fn a_product_reads_each_side_once_and_a_broadcast_side_less() {
        let operand = |slot, layout: Layout| Operand { source: Source::Slot(slot), dtype: DType::F32, layout };
        let kernel = MatMulKernel {
            inner: InnerOp::Product,
            class: Class::Float,
            batch: smallvec::smallvec![3],
            m: 4,
            n: 5,
            k: 6,
        };
        let a = Layout::contiguous([3, 4, 6]);
        let b = Layout::contiguous([6, 5]).broadcast_to(&[3, 6, 5].into()).unwrap();
        let y = Layout::contiguous([3, 4, 5]);
        let step = Step::new(kernel, [operand(0, a), operand(1, b)], operand(2, y));
        assert_eq!(cost(&step), Cost { bytes: 4 * (72 + 30 + 60), flops: 2 * 3 * 4 * 5 * 6 });
    }
}
