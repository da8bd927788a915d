//! Joins steps so that values stay in registers instead of going through memory. The passes are pure functions over the
//! list of steps:
//!
//! * **followers**: a map that reads the result of an earlier step becomes part of that step: the epilogue of a kernel,
//!   or additional outputs of a map. Nothing is computed twice. Results that other steps need stay outputs.
//! * **prologues**: a map whose result is only read as the main input of one kernel is computed as that kernel reads
//!   it, if this is cheaper.
//! * **siblings**: maps over the same elements that read the same operand become one.
//!
//! Epilogues come first because they compute every value once, whereas kernels may read an input several times. A step
//! only moves past steps that it shares no memory with, so the recorded order is preserved.

mod body;
mod cost;
#[cfg(test)]
mod tests;

use smallvec::SmallVec;

use self::body::Body;
use self::cost::prologue_pays;
use super::lower::LONGEST_PROGRAM;
use super::{PlanLimits, PlanRead, UnfusedReason};
use crate::ir::{Layout, Operand, Source};
use crate::kernel::{Fused, Reads, Step};

/// Maximum distance between siblings. Joining distant ones would extend the lifetime of their results.
const SIBLING_REACH: usize = 8;

/// An edge between two steps that were not joined.
pub(super) struct Edge {
    pub producer: usize,
    pub consumer: usize,
    pub reason: UnfusedReason,
}

/// Joins steps where possible. Returns the remaining steps and the edges that could not be joined.
pub(super) fn fuse(steps: Vec<Step>, reads: &[PlanRead], limits: PlanLimits) -> (Vec<Step>, Vec<Edge>) {
    let mut list = List { steps, reads, limits };
    // Every round that changes something reduces the number of steps.
    while limits.fuse && (list.join_followers() || list.join_prologues() || list.join_siblings()) {}
    let unfused = list.unfused();
    (list.steps, unfused)
}

/// Whether two operands may overlap in memory.
pub(super) fn meets(a: &Operand, b: &Operand) -> bool {
    if a.source != b.source || !a.source.has_memory() {
        return false;
    }
    let (x, y) = (a.layout.span(), b.layout.span());
    x.start < y.end && y.start < x.end
}

/// Whether two steps must keep their order.
fn ordered(a: &Step, b: &Step) -> bool {
    let moving = |step: &Step| still(step).is_err();
    // A store whose position is a scalar may write anywhere in its storage.
    let anywhere = (moving(a), moving(b));
    let writes = |writer: &Step, moving: bool, other: &Step, other_moving: bool| {
        writer.outputs.iter().any(|output| {
            other.reads().any(|read| if moving { read.source == output.source } else { meets(read, output) })
                || other.outputs.iter().any(|write| {
                    if moving || other_moving { write.source == output.source } else { meets(write, output) }
                })
        })
    };
    writes(a, anywhere.0, b, anywhere.1) || writes(b, anywhere.1, a, anywhere.0)
}

/// The steps being fused.
struct List<'a> {
    steps: Vec<Step>,
    reads: &'a [PlanRead],
    limits: PlanLimits,
}

