//! Custom kernels in the kernel table.

use smallvec::SmallVec;

use super::run_on_cpu;
use crate::error::RunError;
use crate::ir::CustomCall;
use crate::kernel::host::CpuCall;
use crate::kernel::spec::{Fusing, InputNames, KernelSpec, Need, Sizes, all_inputs};
use crate::kernel::split::{InParts, Levels, Part};
use crate::kernel::{Caps, Launch, Step, Variants};

impl KernelSpec for CustomCall {
    fn name(&self) -> &'static str {
        self.code.name
    }

    fn input_names(&self) -> InputNames {
        // Custom kernels name their own bindings.
        InputNames::new()
    }

    fn need(_input: usize) -> Need {
        Need::Bindable
    }

    fn fusing(&self) -> Fusing {
        Fusing::NONE
    }

    fn counts_faults(&self) -> bool {
        false
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        0
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, _step: &Step) -> Vec<[Part; 2]> {
        Vec::new()
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        None
    }

    fn sizes(&self) -> Sizes {
        Sizes::new()
    }

    fn forms(&self, _caps: &Caps) -> Variants {
        Variants::new()
    }

    fn wgsl(&self, step: &Step, _caps: &Caps) -> Option<Launch> {
        Some(super::wgsl::lower(step, self))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let words: SmallVec<[_; 4]> = call.inputs.iter().map(|input| input.contiguous_words(call.pool)).collect();
        let shapes = call.step.inputs.iter().map(|input| input.layout.shape.clone());
        let inputs = words.iter().map(|words| &words[..]).zip(shapes).collect();
        // Every output has its own memory. Scratch memory comes last and is only used on devices.
        let outputs = call.step.outputs.iter().zip(&mut call.places.memories).take(self.code.outputs.len());
        let outputs = outputs.map(|(output, memory)| {
            let start = output.layout.offset;
            (memory.words(start..start + output.layout.elements()), output.layout.shape.clone())
        });
        run_on_cpu(&self.code, inputs, outputs.collect(), call.scalars).map(|()| 0)
    }
}
