//! Lowers analysed nodes to steps. Walks the graph once and keeps elementwise work as expressions until something needs
//! it in memory.

use std::sync::Arc;

use bevy::platform::collections::HashMap;
use smallvec::SmallVec;

use super::analyse::Analysis;
use super::cost::{Cost, cost};
use super::memory::{Lifetime, largest_live_set, pack};
use super::values::{Lazy, Value, apply};
use super::{Plan, PlanLimits, PlanRead, PlanReport, Region, StepNodes, StepReport, Unfused, Upload, fuse};
use crate::ir::{Class, DType, Expr, Graph, Layout, Node, NodeId, Op, Operand, Shape, Source, UnaryOp};
use crate::kernel::{BlockCopyKernel, Elementwise, Inputs, Kernel, Levels, Lowering, Need, PassInput, Step, lowering};

/// Longer expressions are written to memory, which bounds the size of compiled shaders.
pub(super) const LONGEST_PROGRAM: usize = 256;

/// Plans a graph whose storages have the given numbers of elements.
pub(crate) fn plan(graph: &Graph, slot_elements: &[usize], limits: PlanLimits) -> Plan {
    // The counter of loops takes a binding of each launch that calls a function with loops.
    let loops = |node: &Node| matches!(&node.op, Op::Function(function) if function.loops.is_some());
    let counter = usize::from(graph.nodes.iter().any(loops));
    let limits = PlanLimits { buffers: limits.buffers - counter.min(limits.buffers), ..limits };
    let mut planner = Planner {
        graph,
        slot_elements,
        limits,
        analysis: Analysis::new(graph, limits.fuse),
        values: vec![None; graph.nodes.len()],
        stored: vec![false; graph.nodes.len()],
        steps: Vec::new(),
        uploads: Vec::new(),
        reads: Vec::new(),
        constants: Vec::new(),
        scratch: Vec::new(),
        custom_outputs: HashMap::default(),
    };
    for at in 0..graph.nodes.len() {
        if planner.analysis.live[at] {
            planner.lower(NodeId(at as u32));
        }
    }
    planner.finish()
}

/// A plan under construction.
pub(super) struct Planner<'a> {
    pub(super) graph: &'a Graph,
    pub(super) slot_elements: &'a [usize],
    pub(super) limits: PlanLimits,
    analysis: Analysis,
    /// The value of each node, once visited.
    values: Vec<Option<Value>>,
    /// Stores whose value was computed directly into their storage.
    pub(super) stored: Vec<bool>,
    pub(super) steps: Vec<Step>,
    uploads: Vec<Upload>,
    pub(super) reads: Vec<PlanRead>,
    pub(super) constants: Vec<Arc<[u32]>>,
    /// Size in words of every scratch value.
    pub(super) scratch: Vec<usize>,
    /// All outputs of custom kernels, by node.
    pub(super) custom_outputs: HashMap<NodeId, SmallVec<[Operand; 2]>>,
}

