//! Which steps can be links of a chain, and how they look there.

use smallvec::SmallVec;

use crate::ir::{Class, DType, InnerOp, Layout, Operand, Program, Shape, Source};
use crate::kernel::{Fused, Kernel, MapKernel, MatMulKernel, RowNormKernel, SoftmaxKernel, Step};

/// The number of lines that a step processes independently of each other, if it has lines. A chain has as many rows, or
/// fewer rows of several lines.
pub(crate) fn lines_of(step: &Step) -> Option<usize> {
    match &step.kernel {
        Kernel::MatMul(product) => is_plain(product).then_some(product.m),
        Kernel::Softmax(softmax) => (softmax.inner == 1).then_some(softmax.outer),
        Kernel::RowNorm(norm) => Some(norm.rows),
        Kernel::Map(_)
        | Kernel::QuantMatMul(_)
        | Kernel::Quantize(_)
        | Kernel::BlockCopy(_)
        | Kernel::Reduce(_)
        | Kernel::CumSum(_)
        | Kernel::CumSumParts(_)
        | Kernel::TopK(_)
        | Kernel::Sort(_)
        | Kernel::Conv(_)
        | Kernel::ConvTranspose(_)
        | Kernel::Pool(_)
        | Kernel::PoolParts(_)
        | Kernel::Taps(_)
        | Kernel::Gather(_)
        | Kernel::GatherElements(_)
        | Kernel::GatherNd(_)
        | Kernel::ScatterElements(_)
        | Kernel::ScatterNd(_)
        | Kernel::ScatterPasses(_)
        | Kernel::Attention(_)
        | Kernel::Sample(_)
        | Kernel::RoiPool(_)
        | Kernel::Recurrent(_)
        | Kernel::Fft(_)
        | Kernel::RowChain(_)
        | Kernel::Custom(_) => None,
    }
}

/// A product of floats with one right-hand side.
fn is_plain(product: &MatMulKernel) -> bool {
    product.batch.is_empty() && product.inner == InnerOp::Product && product.class == Class::Float
}

/// A step as links over `rows` rows, with its own sources: one link, or two if the step has a prologue. `between` is the
/// source of what the prologue computes. `None` if the rows of the step depend on each other.
pub(crate) fn links_of(step: &Step, rows: usize, between: Source) -> Option<SmallVec<[Step; 2]>> {
    let mut links = SmallVec::new();
    let mut inputs = step.inputs.clone();
    if let Some(Fused { map, inputs: read, scalars }) = &step.prologue {
        let x = inputs.first_mut()?;
        *x = Operand { source: between, dtype: DType::F32, layout: Layout::contiguous([x.layout.elements()]) };
        let layout = Layout::contiguous(map.shape.clone());
        let output = Operand { source: between, dtype: DType::F32, layout };
        let link = Step { scalars: scalars.clone(), ..Step::new(map.clone(), read.iter().cloned(), output) };
        links.push(link_of(&link, rows)?);
    }
    let own = Step { inputs, prologue: None, nodes: SmallVec::new(), ..step.clone() };
    links.push(link_of(&own, rows)?);
    Some(links)
}

/// A step without a prologue as a link.
fn link_of(step: &Step, rows: usize) -> Option<Step> {
    let mut link = step.clone();
    // A chain reports no faults and has no user code, whose loops are counted.
    if rows == 0 || step.outputs.iter().any(|output| output.dtype != DType::F32 || output.layout.elements() == 0) {
        return None;
    }
    if step.reads().any(|operand| operand.dtype.is_quantized()) {
        return None;
    }
    if let Kernel::Map(map) = &step.kernel {
        let shape = rows_first(&map.shape, rows)?;
        link.inputs = over(&step.inputs, &shape)?;
        link.outputs = over(&step.outputs, &shape)?;
        link.kernel = plain(map, shape)?.into();
    } else {
        let lines = lines_of(step)?;
        let x = link.inputs.first_mut()?;
        if matches!(step.kernel, Kernel::MatMul(_)) {
            if lines != rows
                || x.layout.shape.first() != Some(&rows)
                || step.inputs.iter().any(|i| i.layout.elements() == 0)
            {
                return None;
            }
        } else {
            if !lines.is_multiple_of(rows) {
                return None;
            }
            let shape = Shape::from([rows, x.layout.elements() / rows]);
            x.layout = x.layout.reshape(&shape)?;
        }
        if let Some(fused) = &step.epilogue {
            let shape = rows_first(&fused.map.shape, rows)?;
            link.outputs = over(&step.outputs, &shape)?;
            let inputs = over(&fused.inputs, &shape)?;
            // The kernel's value must be visited in its own order.
            if !inputs.iter().filter(|input| input.source == Source::Fused).all(|input| input.layout.is_contiguous()) {
                return None;
            }
            link.epilogue = Some(Fused { map: plain(&fused.map, shape)?, inputs, scalars: fused.scalars.clone() });
        } else {
            for output in &mut link.outputs {
                let shape = Shape::from([rows, output.layout.elements() / rows]);
                output.layout = output.layout.reshape(&shape)?;
            }
        }
    }
    link.outputs.iter().all(|output| output.layout.is_contiguous()).then_some(link)
}

