//! Custom kernels: their text, bound to the operands of a step. There is no `custom.wgsl`.

use crate::ir::{CustomCall, Operand};
use crate::kernel::wgsl::access;
use crate::kernel::{Access, Binding, Launch, Step};

/// The launch of a custom kernel. Every operand has its own binding that covers exactly its elements, so that
/// `arrayLength` returns their number.
pub(crate) fn lower(step: &Step, call: &CustomCall) -> Launch {
    let code = &call.code;
    let bind = |operand: &Operand, written: bool| Binding {
        source: operand.source,
        access: access(operand.source, written),
        part: Some((operand.layout.offset, operand.layout.elements().max(1))),
    };
    let inputs = step.inputs.iter().map(|input| bind(input, false));
    let outputs = step.outputs.iter().map(|output| bind(output, true));
    let bindings: smallvec::SmallVec<[Binding; 4]> = inputs.chain(outputs).collect();
    let words = code.param_words();
    Launch {
        name: code.name,
        variant: None,
        wgsl: code.wgsl(|input| bindings.get(input).is_some_and(|binding| binding.access == Access::ReadWrite)),
        entry: code.entry,
        checked: !code.trusted,
        params_in_storage: code.params.as_ref().is_some_and(|params| params.storage),
        bindings,
        params: vec![0; words.next_multiple_of(4).max(4)],
        patches: step.scalars.iter().enumerate().map(|(word, &scalar)| (word as u32, scalar)).collect(),
        workgroups: call.workgroups,
        counts_faults: false,
        loops: None,
    }
}
