//! One kernel launch with its operands.

use smallvec::SmallVec;

use super::{Kernel, LoopBound, MapKernel};
use crate::ir::{NodeId, Operand};

/// One kernel launch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Step {
    pub kernel: Kernel,
    pub inputs: SmallVec<[Operand; 4]>,
    /// One output, except for maps and epilogues, which may have several.
    pub outputs: SmallVec<[Operand; 1]>,
    /// The scalars that the kernel uses, as indices into those of the batch.
    pub scalars: SmallVec<[u32; 4]>,
    /// The recorded nodes that this step runs, for reports. The kernel's own node comes first.
    pub nodes: SmallVec<[NodeId; 4]>,
    /// Computes each element of input 0 as it is read. That input is then [`Source::Fused`](crate::ir::Source). Never
    /// set for maps.
    pub prologue: Option<Fused>,
    /// Applied to each value of the kernel before it is written. The outputs are then those of the epilogue. Never set
    /// for maps.
    pub epilogue: Option<Fused>,
}

/// Elementwise work inside the launch of another kernel, over that kernel's elements in row-major order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fused {
    pub map: MapKernel,
    /// Operands over the shape of the map. In an epilogue, input 0 is the kernel's value
    /// ([`Source::Fused`](crate::ir::Source)).
    pub inputs: SmallVec<[Operand; 4]>,
    /// Indices into the batch's scalars.
    pub scalars: SmallVec<[u32; 4]>,
}

impl Step {
    /// A launch without fused work.
    pub(crate) fn new(kernel: impl Into<Kernel>, inputs: impl IntoIterator<Item = Operand>, output: Operand) -> Self {
        Self {
            kernel: kernel.into(),
            inputs: inputs.into_iter().collect(),
            outputs: SmallVec::from_iter([output]),
            scalars: SmallVec::new(),
            nodes: SmallVec::new(),
            prologue: None,
            epilogue: None,
        }
    }

    /// The bound of the loops that users wrote and did not declare as trusted, and the kernels that have them. `None` if
    /// there are none.
    pub(crate) fn loops(&self) -> Option<(LoopBound, Vec<&'static str>)> {
        if let Kernel::Custom(call) = &self.kernel {
            return call.code.loops.map(|turns| (LoopBound { turns, whole: true }, vec![call.code.name]));
        }
        let fused = self.prologue.iter().chain(&self.epilogue).map(|fused| &fused.map);
        let maps = self.kernel.as_map().into_iter().chain(fused);
        let (mut most, mut kernels) = (0, Vec::new());
        for function in maps.flat_map(|map| &map.program.functions) {
            let Some(turns) = function.loops else { continue };
            most = most.max(turns);
            if !kernels.contains(&function.name) {
                kernels.push(function.name);
            }
        }
        (!kernels.is_empty()).then_some((LoopBound { turns: most, whole: false }, kernels))
    }

    /// Every operand in memory that the launch reads.
    pub(crate) fn reads(&self) -> impl Iterator<Item = &Operand> {
        let fused = self.prologue.iter().chain(&self.epilogue).flat_map(|fused| &fused.inputs);
        self.inputs.iter().chain(fused).filter(|operand| operand.source.has_memory())
    }
}
