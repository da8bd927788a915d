//! Samples from a microphone.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use cpal::traits::{DeviceTrait, HostTrait, StreamTrait};
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::AudioError;

/// Chunks that wait for the app. A chunk is about 10 ms, so that an app may stop for seconds.
const CHUNKS: usize = 512;

/// The default microphone of the machine, which records until it is dropped.
///
/// It is not `Send` on some platforms: keep it as a non-send resource.
pub struct Microphone {
    /// Dropping it ends the recording.
    _stream: cpal::Stream,
    chunks: Receiver<Vec<f32>>,
    dropped: Arc<AtomicU64>,
    sample_rate: u32,
}

impl Microphone {
    /// Starts to record. A machine without a microphone gives [`AudioError::NoMicrophone`].
    pub fn open() -> Result<Self, AudioError> {
        let none = |reason: String| AudioError::NoMicrophone { reason };
        let device = cpal::default_host().default_input_device();
        let device = device.ok_or_else(|| none("the machine has no input device".to_owned()))?;
        let config = device.default_input_config().map_err(|error| none(error.to_string()))?;
        let channels = usize::from(config.channels()).max(1);
        let sample_rate = config.sample_rate();
        let (sender, chunks) = bounded(CHUNKS);
        let dropped = Arc::new(AtomicU64::new(0));
        let stream = {
            let dropped = dropped.clone();
            device.build_input_stream(
                cpal::StreamConfig { channels: config.channels(), sample_rate, buffer_size: cpal::BufferSize::Default },
                move |samples: &[f32], _: &cpal::InputCallbackInfo| send(samples, channels, &sender, &dropped),
                |error| bevy::log::warn!("microphone: {error}"),
                None,
            )
        };
        let stream = stream.map_err(|error| none(error.to_string()))?;
        stream.play().map_err(|error| none(error.to_string()))?;
        Ok(Self { _stream: stream, chunks, dropped, sample_rate })
    }

    /// Samples per second.
    pub fn sample_rate(&self) -> u32 {
        self.sample_rate
    }

    /// All samples since the last call, as the mean of the channels.
    pub fn take(&self) -> Vec<f32> {
        self.chunks.try_iter().flatten().collect()
    }

    /// Samples that were lost because the app did not take them for seconds.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Sends the mean of the channels. The thread of the device must not wait.
fn send(samples: &[f32], channels: usize, to: &Sender<Vec<f32>>, dropped: &AtomicU64) {
    let scale = 1.0 / channels as f32;
    let mono: Vec<f32> = samples.chunks_exact(channels).map(|frame| frame.iter().sum::<f32>() * scale).collect();
    let count = mono.len() as u64;
    if to.try_send(mono).is_err() {
        dropped.fetch_add(count, Ordering::Relaxed);
    }
}
