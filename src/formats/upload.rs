//! Weights on their way into models: a bounded number of bytes a frame, the most urgent first, equals in turns.

use crate::mailbox::{MemoryRequest, Outbox, SyncDirection};
use std::sync::Arc;

use bevy::asset::{AssetLoadError, LoadState};
use bevy::prelude::*;
use thiserror::Error;

use super::asset::TensorWeights;
use super::files::place;
use super::safetensors::FormatError;
use crate::error::{OpError, TensorError};
use crate::ir::Backend;
use crate::record::TensorCommands;
use crate::support::{ModelBackend, TensorSupport};
use crate::tensor::{Tensor, TensorModel};

/// Rows that a large tensor is cut by: so many of any type begin and end with a whole word.
const ROWS: usize = 4;

/// Fills a model with the tensors of a file, as soon as it is read: spawn it with the model, or insert it later.
///
/// Tensors arrive over as many frames as [`UploadSettings`] makes them take; [`WeightsProgress`] tells how far it is, [`WeightsReady`] when all are there or
/// why they will not be. A tensor that the model has by that name is replaced.
///
/// ```
/// # use bevy::prelude::*;
/// # use bevy_tensor_compute::{LoadWeights, WeightsReady};
/// fn spawn_encoder(mut commands: Commands, server: Res<AssetServer>) {
///     commands
///         .spawn((Name::new("text"), LoadWeights::new(server.load("models/minilm.safetensors")).with_priority(1)))
///         .observe(|ready: On<WeightsReady>| match &ready.result {
///             Ok(count) => info!("{count} tensors"),
///             Err(error) => error!("{error}"),
///         });
/// }
/// ```
#[derive(Component, Clone, Debug)]
#[require(TensorModel)]
pub struct LoadWeights {
    /// The file.
    pub weights: Handle<TensorWeights>,
    /// Models of higher priority get the frame's bytes first; 0 by default.
    pub priority: i32,
}

impl LoadWeights {
    /// All tensors of a file.
    pub fn new(weights: Handle<TensorWeights>) -> Self {
        Self { weights, priority: 0 }
    }

    /// Before others, or after them.
    pub fn with_priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }
}

/// How fast weights may arrive.
#[derive(Resource, Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadSettings {
    /// Bytes that all models together get in a frame; 4 MiB by default. Larger tensors take several frames.
    pub bytes_per_frame: usize,
}

impl Default for UploadSettings {
    fn default() -> Self {
        Self { bytes_per_frame: 4 << 20 }
    }
}

/// Some of a model's weights have arrived.
#[derive(EntityEvent, Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightsProgress {
    /// The model.
    pub entity: Entity,
    /// Bytes that are there.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// All of a model's weights are there, or will not come: the answer to [`LoadWeights`].
#[derive(EntityEvent, Clone, Debug)]
pub struct WeightsReady {
    /// The model.
    pub entity: Entity,
    /// How many tensors, or what went wrong. A file that cannot be used leaves the model as it was.
    pub result: Result<usize, WeightsError>,
}

/// Weights that did not come.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The file cannot be used.
    #[error("{}{error}", if error.names_the_file() { String::new() } else { format!("{path}: ") })]
    File {
        /// Its path, as the asset server knows it.
        path: String,
        /// What is wrong with it.
        error: FormatError,
    },
    /// The asset server has no such file, or cannot load it.
    #[error(transparent)]
    Asset(Arc<AssetLoadError>),
    /// A tensor has no such part.
    #[error("\"{name}\": {error}")]
    Tensor {
        /// The tensor.
        name: String,
        /// Why not.
        error: Box<TensorError>,
    },
    /// A part of a tensor could not be written.
    #[error("\"{name}\": {error}")]
    Write {
        /// The tensor.
        name: String,
        /// Why not.
        error: Box<OpError>,
    },
}

impl From<&Arc<AssetLoadError>> for WeightsError {
    /// The reader's own error where it is one: the asset server's words for it name a Rust type, and may hold a backtrace.
    fn from(error: &Arc<AssetLoadError>) -> Self {
        if let AssetLoadError::AssetLoaderError(failed) = &**error
            && let Some(error) = failed.error().downcast_ref::<FormatError>()
        {
            return Self::File { path: failed.path().to_string(), error: error.clone() };
        }
        Self::Asset(error.clone())
    }
}

/// A model whose weights are arriving.
#[derive(Component)]
pub(crate) struct Arriving {
    weights: TensorWeights,
    /// The tensor to come next.
    next: usize,
    /// Of a tensor that takes several frames: itself, and the rows that are there.
    part: Option<(Tensor, usize)>,
    done: u64,
    total: u64,
    /// Why the rest will not come.
    failed: Option<WeightsError>,
}

/// What is left of a frame's bytes.
#[derive(Clone, Copy)]
struct Room {
    left: u64,
    budget: u64,
}

/// One model's turn.
enum Turn {
    /// So many bytes went in.
    Placed(u64),
    /// The next piece does not fit this frame any more.
    Full,
    Finished,
}

