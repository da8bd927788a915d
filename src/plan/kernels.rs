//! Which kernel carries out a node, over which operands.

use smallvec::{SmallVec, smallvec};

use super::lower::Planner;
use super::values::merge_axes;
use crate::ir::{DType, InnerOp, Layout, NodeId, Op, Operand, ReduceKind, Shape};
use crate::kernel::Step;
use crate::kernel::*;

impl Planner<'_> {
    /// The kernel of a node that is neither elementwise, view nor effect, and its inputs in memory.
    pub(super) fn describe(&mut self, id: NodeId) -> (Kernel, SmallVec<[Operand; 4]>) {
        let node = self.graph.node(id);
        if let Op::MatMul { inner } = node.op {
            let (a, b) = (self.memory(node.inputs[0]), self.memory(node.inputs[1]));
            return matmul(inner, a, b);
        }
        if let Op::QuantMatMul = node.op {
            let (x, mut weight) = (self.contiguous(node.inputs[0]), self.contiguous(node.inputs[1]));
            if weight.dtype == DType::I8 && !weight.layout.offset.is_multiple_of(4) {
                weight = self.fresh(weight);
            }
            let (m, n, k) = (node.shape[0], node.shape[1], x.layout.shape[1]);
            let kernel = QuantMatMulKernel { weight: weight.dtype, m, n, k };
            return (Kernel::QuantMatMul(kernel), smallvec![x, weight]);
        }
        let strided = matches!(node.op, Op::Attention { .. });
        let inputs: SmallVec<[Operand; 4]> = node
            .inputs
            .iter()
            .map(|&input| if strided { self.memory(input) } else { self.contiguous(input) })
            .collect();
        let shapes: SmallVec<[Shape; 4]> = inputs.iter().map(|i| i.layout.shape.clone()).collect();
        let x = &shapes[0];
        let class = inputs[0].dtype.class();
        let product = |dims: &[usize]| dims.iter().product::<usize>();
        let around = |axis: usize| (product(&x[..axis]), x[axis], product(&x[axis + 1..]));
        let spatial = |shape: &Shape| [shape[2], shape[3], shape[4]];
        let kernel = match &node.op {
            Op::Reduce { kind, axis, count } => {
                let whole = ReduceKernel {
                    kind: *kind,
                    class,
                    outer: product(&x[..*axis]),
                    n: product(&x[*axis..axis + count]),
                    inner: product(&x[axis + count..]),
                };
                let Some((parts, rest)) = split(&whole) else { return (Kernel::Reduce(whole), inputs) };
                let found = self.new_scratch(&[rest.outer, rest.n, rest.inner].into(), class.dtype());
                self.push(Step { nodes: smallvec![id], ..Step::new(Kernel::Reduce(parts), inputs, found.clone()) });
                return (Kernel::Reduce(rest), smallvec![found]);
            }
            Op::Softmax { axis, log } => {
                let (outer, n, inner) = around(*axis);
                Kernel::Softmax(SoftmaxKernel { log: *log, outer, n, inner })
            }
            Op::RowNorm { kind, weight, bias } => {
                let n = x.last().copied().unwrap_or(1);
                let rows = x.elements() / n.max(1);
                Kernel::RowNorm(RowNormKernel { kind: *kind, weight: *weight, bias: *bias, rows, n })
            }
            Op::CumSum { axis, exclusive } => {
                let (outer, n, inner) = around(*axis);
                Kernel::CumSum(CumSumKernel { class, exclusive: *exclusive, outer, n, inner })
            }
            Op::TopK { k, largest } => {
                let n = x.last().copied().unwrap_or(1);
                let rows = x.elements() / n.max(1);
                Kernel::TopK(TopKKernel { class, largest: *largest, rows, n, k: *k })
            }
            Op::Conv { window, groups, bias } | Op::ConvTranspose { window, groups, bias } => {
                let kernel = ConvKernel {
                    window: *window,
                    groups: *groups,
                    bias: *bias,
                    batch: x[0],
                    channels_in: x[1],
                    channels_out: node.shape[1],
                    input: spatial(x),
                    output: spatial(&node.shape),
                };
                if matches!(node.op, Op::Conv { .. }) { Kernel::Conv(kernel) } else { Kernel::ConvTranspose(kernel) }
            }
            Op::Pool { kind, window } => Kernel::Pool(PoolKernel {
                kind: *kind,
                class,
                window: *window,
                planes: x[0] * x[1],
                input: spatial(x),
                output: spatial(&node.shape),
            }),
            Op::Taps { axis } => {
                let (outer, n, inner) = around(*axis);
                Kernel::Taps(TapsKernel { outer, n, inner, out: shapes[1][0], taps: shapes[1][1] })
            }
            Op::Gather { axis } => {
                let (outer, n, inner) = around(*axis);
                Kernel::Gather(GatherKernel {
                    class,
                    outer,
                    n,
                    inner,
                    indices: shapes[1].elements(),
                    first: 0,
                    rows: n,
                })
            }
            Op::GatherElements { axis } => Kernel::GatherElements(GatherElementsKernel {
                class,
                axis: *axis,
                data: x.clone(),
                indices: shapes[1].clone(),
            }),
            Op::GatherNd { batch } => {
                let depth = shapes[1].last().copied().unwrap_or(1);
                let batches = product(&x[..*batch]);
                Kernel::GatherNd(GatherNdKernel {
                    class,
                    batch: batches,
                    tuples: shapes[1].elements() / (depth * batches).max(1),
                    dims: Shape::from(&x[*batch..batch + depth]),
                    inner: product(&x[batch + depth..]),
                })
            }
            Op::ScatterElements { axis, reduce } => Kernel::ScatterElements(ScatterElementsKernel {
                class,
                reduce: *reduce,
                axis: *axis,
                data: x.clone(),
                indices: shapes[1].clone(),
            }),
            Op::ScatterNd { reduce } => {
                let depth = shapes[1].last().copied().unwrap_or(1);
                Kernel::ScatterNd(ScatterNdKernel {
                    class,
                    reduce: *reduce,
                    tuples: shapes[1].elements() / depth.max(1),
                    dims: Shape::from(&x[..depth]),
                    inner: product(&x[depth..]),
                })
            }
            Op::Attention { causal, mask } => Kernel::Attention(AttentionKernel {
                causal: *causal,
                mask: *mask,
                batch: x[0],
                heads: x[1],
                groups: shapes[1][1],
                queries: x[2],
                keys: shapes[1][2],
                qk: x[3],
                value: shapes[2][3],
            }),
            op => unreachable!("{op:?} has no kernel"),
        };
        (kernel, inputs)
    }
}

