//! What a launch has to do by the numbers, whoever does it and however: bytes that must move, and arithmetic.

use crate::ir::Operand;
use crate::kernel::{Fused, Kernel, MapKernel, Step};

/// Bytes and operations of one launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Every element read or written, once, as it is stored.
    pub bytes: u64,
    /// Additions, multiplications and comparisons; a function such as `exp` counts as the additions it takes.
    pub flops: u64,
}

/// The cost of a step: what its operands are and what its kernel is say all.
pub(crate) fn cost(step: &Step) -> Cost {
    let gathered = step.outputs.first().map_or(0, |output| output.layout.elements());
    let read = |(i, operand): (usize, &Operand)| match (&step.kernel, i) {
        // Only what is asked for is read of the data.
        (Kernel::Gather(_) | Kernel::GatherElements(_) | Kernel::GatherNd(_), 0) => {
            operand.dtype.bytes(gathered.min(operand.layout.elements()))
        }
        _ => bytes(operand),
    };
    let fused = || step.prologue.iter().chain(&step.epilogue);
    let reads: usize = step.inputs.iter().enumerate().filter(|(_, o)| o.source.has_memory()).map(read).sum();
    let joined = fused().flat_map(|fused| &fused.inputs).filter(|o| o.source.has_memory());
    let moved = reads + joined.chain(&step.outputs).map(bytes).sum::<usize>();
    let elementwise: usize = fused().map(|Fused { map, .. }| map_flops(map)).sum();
    Cost { bytes: moved as u64, flops: (kernel_flops(&step.kernel) + elementwise) as u64 }
}

/// Bytes of the different elements of an operand: repeated ones are read once.
fn bytes(operand: &Operand) -> usize {
    let layout = &operand.layout;
    let different =
        layout.shape.iter().zip(&layout.strides).map(|(&n, &stride)| if stride == 0 { n.min(1) } else { n });
    operand.dtype.bytes(different.product())
}

fn map_flops(map: &MapKernel) -> usize {
    map.shape.elements() * map.program.exprs.iter().map(|expr| expr.cost()).sum::<usize>()
}

fn kernel_flops(kernel: &Kernel) -> usize {
    let product = |sizes: &[usize]| sizes.iter().product::<usize>();
    match kernel {
        Kernel::Map(map) => map_flops(map),
        Kernel::MatMul(k) => 2 * product(&k.batch) * k.m * k.n * k.k,
        Kernel::QuantMatMul(k) => 2 * k.m * k.n * k.k,
        Kernel::Reduce(k) => k.outer * k.n * k.inner,
        // The maximum, the difference, its exponential, the sum, the quotient.
        Kernel::Softmax(k) => k.outer * k.n * k.inner * 24,
        // Mean and variance in one pass, then the scaled difference.
        Kernel::RowNorm(k) => k.rows * k.n * 8,
        Kernel::CumSum(k) => k.outer * k.n * k.inner,
        Kernel::Conv(k) => {
            let taps = k.channels_in / k.groups.max(1) * product(&k.window.size);
            2 * k.batch * k.channels_out * product(&k.output) * taps
        }
        Kernel::ConvTranspose(k) => {
            let taps = k.channels_out / k.groups.max(1) * product(&k.window.size);
            2 * k.batch * k.channels_in * product(&k.input) * taps
        }
        Kernel::Pool(k) => k.planes * product(&k.output) * product(&k.window.size),
        Kernel::Taps(k) => 2 * k.outer * k.out * k.inner * k.taps,
        Kernel::Attention(k) => 2 * k.batch * k.heads * k.queries * k.keys * (k.qk + k.value),
        // These move elements, or compare a few.
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Class, DType, InnerOp, Layout, Source};
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
        let step = Step::new(Kernel::MatMul(kernel), [operand(0, a), operand(1, b)], operand(2, y));
        assert_eq!(cost(&step), Cost { bytes: 4 * (72 + 30 + 60), flops: 2 * 3 * 4 * 5 * 6 });
    }
}
