//! The ring of samples.

use bevy::ecs::lifecycle::HookContext;
use bevy::ecs::world::DeferredWorld;
use bevy::prelude::*;

use crate::error::{AudioError, OpError};
use crate::ir::DType;
use crate::record::{TensorCommands, TensorValue};
use crate::tensor::{Tensor, TensorData};

/// Samples that are uploaded at once. Blocks have fixed places in the ring, so that chunks of all sizes share one plan.
const BLOCK: usize = 512;
/// Blocks that are uploaded as one, if there are as many.
const RUN: usize = 16;
/// The longest ring: more than twelve minutes at 44.1 kHz, and 128 MB.
const MOST: usize = 1 << 25;

/// What happens to new samples if the ring is full of samples that no frame has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Reflect)]
pub enum AudioOverflow {
    /// They are refused with [`AudioError::Full`]. Nothing is lost unless the app drops it.
    #[default]
    Refuse,
    /// The oldest samples are skipped and counted in [`AudioFigures::skipped`]. For displays that only show the latest.
    SkipOldest,
}

/// What an [`AudioInput`] has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Reflect)]
pub struct AudioFigures {
    /// Samples written.
    pub written: u64,
    /// Samples that frames have moved past.
    pub taken: u64,
    /// Samples that are waiting for a frame. At most the capacity.
    pub waiting: usize,
    /// The most samples that have waited.
    pub most_waiting: usize,
    /// Samples that were refused because the ring was full.
    pub refused: u64,
    /// Samples that were skipped because the ring was full.
    pub skipped: u64,
}

/// A stream of samples in a ring on the device.
///
/// The app writes new samples in chunks of any size. [`frames`](Self::frames) gives all samples whose frames are complete,
/// each frame once; [`last`](Self::last) gives the latest samples. Both are values for ops, in order, and samples do not
/// return to the host. An input gets a [`Tensor`] on its entity when it is spawned: the ring.
///
/// ```
/// # use bevy::prelude::*;
/// # use bevy_tensor_compute::audio::AudioInput;
/// # use bevy_tensor_compute::prelude::*;
/// # #[derive(Resource)]
/// # struct Bands(Entity);
/// fn start(mut commands: Commands) -> Result {
///     commands.spawn(AudioInput::new(16_000, 32_768)?);
///     Ok(())
/// }
///
/// fn listen(mut input: Single<&mut AudioInput>, bands: Res<Bands>, ops: TensorCommands) -> Result {
///     input.write(&[0.0; 267])?; // whatever has arrived since the last frame
///     let settings = LogMelSettings::speech();
///     let stft = StftSettings { center: None, ..settings.stft.clone() };
///     if let Some(samples) = input.frames(&ops, stft.frame, stft.hop)? {
///         let latest = ops.log_mel(samples, LogMelSettings { stft, ..settings })?; // [frames, bands]
///         ops.store(ops.mean(latest, 0)?, bands.0)?;
///     }
///     Ok(())
/// }
/// ```
#[derive(Component, Debug)]
#[component(on_add = spawn_ring)]
pub struct AudioInput {
    sample_rate: u32,
    /// Elements of the ring: whole blocks.
    ring: usize,
    /// The most samples that may wait.
    capacity: usize,
    overflow: AudioOverflow,
    entity: Option<Entity>,
    /// Samples since the beginning of the block at the write position. They are uploaded with those before.
    block: Vec<f32>,
    /// The first sample that is not uploaded.
    uploaded: u64,
    /// The first sample that no frame has moved past.
    next: u64,
    written: u64,
    most_waiting: usize,
    refused: u64,
    skipped: u64,
}

/// Gives a new input its ring.
fn spawn_ring(mut world: DeferredWorld, HookContext { entity, .. }: HookContext) {
    let Some(mut input) = world.get_mut::<AudioInput>(entity) else { return };
    input.entity = Some(entity);
    let ring = input.ring;
    // Fails only for rings that are too long, which `new` refuses.
    if let Ok(tensor) = Tensor::zeros([ring], DType::F32) {
        world.commands().entity(entity).insert_if_new(tensor);
    }
}

impl AudioInput {
    /// An input whose ring holds `capacity` samples that wait for a frame.
    pub fn new(sample_rate: u32, capacity: usize) -> Result<Self, AudioError> {
        if sample_rate == 0 {
            return Err(AudioError::SampleRate);
        }
        if capacity == 0 || capacity > MOST {
            return Err(AudioError::Capacity { capacity, most: MOST });
        }
        Ok(Self {
            sample_rate,
            // One more run: a block is uploaded whole, and must not overwrite samples that wait.
            ring: (capacity.div_ceil(BLOCK * RUN) + 1) * BLOCK * RUN,
            capacity,
            overflow: AudioOverflow::default(),
            entity: None,
            block: Vec::new(),
            uploaded: 0,
            next: 0,
            written: 0,
            most_waiting: 0,
            refused: 0,
            skipped: 0,
        })
    }

    /// Sets what happens to new samples if the ring is full.
    #[must_use]
    pub fn with_overflow(self, overflow: AudioOverflow) -> Self {
        Self { overflow, ..self }
    }

    /// Samples per second.
    pub fn sample_rate(&self) -> u32 {
        self.sample_rate
    }

