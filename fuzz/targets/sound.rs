//! Sound files: WAV and Ogg Vorbis bytes become whole frames of samples or an error.

use std::path::Path;

use bevy_tensor_compute::prelude::SoundClip;

use super::{Answer, Target};

pub const TARGET: Target = Target {
    name: "sound",
    corpus: "sound",
    weight: 4,
    longest: 8192,
    words: &["RIFF", "WAVE", "fmt ", "data", "OggS", "vorbis", "LIST", "fact"],
    // A clip decodes with two other crates and guards against their panics.
    guards: true,
    make: || {
        Box::new(|bytes| match SoundClip::from_bytes(Path::new("clip"), bytes) {
            Ok(clip) => {
                assert!(clip.sample_rate() > 0 && clip.samples().len().is_multiple_of(clip.channels()));
                assert!(clip.samples().len() <= 65_536 * bytes.len(), "{} samples", clip.samples().len());
                Answer::accepted((clip.channels(), clip.samples().len().min(4)))
            }
            Err(error) => Answer::refused(error),
        })
    },
};
