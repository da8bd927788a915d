//! Errors, one enum per phase.

mod audio;
mod binding;
mod crowd;
mod fault;
mod image;
mod kernel;
mod op;
mod panics;
mod read;
mod run;
mod stall;
mod tensor;

pub use audio::AudioError;
pub use binding::BindingError;
pub use crowd::CrowdError;
pub use fault::TensorFault;
pub use image::ImageError;
pub use kernel::KernelError;
pub use op::{OpError, OpResult, OperandInfo};
pub use read::ReadError;
pub use run::{MemoryHolder, RunError};
pub use stall::{Stall, StallStage};
pub use tensor::TensorError;

pub use crate::ir::SourcePlace;

pub(crate) use fault::{FaultReceiver, FaultSender, log_fault, trigger_faults};
pub(crate) use panics::catch;