    /// The most samples that may wait for a frame.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Samples that can be written now.
    pub fn room(&self) -> usize {
        self.capacity - self.waiting()
    }

    fn waiting(&self) -> usize {
        self.written.saturating_sub(self.next) as usize
    }

    /// What was counted so far.
    pub fn figures(&self) -> AudioFigures {
        let &Self { written, next, most_waiting, refused, skipped, .. } = self;
        let (taken, waiting) = (next.min(written) - skipped, self.waiting());
        AudioFigures { written, taken, waiting, most_waiting, refused, skipped }
    }

    /// Adds samples to the stream. A chunk that does not fit is refused as a whole, or moves the oldest samples out: see
    /// [`AudioOverflow`].
    pub fn write(&mut self, samples: &[f32]) -> Result<(), AudioError> {
        let (given, room) = (samples.len(), self.room());
        if given > room {
            if self.overflow == AudioOverflow::Refuse || given > self.capacity {
                self.refused += given as u64;
                return Err(AudioError::Full { given, room });
            }
            self.next += (given - room) as u64;
            self.skipped += (given - room) as u64;
        }
        self.block.extend_from_slice(samples);
        self.written += given as u64;
        self.most_waiting = self.most_waiting.max(self.waiting());
        // Without a call of `frames` or `last` nothing is uploaded. What the ring cannot hold any more is dropped.
        let begin = self.written - self.block.len() as u64;
        let oldest = self.written.saturating_sub(self.capacity as u64) / BLOCK as u64 * BLOCK as u64;
        if begin < oldest {
            self.block.drain(..(oldest - begin) as usize);
            self.uploaded = self.uploaded.max(oldest);
        }
        Ok(())
    }

    /// The samples of all frames that are complete now and were not taken before, in order, as `f32 [(count − 1) · hop +
    /// frame]`. `None` if there is no such frame.
    ///
    /// The next call begins `hop` samples after the last frame of this one, so that no sample is left out and no frame is
    /// analysed twice. Ops on frames must not continue the samples on their own: set
    /// [`StftSettings::center`](crate::ops::StftSettings::center) to `None`.
    #[track_caller]
    pub fn frames<'a>(
        &mut self,
        ops: &'a TensorCommands,
        frame: usize,
        hop: usize,
    ) -> Result<Option<TensorValue<'a>>, AudioError> {
        let argument = |reason: String| OpError::Argument { op: "frames", reason };
        if hop == 0 || frame == 0 || frame > self.capacity {
            let reason = format!(
                "frames of {frame} samples every {hop}; both must be at least 1, and a frame fit into the ring"
            );
            return Err(argument(reason).into());
        }
        let Some(rest) = self.waiting().checked_sub(frame) else { return Ok(None) };
        let count = rest / hop + 1;
        self.upload(ops)?;
        let samples = self.samples(ops, self.next, (count - 1) * hop + frame)?;
        // A hop may be longer than a frame. What is between them is passed, even if it is not there yet.
        self.next += (count * hop) as u64;
        Ok(Some(samples))
    }

    /// The latest `count` samples in order, as `f32 [count]`. Zeros come before the first sample. Frames are not affected.
    #[track_caller]
    pub fn last<'a>(&mut self, ops: &'a TensorCommands, count: usize) -> Result<TensorValue<'a>, AudioError> {
        if count > self.capacity {
            let reason = format!("the latest {count} samples of a ring of {}", self.capacity);
            return Err(OpError::Argument { op: "last", reason }.into());
        }
        self.upload(ops)?;
        // Positions before the first sample are at the end of the ring, which is still zero.
        let start = (self.written + self.ring as u64 - count as u64) % self.ring as u64;
        self.samples(ops, start, count)
    }

    /// Consecutive samples of the ring.
    #[track_caller]
    fn samples<'a>(&self, ops: &'a TensorCommands, start: u64, count: usize) -> Result<TensorValue<'a>, AudioError> {
        let entity = self.entity.ok_or(AudioError::NotSpawned)?;
        Ok(ops.gather_ring("audio", entity, (start % self.ring as u64) as usize, count)?)
    }

    /// Uploads the blocks that have new samples.
    #[track_caller]
    fn upload(&mut self, ops: &TensorCommands) -> Result<(), AudioError> {
        let entity = self.entity.ok_or(AudioError::NotSpawned)?;
        if self.uploaded == self.written {
            return Ok(());
        }
        let backend = ops.value(entity)?.backend();
        // The first sample of `block` is the first of a block of the ring.
        let mut at = ((self.written - self.block.len() as u64) % self.ring as u64) as usize;
        let mut rest = &self.block[..];
        while !rest.is_empty() {
            let size = if rest.len() >= BLOCK * RUN && at.is_multiple_of(BLOCK * RUN) { BLOCK * RUN } else { BLOCK };
            let (now, later) = rest.split_at(size.min(rest.len()));
            let mut samples = now.to_vec();
            samples.resize(size, 0.0);
            let data = TensorData::new(&samples, [size])?;
            ops.append(entity, ops.host_value(backend, &data, false)?, 0, at)?;
            at = (at + size) % self.ring;
            rest = later;
        }
        // The block that is not full yet is uploaded again with the samples that follow.
        let kept = self.block.len() % BLOCK;
        self.block.drain(..self.block.len() - kept);
        self.uploaded = self.written;
        Ok(())
    }
}
