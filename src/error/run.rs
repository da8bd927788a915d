//! Errors of recorded work that runs on a backend.

use std::sync::Arc;

use thiserror::Error;

/// A tensor in device memory, as described in errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryHolder {
    /// The name of the tensor, or the id of its storage.
    pub name: String,
    /// Bytes on the device.
    pub bytes: u64,
    /// Whether the tensor is pinned.
    pub pinned: bool,
}

fn list_holders(holders: &[MemoryHolder]) -> String {
    let list = holders.iter().map(|h| format!("{} {}{}", h.name, h.bytes, if h.pinned { " (pinned)" } else { "" }));
    let list = list.collect::<Vec<_>>().join(", ");
    if list.is_empty() { "none".to_owned() } else { list }
}

/// The error of running a batch of recorded work.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The pipeline of a kernel could not be created.
    #[error("kernel {kernel} did not compile: {message}")]
    Kernel {
        /// The kernel.
        kernel: String,
        /// The message of the compiler.
        message: String,
    },
    /// The CPU function of a custom kernel failed, or is missing although the work moved to the CPU.
    #[error("kernel {kernel} on the CPU: {message}")]
    CpuFunction {
        /// The kernel.
        kernel: &'static str,
        /// The message of the function.
        message: String,
    },
    /// A buffer is larger than the device allows.
    #[error("{what} needs {requested} bytes but the device allows {available}")]
    Limit {
        /// The tensor or op that needs the buffer.
        what: String,
        /// Requested bytes.
        requested: u64,
        /// The limit in bytes.
        available: u64,
    },
    /// The device is out of memory.
    #[error("the device is out of memory: {what} needs {requested} bytes")]
    OutOfMemory {
        /// The tensor or op that needs the memory.
        what: String,
        /// Requested bytes.
        requested: u64,
    },
    /// The work needs more memory than the budget allows, even if every tensor that can be evicted is evicted.
    #[error(
        "{requested} bytes are needed but only {available} of the budget of {budget} are available; largest tensors: {}",
        list_holders(largest)
    )]
    Budget {
        /// Additional bytes that the work needs on the device.
        requested: u64,
        /// Bytes that could be made available.
        available: u64,
        /// The budget.
        budget: u64,
        /// The largest tensors that cannot be evicted: pinned tensors, and tensors that the work uses.
        largest: Vec<MemoryHolder>,
    },
    /// The work reads a tensor whose content was lost with the device.
    #[error("the content of {tensor} was lost with the device; write it before reading it")]
    Lost {
        /// The name of the tensor.
        tensor: String,
    },
    /// The device reported a validation error. This is a bug; please report it.
    #[error("the device reported an error: {0}")]
    Device(String),
    /// A thread that worked on this panicked. Other work goes on.
    #[error("{task} panicked: {message}")]
    Panic {
        /// What panicked.
        task: &'static str,
        /// The message of the panic.
        message: String,
    },
    /// In debug mode: the first op of a batch whose results have NaNs or infinities although its operands have none.
    #[error("{op} at {site}: {nans} NaNs and {infinities} infinities in the result, none in the operands")]
    NonFinite {
        /// The op of the kernel.
        op: &'static str,
        /// All ops that are fused into the kernel.
        ops: Vec<&'static str>,
        /// The source location where the last of them was recorded.
        site: &'static core::panic::Location<'static>,
        /// Number of NaNs in the result.
        nans: u32,
        /// Number of infinities in the result.
        infinities: u32,
    },
    /// An error in the work of a node of a model's graph.
    #[error("{node}: {error}")]
    Node {
        /// The nodes of the launch: "node `/conv1/Conv` (Conv)".
        node: String,
        /// The error.
        error: Box<RunError>,
    },
    /// A custom kernel ran more loop iterations than [`CustomKernel::loop_bound`](crate::kernels::CustomKernel::loop_bound)
    /// allows, and its loops were ended. The results of the launch are undefined.
    #[error("kernel {kernel}: a thread was ended after {turns} loop iterations")]
    LoopBound {
        /// The kernel. If several kernels share the launch, all that have loops.
        kernel: String,
        /// The bound.
        turns: u32,
    },
    /// A kernel read indices from a tensor that are outside of the data. They were clamped.
    #[error("{op}: {count} indices out of range were clamped")]
    IndexOutOfRange {
        /// The op.
        op: &'static str,
        /// Number of indices.
        count: u32,
    },
}

impl RunError {
    /// Names the nodes of a model's graph that a failed launch computes, if there are any.
    pub(crate) fn in_nodes(self, nodes: &[Arc<str>]) -> Self {
        match nodes {
            [] => self,
            nodes => Self::Node { node: nodes.join(", "), error: Box::new(self) },
        }
    }
}
