//! What a plan does, for tests, logs and the inspector.

use core::fmt;
use core::ops::Range;
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
    /// Values that went through memory between two launches although one of the two is elementwise, and why.
    pub unfused: Vec<Unfused>,
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
    /// The op that the kernel is for; of an elementwise kernel the last op it carries out.
    pub op: &'static str,
    /// The recorded ops it carries out, by name.
    pub ops: Vec<&'static str>,
    /// Where the last of them was recorded.
    pub site: &'static Location<'static>,
    /// The parts of the scratch memory it writes to, in bytes; launches whose values are never needed at the same time share them.
    pub scratch: Vec<Range<usize>>,
    /// Bytes it reads and writes, every element once.
    pub bytes: u64,
    /// Arithmetic operations; a function such as `exp` counts as the additions it takes.
    pub flops: u64,
}

/// A value that one launch wrote and another read, though one of them is elementwise and might have been part of the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfused {
    /// The op that made the value.
    pub producer: &'static str,
    /// The op that read it.
    pub consumer: &'static str,
    /// Their launches, as positions in [`PlanReport::steps`].
    pub steps: [usize; 2],
    /// Why they are two launches.
    pub reason: UnfusedReason,
}

/// Why two launches were not made one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnfusedReason {
    /// [`PipelineSettings::fuse`](crate::PipelineSettings::fuse) is off.
    Off,
    /// The consumer reads the value many times or in an order of its own, so it takes it from memory.
    NotElementwise,
    /// The producer writes its result in parts, or reads it back, and so takes no more work in.
    Producer,
    /// The consumer sees the value broadcast, cut or in another order.
    Order,
    /// Others need the value too, so computing it inside the consumer would be work done twice.
    SeveralUsers,
    /// The elementwise consumer is part of another kernel's launch already.
    Taken,
    /// Something that must run between the two reads or overwrites what they work on.
    Between,
    /// The result would overwrite what other threads of the same launch still read.
    Overwrites,
    /// Both write into the same storage.
    SameStorage,
    /// The result has less than 32 bits an element and is packed by a launch of its own.
    Narrow,
    /// The consumer stores to a place that a number chooses when it runs.
    MovingStore,
    /// Together they touch more memories than a launch may bind.
    Bindings,
    /// Together they are longer than one kernel may be.
    TooLong,
    /// The consumer would repeat, or do in few threads, more work than the memory traffic it would save.
    Costly,
}

impl fmt::Display for UnfusedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "fusion is off",
            Self::NotElementwise => "the consumer takes it from memory",
            Self::Producer => "the producer takes no work in",
            Self::Order => "seen broadcast, cut or in another order",
            Self::SeveralUsers => "several users",
            Self::Taken => "the consumer is part of another launch",
            Self::Between => "memory is used in between",
            Self::Overwrites => "would overwrite what is still read",
            Self::SameStorage => "both write into one storage",
            Self::Narrow => "the result is packed",
            Self::MovingStore => "stored at a moving place",
            Self::Bindings => "too many bindings",
            Self::TooLong => "too long for one kernel",
            Self::Costly => "would repeat costly work",
        })
    }
}

impl fmt::Display for Unfused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}: {}", self.producer, self.consumer, self.reason)
    }
}
