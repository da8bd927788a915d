//! Splits steps whose memory is larger than one binding into several steps.
//!
//! Where results are independent (maps, rows, products), each part writes its own part of the result. A reduction of
//! one long row becomes partial reductions followed by a reduction of their results. A gather from a large table runs
//! once per part of the table and writes the elements found there. Steps that cannot be split stay whole and are
//! rejected by the backend.

mod long_row;

use core::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::lower::Planner;
use super::values::Lazy;
use crate::ir::{BinaryOp, NodeId, Operand, Source};
use crate::kernel::{InParts, Kernel, Part, PartOutput, Step};

/// The range of words of a memory that a step accesses. It starts at a valid binding offset.
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

/// Every memory that a step accesses, once.
pub(crate) fn sources(step: &Step) -> SmallVec<[Source; 8]> {
    let mut sources: SmallVec<[Source; 8]> = step.reads().chain(&step.outputs).map(|operand| operand.source).collect();
    sources.sort_unstable();
    sources.dedup();
    sources
}

/// Changes the operands in `source` to offsets relative to word `start`.
pub(crate) fn shift(step: &mut Step, source: Source, start: usize) {
    let fused = step.prologue.iter_mut().chain(&mut step.epilogue).flat_map(|fused| &mut fused.inputs);
    for operand in step.inputs.iter_mut().chain(&mut step.outputs).chain(fused) {
        if operand.source == source {
            let (elements, words) = operand.dtype.group();
            operand.layout.offset -= start / words * elements;
        }
    }
}

impl Planner<'_> {
    /// Replaces steps that are too large by smaller ones. Returns whether there were any.
    pub(super) fn chunk_steps(&mut self) -> bool {
        let steps = core::mem::take(&mut self.steps);
        let before = steps.len();
        for step in steps {
            self.chunk(step);
        }
        self.steps.len() > before
    }

    /// Whether every memory of a step can be bound, either as a whole or as the range that the step accesses.
    pub(super) fn fits(&self, step: &Step) -> bool {
        self.excess(step) == 0
    }

    /// Number of words by which the step exceeds the binding limit.
    fn excess(&self, step: &Step) -> usize {
        let limit = self.limits.binding;
        let over = |source: Source| {
            let operand = step.reads().chain(&step.outputs).find(|operand| operand.source == source);
            let memory = operand.map_or(0, |operand| self.memory_words(operand));
            if memory <= limit { 0 } else { window(step, source, self.limits.alignment).len().saturating_sub(limit) }
        };
        sources(step).into_iter().map(over).sum()
    }

    /// Size in words of the memory that an operand is in.
    fn memory_words(&self, operand: &Operand) -> usize {
        match operand.source {
            Source::Slot(slot) => operand.dtype.words(self.slot_elements[slot as usize]),
            Source::Scratch(value) => self.scratch[value as usize],
            Source::Constant(constant) => self.constants[constant as usize].len(),
            Source::Iota | Source::Fused => 0,
        }
    }

    /// Appends a step, split if necessary.
    fn chunk(&mut self, step: Step) {
        let excess = self.excess(&step);
        if excess > 0
            && let Some(parts) = self.best_halves(&step, excess)
        {
            return self.chunk_parts(parts);
        }
        match step.kernel.spec().in_parts(&step, excess == 0) {
            InParts::Whole => self.steps.push(step),
            InParts::Halves(parts) => {
                let parts = parts.map(|part| self.planned(&step, part));
                self.chunk_parts(parts);
            }
            InParts::LongRow(kernel) => self.reduce_long_row(&step, &kernel, excess == 0),
        }
    }

    /// The split of a step into two parts that needs the least memory. `None` unless it needs less than the whole;
    /// otherwise splitting would not terminate.
    fn best_halves(&mut self, step: &Step, excess: usize) -> Option<[Planned; 2]> {
        let ways = step.kernel.spec().halves(step).into_iter();
        let ways: Vec<[Planned; 2]> = ways.map(|parts| parts.map(|part| self.planned(step, part))).collect();
        ways.into_iter()
            .map(|parts| (parts.iter().map(|part| self.excess(&part.step)).max().unwrap_or(0), parts))
            .filter(|(worst, _)| *worst < excess)
            .min_by_key(|(worst, _)| *worst)
            .map(|(_, parts)| parts)
    }

    /// Turns a part of a step into a step, and allocates the memory it needs.
    fn planned(&mut self, whole: &Step, part: Part) -> Planned {
        let (output, then) = match part.output {
            PartOutput::Place(output) => (output, None),
            PartOutput::Copied { shape, to } => {
                let from = self.new_scratch(&shape, to.dtype);
                (from.clone(), Some(Then { from, to, add: false }))
            }
            PartOutput::Added { shape, to } => {
                let from = self.new_scratch(&shape, to.dtype);
                (from.clone(), Some(Then { from, to, add: true }))
            }
        };
        let outputs = smallvec![output];
        Planned { step: Step { kernel: part.kernel, inputs: part.inputs, outputs, ..whole.clone() }, then }
    }

    fn chunk_parts(&mut self, parts: [Planned; 2]) {
        for Planned { step, then } in parts {
            let nodes = step.nodes.clone();
            self.chunk(step);
            if let Some(then) = then {
                let mut value = Lazy::load(then.from);
                if then.add {
                    let so_far = value.absorb(&Lazy::load(then.to.clone()));
                    value.result = value.program.binary(BinaryOp::Add, so_far, value.result);
                }
                value.nodes = nodes;
                self.chunk_map(value, then.to);
            }
        }
    }

    /// Appends a map, split if necessary.
    fn chunk_map(&mut self, value: Lazy, output: Operand) {
        let at = self.steps.len();
        self.map(value, output, None);
        for step in self.steps.split_off(at) {
            self.chunk(step);
        }
    }

    /// Appends a kernel, split if necessary.
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

/// A part of a step's work, and what happens to its result.
struct Planned {
    step: Step,
    then: Option<Then>,
}

/// A result that is then copied to its destination or accumulated there.
struct Then {
    from: Operand,
    to: Operand,
    add: bool,
}

#[cfg(test)]
mod tests;
