//! Errors of running recorded work.

use thiserror::Error;

/// A tensor that takes memory, as errors name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryHolder {
    /// Its name, or the number of its storage.
    pub name: String,
    /// Bytes it takes on the device.
    pub bytes: u64,
    /// Whether it is pinned.
    pub pinned: bool,
}

fn list_holders(holders: &[MemoryHolder]) -> String {
    let list = holders.iter().map(|h| format!("{} {}{}", h.name, h.bytes, if h.pinned { " (pinned)" } else { "" }));
    let list = list.collect::<Vec<_>>().join(", ");
    if list.is_empty() { "none".to_owned() } else { list }
}

/// Running a batch of recorded work.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum RunError {
    /// A kernel did not become a pipeline.
    #[error("kernel {kernel} did not compile: {message}")]
    Kernel {
        /// The kernel.
        kernel: String,
        /// What the compiler said.
        message: String,
    },
    /// The CPU function of a custom kernel failed, or is missing where work had to move to the CPU.
    #[error("kernel {kernel} on the CPU: {message}")]
    CpuFunction {
        /// The kernel.
        kernel: &'static str,
        /// What it said.
        message: String,
    },
    /// A buffer beyond what the device allows.
    #[error("{what} needs {requested} bytes but the device allows {available}")]
    Limit {
        /// What asked.
        what: String,
        /// Bytes asked for.
        requested: u64,
        /// Bytes allowed.
        available: u64,
    },
    /// The device has no memory left.
    #[error("the device is out of memory: {what} asked for {requested} bytes")]
    OutOfMemory {
        /// What asked.
        what: String,
        /// Bytes asked for.
        requested: u64,
    },
    /// The work needs more than the budget has left, even with every tensor gone that may go.
    #[error(
        "{requested} bytes are needed but only {available} of the budget of {budget} can be had; largest holders: {}",
        list_holders(largest)
    )]
    Budget {
        /// Bytes the work needs beyond what it has on the device.
        requested: u64,
        /// Bytes that could be had for it.
        available: u64,
        /// The budget.
        budget: u64,
        /// The largest tensors that must stay: pinned ones, and those the work itself uses.
        largest: Vec<MemoryHolder>,
    },
    /// The work reads a tensor whose content a lost device took with it.
    #[error("the content of {tensor} was lost with the device; write it before reading it")]
    Lost {
        /// The tensor's name.
        tensor: String,
    },
    /// The device refused something; a bug worth reporting.
    #[error("the device reported: {0}")]
    Device(String),
    /// In debug mode: the first op of a batch that made a NaN or an infinity of operands without.
    #[error("{op} at {site} made {nans} NaNs and {infinities} infinities of operands that had none")]
    NonFinite {
        /// The op that the kernel is for.
        op: &'static str,
        /// All ops that share the kernel.
        ops: Vec<&'static str>,
        /// Where the last of them was recorded.
        site: &'static core::panic::Location<'static>,
        /// NaNs among the results.
        nans: u32,
        /// Infinities among the results.
        infinities: u32,
    },
    /// A kernel read positions from memory that lay outside the data; they were clamped.
    #[error("{op}: {count} indices out of range were clamped")]
    IndexOutOfRange {
        /// The op.
        op: &'static str,
        /// How many.
        count: u32,
    },
}
