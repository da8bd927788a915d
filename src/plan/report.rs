//! What a plan does, for tests, logs and the inspector.

use core::panic::Location;

/// What became of one batch's recorded ops.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct PlanReport {
    /// Nodes recorded, views and loads included.
    pub recorded: usize,
    /// Nodes that nothing used.
    pub dead: usize,
    /// Kernel launches, in order.
    pub steps: Vec<StepReport>,
    /// Bytes of scratch memory.
    pub scratch_bytes: usize,
    /// Bytes of all scratch values together, had none shared memory.
    pub unpacked_scratch_bytes: usize,
    /// The most bytes of scratch values alive at one time: what no packing can go below.
    pub live_scratch_bytes: usize,
}

/// One kernel launch of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// The kernel.
    pub kernel: &'static str,
    /// The recorded ops it carries out, by name.
    pub ops: Vec<&'static str>,
    /// Where the last of them was recorded.
    pub site: &'static Location<'static>,
}
