//! Gradual upload of weights: a limited number of bytes per frame, higher priorities first, round-robin between equal
//! priorities.

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
use crate::tensor::{Tensor, TensorModel, TensorNames};

/// Large tensors are split at multiples of this many rows. Four rows of any type start and end at a word boundary.
const ROWS: usize = 4;

/// Loads the tensors of a file into a model. Insert it when or after spawning the model.
///
/// [`UploadSettings`] limits the bytes per frame. [`WeightsProgress`] reports the progress. [`WeightsReady`] is
/// triggered when all tensors are loaded or loading has failed. Existing tensors of the model with the same names are
/// replaced.
///
/// Replacing the component by one with another file, or removing it, cancels the upload: the tensors that it has spawned so
/// far are despawned, and there is no [`WeightsReady`] for the old file.
///
/// ```
/// # use bevy::prelude::*;
/// # use bevy_tensor_compute::formats::{LoadWeights, WeightsReady};
/// fn spawn_encoder(mut commands: Commands, server: Res<AssetServer>) {
///     commands
///         .spawn((Name::new("text"), LoadWeights::new(server.load("models/minilm.safetensors")).with_priority(1)))
///         .observe(|ready: On<WeightsReady>| match &ready.result {
///             Ok(count) => info!("{count} tensors"),
///             Err(error) => error!("{error}"),
///         });
/// }
/// ```
#[derive(Component, Clone, Debug, Reflect)]
#[reflect(Component, Debug, Clone)]
#[require(TensorModel)]
pub struct LoadWeights {
    /// The file.
    pub weights: Handle<TensorWeights>,
    /// Models with a higher priority are loaded first. 0 by default.
    pub priority: i32,
}

impl LoadWeights {
    /// Loads all tensors of a file with priority 0.
    pub fn new(weights: Handle<TensorWeights>) -> Self {
        Self { weights, priority: 0 }
    }

    /// Sets the priority.
    pub fn with_priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }
}

/// Limits the upload of weights.
#[derive(Resource, Clone, Copy, Debug, PartialEq, Eq, Reflect)]
#[reflect(Resource, Default, Debug, PartialEq, Clone)]
pub struct UploadSettings {
    /// Maximum number of bytes per frame for all models together. 4 MiB by default. On the GPU backend, larger tensors
    /// are split over several frames.
    pub bytes_per_frame: usize,
}

impl Default for UploadSettings {
    fn default() -> Self {
        Self { bytes_per_frame: 4 << 20 }
    }
}

/// Triggered on a model while its weights are loading.
#[derive(EntityEvent, Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightsProgress {
    /// The model.
    pub entity: Entity,
    /// Bytes loaded so far.
    pub done: u64,
    /// Total bytes.
    pub total: u64,
}

/// Triggered on a model when [`LoadWeights`] has finished or failed.
#[derive(EntityEvent, Clone, Debug)]
pub struct WeightsReady {
    /// The model.
    pub entity: Entity,
    /// Number of tensors, or the error. If the file is invalid, the model is unchanged.
    pub result: Result<usize, WeightsError>,
}

/// Why loading weights failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The file is invalid.
    #[error("{}{error}", if error.names_the_file() { String::new() } else { format!("{path}: ") })]
    File {
        /// Asset path of the file.
        path: String,
        /// The underlying error.
        error: FormatError,
    },
    /// The asset server could not load the file.
    #[error(transparent)]
    Asset(Arc<AssetLoadError>),
    /// A tensor could not be split into rows.
    #[error("\"{name}\": {error}")]
    Tensor {
        /// Name of the tensor.
        name: String,
        /// The underlying error.
        error: Box<TensorError>,
    },
    /// A part of a tensor could not be written.
    #[error("\"{name}\": {error}")]
    Write {
        /// Name of the tensor.
        name: String,
        /// The underlying error.
        error: Box<OpError>,
    },
}

impl From<&Arc<AssetLoadError>> for WeightsError {
    /// Extracts the loader's own error if there is one. The message of the asset server contains Rust type names and
    /// possibly a backtrace.
    fn from(error: &Arc<AssetLoadError>) -> Self {
        if let AssetLoadError::AssetLoaderError(failed) = &**error
            && let Some(error) = failed.error().downcast_ref::<FormatError>()
        {
            return Self::File { path: failed.path().to_string(), error: error.clone() };
        }
        Self::Asset(error.clone())
    }
}

