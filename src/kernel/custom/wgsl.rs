//! Users' kernels: their text, bound to a step's operands. There is no `custom.wgsl`.

use crate::ir::{CustomCall, Operand};
use crate::kernel::wgsl::access;
use crate::kernel::{Access, Binding, Launch, Step};

/// The launch of a user's kernel. Every operand has a binding of its own, of exactly its elements, which is what `arrayLength` tells.
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
    }
}
