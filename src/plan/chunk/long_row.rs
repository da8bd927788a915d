//! Splits reductions of one long row: reduces parts of the row, then their results. If a binding cannot hold two elements
//! of each column, the rows are merged one after the other by maps, which can always be split.
//!
//! Splitting always terminates: every part is shorter than the row, and there are fewer parts than elements.

use super::least_common_multiple;
use crate::ir::{BinaryOp, Class, DType, Expr, Layout, Operand, Primitive, ReduceKind, Reg, Shape};
use crate::kernel::{EVEN, GatherElementsKernel, Kernel, LONGEST_ROW, ReduceKernel, Step, part};
use crate::plan::lower::Planner;
use crate::plan::values::Lazy;

/// Maximum number of rows that are merged one by one. With bindings so small that there are more, the backend rejects
/// the step.
const MOST_ROWS: usize = 1 << 12;

impl Planner<'_> {
    /// Appends the reduction of one row in parts. `fits` tells whether one launch could do all of it.
    pub(super) fn reduce_long_row(&mut self, step: &Step, kernel: &ReduceKernel, fits: bool) {
        match self.part_length(&step.inputs[0], kernel) {
            Some(length) => self.reduce_parts(step, kernel, length),
            None if fits || kernel.n > MOST_ROWS => self.steps.push(step.clone()),
            None => self.merge_rows(step, kernel),
        }
    }

    /// Words of an operand of this type that fit in a binding, wherever the operand starts.
    fn room(&self, dtype: DType) -> usize {
        let (_, words) = dtype.group();
        // A window may start before the first element.
        let slack = least_common_multiple(words, self.limits.alignment.max(1)) + 1;
        self.limits.binding.saturating_sub(slack)
    }

    /// Elements of each column in one part. `None` if parts would not be smaller than the whole: parts of one element
    /// return as much as they read, and a result that is larger than a binding stays that large.
    fn part_length(&self, input: &Operand, kernel: &ReduceKernel) -> Option<usize> {
        let (elements, words) = input.dtype.group();
        let most = self.room(input.dtype) / words * elements / kernel.inner.max(1);
        let most = most.min(LONGEST_ROW);
        let length = if most > EVEN { most / EVEN * EVEN } else { most };
        (length >= 2 && length < kernel.n && kernel.inner <= self.room(DType::F32)).then_some(length)
    }

    /// Reduces parts of `length` elements of each column, then their results.
    fn reduce_parts(&mut self, step: &Step, kernel: &ReduceKernel, length: usize) {
        let parts = kernel.n.div_ceil(length);
        let (nodes, output) = (step.nodes.clone(), step.outputs[0].clone());
        let wide = kernel.class.dtype();
        let over_parts = |kind: ReduceKind| Kernel::from(ReduceKernel { kind, n: parts, ..kernel.clone() });
        match kernel.kind {
            ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Max | ReduceKind::Min => {
                let found = self.partial_results(step, kernel, kernel.kind, length, wide);
                self.chunk_kernel(over_parts(kernel.kind), [found], output, &nodes);
            }
            ReduceKind::SumSquares => {
                let found = self.partial_results(step, kernel, ReduceKind::SumSquares, length, wide);
                self.chunk_kernel(over_parts(ReduceKind::Sum), [found], output, &nodes);
            }
            ReduceKind::Mean => {
                let found = self.partial_results(step, kernel, ReduceKind::Sum, length, wide);
                let sum = self.new_scratch(&output.layout.shape.clone(), wide);
                self.chunk_kernel(over_parts(ReduceKind::Sum), [found], sum.clone(), &nodes);
                let mut mean = Lazy::load(sum);
                mean.result = divided(&mut mean, kernel.n);
                mean.nodes = nodes;
                self.chunk_map(mean, output);
            }
            // The position within the best part is gathered from the positions of all parts, which must fit in a
            // binding.
            ReduceKind::ArgMax { last } | ReduceKind::ArgMin { last } if parts * kernel.inner > self.room(wide) => {
                self.merge_positions(step, kernel, last, length);
            }
            ReduceKind::ArgMax { .. } | ReduceKind::ArgMin { .. } => {
                let best = self.partial_results(step, kernel, extreme(kernel.kind), length, wide);
                let places = self.partial_results(step, kernel, kernel.kind, length, DType::I32);
                // The best part, then the position within it.
                let row = Shape::from([1, kernel.inner]);
                let winner = self.new_scratch(&row, DType::I32);
                self.chunk_kernel(over_parts(kernel.kind), [best], winner.clone(), &nodes);
                let within = self.new_scratch(&row, DType::I32);
                let data = Shape::from([parts, kernel.inner]);
                let pick = GatherElementsKernel { class: Class::Int, axis: 0, data, indices: row.clone() };
                self.chunk_kernel(pick.into(), [places, winner.clone()], within.clone(), &nodes);
                let mut place = Lazy::load(winner);
                let length = place.program.push(Expr::Const(length as u32, Class::Int));
                place.result = place.program.binary(BinaryOp::Mul, place.result, length);
                let within = place.absorb(&Lazy::load(within));
                place.result = place.program.binary(BinaryOp::Add, place.result, within);
                place.nodes = nodes;
                let layout = Layout { offset: output.layout.offset, ..Layout::contiguous(row) };
                self.chunk_map(place, Operand { layout, ..output });
            }
        }
    }

    /// The results of all parts of a row, as `[parts, inner]`.
    fn partial_results(
        &mut self,
        step: &Step,
        kernel: &ReduceKernel,
        kind: ReduceKind,
        length: usize,
        dtype: DType,
    ) -> Operand {
        let (parts, whole) = (kernel.n.div_ceil(length), kernel.n / length);
        let found = self.new_scratch(&Shape::from([parts, kernel.inner]), dtype);
        // All parts of full length, then the rest.
        for (first, outer, n) in [(0, whole, length), (whole, 1, kernel.n - whole * length)] {
            if outer > 0 && n > 0 {
                let x = part(&step.inputs[0], first * length * kernel.inner, outer * n * kernel.inner);
                let to = part(&found, first * kernel.inner, outer * kernel.inner);
                let reduce = ReduceKernel { kind, outer, n, ..kernel.clone() };
                self.chunk(Step { nodes: step.nodes.clone(), ..Step::new(reduce, [x], to) });
            }
        }
        found
    }

    /// Merges one row after the other into the result.
    fn merge_rows(&mut self, step: &Step, kernel: &ReduceKernel) {
        let merge = match kernel.kind {
            ReduceKind::Sum | ReduceKind::Mean | ReduceKind::SumSquares => BinaryOp::Add,
            ReduceKind::Prod => BinaryOp::Mul,
            ReduceKind::Max => BinaryOp::Max,
            ReduceKind::Min => BinaryOp::Min,
            ReduceKind::ArgMax { last } | ReduceKind::ArgMin { last } => {
                return self.merge_positions(step, kernel, last, 1);
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

    /// Finds positions part by part, with `length` elements of each column per part. The best value of each part is
    /// compared with the best value so far.
    fn merge_positions(&mut self, step: &Step, kernel: &ReduceKernel, last: bool, length: usize) {
        let row = Shape::from([kernel.inner]);
        let wide = kernel.class.dtype();
        let output = part(&step.outputs[0], 0, kernel.inner);
        let best = self.new_scratch(&row, wide);
        for first in (0..kernel.n).step_by(length) {
            let n = length.min(kernel.n - first);
            let x = part(&step.inputs[0], first * kernel.inner, n * kernel.inner);
            let (found, within) = if n == 1 {
                (x, None)
            } else {
                let [found, within] = [wide, DType::I32].map(|dtype| self.new_scratch(&row, dtype));
                for (kind, to) in [(extreme(kernel.kind), &found), (kernel.kind, &within)] {
                    let reduce = ReduceKernel { kind, outer: 1, n, ..kernel.clone() };
                    self.chunk(Step { nodes: step.nodes.clone(), ..Step::new(reduce, [x.clone()], to.clone()) });
                }
                (found, Some(within))
            };
            let mut place = Lazy::new(row.clone(), DType::I32);
            place.result = place.program.push(Expr::Const(first as u32, Class::Int));
            if let Some(within) = within {
                let within = place.absorb(&Lazy::load(within));
                place.result = place.program.binary(BinaryOp::Add, place.result, within);
            }
            let mut value = Lazy::new(row.clone(), wide);
            value.result = value.absorb(&Lazy::load(found.clone()));
            if first > 0 {
                place.result = replaced(&mut place, kernel, last, [&found, &best], &output);
                value.result = replaced(&mut value, kernel, last, [&found, &best], &best);
            }
            // Positions first: they depend on the best value before this part.
            for (mut lazy, to) in [(place, &output), (value, &best)] {
                lazy.nodes.clone_from(&step.nodes);
                self.chunk_map(lazy, to.clone());
            }
        }
    }
}

/// The result of `lazy` where the value `found` replaces the `best` so far, otherwise the element of `old`. NaN is
/// better than any number, as in the kernels.
fn replaced(lazy: &mut Lazy, kernel: &ReduceKernel, last: bool, [found, best]: [&Operand; 2], old: &Operand) -> Reg {
    let [found, best, old] = [found, best, old].map(|operand| lazy.absorb(&Lazy::load(operand.clone())));
    let program = &mut lazy.program;
    let better = match (extreme(kernel.kind) == ReduceKind::Max, last) {
        (true, false) => BinaryOp::Gt,
        (true, true) => BinaryOp::Ge,
        (false, false) => BinaryOp::Lt,
        (false, true) => BinaryOp::Le,
    };
    let mut takes = program.binary(better, found, best);
    if kernel.class == Class::Float {
        let [new_nan, old_nan] = [found, best].map(|reg| program.push(Expr::Unary(Primitive::IsNan, reg)));
        let number = program.push(Expr::Unary(Primitive::Not, old_nan));
        let among_numbers = program.binary(BinaryOp::And, number, takes);
        let nan_wins = if last { new_nan } else { program.binary(BinaryOp::And, number, new_nan) };
        takes = program.binary(BinaryOp::Or, among_numbers, nan_wins);
    }
    let new = lazy.result;
    lazy.program.push(Expr::Select(takes, new, old))
}

/// The reduction that returns the value at the position that `kind` finds.
fn extreme(kind: ReduceKind) -> ReduceKind {
    if matches!(kind, ReduceKind::ArgMax { .. }) { ReduceKind::Max } else { ReduceKind::Min }
}

/// Divides the result of an expression by a number.
fn divided(value: &mut Lazy, by: usize) -> Reg {
    let share = value.program.push(Expr::Const((1.0 / by as f32).to_bits(), Class::Float));
    value.program.binary(BinaryOp::Mul, value.result, share)
}
