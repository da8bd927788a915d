//! Turns runs of small row-wise steps into one launch each: see [`RowChainKernel`].
//!
//! A run is a series of neighbouring steps in which each step reads a result of an earlier one, and row `r` of each
//! result depends only on row `r` of the others. A run becomes a chain if this is cheaper, and as far as its memories can
//! be bound. The rest of the run may become another chain.

use smallvec::SmallVec;

use super::cost::chain_pays;
use super::fuse::{Edge, meets};
use super::lower::Planner;
use super::{PlanLimits, PlanRead};
use crate::ir::{Layout, Operand, Source};
use crate::kernel::{CHAIN_INPUTS, RowChainKernel, Step, lines_of, links_of, rowed_inputs, width};

/// Minimum number of steps of a chain. The pipeline of a chain serves one network, those of its steps serve many, so
/// saving a single launch does not pay.
const SHORTEST: usize = 3;
/// Maximum number of steps of a chain.
const LONGEST: usize = 128;

impl Planner<'_> {
    /// Replaces runs of steps by chains, and keeps the reported edges that are not inside a chain.
    pub(super) fn chain_steps(&mut self, unfused: &mut Vec<Edge>) {
        if !self.limits.fuse || self.limits.chain == 0 {
            return;
        }
        let steps = core::mem::take(&mut self.steps);
        // The place of each step among the new ones.
        let mut places = Vec::with_capacity(steps.len());
        let mut at = 0;
        while at < steps.len() {
            let chain = longest(&steps, at, &self.reads, self.limits).filter(|(step, _)| self.fits(step));
            let (step, count) = chain.unwrap_or_else(|| (steps[at].clone(), 1));
            places.extend(core::iter::repeat_n(self.steps.len(), count));
            self.steps.push(step);
            at += count;
        }
        unfused.retain_mut(|edge| {
            (edge.producer, edge.consumer) = (places[edge.producer], places[edge.consumer]);
            edge.producer != edge.consumer
        });
    }
}

/// The longest chain that begins at `at`, and its number of steps.
fn longest(steps: &[Step], at: usize, reads: &[PlanRead], limits: PlanLimits) -> Option<(Step, usize)> {
    let most = &steps[at..steps.len().min(at + LONGEST)];
    let has_lines = |step: &&Step| step.kernel.as_map().is_none();
    let first = most.iter().find(has_lines).and_then(lines_of)?;
    // Several lines may form a row, for example the heads of an attention.
    let least = most.iter().filter(has_lines).map_while(lines_of).min()?;
    let mut candidates: SmallVec<[usize; 2]> = SmallVec::from_slice(&[first, least]);
    candidates.dedup();
    candidates.into_iter().find_map(|rows| {
        let run = run(most, rows);
        (SHORTEST..=run.len()).rev().find_map(|count| {
            let users = |source: Source| {
                let outside = steps[..at].iter().chain(&steps[at + count..]);
                reads.iter().any(|read| read.from.source == source)
                    || outside.flat_map(Step::reads).any(|operand| operand.source == source)
            };
            let nodes = most[..count].iter().flat_map(|step| step.nodes.iter().copied()).collect();
            let links = run[..count].iter().flatten().cloned().collect();
            let step = Step { nodes, ..chain(links, rows, users, limits)? };
            Some((step, count))
        })
    })
}

/// The steps at the start of a list that can follow each other in a chain, each as one or two links.
fn run(steps: &[Step], rows: usize) -> Vec<SmallVec<[Step; 2]>> {
    let mut run: Vec<SmallVec<[Step; 2]>> = Vec::new();
    let mut written: Vec<Source> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        // A number that no scratch value has.
        let between = Source::Scratch(u32::MAX - at as u32);
        let Some(links) = links_of(step, rows, between) else { break };
        let connected = at == 0 || step.reads().any(|operand| written.contains(&operand.source));
        if !connected {
            break;
        }
        written.extend(step.outputs.iter().map(|output| output.source));
        run.push(links);
    }
    run
}

/// A chain under construction.
struct Chain {
    rows: usize,
    /// Inputs, and whether they have rows.
    inputs: Vec<(Operand, bool)>,
    outputs: Vec<Operand>,
    scalars: SmallVec<[u32; 4]>,
    /// The values between links: where the steps had them in memory, and their width.
    values: Vec<(Operand, usize)>,
}

