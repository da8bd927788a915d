//! Turns recorded ops into kernel launches. Pure: no device, no world, no wgpu types. The same plan runs on the GPU and
//! on the CPU.
//!
//! ```text
//! Graph ──resolve views, drop dead nodes──▶ values ──group──▶ steps
//!       ──split large steps, join and chain small ones──▶ steps ──pack by lifetime──▶ Plan
//! ```

mod analyse;
mod cache;
mod chain;
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

pub(crate) use crate::figures::StepNodes;
pub use crate::figures::{PlanReport, StepReport, Unfused, UnfusedReason};
pub(crate) use cache::PlanCache;
pub(crate) use chunk::{shift, sources, window};
pub(crate) use effects::{Effect, effects};
pub(crate) use models::step_models;

/// The work of a batch, ready for either backend.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// Host data to upload before the first step, in order.
    pub uploads: Vec<Upload>,
    /// Kernel launches, in order. A step may depend on any earlier one.
    pub steps: Vec<Step>,
    /// Values to send to the host after the last step.
    pub reads: Vec<PlanRead>,
    /// Places of scratch values. Regions of values with disjoint lifetimes may overlap.
    pub regions: Vec<Region>,
    /// Words of scratch memory that the regions need.
    pub scratch_words: usize,
    /// Data shared by all runs of the plan.
    pub constants: Vec<Arc<[u32]>>,
    /// Storages that some step or upload writes.
    pub written_slots: Vec<u32>,
    pub report: Arc<PlanReport>,
    /// The nodes of models' graphs that each step computes.
    pub nodes: Arc<[StepNodes]>,
}

/// Copies host data `host` of the batch to the start of the contiguous `to`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Upload {
    pub host: u32,
    /// Contiguous, at a word boundary, and covering whole words.
    pub to: Operand,
}

/// Sends the contiguous elements of `from` to request `request` of the batch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlanRead {
    pub request: u32,
    pub from: Operand,
}

/// A scratch value's place, in words. Offsets are multiples of [`PlanLimits::alignment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Region {
    pub offset: usize,
    pub words: usize,
}

/// Limits of the backend that will run the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PlanLimits {
    /// Maximum number of memories that one launch may access.
    pub buffers: usize,
    /// Alignment in words of scratch values and of the parts of large memories.
    pub alignment: usize,
    /// Maximum number of words of one memory that a launch can access.
    pub binding: usize,
    /// Whether kernels become several launches where that keeps the loops of threads short. For devices.
    pub passes: bool,
    /// Whether ops share launches. Only turned off for comparison.
    pub fuse: bool,
    /// Words of the memory that the values inside a chain share, for at least one row. 0 for no chains.
    pub chain: usize,
}