/// A map over another view of its shape, if it has neither user code nor a moving output.
fn plain(map: &MapKernel, shape: Shape) -> Option<MapKernel> {
    let Program { functions, outputs, .. } = &map.program;
    let floats = outputs.iter().all(|&reg| map.program.class(reg) == Class::Float);
    let fits = functions.is_empty() && floats && map.dynamic_out.is_none();
    fits.then(|| MapKernel { shape, program: map.program.clone(), dynamic_out: None })
}

/// A shape with `rows` as its first axis: axes are merged or split so that the first one is.
fn rows_first(shape: &Shape, rows: usize) -> Option<Shape> {
    let mut before = 1;
    for (axis, &n) in shape.iter().enumerate() {
        if before == rows {
            return Some(Shape::new([rows].into_iter().chain(shape[axis..].iter().copied())));
        }
        let rest = rows / before;
        if n >= rest {
            let whole = n.is_multiple_of(rest);
            let inside = (n > rest).then_some(n / rest);
            return whole
                .then(|| Shape::new([rows].into_iter().chain(inside).chain(shape[axis + 1..].iter().copied())));
        }
        before *= n;
        if !rows.is_multiple_of(before) {
            return None;
        }
    }
    (before == rows).then(|| Shape::from([rows]))
}

/// Operands over another view of their shape.
fn over<A: smallvec::Array<Item = Operand>>(operands: &SmallVec<A>, shape: &Shape) -> Option<SmallVec<A>> {
    let over = |operand: &Operand| {
        // Positions are those of the whole shape.
        let layout = if operand.source == Source::Iota { None } else { operand.layout.reshape(shape) };
        Some(Operand { layout: layout?, ..operand.clone() })
    };
    operands.iter().map(over).collect()
}

/// Numbers per row of an operand with rows first.
pub(crate) fn width(layout: &Layout) -> usize {
    layout.shape[1..].iter().product()
}

/// A link over another number of rows.
pub(crate) fn with_rows(link: &Step, rows: usize) -> Step {
    let mut link = link.clone();
    let before = link.outputs.first().map_or(1, |output| output.layout.shape[0]).max(1);
    let resize = |layout: &mut Layout| *layout = layout.slice(0, 0, rows, 1);
    link.kernel = kernel_with_rows(&link.kernel, before, rows);
    let rowed = super::rowed_inputs(&link.kernel);
    let fused = link.epilogue.iter_mut().flat_map(|fused| {
        fused.map.shape.dims_mut()[0] = rows;
        &mut fused.inputs
    });
    link.inputs.iter_mut().take(rowed).chain(&mut link.outputs).chain(fused).for_each(|o| resize(&mut o.layout));
    link
}

/// The kernel of a link over `rows` rows instead of `before`.
pub(crate) fn kernel_with_rows(kernel: &Kernel, before: usize, rows: usize) -> Kernel {
    let lines = |lines: usize| lines / before * rows;
    if let Kernel::MatMul(product) = kernel {
        MatMulKernel { m: rows, ..product.clone() }.into()
    } else if let Kernel::Softmax(softmax) = kernel {
        SoftmaxKernel { outer: lines(softmax.outer), ..softmax.clone() }.into()
    } else if let Kernel::RowNorm(norm) = kernel {
        RowNormKernel { rows: lines(norm.rows), ..norm.clone() }.into()
    } else if let Kernel::Map(map) = kernel {
        let mut map = map.clone();
        map.shape.dims_mut()[0] = rows;
        map.into()
    } else {
        // No other kernel is a link.
        kernel.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_merged_or_split_so_that_rows_come_first() {
        let first = |shape: &[usize], rows| rows_first(&Shape::from(shape), rows);
        assert_eq!(first(&[6, 4], 6), Some(Shape::from([6, 4])));
        assert_eq!(first(&[24], 6), Some(Shape::from([6, 4])));
        assert_eq!(first(&[2, 3, 4], 6), Some(Shape::from([6, 4])));
        assert_eq!(first(&[2, 12], 6), Some(Shape::from([6, 4])));
        assert_eq!(first(&[6], 6), Some(Shape::from([6])));
        assert_eq!(first(&[5, 4], 1), Some(Shape::from([1, 5, 4])));
        assert_eq!(first(&[4, 6], 6), None);
        assert_eq!(first(&[4], 8), None);
    }
}
