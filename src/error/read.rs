//! Errors of reading values back.

use thiserror::Error;

use super::RunError;

/// A readback that brings no data.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The work that was to make the values failed.
    #[error("the work behind the values failed: {0}")]
    Failed(RunError),
    /// The device went away.
    #[error("the device was lost before the values arrived")]
    DeviceLost,
    /// The app, or the plugin, ended.
    #[error("tensor compute ended before the values arrived")]
    Disabled,
}
