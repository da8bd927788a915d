//! Work that does not move on.

use core::time::Duration;

/// The place where recorded work waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StallStage {
    /// The renderer does not run, so recorded work does not reach the GPU.
    Renderer,
    /// The GPU queue of this plugin waits for pipelines, memory or content.
    Queue,
    /// The device has not finished the work that was submitted to it.
    Device,
    /// The thread of the CPU backend has not finished its batch.
    Cpu,
}

/// Recorded work that has not moved on for a while. The work is not cancelled: if it continues, its requests are
/// answered as usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Where the work waits.
    pub stage: StallStage,
    /// How long nothing has happened.
    pub waited: Duration,
    /// Number of recordings, batches or submissions that wait there.
    pub pending: u64,
}

impl core::fmt::Display for Stall {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { stage, waited, pending } = self;
        let seconds = waited.as_secs_f64();
        match stage {
            StallStage::Renderer => {
                write!(f, "the renderer has not run for {seconds:.1} s; recordings that wait for it: {pending}")
            }
            StallStage::Queue => {
                let what = "batches that wait for pipelines, memory or content";
                write!(f, "no batch could run on the GPU for {seconds:.1} s; {what}: {pending}")
            }
            StallStage::Device => {
                write!(f, "the device has not answered for {seconds:.1} s; unfinished submissions: {pending}")
            }
            StallStage::Cpu => {
                write!(f, "the CPU backend has not answered for {seconds:.1} s; unfinished batches: {pending}")
            }
        }
    }
}