/// Rows that are few, and so long that they should be reduced by more than one worker each, as two reductions: of equal parts of every row,
/// then of what these gave. `None` for others, for positions, and for lengths that do not divide.
fn split(whole: &ReduceKernel) -> Option<(ReduceKernel, ReduceKernel)> {
    const FEW: usize = 64;
    const LONG: usize = 1 << 16;
    const PARTS: core::ops::RangeInclusive<usize> = 16..=1024;
    let second = match whole.kind {
        // The mean of the means of equal parts is the mean.
        ReduceKind::Sum | ReduceKind::Mean | ReduceKind::Prod | ReduceKind::Max | ReduceKind::Min => whole.kind,
        ReduceKind::SumSquares => ReduceKind::Sum,
        ReduceKind::ArgMax { .. } | ReduceKind::ArgMin { .. } => return None,
    };
    if whole.outer * whole.inner > FEW || whole.n < LONG {
        return None;
    }
    let parts = PARTS.rev().find(|&parts| whole.n.is_multiple_of(parts))?;
    let first = ReduceKernel { outer: whole.outer * parts, n: whole.n / parts, ..whole.clone() };
    Some((first, ReduceKernel { kind: second, n: parts, ..whole.clone() }))
}

/// Batch axes are merged; a batch that shares one right side becomes rows.
fn matmul(inner: InnerOp, mut a: Operand, mut b: Operand) -> (Kernel, SmallVec<[Operand; 4]>) {
    let rank = a.layout.rank();
    let (m, k, n) = (a.layout.shape[rank - 2], a.layout.shape[rank - 1], b.layout.shape[rank - 1]);
    let split = |layout: &Layout| {
        let batch = Layout {
            shape: Shape::from(&layout.shape[..rank - 2]),
            strides: layout.strides[..rank - 2].into(),
            offset: layout.offset,
        };
        (batch, layout.strides[rank - 2], layout.strides[rank - 1])
    };
    let ((mut batch_a, row_a, col_a), (mut batch_b, row_b, col_b)) = (split(&a.layout), split(&b.layout));
    let mut batch = merge_axes(&batch_a.shape.clone(), &mut [&mut batch_a, &mut batch_b]);
    let mut m = m;
    let mut row_a = row_a;
    let shared_right = batch_b.strides.iter().all(|&s| s == 0);
    if batch.rank() == 1 && shared_right && (m == 1 || batch_a.strides[0] == row_a * m as isize) {
        row_a = if m == 1 { batch_a.strides[0] } else { row_a };
        m *= batch[0];
        batch = Shape::default();
        (batch_a.strides, batch_b.strides) = (SmallVec::new(), SmallVec::new());
    }
    let whole = |batch_strides: &[isize], rows: (usize, isize), columns: (usize, isize), offset: usize| Layout {
        shape: Shape::new(batch.iter().copied().chain([rows.0, columns.0])),
        strides: batch_strides.iter().copied().chain([rows.1, columns.1]).collect(),
        offset,
    };
    let class = a.dtype.class();
    a.layout = whole(&batch_a.strides, (m, row_a), (k, col_a), a.layout.offset);
    b.layout = whole(&batch_b.strides, (k, row_b), (n, col_b), b.layout.offset);
    let kernel = MatMulKernel { inner, class, batch: SmallVec::from_slice(&batch), m, n, k };
    (Kernel::MatMul(kernel), smallvec![a, b])
}
