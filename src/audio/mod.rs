//! Sound in an app: a ring of samples on the device, sound files, and microphones.
//!
//! [`AudioInput`] takes samples in chunks of any size and gives frames of them to ops. [`SoundClip`] (feature `audio`) is a
//! sound file as an asset, decoded without a sound device. `Microphone` (feature `microphone`) records.
//!
//! The ops on samples are among the others: [`spectrogram`](crate::ops::TensorCommands::spectrogram),
//! [`log_mel`](crate::ops::TensorCommands::log_mel), [`mfcc`](crate::ops::TensorCommands::mfcc) and
//! [`resample`](crate::ops::TensorCommands::resample).

#[cfg(feature = "audio")]
mod clip;
mod input;
#[cfg(feature = "microphone")]
mod microphone;

#[cfg(feature = "audio")]
pub use clip::SoundClip;
#[cfg(feature = "audio")]
pub(crate) use clip::SoundLoader;
pub use input::{AudioFigures, AudioInput, AudioOverflow};
#[cfg(feature = "microphone")]
pub use microphone::Microphone;

pub use crate::error::AudioError;
