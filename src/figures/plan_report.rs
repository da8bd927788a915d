//! Reports about plans, for tests, logs and the inspector.

use core::fmt;
use core::ops::Range;
use core::panic::Location;
use std::sync::Arc;

/// What the planner made of the recorded ops of one batch.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct PlanReport {
    /// Number of recorded nodes, including views and loads.
    pub recorded: usize,
    /// Number of nodes whose results are unused.
    pub dead: usize,
    /// Kernel launches, in order.
    pub steps: Vec<StepReport>,
    /// Values that are passed through memory between two launches although one of the launches is elementwise, with the
    /// reason.
    pub unfused: Vec<Unfused>,
    /// Bytes of scratch memory that the plan allocates.
    pub scratch_bytes: usize,
    /// Bytes of all scratch values if none shared memory.
    pub unpacked_scratch_bytes: usize,
    /// Peak bytes of simultaneously live scratch values. No packing can use less.
    pub live_scratch_bytes: usize,
}

/// One kernel launch of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// The main op of the launch. For an elementwise kernel, the last op in it.
    pub op: &'static str,
    /// Names of all recorded ops in the launch.
    pub ops: Vec<&'static str>,
    /// Source location of the last of these ops.
    pub site: &'static Location<'static>,
    /// Byte ranges of scratch memory that the launch writes. Values that are not live at the same time share ranges.
    pub scratch: Vec<Range<usize>>,
    /// Bytes read and written. Each element is counted once.
    pub bytes: u64,
    /// Arithmetic operations. Functions such as `exp` count as their cost in additions.
    pub flops: u64,
}

/// The nodes of models' graphs that a launch computes.
pub(crate) type StepNodes = Arc<[Arc<str>]>;

/// Where a node of a model's graph ran last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum NodePlace {
    /// It has not run, or no output needs it.
    #[default]
    Idle,
    /// Recorded for the model's backend.
    Device,
    /// On the host, while the model was recorded.
    Host,
    /// On the host, when the model was loaded. Its result is a constant.
    Folded,
}

impl fmt::Display for NodePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "not run",
            Self::Device => "device",
            Self::Host => "host",
            Self::Folded => "folded",
        })
    }
}

/// A value that is passed through memory between two launches although one of them is elementwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfused {
    /// The op that produces the value.
    pub producer: &'static str,
    /// The op that consumes the value.
    pub consumer: &'static str,
    /// Indices of the two launches in [`PlanReport::steps`].
    pub steps: [usize; 2],
    /// Why the launches were not fused.
    pub reason: UnfusedReason,
}

/// Why two launches were not fused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnfusedReason {
    /// [`PipelineSettings::fuse`](crate::PipelineSettings::fuse) is off.
    Off,
    /// The consumer reads the value several times or in another order, so it needs it in memory.
    NotElementwise,
    /// The producer writes its result in parts or reads it back, so no work can be fused into it.
    Producer,
    /// The consumer reads the value through a view (broadcast, slice or permutation).
    Order,
    /// The value has several consumers, so fusing it would compute it more than once.
    SeveralUsers,
    /// The elementwise consumer is already fused into another launch.
    Taken,
    /// A launch that must run between the two reads or overwrites their memory.
    Between,
    /// The result would overwrite memory that other threads of the same launch still read.
    Overwrites,
    /// Both launches write to the same storage.
    SameStorage,
    /// The result has elements of less than 32 bits, which a separate launch packs.
    Narrow,
    /// The consumer stores at an offset that is only known at run time.
    MovingStore,
    /// Together they need more bindings than one launch can have.
    Bindings,
    /// Together they exceed the maximum length of a kernel.
    TooLong,
    /// Fusing would repeat work, or run it in few threads, at a higher cost than the memory traffic it saves.
    Costly,
}

impl fmt::Display for UnfusedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "fusion is off",
            Self::NotElementwise => "the consumer needs it in memory",
            Self::Producer => "no work can be fused into the producer",
            Self::Order => "read through a view",
            Self::SeveralUsers => "several consumers",
            Self::Taken => "the consumer is fused into another launch",
            Self::Between => "another launch uses the memory in between",
            Self::Overwrites => "would overwrite memory that is still read",
            Self::SameStorage => "both write to the same storage",
            Self::Narrow => "the result needs a packing launch",
            Self::MovingStore => "stored at an offset known only at run time",
            Self::Bindings => "too many bindings",
            Self::TooLong => "too long for one kernel",
            Self::Costly => "fusing would cost more than it saves",
        })
    }
}

impl fmt::Display for Unfused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}: {}", self.producer, self.consumer, self.reason)
    }
}