impl Planner<'_> {
    fn lower(&mut self, id: NodeId) {
        let graph = self.graph;
        let node = graph.node(id);
        let value = match lowering(node, &mut |input, need| self.bring(input, need)) {
            Lowering::Kernel(kernel, inputs) => self.kernel(id, kernel, inputs),
            Lowering::Load { slot, layout } => {
                let operand = Operand { source: Source::Slot(slot), dtype: node.dtype, layout: layout.clone() };
                if self.analysis.snapshot[id.index()] {
                    Value::Memory(self.copy(Lazy::load(operand)))
                } else {
                    Value::Memory(operand)
                }
            }
            Lowering::Host { index } => Value::Host { index, shape: node.shape.clone(), dtype: node.dtype },
            Lowering::Const { words } => Value::Memory(self.constant(words, &node.shape, node.dtype)),
            Lowering::View(view) => match self.value(node.inputs[0]) {
                Value::Lazy(lazy) => match lazy.view(view, &node.shape) {
                    Some(lazy) => Value::Lazy(lazy),
                    None => {
                        let base = self.contiguous(node.inputs[0]);
                        self.view_memory(base, view, &node.shape)
                    }
                },
                _ => {
                    let base = self.memory(node.inputs[0]);
                    self.view_memory(base, view, &node.shape)
                }
            },
            Lowering::Elementwise(op) => {
                let lazy = self.expression(id, op);
                if self.analysis.inlined[id.index()] {
                    Value::Lazy(lazy)
                } else {
                    Value::Memory(self.materialise(id, lazy))
                }
            }
            Lowering::Assemble { places, fill } => self.assemble(id, places, fill),
            Lowering::Custom(call) => Value::Memory(self.custom(id, call)),
            Lowering::CustomOutput { index } => {
                let outputs = self.custom_outputs.get(&node.inputs[0]);
                match outputs.and_then(|outputs| outputs.get(index)).cloned() {
                    Some(output) => Value::Memory(output),
                    None => self.value(node.inputs[0]),
                }
            }
            Lowering::Store { slot, layout, at } => return self.store(id, slot, layout, at),
            Lowering::Read { request } => return self.read(id, request),
        };
        self.values[id.index()] = Some(value);
    }

    /// A node's value in the form a kernel needs.
    pub(super) fn bring(&mut self, id: NodeId, need: Need) -> Operand {
        let starts = match need {
            Need::Strided => return self.memory(id),
            Need::Contiguous => return self.contiguous(id),
            Need::ContiguousAtWord => {
                |operand: &Operand, _| operand.layout.offset.is_multiple_of(operand.dtype.per_word())
            }
            Need::Bindable => |operand: &Operand, alignment| operand.layout.offset.is_multiple_of(alignment),
        };
        let operand = self.contiguous(id);
        if starts(&operand, self.limits.alignment) { operand } else { self.copy(Lazy::load(operand)) }
    }

    fn value(&self, id: NodeId) -> Value {
        match &self.values[id.index()] {
            Some(value) => value.clone(),
            // Nodes come after their inputs. The empty expression avoids a panic on a malformed graph.
            None => Value::Lazy(Lazy::new(self.graph.node(id).shape.clone(), self.graph.node(id).dtype)),
        }
    }

    /// A node's value as an expression.
    fn lazy(&mut self, id: NodeId) -> Lazy {
        match self.value(id) {
            Value::Lazy(lazy) => lazy,
            Value::Memory(operand) => Lazy::load(operand),
            Value::Host { .. } => Lazy::load(self.memory(id)),
        }
    }

    /// A node's value in memory, in whatever layout it has there.
    pub(super) fn memory(&mut self, id: NodeId) -> Operand {
        let operand = match self.value(id) {
            Value::Memory(operand) => return operand,
            Value::Lazy(lazy) => self.copy(lazy),
            Value::Host { index, shape, dtype } => {
                let to = self.new_scratch(&shape, dtype);
                if shape.elements() > 0 {
                    self.uploads.push(Upload { host: index, to: to.clone() });
                }
                to
            }
        };
        self.values[id.index()] = Some(Value::Memory(operand.clone()));
        operand
    }

    /// A node's value in contiguous memory.
    pub(super) fn contiguous(&mut self, id: NodeId) -> Operand {
        let operand = self.memory(id);
        if operand.layout.is_contiguous() {
            return operand;
        }
        let operand = self.copy(Lazy::load(operand));
        self.values[id.index()] = Some(Value::Memory(operand.clone()));
        operand
    }

    fn view_memory(&mut self, base: Operand, view: &crate::ir::View, shape: &Shape) -> Value {
        let layout = match apply(view, &base.layout, shape) {
            Some(layout) => layout,
            None => {
                let copy = self.copy(Lazy::load(base));
                let layout = apply(view, &copy.layout, shape).unwrap_or_else(|| Layout::contiguous(shape.clone()));
                return Value::Memory(Operand { layout, ..copy });
            }
        };
        Value::Memory(Operand { layout, ..base })
    }

    fn constant(&mut self, words: &Arc<[u32]>, shape: &Shape, dtype: DType) -> Operand {
        let at = self.constants.iter().position(|c| c == words).unwrap_or_else(|| {
            self.constants.push(words.clone());
            self.constants.len() - 1
        });
        let source = Source::Constant(at as u32);
        Operand { source, dtype, layout: Layout::contiguous(shape.clone()) }
    }

    /// Appends a launch.
    pub(super) fn push(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// Allocates scratch memory for a value.
    pub(super) fn new_scratch(&mut self, shape: &Shape, dtype: DType) -> Operand {
        self.scratch.push(dtype.words(shape.elements()));
        let source = Source::Scratch(self.scratch.len() as u32 - 1);
        Operand { source, dtype, layout: Layout::contiguous(shape.clone()) }
    }

    /// Builds an elementwise node as an expression of its inputs.
    fn expression(&mut self, id: NodeId, op: Elementwise) -> Lazy {
        let node = self.graph.node(id);
        self.keep_within_limits(&node.inputs);
        let inputs: SmallVec<[Lazy; 3]> = node.inputs.iter().map(|&input| self.lazy(input)).collect();
        let mut lazy = Lazy::new(node.shape.clone(), node.dtype);
        let regs: SmallVec<[_; 3]> = inputs.iter().map(|input| lazy.absorb(input)).collect();
        let input_class = inputs.first().map_or(node.dtype.class(), |input| input.dtype.class());
        lazy.result = match op {
            Elementwise::Scalar => lazy.scalar(node.scalar, node.dtype.class()),
            Elementwise::Iota => {
                let layout = Layout::contiguous(node.shape.clone());
                return Lazy::load(Operand { source: Source::Iota, dtype: node.dtype, layout });
            }
            Elementwise::Unary(op) => {
                let class = match op {
                    UnaryOp::RandomUniform | UnaryOp::RandomNormal => Class::Uint,
                    _ => input_class,
                };
                let scalars: SmallVec<[_; 2]> =
                    (0..op.scalars() as u32).map(|i| lazy.scalar(node.scalar + i, class)).collect();
                let result = lazy.program.unary(op, regs[0], &scalars);
                lazy.program.wrap(result, node.dtype)
            }
            Elementwise::Binary(op) => {
                let result = lazy.program.binary(op, regs[0], regs[1]);
                lazy.program.wrap(result, node.dtype)
            }
            Elementwise::Select => lazy.program.push(Expr::Select(regs[0], regs[1], regs[2])),
            Elementwise::Function(function) => lazy.program.call(function, regs.iter().copied()),
            Elementwise::Cast => lazy.program.push(Expr::Cast(regs[0], node.dtype)),
        };
        if !node.inputs.is_empty() {
            lazy.nodes.push(id);
        }
        lazy
    }

    /// Writes inputs of an expression to memory until the remaining expression fits one kernel.
    fn keep_within_limits(&mut self, inputs: &[NodeId]) {
        loop {
            let lazies: SmallVec<[(NodeId, Lazy); 3]> = inputs
                .iter()
                .filter_map(|&id| match self.value(id) {
                    Value::Lazy(lazy) => Some((id, lazy)),
                    _ => None,
                })
                .collect();
            let mut sources: SmallVec<[Source; 16]> = lazies.iter().flat_map(|(_, lazy)| lazy.sources()).collect();
            sources.sort_unstable();
            sources.dedup();
            let length: usize = lazies.iter().map(|(_, lazy)| lazy.program.exprs.len()).sum();
            // The output takes one buffer, and each input in memory takes at most one.
            let in_memory = inputs.len() - lazies.len();
            let fits = sources.len() + in_memory < self.limits.buffers && length <= LONGEST_PROGRAM;
            let largest = lazies.iter().max_by_key(|(_, l)| (l.sources().len(), l.program.exprs.len()));
            match largest {
                Some((id, lazy)) if !fits && !lazy.nodes.is_empty() => drop(self.memory(*id)),
                _ => return,
            }
        }
    }

    /// Computes an expression into scratch memory.
    fn copy(&mut self, lazy: Lazy) -> Operand {
        let output = self.new_scratch(&lazy.shape, lazy.dtype);
        self.map(lazy, output.clone(), None);
        output
    }

    /// Computes a node's expression into the storage it is stored to if that is allowed, else into scratch memory.
    fn materialise(&mut self, id: NodeId, lazy: Lazy) -> Operand {
        let output = match self.redirected(id) {
            Some((store, output)) if can_write_in_place(&lazy, &output) => {
                self.stored[store.index()] = true;
                output
            }
            _ => self.new_scratch(&lazy.shape, lazy.dtype),
        };
        self.map(lazy, output.clone(), None);
        output
    }

    /// The store whose storage a node can be computed into, and its destination operand.
    pub(super) fn redirected(&self, id: NodeId) -> Option<(NodeId, Operand)> {
        let store = self.analysis.redirect[id.index()]?;
        let node = self.graph.node(store);
        let Op::Store { slot, layout, .. } = &node.op else { return None };
        Some((store, Operand { source: Source::Slot(*slot), dtype: node.dtype, layout: layout.clone() }))
    }

    /// Appends the map that computes an expression into `output`. `dynamic` is a stride and the scalar that it is
    /// multiplied by.
    pub(super) fn map(&mut self, lazy: Lazy, output: Operand, dynamic: Option<(isize, u32)>) {
        if lazy.shape.elements() == 0 {
            return;
        }
        if output.dtype.is_quantized() {
            // Blocks are only copied whole, so the expression is a load.
            let kernel = BlockCopyKernel::of(&output);
            self.steps.push(Step { nodes: lazy.nodes, ..Step::new(kernel, lazy.leaves, output) });
            return;
        }
        let (mut scalars, nodes) = (lazy.scalars.clone(), lazy.nodes.clone());
        let (mut kernel, inputs, output) = lazy.into_map(output);
        if let Some((stride, scalar)) = dynamic {
            kernel.dynamic_out = Some(stride);
            scalars.push(scalar);
        }
        self.steps.push(Step { scalars, nodes, ..Step::new(kernel, inputs, output) });
    }

    fn assemble(&mut self, id: NodeId, places: &[Layout], fill: bool) -> Value {
        let node = self.graph.node(id);
        let parts: Vec<Lazy> = node.inputs.iter().map(|&input| self.lazy(input)).collect();
        // Parts are written one after the other, so none may read what an earlier one has overwritten.
        let redirected = self
            .redirected(id)
            .filter(|(_, output)| parts.iter().all(|part| part.leaves.iter().all(|leaf| leaf.source != output.source)));
        let output = match redirected {
            Some((store, output)) => {
                self.stored[store.index()] = true;
                output
            }
            None => self.new_scratch(&node.shape, node.dtype),
        };
        if fill {
            let mut lazy = Lazy::new(node.shape.clone(), node.dtype);
            lazy.result = lazy.scalar(node.scalar, node.dtype.class());
            lazy.nodes.push(id);
            self.map(lazy, output.clone(), None);
        }
        for (mut part, place) in parts.into_iter().zip(places) {
            part.nodes.push(id);
            let layout = Layout { offset: place.offset + output.layout.offset, ..place.clone() };
            self.map(part, Operand { layout, ..output.clone() }, None);
        }
        Value::Memory(output)
    }

    fn store(&mut self, id: NodeId, slot: u32, layout: &Layout, at: Option<usize>) {
        let node = self.graph.node(id);
        if self.stored[id.index()] || node.shape.elements() == 0 {
            return;
        }
        let output = Operand { source: Source::Slot(slot), dtype: node.dtype, layout: layout.clone() };
        if let Value::Host { index, .. } = self.value(node.inputs[0])
            && at.is_none()
            && !self.analysis.touched_before(slot, id.index())
            && self.covers_words(&output)
        {
            self.uploads.push(Upload { host: index, to: output });
            return;
        }
        let mut lazy = self.lazy(node.inputs[0]);
        let moves = at.is_some() && lazy.leaves.iter().any(|leaf| leaf.source == output.source);
        if moves || !can_write_in_place(&lazy, &output) {
            lazy = Lazy { nodes: lazy.nodes.clone(), ..Lazy::load(self.copy(lazy)) };
        }
        lazy.nodes.push(id);
        self.map(lazy, output, at.map(|axis| (layout.strides[axis], node.scalar)));
    }

    /// Values are read back after the last step. A value that its storage does not keep until then is copied now.
    fn read(&mut self, id: NodeId, request: u32) {
        let input = self.graph.node(id).inputs[0];
        let lasting = match self.value(input) {
            Value::Memory(operand) => {
                let kept = match operand.source {
                    Source::Slot(slot) => !self.analysis.stored_after(slot, id.index()),
                    Source::Scratch(_) => true,
                    Source::Constant(_) | Source::Iota | Source::Fused => false,
                };
                let aligned = operand.layout.offset.is_multiple_of(operand.dtype.group().0);
                (kept && aligned && operand.layout.is_contiguous()).then_some(operand)
            }
            _ => None,
        };
        let from = match lasting {
            Some(operand) => operand,
            None => {
                let mut lazy = self.lazy(input);
                lazy.nodes.push(id);
                self.copy(lazy)
            }
        };
        self.reads.push(PlanRead { request, from });
    }

    /// Plans a node that has its own kernel.
    fn kernel(&mut self, id: NodeId, kernel: Kernel, inputs: Inputs) -> Value {
        let node = self.graph.node(id);
        let nodes = SmallVec::from_iter([id]);
        if node.shape.elements() > 0 && inputs.iter().any(|input| input.layout.elements() == 0) {
            // Only sums over zero elements get here. They are 0.
            let mut lazy = Lazy::new(node.shape.clone(), node.dtype);
            lazy.result = lazy.program.push(Expr::Const(0, node.dtype.class()));
            return Value::Lazy(lazy);
        }
        // Kernels produce blocks or 32-bit values.
        let made = if node.dtype.is_quantized() { node.dtype } else { node.dtype.wide() };
        let reads = |output: &Operand| inputs.iter().any(|input| input.source == output.source);
        let fits = |output: &Operand| !made.is_quantized() || self.covers_words(output);
        let output = match self.redirected(id) {
            Some((store, output)) if node.dtype == made && !reads(&output) && fits(&output) => {
                self.stored[store.index()] = true;
                output
            }
            _ => self.new_scratch(&node.shape, made),
        };
        if node.shape.elements() > 0 {
            let scalars = (0..node.op.scalars() as u32).map(|i| node.scalar + i).collect();
            let output = output.clone();
            self.launch(Step { scalars, nodes, ..Step::new(kernel, inputs, output) });
        }
        if node.dtype == made {
            return Value::Memory(output);
        }
        let mut lazy = Lazy::load(output);
        lazy.result = lazy.program.push(Expr::Cast(lazy.result, node.dtype));
        lazy.dtype = node.dtype;
        Value::Lazy(lazy)
    }

    /// Appends a kernel that is not fused yet, as several launches if it says so.
    fn launch(&mut self, step: Step) {
        let levels = step.kernel.spec().levels().filter(|levels| self.limits.passes || !levels.device_only);
        let Some(Levels { passes, last, inputs, start, .. }) = levels else { return self.push(step) };
        let (nodes, output) = (step.nodes.clone(), step.outputs[0].clone());
        let mut results: Vec<Operand> = Vec::new();
        let find = |results: &[Operand], input: PassInput| match input {
            PassInput::Input(i) => step.inputs[i].clone(),
            PassInput::Result(i) => results[i].clone(),
        };
        for pass in passes {
            let found = self.new_scratch(&pass.shape, pass.dtype);
            let inputs: Inputs = pass.inputs.iter().map(|&input| find(&results, input)).collect();
            self.launch(Step { nodes: nodes.clone(), ..Step::new(pass.kernel, inputs, found.clone()) });
            results.push(found);
        }
        if let Some(start) = start {
            let mut content = Lazy::load(find(&results, start));
            content.dtype = output.dtype;
            content.nodes = nodes.clone();
            let layout = Layout { offset: output.layout.offset, ..Layout::contiguous(content.shape.clone()) };
            self.map(content, Operand { layout, ..output.clone() }, None);
        }
        let inputs: Inputs = inputs.iter().map(|&input| find(&results, input)).collect();
        self.launch(Step { nodes, ..Step::new(last, inputs, output) });
    }

    /// Whether an operand covers whole words of its storage.
    fn covers_words(&self, operand: &Operand) -> bool {
        let Source::Slot(slot) = operand.source else { return false };
        let (group, end) = (operand.dtype.group().0, operand.layout.offset + operand.layout.elements());
        operand.layout.is_contiguous()
            && operand.layout.offset.is_multiple_of(group)
            && (end.is_multiple_of(group) || end == self.slot_elements[slot as usize])
    }

    fn finish(mut self) -> Plan {
        let apart = self.chunk_steps().then(|| self.steps.clone());
        let (steps, mut unfused) = fuse::fuse(core::mem::take(&mut self.steps), &self.reads, self.limits);
        self.steps = steps;
        if let Some(apart) = apart
            && !self.steps.iter().all(|step| self.fits(step))
        {
            // Joined steps may access a larger range of a memory than each step alone.
            (self.steps, unfused) = fuse::fuse(apart, &self.reads, PlanLimits { fuse: false, ..self.limits });
        }
        self.chain_steps(&mut unfused);
        let end = self.steps.len();
        let mut lives: Vec<Lifetime> =
            self.scratch.iter().map(|&words| Lifetime { words, first: usize::MAX, last: 0 }).collect();
        let mut touch = |operand: &Operand, at: usize| {
            if let Source::Scratch(i) = operand.source {
                let life = &mut lives[i as usize];
                (life.first, life.last) = (life.first.min(at), life.last.max(at));
            }
        };
        for upload in &self.uploads {
            touch(&upload.to, 0);
        }
        for (at, step) in self.steps.iter().enumerate() {
            for operand in step.reads().chain(&step.outputs) {
                touch(operand, at);
            }
        }
        for read in &self.reads {
            touch(&read.from, end);
        }
        for life in lives.iter_mut().filter(|life| life.first > life.last) {
            // Empty, or no longer in memory.
            *life = Lifetime { words: 0, first: 0, last: 0 };
        }
        let (regions, scratch_words) = pack(&lives, self.limits.alignment);
        let mut written_slots: Vec<u32> = self
            .steps
            .iter()
            .flat_map(|step| &step.outputs)
            .chain(self.uploads.iter().map(|upload| &upload.to))
            .filter_map(|operand| match operand.source {
                Source::Slot(slot) => Some(slot),
                _ => None,
            })
            .collect();
        written_slots.sort_unstable();
        written_slots.dedup();
        let report = PlanReport {
            recorded: self.graph.nodes.len(),
            dead: self.analysis.live.iter().filter(|live| !**live).count(),
            steps: self.steps.iter().map(|step| self.report(step, &regions)).collect(),
            unfused: unfused
                .into_iter()
                .map(|edge| Unfused {
                    producer: self.op(&self.steps[edge.producer]),
                    consumer: self.op(&self.steps[edge.consumer]),
                    steps: [edge.producer, edge.consumer],
                    reason: edge.reason,
                })
                .collect(),
            scratch_bytes: scratch_words * 4,
            unpacked_scratch_bytes: lives.iter().map(|life| life.words).sum::<usize>() * 4,
            live_scratch_bytes: largest_live_set(&lives) * 4,
        };
        let nodes = self.steps.iter().map(|step| self.nodes_of(step)).collect();
        Plan {
            uploads: self.uploads,
            steps: self.steps,
            reads: self.reads,
            regions,
            scratch_words,
            constants: self.constants,
            written_slots,
            report: Arc::new(report),
            nodes,
        }
    }

    /// The nodes of models' graphs that a step computes, in order.
    fn nodes_of(&self, step: &Step) -> StepNodes {
        let mut ids = step.nodes.clone();
        ids.sort_unstable();
        let mut nodes: Vec<Arc<str>> = Vec::new();
        for label in ids.iter().filter_map(|&id| self.graph.node(id).label.as_ref()) {
            if !nodes.iter().any(|known| known == label) {
                nodes.push(label.clone());
            }
        }
        nodes.into()
    }

    fn report(&self, step: &Step, regions: &[Region]) -> StepReport {
        let mut nodes = step.nodes.clone();
        nodes.sort_unstable();
        let site = nodes.last().map_or(core::panic::Location::caller(), |&id| self.graph.node(id).site);
        let mut ops: Vec<&'static str> = nodes.iter().map(|&id| self.graph.node(id).name).collect();
        ops.dedup();
        let Cost { bytes, flops } = cost(step);
        let scratch = step.outputs.iter().filter_map(|output| match output.source {
            Source::Scratch(value) => regions.get(value as usize),
            _ => None,
        });
        let scratch = scratch.map(|region| region.offset * 4..(region.offset + region.words) * 4).collect();
        StepReport { kernel: step.kernel.spec().name(), op: self.op(step), ops, site, scratch, bytes, flops }
    }

    /// The op that names a step: that of its kernel, or the last op of a map.
    fn op(&self, step: &Step) -> &'static str {
        let node = if step.kernel.as_map().is_some() { step.nodes.iter().max() } else { step.nodes.first() };
        node.map_or("copy", |&id| self.graph.node(id).name)
    }
}

/// Whether a map may write `output` while it reads its operands. Operands in the same memory must be either exactly the
/// same elements in the same order, or disjoint elements.
fn can_write_in_place(lazy: &Lazy, output: &Operand) -> bool {
    if output.dtype.is_quantized() {
        // Neighbouring blocks share a word that holds both scales.
        return lazy.leaves.iter().all(|leaf| leaf.source != output.source);
    }
    lazy.leaves.iter().all(|leaf| !fuse::meets(leaf, output) || leaf == output)
}