/// Notices files that have been read, or could not be.
pub(crate) fn begin_arrivals(
    loads: Query<(Entity, &LoadWeights), Without<Arriving>>,
    server: Option<Res<AssetServer>>,
    assets: Option<Res<Assets<TensorWeights>>>,
    mut commands: Commands,
) {
    let (Some(server), Some(assets)) = (server, assets) else { return };
    for (entity, load) in &loads {
        if let Some(weights) = assets.get(&load.weights) {
            let (weights, total) = (weights.clone(), weights.bytes());
            commands.entity(entity).insert(Arriving { weights, next: 0, part: None, done: 0, total, failed: None });
        } else if let Some(LoadState::Failed(error)) = server.get_load_state(&load.weights) {
            end(&mut commands, entity, Err((&error).into()));
        }
    }
}

/// Gives the frame's bytes to the models that wait for them.
pub(crate) fn place_weights(
    mut arriving: Query<(Entity, &LoadWeights, &mut Arriving, Option<&ModelBackend>)>,
    settings: Res<UploadSettings>,
    support: Res<TensorSupport>,
    ops: TensorCommands,
    mut commands: Commands,
) {
    if arriving.is_empty() {
        return;
    }
    let mut models: Vec<_> = arriving.iter_mut().collect();
    models.sort_by_key(|(_, load, ..)| core::cmp::Reverse(load.priority));
    let budget = settings.bytes_per_frame.max(1) as u64;
    let mut left = budget;
    for group in models.chunk_by_mut(|(_, a, ..), (_, b, ..)| a.priority == b.priority) {
        let mut placed = true;
        while placed && left > 0 {
            placed = false;
            for (entity, _, arriving, backend) in group.iter_mut() {
                let home = backend.map_or(support.backend, |backend| support.available(backend.0));
                match arriving.turn(*entity, home, Room { left, budget }, &ops, &mut commands) {
                    Ok(Turn::Placed(bytes)) => {
                        left = left.saturating_sub(bytes.max(1));
                        placed = true;
                    }
                    Ok(Turn::Full) => left = 0,
                    Ok(Turn::Finished) => {}
                    Err(error) => arriving.failed = Some(error),
                }
            }
        }
    }
    for (entity, _, arriving, _) in &models {
        let (done, total) = (arriving.done, arriving.total);
        commands.trigger(WeightsProgress { entity: *entity, done, total });
        if let Some(error) = &arriving.failed {
            end(&mut commands, *entity, Err(error.clone()));
        } else if arriving.next == arriving.weights.tensors().len() {
            end(&mut commands, *entity, Ok(arriving.next));
        }
    }
}

/// Tells how it went; the file's content is let go.
fn end(commands: &mut Commands, entity: Entity, result: Result<usize, WeightsError>) {
    commands.entity(entity).remove::<(LoadWeights, Arriving)>();
    commands.trigger(WeightsReady { entity, result });
}

impl Arriving {
    /// Places the next piece. A tensor that no frame has room for is cut; one that the next frame has room for waits for it.
    fn turn(
        &mut self,
        entity: Entity,
        home: Backend,
        Room { left, budget }: Room,
        ops: &TensorCommands,
        commands: &mut Commands,
    ) -> Result<Turn, WeightsError> {
        let Some((name, data)) = self.weights.tensors().get(self.next).filter(|_| self.failed.is_none()) else {
            return Ok(Turn::Finished);
        };
        let fresh = left == budget;
        let bytes = data.bytes().len() as u64;
        let rows = data.shape().first().copied().unwrap_or(1);
        // The CPU takes host data as it is: there is nothing to cut.
        let cut = bytes > budget && home == Backend::Gpu && rows > ROWS;
        if !cut {
            if bytes > left && !fresh {
                return Ok(Turn::Full);
            }
            let (name, tensor) = (name.clone(), Tensor::from(data.clone()));
            self.put(entity, name, tensor, home, commands);
            self.done += bytes;
            return Ok(Turn::Placed(bytes));
        }
        let (name, data) = (name.clone(), data.clone());
        let (tensor, from) = self.part.take().unwrap_or_else(|| (Tensor::blank(data.dtype(), data.shape().clone()), 0));
        let fits = (left as usize / (bytes as usize / rows).max(1)) / ROWS * ROWS;
        let to = (from + fits.max(if fresh { ROWS } else { 0 })).min(rows);
        if to == from {
            self.part = Some((tensor, from));
            return Ok(Turn::Full);
        }
        let piece = data.rows(from..to);
        let size = piece.bytes().len() as u64;
        tensor.storage().home(home);
        let part = tensor.slice(0, from as isize, to as isize);
        let part = part.map_err(|error| WeightsError::Tensor { name: name.clone(), error: Box::new(error) })?;
        let written = ops.write_tensor(&part, &piece);
        written.map_err(|error| WeightsError::Write { name: name.clone(), error: Box::new(error) })?;
        self.done += size;
        if to == rows {
            self.put(entity, name, tensor, home, commands);
        } else {
            self.part = Some((tensor, to));
        }
        Ok(Turn::Placed(size))
    }

    fn put(&mut self, entity: Entity, name: String, tensor: Tensor, home: Backend, commands: &mut Commands) {
        self.next += 1;
        tensor.storage().home(home);
        let storage = tensor.storage().clone();
        // Ahead of the first use, so that this is not late.
        commands.queue(move |world: &mut World| {
            world.resource_mut::<Outbox>().post(MemoryRequest::Synchronize(storage, SyncDirection::ToDevice));
        });
        commands.queue(move |world: &mut World| {
            if world.get_entity(entity).is_ok() {
                place(world, entity, name, tensor);
            }
        });
    }
}
