//! One kernel launch with its operands.

use smallvec::SmallVec;

use super::{Kernel, MapKernel};
use crate::ir::{NodeId, Operand};

/// One kernel launch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    pub kernel: Kernel,
    pub inputs: SmallVec<[Operand; 4]>,
    /// One, but for maps and epilogues, which may have several.
    pub outputs: SmallVec<[Operand; 1]>,
    /// The batch's scalars that the kernel gets, as positions in the batch's list.
    pub scalars: SmallVec<[u32; 4]>,
    /// The recorded nodes this carries out, for reports; first the kernel's own.
    pub nodes: SmallVec<[NodeId; 4]>,
    /// What is done to each element of input 0 as it is read; that input is then [`Source::Fused`](crate::ir::Source).
    /// Never on maps.
    pub prologue: Option<Fused>,
    /// What is done to each value of the kernel before it is written; the outputs are then the epilogue's. Never on
    /// maps.
    pub epilogue: Option<Fused>,
}

/// Elementwise work inside another kernel's launch, over that kernel's elements in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fused {
    pub map: MapKernel,
    /// Operands over the map's shape. In an epilogue, input 0 is the kernel's value
    /// ([`Source::Fused`](crate::ir::Source)).
    pub inputs: SmallVec<[Operand; 4]>,
    /// Positions in the batch's scalars.
    pub scalars: SmallVec<[u32; 4]>,
}

impl Step {
    /// A launch of a kernel as it is.
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

    /// Every operand in memory that the launch reads.
    pub(crate) fn reads(&self) -> impl Iterator<Item = &Operand> {
        let fused = self.prologue.iter().chain(&self.epilogue).flat_map(|fused| &fused.inputs);
        self.inputs.iter().chain(fused).filter(|operand| operand.source.has_memory())
    }
}
