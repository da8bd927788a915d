//! Errors of readbacks.

use thiserror::Error;

use super::RunError;

/// The error of a readback.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The work that computes the values failed.
    #[error("the work that computes the values failed: {0}")]
    Failed(RunError),
    /// The device was lost.
    #[error("the device was lost before the values arrived")]
    DeviceLost,
    /// A newer recording replaced the work before it began. See
    /// [`TensorBacklog::Latest`](crate::schedule::TensorBacklog::Latest).
    #[error("a newer recording replaced the work that computes the values")]
    Replaced,
    /// The app ended before the values arrived, or the answer was already taken.
    #[error("the app ended before the values arrived, or they were already taken")]
    Disabled,
}
