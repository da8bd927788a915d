//! Errors of sound.

use std::path::PathBuf;

use thiserror::Error;

use super::{OpError, TensorError};

/// An error of a sound input, a sound file or a microphone.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum AudioError {
    /// A sample rate of 0.
    #[error("a sample rate of 0")]
    SampleRate,
    /// A ring that cannot hold samples, or more than can be addressed.
    #[error("a ring of {capacity} samples; it must have 1 to {most}")]
    Capacity {
        /// Samples asked for.
        capacity: usize,
        /// The most possible.
        most: usize,
    },
    /// More samples than the ring has room for. None of them was taken.
    #[error("{given} samples, but the ring has room for {room}; take frames more often, or write less")]
    Full {
        /// Samples given.
        given: usize,
        /// Samples that would fit.
        room: usize,
    },
    /// The input has no entity yet.
    #[error("the input is not spawned yet")]
    NotSpawned,
    /// A file that cannot be decoded.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// There is no microphone, or it cannot be opened.
    #[error("no microphone: {reason}")]
    NoMicrophone {
        /// The reason.
        reason: String,
    },
    /// A tensor could not be created.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// An op could not be recorded.
    #[error(transparent)]
    Op(#[from] OpError),
}
