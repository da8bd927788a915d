//! From recorded ops to kernel launches. Pure: no device, no world, no wgpu type. The same plan runs on the GPU and on the CPU.
//!
//! ```text
//! Graph ──views resolved, dead nodes dropped──▶ values ──grouped──▶ steps ──large ones in parts, small ones joined──▶ steps ──packed by lifetime──▶ Plan
//! ```

mod analyse;
mod cache;
mod chunk;
mod cost;
mod custom;
mod effects;
mod fuse;
mod kernels;
mod lower;
mod memory;
mod report;
#[cfg(test)]
pub(crate) mod tests;
mod values;

use std::sync::Arc;

use smallvec::SmallVec;

pub(crate) use cache::{Batch, PlanCache};
pub(crate) use chunk::{shift, sources, window};
pub(crate) use effects::{Effect, effects};
pub use report::{PlanReport, StepReport, Unfused, UnfusedReason};

use crate::kernel::{Kernel, MapKernel};
use crate::record::NodeId;
use crate::tensor::{DType, Layout};

/// A batch's work, ready for either backend.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// Host data to bring in before the first step, in order.
    pub uploads: Vec<Upload>,
    /// Kernel launches, in order. A step may depend on any earlier one.
    pub steps: Vec<Step>,
    /// What to send to the host after the last step.
    pub reads: Vec<PlanRead>,
    /// Where scratch values lie; regions of values that never live at the same time overlap.
    pub regions: Vec<Region>,
    /// Words of scratch memory the regions need.
    pub scratch_words: usize,
    /// Data that every run of the plan shares.
    pub constants: Vec<Arc<[u32]>>,
    /// Storages that some step or upload writes.
    pub written_slots: Vec<u32>,
    pub report: PlanReport,
}

/// Where an operand's words are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Source {
    /// A storage of the batch.
    Slot(u32),
    /// A scratch value: [`Plan::regions`].
    Scratch(u32),
    /// Shared data: [`Plan::constants`].
    Constant(u32),
    /// No memory: the element at a position is the position itself, as `i32`. Inputs of maps only.
    Iota,
    /// No memory: what the step computes on the way. In an epilogue the kernel's own value, among a kernel's inputs what its prologue gives.
    Fused,
}

/// An input or output of a step: elements of `dtype` at `layout` in `source`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Operand {
    pub source: Source,
    pub dtype: DType,
    pub layout: Layout,
}

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
    /// What is done to each element of input 0 as it is read; that input is then [`Source::Fused`]. Never on maps.
    pub prologue: Option<Fused>,
    /// What is done to each value of the kernel before it is written; the outputs are then the epilogue's. Never on maps.
    pub epilogue: Option<Fused>,
}

/// Elementwise work inside another kernel's launch, over that kernel's elements in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fused {
    pub map: MapKernel,
    /// Operands over the map's shape. In an epilogue, input 0 is the kernel's value ([`Source::Fused`]).
    pub inputs: SmallVec<[Operand; 4]>,
    /// Positions in the batch's scalars.
    pub scalars: SmallVec<[u32; 4]>,
}

impl Source {
    /// Whether there is anything to bind.
    pub(crate) fn has_memory(self) -> bool {
        !matches!(self, Source::Iota | Source::Fused)
    }
}

impl Step {
    /// A launch of a kernel as it is.
    pub(crate) fn new(kernel: Kernel, inputs: impl IntoIterator<Item = Operand>, output: Operand) -> Self {
        Self {
            kernel,
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

/// Host data `host` of the batch to the start of the contiguous `to`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Upload {
    pub host: u32,
    /// Contiguous, at a word boundary, and covering whole words.
    pub to: Operand,
}

/// The contiguous elements of `from`, for request `request` of the batch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlanRead {
    pub request: u32,
    pub from: Operand,
}

/// A scratch value's place, in words; starts are aligned as the limits ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Region {
    pub offset: usize,
    pub words: usize,
}

/// What the backend that will run the plan can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PlanLimits {
    /// Different memories one launch may touch.
    pub buffers: usize,
    /// Words that scratch values, and parts of large memories, start at multiples of.
    pub alignment: usize,
    /// Words of one memory that a launch can see.
    pub binding: usize,
    /// Whether ops share launches at all; off only to compare.
    pub fuse: bool,
}
