//! Steps over memory that is larger than one binding can show become several steps, each over a part of it.
//!
//! Where results are independent of each other (maps, rows, products), the parts write their own part of the result. A reduction of one long
//! row becomes reductions of parts of it and one of what these gave. A gather from a large table runs once for each part of the table and
//! writes what it finds there. What cannot be done in parts is left whole, for the backend to refuse.

use core::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::lower::Planner;
use super::values::Lazy;
use crate::ir::{BinaryOp, Class, DType, Expr, Layout, NodeId, Operand, ReduceKind, Reg, Shape, Source};
use crate::kernel::{GatherElementsKernel, GatherKernel, Kernel, ReduceKernel, Step};

/// Parts begin at multiples of this many rows or elements where there are enough of them: whole words, vectors and groups of blocks.
const EVEN: usize = 64;

/// Elements that a reduction should find in one go: more are worth several workers, whatever their number.
const LONGEST_ROW: usize = 1 << 17;

/// Terms of a product's sums that one worker should add up.
const LONGEST_SUM: usize = 1 << 15;

/// The words of a memory that a step touches, from where a binding may begin.
pub(crate) fn window(step: &Step, source: Source, alignment: usize) -> Range<usize> {
    let (mut first, mut end, mut unit) = (usize::MAX, 0, 1);
    for operand in step.reads().chain(&step.outputs).filter(|operand| operand.source == source) {
        let span = operand.layout.span();
        first = first.min(operand.dtype.word_of(span.start));
        end = end.max(operand.dtype.words(span.end));
        unit = least_common_multiple(operand.dtype.group().1, alignment.max(1));
    }
    let start = first.min(end) / unit * unit;
    start..end
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

/// Every memory a step touches, once.
pub(crate) fn sources(step: &Step) -> SmallVec<[Source; 8]> {
    let mut sources: SmallVec<[Source; 8]> = step.reads().chain(&step.outputs).map(|operand| operand.source).collect();
    sources.sort_unstable();
    sources.dedup();
    sources
}

/// A step that sees `source` from word `start` on.
pub(crate) fn shift(step: &mut Step, source: Source, start: usize) {
    let fused = step.prologue.iter_mut().chain(&mut step.epilogue).flat_map(|fused| &mut fused.inputs);
    for operand in step.inputs.iter_mut().chain(&mut step.outputs).chain(fused) {
        if operand.source == source {
            let (elements, words) = operand.dtype.group();
            operand.layout.offset -= start / words * elements;
        }
    }
}

/// A contiguous operand's elements from `start` on.
fn part(operand: &Operand, start: usize, elements: usize) -> Operand {
    let layout = Layout { offset: operand.layout.offset + start, ..Layout::contiguous([elements]) };
    Operand { layout, ..operand.clone() }
}

/// Two parts of `n`, if there are two.
fn halves(n: usize) -> Option<[Range<usize>; 2]> {
    let middle = match n {
        0 | 1 => return None,
        // Blocks of quantised types come in pairs.
        2..4 => 1,
        4..128 => n / 4 * 2,
        _ => (n / 2).next_multiple_of(EVEN),
    };
    Some([0..middle, middle..n])
}

/// Kernels that do the same to each of a number of rows: how many, and the elements of input 0 and of the output in each. All other inputs are
/// read by every row.
fn rows(kernel: &Kernel) -> Option<(usize, usize, usize)> {
    let volume = |dims: &[usize; 3]| dims.iter().product::<usize>();
    Some(match kernel {
        Kernel::Reduce(k) => (k.outer, k.n * k.inner, k.inner),
        Kernel::Softmax(k) => (k.outer, k.n * k.inner, k.n * k.inner),
        Kernel::CumSum(k) => (k.outer, k.n * k.inner, k.n * k.inner),
        Kernel::RowNorm(k) => (k.rows, k.n, k.n),
        Kernel::TopK(k) => (k.rows, k.n, k.k),
        Kernel::Pool(k) => (k.planes, volume(&k.input), volume(&k.output)),
        Kernel::Conv(k) => (k.batch, k.channels_in * volume(&k.input), k.channels_out * volume(&k.output)),
        Kernel::Taps(k) => (k.outer, k.n * k.inner, k.out * k.inner),
        Kernel::Gather(k) => (k.outer, k.n * k.inner, k.indices * k.inner),
        Kernel::Quantize(k) => {
            let elements = k.dtype.block().unwrap_or(1);
            (k.blocks, elements, elements)
        }
        _ => return None,
    })
}

fn with_rows(kernel: &Kernel, rows: usize) -> Kernel {
    let mut kernel = kernel.clone();
    match &mut kernel {
        Kernel::Reduce(k) => k.outer = rows,
        Kernel::Softmax(k) => k.outer = rows,
        Kernel::CumSum(k) => k.outer = rows,
        Kernel::RowNorm(k) => k.rows = rows,
        Kernel::TopK(k) => k.rows = rows,
        Kernel::Pool(k) => k.planes = rows,
        Kernel::Conv(k) => k.batch = rows,
        Kernel::Taps(k) => k.outer = rows,
        Kernel::Gather(k) => k.outer = rows,
        Kernel::Quantize(k) => k.blocks = rows,
        _ => {}
    }
    kernel
}

/// A step over some of its rows.
fn some_rows(step: &Step, range: &Range<usize>, of_input: usize, of_output: usize) -> Step {
    let mut some = step.clone();
    some.kernel = with_rows(&step.kernel, range.len());
    some.inputs[0] = part(&step.inputs[0], range.start * of_input, range.len() * of_input);
    some.outputs[0] = part(&step.outputs[0], range.start * of_output, range.len() * of_output);
    some
}

impl Planner<'_> {
    /// Puts steps that have to be done in parts in place of those that are too large; whether there were any.
    pub(super) fn chunk_steps(&mut self) -> bool {
        let steps = core::mem::take(&mut self.steps);
        let before = steps.len();
        for step in steps {
            self.chunk(step);
        }
        self.steps.len() > before
    }

    /// Whether every memory of a step can be bound, as a whole or as the part that the step touches.
    pub(super) fn fits(&self, step: &Step) -> bool {
        self.excess(step) == 0
    }

    /// Words that bindings lack.
    fn excess(&self, step: &Step) -> usize {
        let limit = self.limits.binding;
        let over = |source: Source| {
            let operand = step.reads().chain(&step.outputs).find(|operand| operand.source == source);
            let memory = operand.map_or(0, |operand| self.memory_words(operand));
            if memory <= limit { 0 } else { window(step, source, self.limits.alignment).len().saturating_sub(limit) }
        };
        sources(step).into_iter().map(over).sum()
    }

    /// Words of the memory that an operand is in.
    fn memory_words(&self, operand: &Operand) -> usize {
        match operand.source {
            Source::Slot(slot) => operand.dtype.words(self.slot_elements[slot as usize]),
            Source::Scratch(value) => self.scratch[value as usize],
            Source::Constant(constant) => self.constants[constant as usize].len(),
            Source::Iota | Source::Fused => 0,
        }
    }

    /// Appends a step, in parts if it has to be.
    fn chunk(&mut self, step: Step) {
        let excess = self.excess(&step);
        if excess == 0 {
            self.shorten(step);
            return;
        }
        // The halves that need least; others would not come to an end.
        let candidates =
            Self::halved(&step).into_iter().chain(self.halved_columns(&step)).chain(self.halved_terms(&step));
        let best = candidates
            .map(|parts| (parts.iter().map(|part| self.excess(&part.step)).max().unwrap_or(0), parts))
            .filter(|(worst, _)| *worst < excess)
            .min_by_key(|(worst, _)| *worst);
        match (best, &step.kernel) {
            (Some((_, parts)), _) => self.chunk_parts(parts, &step),
            (None, Kernel::Reduce(kernel)) if kernel.outer == 1 => self.reduce_parts(&step, &kernel.clone()),
            _ => self.steps.push(step),
        }
    }

    /// Appends a step that fits, in parts if it would keep few workers busy for long.
    fn shorten(&mut self, step: Step) {
        match &step.kernel {
            Kernel::Reduce(k) if k.outer == 1 && k.n > LONGEST_ROW && k.inner < LONGEST_ROW => {
                self.reduce_parts(&step, &k.clone());
            }
            Kernel::MatMul(k) if k.k > LONGEST_SUM => match self.halved_terms(&step) {
                Some(parts) => self.chunk_parts(parts, &step),
                None => self.steps.push(step),
            },
            _ => self.steps.push(step),
        }
    }

    fn chunk_parts(&mut self, parts: [Part; 2], whole: &Step) {
        for part in parts {
            self.chunk(part.step);
            if let Some(then) = part.then {
                let mut value = Lazy::load(then.from);
                if then.add {
                    let so_far = value.absorb(&Lazy::load(then.to.clone()));
                    value.result = value.program.binary(BinaryOp::Add, so_far, value.result);
                }
                value.nodes = whole.nodes.clone();
                self.chunk_map(value, then.to);
            }
        }
    }

    /// A step as two whose results stand beside each other, in every way there is.
    fn halved(step: &Step) -> Vec<[Part; 2]> {
        let mut ways: Vec<[Part; 2]> = Vec::new();
        if let Some((count, of_input, of_output)) = rows(&step.kernel)
            && let Some(ranges) = halves(count)
        {
            ways.push(ranges.map(|range| some_rows(step, &range, of_input, of_output).into()));
        }
        match &step.kernel {
            // A store to a place that only the run knows may need all of its memory.
            Kernel::Map(map) if map.dynamic_out.is_none() => {
                for (axis, ranges) in map.shape.iter().enumerate().filter_map(|(i, &n)| Some((i, halves(n)?))) {
                    ways.push(ranges.map(|range| {
                        let mut some = step.clone();
                        for operand in some.inputs.iter_mut().chain(&mut some.outputs) {
                            operand.layout = operand.layout.slice(axis, range.start, range.len(), 1);
                        }
                        let mut map = map.clone();
                        map.shape.dims_mut()[axis] = range.len();
                        some.kernel = Kernel::Map(map);
                        some.into()
                    }));
                }
            }
            Kernel::MatMul(k) if !k.batch.is_empty() => {
                let of_output = k.batch[1..].iter().product::<usize>() * k.m * k.n;
                ways.extend(halves(k.batch[0]).map(|ranges| {
                    ranges.map(|range| {
                        let mut kernel = k.clone();
                        kernel.batch[0] = range.len();
                        sliced(step, Kernel::MatMul(kernel), &[(0, 0), (1, 0)], &range, of_output)
                    })
                }));
            }
            Kernel::MatMul(k) => ways.extend(halves(k.m).map(|ranges| {
                ranges.map(|range| {
                    let kernel = crate::kernel::MatMulKernel { m: range.len(), ..k.clone() };
                    sliced(step, Kernel::MatMul(kernel), &[(0, 0)], &range, k.n)
                })
            })),
            Kernel::QuantMatMul(k) => ways.extend(halves(k.m).map(|ranges| {
                ranges.map(|range| {
                    let kernel = crate::kernel::QuantMatMulKernel { m: range.len(), ..k.clone() };
                    sliced(step, Kernel::QuantMatMul(kernel), &[(0, 0)], &range, k.n)
                })
            })),
            Kernel::Attention(k) => ways.extend(halves(k.batch).map(|ranges| {
                ranges.map(|range| {
                    let kernel = crate::kernel::AttentionKernel { batch: range.len(), ..k.clone() };
                    let axes: SmallVec<[(usize, usize); 4]> = (0..step.inputs.len()).map(|i| (i, 0)).collect();
                    sliced(step, Kernel::Attention(kernel), &axes, &range, k.heads * k.queries * k.value)
                })
            })),
            Kernel::Gather(k) if k.outer == 1 => {
                ways.extend(halves(k.indices).map(|ranges| {
                    ranges.map(|range| {
                        let mut some = step.clone();
                        some.kernel = Kernel::Gather(GatherKernel { indices: range.len(), ..k.clone() });
                        some.inputs[1] = part(&step.inputs[1], range.start, range.len());
                        some.outputs[0] = part(&step.outputs[0], range.start * k.inner, range.len() * k.inner);
                        some.into()
                    })
                }));
                ways.extend(halves(k.rows).map(|ranges| {
                    ranges.map(|range| {
                        let mut some = step.clone();
                        some.inputs[0] = part(&step.inputs[0], range.start * k.inner, range.len() * k.inner);
                        let (first, rows) = (k.first + range.start, range.len());
                        some.kernel = Kernel::Gather(GatherKernel { first, rows, ..k.clone() });
                        some.into()
                    })
                }));
            }
            _ => {}
        }
        ways
    }

    /// A product as two of half the columns each. Columns of several rows do not stand together, so these go through memory of their own.
    fn halved_columns(&mut self, step: &Step) -> Option<[Part; 2]> {
        let (m, n, quant) = match &step.kernel {
            Kernel::MatMul(k) if k.batch.is_empty() => (k.m, k.n, None),
            Kernel::QuantMatMul(k) => (k.m, k.n, Some(k.k)),
            _ => return None,
        };
        let output = &step.outputs[0];
        let ranges = halves(n)?;
        Some(ranges.map(|range| {
            let mut some = step.clone();
            match &mut some.kernel {
                Kernel::MatMul(k) => k.n = range.len(),
                Kernel::QuantMatMul(k) => k.n = range.len(),
                _ => {}
            }
            some.inputs[1] = match quant {
                Some(k) => {
                    let mut rows = part(&step.inputs[1], range.start * k, range.len() * k);
                    rows.layout.shape = Shape::from([range.len(), k]);
                    rows.layout.strides = smallvec![k as isize, 1];
                    rows
                }
                None => {
                    let right = &step.inputs[1];
                    Operand { layout: right.layout.slice(1, range.start, range.len(), 1), ..right.clone() }
                }
            };
            if m == 1 {
                some.outputs[0] = part(output, range.start, range.len());
                return some.into();
            }
            let own = self.new_scratch(&Shape::from([m, range.len()]), output.dtype);
            some.outputs[0] = own.clone();
            let whole = Layout { offset: output.layout.offset, ..Layout::contiguous([m, n]) };
            let to = Operand { layout: whole.slice(1, range.start, range.len(), 1), ..output.clone() };
            Part { step: some, then: Some(Then { from: own, to, add: false }) }
        }))
    }

    /// A product as the sum of two over half the terms each.
    fn halved_terms(&mut self, step: &Step) -> Option<[Part; 2]> {
        let Kernel::MatMul(k) = &step.kernel else { return None };
        if !k.batch.is_empty() {
            return None;
        }
        let output = &step.outputs[0];
        let layout = Layout { offset: output.layout.offset, ..Layout::contiguous([k.m, k.n]) };
        let whole = Operand { layout, ..output.clone() };
        Some(halves(k.k)?.map(|range| {
            let mut some = step.clone();
            some.kernel = Kernel::MatMul(crate::kernel::MatMulKernel { k: range.len(), ..k.clone() });
            for (input, axis) in [(0, 1), (1, 0)] {
                let layout = &mut some.inputs[input].layout;
                *layout = layout.slice(axis, range.start, range.len(), 1);
            }
            if range.start == 0 {
                return some.into();
            }
            let own = self.new_scratch(&Shape::from([k.m, k.n]), output.dtype);
            some.outputs[0] = own.clone();
            Part { step: some, then: Some(Then { from: own, to: whole.clone(), add: true }) }
        }))
    }

    /// One long row: its parts are reduced, then what these gave.
    fn reduce_parts(&mut self, step: &Step, kernel: &ReduceKernel) {
        let input = &step.inputs[0];
        let (elements, words) = input.dtype.group();
        // Part of a window may lie before the first element.
        let slack = least_common_multiple(words, self.limits.alignment.max(1)) + 1;
        let most = self.limits.binding.saturating_sub(slack) / words * elements / kernel.inner.max(1);
        let most = most.min(LONGEST_ROW);
        let length = if most > EVEN { most / EVEN * EVEN } else { most };
        if length == 0 {
            self.reduce_row_by_row(step, kernel);
            return;
        }
        let (parts, whole) = (kernel.n.div_ceil(length), kernel.n / length);
        let (nodes, output) = (step.nodes.clone(), step.outputs[0].clone());
        let wide = kernel.class.dtype();
        let gather = |planner: &mut Self, kind: ReduceKind, dtype: DType| {
            let found = planner.new_scratch(&Shape::from([parts, kernel.inner]), dtype);
            // All parts of one length, then what is left.
            for (first, outer, n) in [(0, whole, length), (whole, 1, kernel.n - whole * length)] {
                if outer > 0 && n > 0 {
                    let x = part(&step.inputs[0], first * length * kernel.inner, outer * n * kernel.inner);
                    let to = part(&found, first * kernel.inner, outer * kernel.inner);
                    let reduce = Kernel::Reduce(ReduceKernel { kind, outer, n, ..kernel.clone() });
                    planner.chunk(Step { nodes: nodes.clone(), ..Step::new(reduce, [x], to) });
                }
            }
            found
        };
        let over_parts = |kind: ReduceKind| Kernel::Reduce(ReduceKernel { kind, n: parts, ..kernel.clone() });
        match kernel.kind {
            ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Max | ReduceKind::Min => {
                let found = gather(self, kernel.kind, wide);
                self.chunk_kernel(over_parts(kernel.kind), [found], output, &nodes);
            }
            ReduceKind::SumSquares => {
                let found = gather(self, ReduceKind::SumSquares, wide);
                self.chunk_kernel(over_parts(ReduceKind::Sum), [found], output, &nodes);
            }
            ReduceKind::Mean => {
                let found = gather(self, ReduceKind::Sum, wide);
                let sum = self.new_scratch(&output.layout.shape.clone(), wide);
                self.chunk_kernel(over_parts(ReduceKind::Sum), [found], sum.clone(), &nodes);
                let mut mean = Lazy::load(sum);
                mean.result = divided(&mut mean, kernel.n);
                mean.nodes = nodes;
                self.map(mean, output, None);
            }
            ReduceKind::ArgMax { .. } | ReduceKind::ArgMin { .. } => {
                let largest = matches!(kernel.kind, ReduceKind::ArgMax { .. });
                let best = gather(self, if largest { ReduceKind::Max } else { ReduceKind::Min }, wide);
                let places = gather(self, kernel.kind, DType::I32);
                // The best part, then the place within it.
                let row = Shape::from([1, kernel.inner]);
                let winner = self.new_scratch(&row, DType::I32);
                self.chunk_kernel(over_parts(kernel.kind), [best], winner.clone(), &nodes);
                let within = self.new_scratch(&row, DType::I32);
                let data = Shape::from([parts, kernel.inner]);
                let pick = GatherElementsKernel { class: Class::Int, axis: 0, data, indices: row.clone() };
                self.chunk_kernel(Kernel::GatherElements(pick), [places, winner.clone()], within.clone(), &nodes);
                let mut place = Lazy::load(winner);
                let length = place.program.push(Expr::Const(length as u32, Class::Int));
                place.result = place.program.binary(BinaryOp::Mul, place.result, length);
                let within = place.absorb(&Lazy::load(within));
                place.result = place.program.binary(BinaryOp::Add, place.result, within);
                place.nodes = nodes;
                let layout = Layout { offset: output.layout.offset, ..Layout::contiguous(row) };
                self.map(place, Operand { layout, ..output }, None);
            }
        }
    }

    /// Rows that one binding cannot show, a few of them beside each other: one after the other is merged into the result.
    fn reduce_row_by_row(&mut self, step: &Step, kernel: &ReduceKernel) {
        let merge = match kernel.kind {
            ReduceKind::Sum | ReduceKind::Mean | ReduceKind::SumSquares => BinaryOp::Add,
            ReduceKind::Prod => BinaryOp::Mul,
            ReduceKind::Max => BinaryOp::Max,
            ReduceKind::Min => BinaryOp::Min,
            ReduceKind::ArgMax { .. } | ReduceKind::ArgMin { .. } => {
                self.steps.push(step.clone());
                return;
            }
        };
        let output = part(&step.outputs[0], 0, kernel.inner);
        for row in 0..kernel.n {
            let mut value = Lazy::load(part(&step.inputs[0], row * kernel.inner, kernel.inner));
            value.dtype = output.dtype;
            if kernel.kind == ReduceKind::SumSquares {
                value.result = value.program.binary(BinaryOp::Mul, value.result, value.result);
            }
            if row > 0 {
                let so_far = value.absorb(&Lazy::load(output.clone()));
                value.result = value.program.binary(merge, so_far, value.result);
            }
            if kernel.kind == ReduceKind::Mean && row + 1 == kernel.n {
                value.result = divided(&mut value, kernel.n);
            }
            value.nodes = step.nodes.clone();
            self.chunk_map(value, output.clone());
        }
    }

    /// Appends a map, in parts if it has to be.
    fn chunk_map(&mut self, value: Lazy, output: Operand) {
        let at = self.steps.len();
        self.map(value, output, None);
        for step in self.steps.split_off(at) {
            self.chunk(step);
        }
    }

    /// Appends a kernel, in parts if it has to be.
    fn chunk_kernel(
        &mut self,
        kernel: Kernel,
        inputs: impl IntoIterator<Item = Operand>,
        output: Operand,
        nodes: &SmallVec<[NodeId; 4]>,
    ) {
        self.chunk(Step { nodes: nodes.clone(), ..Step::new(kernel, inputs, output) });
    }
}

/// The result of an expression divided by a number.
fn divided(value: &mut Lazy, by: usize) -> Reg {
    let share = value.program.push(Expr::Const((1.0 / by as f32).to_bits(), Class::Float));
    value.program.binary(BinaryOp::Mul, value.result, share)
}

/// Part of a step's work, and where its result goes from there.
struct Part {
    step: Step,
    then: Option<Then>,
}

/// A result that is copied to its place, or added to what is there.
struct Then {
    from: Operand,
    to: Operand,
    add: bool,
}

impl From<Step> for Part {
    fn from(step: Step) -> Self {
        Self { step, then: None }
    }
}

/// A step over a range of one axis of some inputs, given as (input, axis), with `of_output` elements of the output for each.
fn sliced(step: &Step, kernel: Kernel, axes: &[(usize, usize)], range: &Range<usize>, of_output: usize) -> Part {
    let mut some = step.clone();
    some.kernel = kernel;
    for &(input, axis) in axes {
        let layout = &mut some.inputs[input].layout;
        *layout = layout.slice(axis, range.start, range.len(), 1);
    }
    some.outputs[0] = part(&step.outputs[0], range.start * of_output, range.len() * of_output);
    some.into()
}

#[cfg(test)]
mod tests;
