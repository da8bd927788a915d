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
mod lower;
mod memory;
mod models;
#[cfg(test)]
pub(crate) mod tests;
mod values;

use crate::ir::Operand;
use crate::kernel::Step;
use std::sync::Arc;

pub use crate::figures::{PlanReport, StepReport, Unfused, UnfusedReason};
pub(crate) use cache::PlanCache;
pub(crate) use chunk::{shift, sources, window};
pub(crate) use effects::{Effect, effects};
pub(crate) use models::step_models;

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
    pub report: Arc<PlanReport>,
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