/// State of a model whose weights are loading.
#[derive(Component)]
pub(crate) struct Arriving {
    /// The file, to notice that [`LoadWeights`] was replaced.
    file: AssetId<TensorWeights>,
    weights: TensorWeights,
    /// Tensors that were spawned for it.
    spawned: Vec<Entity>,
    /// Index of the next tensor.
    next: usize,
    /// A tensor that is loaded over several frames, and the number of rows loaded so far.
    part: Option<(Tensor, usize)>,
    done: u64,
    total: u64,
    /// The error, if loading has failed.
    failed: Option<WeightsError>,
}

/// The remaining bytes of the frame.
#[derive(Clone, Copy)]
struct Room {
    left: u64,
    budget: u64,
}

/// Result of placing one piece of a model.
enum Turn {
    /// This many bytes were placed.
    Placed(u64),
    /// The next piece does not fit in this frame.
    Full,
    Finished,
}

/// Starts the upload of files that were read, reports files that failed, and cancels uploads that are no longer wanted.
pub(crate) fn begin_arrivals(
    loads: Query<(Entity, &LoadWeights, Has<Arriving>)>,
    arriving: Query<(Entity, &Arriving, Option<&LoadWeights>)>,
    server: Option<Res<AssetServer>>,
    assets: Option<Res<Assets<TensorWeights>>>,
    mut commands: Commands,
) {
    for (entity, arriving, load) in &arriving {
        if load.is_none_or(|load| load.weights.id() != arriving.file) {
            arriving.spawned.iter().for_each(|&tensor| commands.entity(tensor).try_despawn());
            commands.entity(entity).try_remove::<Arriving>();
        }
    }
    let (Some(server), Some(assets)) = (server, assets) else { return };
    for (entity, load, arriving) in &loads {
        if arriving {
            continue;
        }
        let file = load.weights.id();
        if let Some(weights) = assets.get(file) {
            // The model may be despawned before commands are applied.
            commands.entity(entity).try_insert(Arriving::new(load, weights.clone()));
        } else if let Some(LoadState::Failed(error)) = server.get_load_state(file) {
            end(&mut commands, entity, file, Err((&error).into()));
        }
    }
}

/// Distributes the bytes of the frame among the loading models.
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
    // A model whose file was replaced after `begin_arrivals` waits for the next frame.
    let wanted = |load: &LoadWeights, arriving: &Arriving| load.weights.id() == arriving.file;
    let mut models: Vec<_> = arriving.iter_mut().filter(|(_, load, arriving, _)| wanted(load, arriving)).collect();
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
            end(&mut commands, *entity, arriving.file, Err(error.clone()));
        } else if arriving.next == arriving.weights.tensors().len() {
            end(&mut commands, *entity, arriving.file, Ok(arriving.next));
        }
    }
}

/// Reports the result and drops the content of the file, unless the model was despawned or wants another file by now.
fn end(commands: &mut Commands, entity: Entity, file: AssetId<TensorWeights>, result: Result<usize, WeightsError>) {
    commands.queue(move |world: &mut World| {
        let Ok(mut model) = world.get_entity_mut(entity) else { return };
        if model.get::<LoadWeights>().is_some_and(|load| load.weights.id() == file) {
            model.remove::<(LoadWeights, Arriving)>();
            world.trigger(WeightsReady { entity, result });
        }
    });
}

impl Arriving {
    /// The state before the first tensor. `load` is the request of the model.
    pub(crate) fn new(load: &LoadWeights, weights: TensorWeights) -> Self {
        let (file, total, spawned) = (load.weights.id(), weights.bytes(), Vec::new());
        Self { file, weights, spawned, next: 0, part: None, done: 0, total, failed: None }
    }

    /// Places the next piece. Tensors larger than the limit per frame are split. Tensors that fit in the next frame
    /// wait for it.
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
        // The CPU backend uses the host data directly, so there is nothing to split.
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
        // Uploads the tensor now, before its first use.
        commands.queue(move |world: &mut World| {
            world.resource_mut::<Outbox>().post(MemoryRequest::Synchronize(storage, SyncDirection::ToDevice));
        });
        commands.queue(move |world: &mut World| {
            if world.get_entity(entity).is_ok() {
                let known = world.resource::<TensorNames>().find(entity, &name).is_ok();
                let tensor = place(world, entity, name, tensor);
                if let Some(mut arriving) = world.get_mut::<Arriving>(entity).filter(|_| !known) {
                    arriving.spawned.push(tensor);
                }
            }
        });
    }
}
