//! Sound files as assets.

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use bevy::asset::io::Reader;
use bevy::asset::{AssetLoader, LoadContext};
use bevy::prelude::*;

use crate::error::{AudioError, catch};
use crate::tensor::Tensor;

/// The samples of a sound file, from −1 to 1: `asset_server.load::<SoundClip>("speech.ogg")`.
///
/// WAV files (integers of 8 to 32 bits, and floats) and Ogg Vorbis files are decoded. No sound device is needed.
#[derive(Asset, TypePath, Clone, Debug, PartialEq)]
pub struct SoundClip {
    sample_rate: u32,
    channels: usize,
    /// The samples of all channels in turn.
    samples: Arc<[f32]>,
}

impl SoundClip {
    /// A clip of the samples of all channels in turn.
    pub fn new(sample_rate: u32, channels: usize, samples: impl Into<Arc<[f32]>>) -> Result<Self, AudioError> {
        let samples = samples.into();
        if sample_rate == 0 {
            return Err(AudioError::SampleRate);
        }
        if channels == 0 || !samples.len().is_multiple_of(channels) {
            let reason = format!("{} samples are not those of {channels} channels", samples.len());
            return Err(AudioError::File { path: "samples".into(), reason });
        }
        Ok(Self { sample_rate, channels, samples })
    }

    /// Decodes the bytes of a file. `path` is used in error messages.
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self, AudioError> {
        let fail = |reason: String| AudioError::File { path: path.to_owned(), reason };
        let decode = match bytes {
            [b'R', b'I', b'F', b'F', ..] => wav,
            [b'O', b'g', b'g', b'S', ..] => vorbis,
            _ => return Err(fail("neither a WAV nor an Ogg file".to_owned())),
        };
        // The decoders can panic on hostile files.
        let (rate, channels, samples) = catch(|| decode(bytes)).flatten().map_err(fail)?;
        Self::new(rate, channels, samples).map_err(|error| fail(error.to_string()))
    }

    /// Samples per second.
    pub fn sample_rate(&self) -> u32 {
        self.sample_rate
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// The samples of all channels in turn.
    pub fn samples(&self) -> &[f32] {
        &self.samples
    }

    /// Seconds of sound.
    pub fn seconds(&self) -> f64 {
        (self.samples.len() / self.channels) as f64 / f64::from(self.sample_rate)
    }

    /// The mean of all channels.
    pub fn mono(&self) -> Vec<f32> {
        let scale = 1.0 / self.channels as f32;
        self.samples.chunks_exact(self.channels).map(|frame| frame.iter().sum::<f32>() * scale).collect()
    }

    /// A tensor of `[samples, channels]`.
    pub fn tensor(&self) -> Result<Tensor, AudioError> {
        let shape = [self.samples.len() / self.channels, self.channels];
        Ok(Tensor::from_slice(&self.samples, shape)?)
    }
}

type Decoded = (u32, usize, Vec<f32>);

/// The most samples of a clip: 1 GiB. A short hostile Ogg file can claim far more.
const MOST_SAMPLES: usize = 1 << 28;

fn wav(bytes: &[u8]) -> Result<Decoded, String> {
    let mut reader = hound::WavReader::new(Cursor::new(bytes)).map_err(|error| error.to_string())?;
    let spec = reader.spec();
    let samples: Result<Vec<f32>, hound::Error> = match spec.sample_format {
        hound::SampleFormat::Float => reader.samples::<f32>().collect(),
        hound::SampleFormat::Int => {
            let scale = 1.0 / (1u64 << (u32::from(spec.bits_per_sample).clamp(1, 32) - 1)) as f32;
            reader.samples::<i32>().map(|sample| sample.map(|sample| sample as f32 * scale)).collect()
        }
    };
    Ok((spec.sample_rate, usize::from(spec.channels), samples.map_err(|error| error.to_string())?))
}

fn vorbis(bytes: &[u8]) -> Result<Decoded, String> {
    use lewton::inside_ogg::OggStreamReader;
    use lewton::samples::InterleavedSamples;
    let failed = |error: lewton::VorbisError| error.to_string();
    let mut reader = OggStreamReader::new(Cursor::new(bytes)).map_err(failed)?;
    let (rate, channels) = (reader.ident_hdr.audio_sample_rate, usize::from(reader.ident_hdr.audio_channels));
    let mut samples = Vec::new();
    while let Some(packet) = reader.read_dec_packet_generic::<InterleavedSamples<f32>>().map_err(failed)? {
        samples.extend_from_slice(&packet.samples);
        if samples.len() > MOST_SAMPLES {
            return Err(format!("more than {MOST_SAMPLES} samples"));
        }
    }
    Ok((rate, channels, samples))
}

/// Asset loader for [`SoundClip`].
#[derive(Default, TypePath)]
pub(crate) struct SoundLoader;

impl AssetLoader for SoundLoader {
    type Asset = SoundClip;
    type Settings = ();
    type Error = AudioError;

    async fn load(
        &self,
        reader: &mut dyn Reader,
        _: &(),
        context: &mut LoadContext<'_>,
    ) -> Result<SoundClip, AudioError> {
        let path = context.path().path().to_owned();
        let mut bytes = Vec::new();
        let read = reader.read_to_end(&mut bytes).await;
        read.map_err(|error| AudioError::File { path: path.clone(), reason: error.to_string() })?;
        SoundClip::from_bytes(&path, &bytes)
    }

    fn extensions(&self) -> &[&str] {
        &["wav", "ogg"]
    }
}