impl List<'_> {
    fn join_followers(&mut self) -> bool {
        let before = self.steps.len();
        let mut at = 0;
        while at < self.steps.len() {
            let is_map = self.steps[at].kernel.as_map().is_some();
            let candidates = if is_map { self.producers(at) } else { SmallVec::new() };
            match candidates.into_iter().find_map(|first| Some((first, self.followed(first, at).ok()?))) {
                // `at` now refers to the step that came next.
                Some((first, (step, place))) => self.replace([first, at], step, place),
                None => at += 1,
            }
        }
        self.steps.len() < before
    }

    fn join_prologues(&mut self) -> bool {
        let before = self.steps.len();
        let mut at = 0;
        while at < self.steps.len() {
            let candidates =
                if self.steps[at].prologue_reads().is_some() { self.producers(at) } else { SmallVec::new() };
            match candidates.into_iter().find_map(|first| Some((first, self.preceded(first, at).ok()?))) {
                Some((first, step)) => self.replace([first, at], step, at),
                None => at += 1,
            }
        }
        self.steps.len() < before
    }

    fn join_siblings(&mut self) -> bool {
        let before = self.steps.len();
        let mut at = 1;
        while at < self.steps.len() {
            let candidates = (at.saturating_sub(SIBLING_REACH)..at).rev();
            match candidates.into_iter().find_map(|first| Some((first, self.paired(first, at).ok()?))) {
                Some((first, (step, place))) => self.replace([first, at], step, place),
                None => at += 1,
            }
        }
        self.steps.len() < before
    }

    /// Every value passed between two steps of which at least one is elementwise.
    fn unfused(&self) -> Vec<Edge> {
        let is_map = |at: usize| self.steps[at].kernel.as_map().is_some();
        let mut edges = Vec::new();
        for consumer in 0..self.steps.len() {
            for producer in self.producers(consumer) {
                let outputs = &self.steps[producer].outputs;
                let own = || self.steps[consumer].inputs.iter().any(|input| outputs.iter().any(|o| meets(input, o)));
                let refused = if is_map(consumer) {
                    self.followed(producer, consumer).err()
                } else if !own() {
                    Some(UnfusedReason::Taken)
                } else if is_map(producer) {
                    self.preceded(producer, consumer).err()
                } else {
                    continue;
                };
                let reason = if self.limits.fuse { refused } else { Some(UnfusedReason::Off) };
                edges.extend(reason.map(|reason| Edge { producer, consumer, reason }));
            }
        }
        edges
    }

    /// Replaces both steps by `step`, at `place`, which is the index of one of them.
    fn replace(&mut self, [first, second]: [usize; 2], step: Step, place: usize) {
        self.steps[place] = step;
        self.steps.remove(if place == first { second } else { first });
    }

    /// Steps that wrote what the step at `at` reads, last one first.
    fn producers(&self, at: usize) -> SmallVec<[usize; 4]> {
        let mut producers: SmallVec<[usize; 4]> = SmallVec::new();
        for read in self.steps[at].reads() {
            for first in (0..at).rev() {
                let Some(output) = self.steps[first].outputs.iter().find(|output| meets(read, output)) else {
                    continue;
                };
                if !producers.contains(&first) {
                    producers.push(first);
                }
                // Earlier content is fully overwritten.
                let (written, seen) = (output.layout.span(), read.layout.span());
                if output.layout.is_contiguous() && written.start <= seen.start && seen.end <= written.end {
                    break;
                }
            }
        }
        producers.sort_unstable_by(|a, b| b.cmp(a));
        producers
    }

    /// Whether an operand written at `places` is needed by another step or a read request. Always true outside scratch
    /// memory.
    fn needed_by_others(&self, operand: &Operand, places: &[usize]) -> bool {
        let others = || self.steps.iter().enumerate().filter(|(i, _)| !places.contains(i));
        match operand.source {
            Source::Scratch(_) => {
                self.reads.iter().any(|read| read.from.source == operand.source)
                    || others().any(|(_, step)| step.reads().any(|read| read.source == operand.source))
            }
            _ => true,
        }
    }

    /// Joins a map with the step whose result it reads. Returns the step and its place.
    fn followed(&self, first: usize, second: usize) -> Result<(Step, usize), UnfusedReason> {
        let (producer, map) = (&self.steps[first], &self.steps[second]);
        still(map)?;
        still(producer)?;
        let is_kernel = producer.kernel.as_map().is_none();
        let packs = producer.outputs.iter().any(|output| output.dtype != output.dtype.wide());
        if is_kernel && (packs || !producer.kernel.spec().fusing().after) {
            return Err(UnfusedReason::Producer);
        }
        let (body, mut next) = (Body::of(producer), Body::of(map));
        if is_kernel && let Some(output) = body.outputs.iter().find(|o| next.inputs.iter().any(|i| meets(i, o))) {
            next.follow(output);
        }
        let joined = body.join(next, |output| self.needed_by_others(output, &[first, second]))?;
        if !joined.forwards {
            return Err(UnfusedReason::Order);
        }
        let step = self.joined(producer, map, joined.body)?;
        Ok((step, self.place(first, second)?))
    }

    /// Joins two maps that read the same operand. Returns the step and its place.
    fn paired(&self, first: usize, second: usize) -> Result<(Step, usize), UnfusedReason> {
        let (a, b) = (&self.steps[first], &self.steps[second]);
        if a.kernel.as_map().is_none() || b.kernel.as_map().is_none() {
            return Err(UnfusedReason::NotElementwise);
        }
        still(a)?;
        still(b)?;
        let mut shared = a.reads().filter(|read| b.reads().any(|other| other.source == read.source));
        // A single broadcast value is not worth joining for.
        let walks = |read: &Operand| read.layout.elements() == 1 || read.layout.strides.iter().any(|&s| s != 0);
        if !shared.any(walks) {
            return Err(UnfusedReason::Order);
        }
        let joined = Body::of(a).join(Body::of(b), |output| self.needed_by_others(output, &[first, second]))?;
        let step = self.joined(a, b, joined.body)?;
        Ok((step, self.place(first, second)?))
    }

    /// The step `first` with a new body that also does the work of `second`, if one launch can hold it.
    fn joined(&self, first: &Step, second: &Step, body: Body) -> Result<Step, UnfusedReason> {
        let is_kernel = first.kernel.as_map().is_none();
        let outputs = &body.outputs;
        if is_kernel && outputs.iter().any(|output| output.dtype != output.dtype.wide()) {
            return Err(UnfusedReason::Narrow);
        }
        let twice = |(i, output): (usize, &Operand)| outputs[..i].iter().any(|other| other.source == output.source);
        if outputs.iter().enumerate().any(twice) {
            return Err(UnfusedReason::SameStorage);
        }
        // A thread of a map reads all operands of its element before it writes. Threads of a kernel read elements that
        // other threads write.
        let clashes = |output: &Operand| {
            let in_place = |input: &Operand| !meets(input, output) || input == output;
            let of_kernel = || first.inputs.iter().chain(first.prologue.iter().flat_map(|p| &p.inputs));
            !body.inputs.iter().all(in_place) || is_kernel && of_kernel().any(|input| input.source == output.source)
        };
        if outputs.iter().any(clashes) {
            return Err(UnfusedReason::Overwrites);
        }
        if body.length() > LONGEST_PROGRAM {
            return Err(UnfusedReason::TooLong);
        }
        let mut step = body.into_step(first);
        for &node in &second.nodes {
            if !step.nodes.contains(&node) {
                step.nodes.push(node);
            }
        }
        self.fits(&step)?;
        Ok(step)
    }

    /// Fuses a map into the only kernel that reads its result, at the kernel's place.
    fn preceded(&self, first: usize, second: usize) -> Result<Step, UnfusedReason> {
        let (map, consumer) = (&self.steps[first], &self.steps[second]);
        let Some(kernel) = map.kernel.as_map() else { return Err(UnfusedReason::NotElementwise) };
        still(map)?;
        let [result] = &map.outputs[..] else { return Err(UnfusedReason::SeveralUsers) };
        let Some(x) = consumer.inputs.first() else { return Err(UnfusedReason::NotElementwise) };
        let reads = match consumer.prologue_reads() {
            Some(reads) if x.source == result.source => reads,
            _ => return Err(UnfusedReason::NotElementwise),
        };
        let whole = |layout: &Layout| layout.is_contiguous() && layout.offset == 0;
        if !whole(&x.layout) || !whole(&result.layout) || x.layout.elements() != result.layout.elements() {
            return Err(UnfusedReason::Order);
        }
        let again = consumer.reads().filter(|read| read.source == x.source).count() > 1;
        if again || self.needed_by_others(result, &[first, second]) {
            return Err(UnfusedReason::SeveralUsers);
        }
        if !prologue_pays(reads, kernel, &map.inputs) {
            return Err(UnfusedReason::Costly);
        }
        if map.inputs.iter().any(|input| consumer.outputs.iter().any(|output| output.source == input.source)) {
            return Err(UnfusedReason::Overwrites);
        }
        if self.steps[first + 1..second].iter().any(|step| ordered(map, step)) {
            return Err(UnfusedReason::Between);
        }
        let mut step = consumer.clone();
        step.prologue = Some(Fused { map: kernel.clone(), inputs: map.inputs.clone(), scalars: map.scalars.clone() });
        step.inputs[0] = Operand { source: Source::Fused, dtype: x.dtype.wide(), layout: x.layout.clone() };
        step.nodes.extend(map.nodes.iter().copied());
        self.fits(&step)?;
        Ok(step)
    }

    /// The place of one of two steps at which both can run: the other one must be able to move past all steps in
    /// between.
    fn place(&self, first: usize, second: usize) -> Result<usize, UnfusedReason> {
        let between = &self.steps[first + 1..second];
        let free = |moved: usize| between.iter().all(|step| !ordered(&self.steps[moved], step));
        if free(second) {
            Ok(first)
        } else if free(first) {
            Ok(second)
        } else {
            Err(UnfusedReason::Between)
        }
    }

    /// Whether one launch can bind everything that a step accesses.
    fn fits(&self, step: &Step) -> Result<(), UnfusedReason> {
        let mut sources: SmallVec<[Source; 16]> = step.reads().chain(&step.outputs).map(|o| o.source).collect();
        sources.sort_unstable();
        sources.dedup();
        let bindings = sources.len() + usize::from(step.kernel.spec().counts_faults());
        if bindings <= self.limits.buffers { Ok(()) } else { Err(UnfusedReason::Bindings) }
    }
}

/// Fails for a store whose position is only known at run time.
fn still(step: &Step) -> Result<(), UnfusedReason> {
    let moves = step.kernel.as_map().is_some_and(|map| map.dynamic_out.is_some());
    if moves { Err(UnfusedReason::MovingStore) } else { Ok(()) }
}

impl Step {
    /// How input 0 is read, if it can be computed there and nothing is fused there yet.
    fn prologue_reads(&self) -> Option<Reads> {
        self.kernel.spec().fusing().before.filter(|_| self.prologue.is_none())
    }
}
