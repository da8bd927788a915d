//! Custom kernels in a plan: prepares operands so that they can be bound.

use smallvec::SmallVec;

use super::lower::Planner;
use super::values::Lazy;
use crate::ir::{Class, CustomCall, Expr, NodeId, Op, Operand, Shape};
use crate::kernel::{KernelSpec, Step};

impl Planner<'_> {
    /// Plans a launch of a custom kernel. Returns its first output and records all of them.
    pub(super) fn custom(&mut self, id: NodeId, call: &CustomCall) -> Operand {
        let graph = self.graph;
        let node = graph.node(id);
        let need = <CustomCall as KernelSpec>::need;
        let inputs = node.inputs.iter().enumerate().map(|(i, &input)| self.bring(input, need(i)));
        let inputs: SmallVec<[Operand; 4]> = inputs.collect();
        let mut outputs: SmallVec<[Operand; 2]> = SmallVec::new();
        for (i, binding) in call.code.outputs.iter().enumerate() {
            let output = NodeId(id.0 + i as u32);
            debug_assert!(i == 0 || graph.node(output).op == Op::CustomOutput { index: i });
            let place = self.place_of_output(output, &inputs, &outputs);
            if binding.zeroed {
                let mut zeros = Lazy::new(place.layout.shape.clone(), place.dtype);
                zeros.result = zeros.program.push(Expr::Const(0, place.dtype.class()));
                zeros.nodes.push(id);
                self.map(zeros, place.clone(), None);
            }
            outputs.push(place);
        }
        let scratch: SmallVec<[Operand; 2]> = call
            .scratch
            .iter()
            .map(|&elements| self.new_scratch(&Shape::from([elements]), Class::Uint.dtype()))
            .collect();
        let first = outputs[0].clone();
        if outputs.iter().any(|output| output.layout.elements() > 0) {
            let scalars = (0..node.op.scalars() as u32).map(|i| node.scalar + i).collect();
            self.push(Step {
                scalars,
                nodes: SmallVec::from_iter([id]),
                outputs: outputs.iter().cloned().chain(scratch).collect(),
                ..Step::new(call.clone(), inputs, first.clone())
            });
        }
        self.custom_outputs.insert(id, outputs);
        first
    }

    fn may_start(&self, operand: &Operand) -> bool {
        operand.layout.offset.is_multiple_of(self.limits.alignment)
    }

    /// Chooses where an output is written: directly to the tensor it is stored to if the kernel does not access that
    /// tensor otherwise, else to scratch memory.
    fn place_of_output(&mut self, id: NodeId, inputs: &[Operand], outputs: &[Operand]) -> Operand {
        let node = self.graph.node(id);
        match self.redirected(id) {
            Some((store, place))
                if self.may_start(&place) && inputs.iter().chain(outputs).all(|other| other.source != place.source) =>
            {
                self.stored[store.index()] = true;
                place
            }
            _ => self.new_scratch(&node.shape, node.dtype),
        }
    }
}