/// The step that runs `links` in one launch, if that is possible and pays. `used` tells whether a step outside of the
/// chain or a read needs a source.
fn chain(links: Vec<Step>, rows: usize, used: impl Fn(Source) -> bool, limits: PlanLimits) -> Option<Step> {
    let mut chain =
        Chain { rows, inputs: Vec::new(), outputs: Vec::new(), scalars: SmallVec::new(), values: Vec::new() };
    let mut local = Vec::with_capacity(links.len());
    let mut written: Vec<Source> = Vec::new();
    for (at, link) in links.iter().enumerate() {
        let mut own = link.clone();
        let rowed = rowed_inputs(&link.kernel);
        for (i, operand) in own.inputs.iter_mut().enumerate() {
            *operand = chain.read(operand, i < rowed, &written)?;
        }
        own.scalars = chain.number(&link.scalars);
        if let Some(fused) = &mut own.epilogue {
            for operand in fused.inputs.iter_mut().filter(|operand| operand.source != Source::Fused) {
                *operand = chain.read(operand, true, &written)?;
            }
            fused.scalars = chain.number(&fused.scalars);
        }
        own.outputs.clear();
        let mut results = Vec::new();
        for (i, output) in link.outputs.iter().enumerate() {
            // A memory that is written twice would have to be written in order.
            if written.contains(&output.source) {
                return None;
            }
            written.push(output.source);
            let again = links[at + 1..].iter().flat_map(Step::reads).any(|operand| operand.source == output.source);
            let leaves = !matches!(output.source, Source::Scratch(_)) || used(output.source);
            if again || !leaves {
                chain.values.push((output.clone(), width(&output.layout)));
                results.push((i, Source::Scratch(chain.values.len() as u32 - 1)));
            }
            if leaves {
                chain.outputs.push(output.clone());
                // The number of inputs is not known yet.
                results.push((i, Source::Slot(u32::MAX - chain.outputs.len() as u32 + 1)));
            }
        }
        if let Some(program) = own.program() {
            program.outputs = results.iter().map(|&(i, _)| program.outputs[i]).collect();
        }
        for (i, source) in results {
            let layout = Layout { offset: 0, ..link.outputs[i].layout.clone() };
            own.outputs.push(Operand { source, layout, ..link.outputs[i].clone() });
        }
        local.push(own);
    }
    let count = chain.inputs.len() as u32;
    for output in local.iter_mut().flat_map(|link| &mut link.outputs) {
        if let Source::Slot(number) = &mut output.source {
            *number = u32::MAX - *number + count;
        }
    }
    chain.finish(local, limits)
}

impl Chain {
    /// An operand as links see it. `None` if it is not a row-wise view of a value of the chain although they share memory.
    fn read(&mut self, operand: &Operand, rowed: bool, written: &[Source]) -> Option<Operand> {
        if written.contains(&operand.source) {
            let found = self.values.iter().rposition(|(value, _)| value.source == operand.source)?;
            let (value, width) = &self.values[found];
            let start = operand.layout.offset.checked_sub(value.layout.offset)?;
            let row = Layout { offset: start, ..operand.layout.slice(0, 0, 1, 1) };
            let follows = self.rows == 1 || operand.layout.strides[0] == *width as isize;
            if !rowed || !follows || row.span().end > *width || operand.layout.span().start < value.layout.offset {
                return None;
            }
            let mut layout = Layout { offset: start, ..operand.layout.clone() };
            layout.strides[0] = *width as isize;
            return Some(Operand { source: Source::Scratch(found as u32), layout, ..operand.clone() });
        }
        let wanted = (operand.clone(), rowed);
        let at = self.inputs.iter().position(|input| *input == wanted).unwrap_or_else(|| {
            self.inputs.push(wanted);
            self.inputs.len() - 1
        });
        let layout = Layout { offset: 0, ..operand.layout.clone() };
        Some(Operand { source: Source::Slot(at as u32), layout, ..operand.clone() })
    }

    /// Scalars as indices into those of the chain.
    fn number(&mut self, scalars: &[u32]) -> SmallVec<[u32; 4]> {
        let number = |&scalar: &u32| super::values::find_or_push(&mut self.scalars, &scalar) as u32;
        scalars.iter().map(number).collect()
    }

    fn finish(self, links: Vec<Step>, limits: PlanLimits) -> Option<Step> {
        let Self { rows, inputs, outputs, scalars, values } = self;
        // Other workgroups read what this one would write.
        let clashes = |output: &Operand| inputs.iter().any(|(input, _)| input.source == output.source);
        if outputs.is_empty() || outputs.iter().any(clashes) || inputs.len() > CHAIN_INPUTS {
            return None;
        }
        debug_assert!(outputs.iter().enumerate().all(|(i, a)| outputs[..i].iter().all(|b| !meets(a, b))));
        let mut sources: SmallVec<[Source; 16]> =
            inputs.iter().map(|(input, _)| input.source).chain(outputs.iter().map(|o| o.source)).collect();
        sources.sort_unstable();
        sources.dedup();
        let widths: Vec<usize> = values.iter().map(|(_, width)| *width).collect();
        let kernel = RowChainKernel::new(rows, &widths, links);
        if sources.len() > limits.buffers || !chain_pays(&kernel, limits.chain) {
            return None;
        }
        let mut step = Step::new(kernel, inputs.into_iter().map(|(input, _)| input), outputs[0].clone());
        step.outputs = outputs.into_iter().collect();
        step.scalars = scalars;
        Some(step)
    }
}

impl Step {
    /// The program whose outputs are those of the step: that of a map, or of an epilogue.
    fn program(&mut self) -> Option<&mut crate::ir::Program> {
        if let crate::kernel::Kernel::Map(map) = &mut self.kernel {
            return Some(&mut map.program);
        }
        self.epilogue.as_mut().map(|fused| &mut fused.map.program)
    }
}

#[cfg(test)]
mod tests;
