//! The minimal work of a launch, independent of backend and implementation: bytes moved and arithmetic operations.

use crate::kernel::{Kernel, RowChainKernel, Step, bytes, width};

/// Maximum number of weights of one product in a chain. A larger product keeps the whole device busy by itself, whereas
/// a workgroup of a chain reads all weights.
const CHAINED_PRODUCT: usize = 1 << 16;
/// Maximum number of weights of all products in a chain.
const CHAINED_WEIGHTS: usize = 1 << 20;
/// Maximum number of numbers per row that the links of a chain write, so that loops of threads stay short. Rows of norms
/// and softmaxes count three times, because they are read that often.
const CHAINED_WIDTH: usize = 1 << 13;
/// Rows that a workgroup should process at a time, because it reads the weights once for all of them.
const CHAINED_ROWS: usize = 4;
/// A chain without products, which has no weights to read, pays up to this number of elements. Larger ones are better
/// spread over more threads per row.
const CHAINED_ELEMENTS: usize = 1 << 16;

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

/// Whether a chain costs less than a launch for each of its links. `words` are those of the memory for its values.
pub(super) fn chain_pays(chain: &RowChainKernel, words: usize) -> bool {
    let weights = |link: &Step| if let Kernel::MatMul(product) = &link.kernel { product.n * product.k } else { 0 };
    let written = |link: &Step| {
        let width = link.outputs.first().map_or(0, |output| width(&output.layout));
        if matches!(link.kernel, Kernel::MatMul(_) | Kernel::Map(_)) { width } else { 3 * width }
    };
    let (mut all, mut largest, mut widths) = (0, 0, 0);
    for link in &chain.links {
        all += weights(link);
        largest = largest.max(weights(link));
        widths += written(link);
    }
    let block = chain.block(words).unwrap_or(0);
    block >= chain.rows.min(CHAINED_ROWS)
        && largest <= CHAINED_PRODUCT
        && all <= CHAINED_WEIGHTS
        && widths <= CHAINED_WIDTH
        && (all > 0 || chain.rows * widths <= CHAINED_ELEMENTS)
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
