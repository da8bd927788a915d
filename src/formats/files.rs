//! Saves and loads a model's tensors in the background.

use std::collections::{HashMap, HashSet};
use std::path::{Component as PathPart, Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bevy::ecs::system::SystemParam;
use bevy::prelude::*;
use bevy::tasks::IoTaskPool;
use crossbeam_channel::{Receiver, Sender};

use super::safetensors::{FormatError, SafetensorsFile, save_safetensors};
use super::upload::{Arriving, LoadWeights};
use crate::error::{OpError, catch};
use crate::readback::TensorReceiver;
use crate::record::TensorCommands;
use crate::tensor::{ModelTensors, Tensor, TensorData, TensorNames, TensorOf};

/// Triggered on the model when [`TensorFiles::save`] has finished or failed: once for every call, also if the model no
/// longer exists.
#[derive(EntityEvent, Clone, Debug)]
pub struct TensorsSaved {
    /// The model.
    pub entity: Entity,
    /// Path of the file.
    pub path: PathBuf,
    /// Number of saved tensors, or the error. On an error, an existing file is unchanged.
    pub result: Result<usize, FormatError>,
}

/// Triggered on the model when [`TensorFiles::load`] has finished or failed: once for every call, also if the model no
/// longer exists.
#[derive(EntityEvent, Clone, Debug)]
pub struct TensorsLoaded {
    /// The model.
    pub entity: Entity,
    /// Path of the file.
    pub path: PathBuf,
    /// The loaded tensors, or the error. On an error, the model is unchanged.
    pub result: Result<Vec<Entity>, FormatError>,
}

/// A finished file operation.
enum FileNews {
    Saved(TensorsSaved),
    Loaded(Entity, PathBuf, Result<Vec<(String, TensorData)>, FormatError>),
}

/// Channel for results of file operations, and what is under way.
#[derive(Resource)]
pub(crate) struct FileChannel {
    sender: Sender<FileNews>,
    receiver: Receiver<FileNews>,
    under_way: Mutex<UnderWay>,
}

/// File operations that have not finished.
#[derive(Default)]
struct UnderWay {
    /// For every path with unfinished operations, the end of the last one.
    paths: HashMap<PathBuf, End>,
    /// Models that are being loaded, once for every call.
    loading: Vec<Entity>,
}

/// Closes when an operation ends.
type End = async_channel::Receiver<()>;

/// The place of an operation among those on the same path.
struct Turn {
    before: Option<End>,
    /// Dropped when the operation has ended.
    _until: async_channel::Sender<()>,
}

impl Turn {
    /// Waits for the operations before this one. Nothing is ever sent, so this ends when the channel closes.
    async fn comes(&self) {
        if let Some(before) = &self.before {
            let _ = before.recv().await;
        }
    }
}

impl Default for FileChannel {
    fn default() -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded();
        Self { sender, receiver, under_way: Mutex::default() }
    }
}

impl FileChannel {
    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One load of a model has ended.
    fn loaded(&self, model: Entity) {
        let loading = &mut self.under_way().loading;
        if let Some(at) = loading.iter().position(|&other| other == model) {
            loading.swap_remove(at);
        }
    }

    /// A turn behind all operations on the same path so far.
    fn turn(&self, path: &Path) -> Turn {
        let (until, end) = async_channel::bounded(1);
        let mut under_way = self.under_way();
        under_way.paths.retain(|_, end| !end.is_closed());
        let before = under_way.paths.insert(plain_path(path), end);
        Turn { before, _until: until }
    }
}

/// The same text for different spellings of a path, as far as that is possible without the disk.
fn plain_path(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut plain = PathBuf::new();
    for part in absolute.components() {
        match part {
            PathPart::CurDir => {}
            PathPart::ParentDir => {
                plain.pop();
            }
            PathPart::Prefix(_) | PathPart::RootDir | PathPart::Normal(_) => plain.push(part),
        }
    }
    plain
}

/// System parameter that saves models to safetensors files and loads them. Files are read and written on Bevy's IO
/// threads. Operations on the same path run in the order of their calls.
#[derive(SystemParam)]
pub struct TensorFiles<'w, 's> {
    ops: TensorCommands<'w, 's>,
    models: Query<'w, 's, (Option<&'static ModelTensors>, Has<LoadWeights>, Has<Arriving>)>,
    names: Query<'w, 's, &'static Name, With<Tensor>>,
    channel: Res<'w, FileChannel>,
}

impl TensorFiles<'_, '_> {
    /// Saves a model's tensors under their names, with their values after all work recorded so far. [`TensorsSaved`] is
    /// triggered on the model when the file is written.
    ///
    /// A model that does not exist, has no tensors or is still loading is an error of this call, and so are tensors
    /// without a name and duplicate names. An existing file is then unchanged, and [`TensorsSaved`] has the same error.
    /// Views and shared tensors are saved as separate, complete tensors.
    #[track_caller]
    pub fn save(&mut self, model: Entity, path: impl Into<PathBuf>) -> Result<(), OpError> {
        let path = path.into();
        let sender = self.channel.sender.clone();
        let receivers = match self.read_all(model) {
            Ok(receivers) => receivers,
            Err(error) => {
                let result = Err(FormatError::Refused(Box::new(error.clone())));
                // Fails only if the app has exited.
                let _ = sender.send(FileNews::Saved(TensorsSaved { entity: model, path, result }));
                return Err(error);
            }
        };
        let turn = self.channel.turn(&path);
        let task = async move {
            let mut tensors = Vec::with_capacity(receivers.len());
            let mut result = Ok(());
            for (name, receiver) in receivers {
                match receiver.recv().await {
                    Ok(data) => tensors.push((name, data)),
                    Err(error) => {
                        result = Err(FormatError::Readback { name, error });
                        break;
                    }
                }
            }
            turn.comes().await;
            let saved = || result.and_then(|()| save_safetensors(&path, &tensors)).map(|()| tensors.len());
            let result = catch(saved).unwrap_or_else(|panic| panicked(&path, panic));
            let _ = sender.send(FileNews::Saved(TensorsSaved { entity: model, path, result }));
            drop(turn);
        };
        IoTaskPool::get().spawn(task).detach();
        Ok(())
    }

    /// Requests the values of all tensors of a model.
    #[track_caller]
    fn read_all(&self, model: Entity) -> Result<Vec<(String, TensorReceiver)>, OpError> {
        const OP: &str = "save";
        let Ok((tensors, wanted, arriving)) = self.models.get(model) else {
            return Err(OpError::MissingModel { op: OP, model });
        };
        if wanted || arriving || self.channel.under_way().loading.contains(&model) {
            return Err(OpError::LoadingModel { op: OP, model });
        }
        let Some(tensors) = tensors.filter(|tensors| !tensors.is_empty()) else {
            return Err(OpError::EmptyModel { op: OP, model });
        };
        let mut names = HashSet::with_capacity(tensors.len());
        let mut named = Vec::with_capacity(tensors.len());
        for tensor in tensors.iter() {
            let reason = || format!("tensor {tensor} has no name and cannot be saved");
            let name = self.names.get(tensor).map_err(|_| OpError::Argument { op: OP, reason: reason() })?;
            if !names.insert(name.as_str()) {
                return Err(OpError::DuplicateName { op: OP, model, name: name.to_string() });
            }
            named.push((name, tensor));
        }
        named.into_iter().map(|(name, tensor)| Ok((name.to_string(), self.ops.read(tensor)?))).collect()
    }

    /// Loads tensors into a model: all tensors of a file, or only those in `names`. Existing tensors of the model with
    /// the same names are replaced, others are spawned. [`TensorsLoaded`] is triggered on the model when this has
    /// finished. If anything in the file is invalid, the model is not changed.
    pub fn load(&mut self, model: Entity, path: impl Into<PathBuf>, names: Option<&[&str]>) {
        let (path, sender) = (path.into(), self.channel.sender.clone());
        let turn = self.channel.turn(&path);
        self.channel.under_way().loading.push(model);
        let names: Option<Vec<String>> = names.map(|names| names.iter().map(|&name| name.to_owned()).collect());
        let task = async move {
            turn.comes().await;
            let load = || {
                let mut file = SafetensorsFile::open(&path)?;
                let names = names.unwrap_or_else(|| file.names());
                names.into_iter().map(|name| file.read(&name).map(|data| (name, data))).collect()
            };
            let result = catch(load).unwrap_or_else(|panic| panicked(&path, panic));
            let _ = sender.send(FileNews::Loaded(model, path, result));
            drop(turn);
        };
        IoTaskPool::get().spawn(task).detach();
    }
}

fn panicked<T>(path: &Path, message: String) -> Result<T, FormatError> {
    Err(FormatError::Panic { path: path.to_owned(), message })
}

/// Applies loaded tensors to the world and triggers the result events. A despawned model gets its event too, for
/// observers of the whole app.
pub(crate) fn deliver_files(channel: Res<FileChannel>, mut commands: Commands) {
    for news in channel.receiver.try_iter() {
        commands.queue(move |world: &mut World| match news {
            FileNews::Saved(saved) => world.trigger(saved),
            FileNews::Loaded(entity, path, result) => {
                world.resource::<FileChannel>().loaded(entity);
                let exists = world.get_entity(entity).is_ok();
                let result = result.and_then(|tensors| match exists {
                    true => Ok(tensors),
                    false => Err(FormatError::MissingModel { model: entity }),
                });
                let result = result.map(|tensors| {
                    tensors.into_iter().map(|(name, data)| place(world, entity, name, data.into())).collect()
                });
                world.trigger(TensorsLoaded { entity, path, result });
            }
        });
    }
}

/// Replaces the model's tensor with this name, or spawns a new one.
pub(crate) fn place(world: &mut World, model: Entity, name: String, tensor: Tensor) -> Entity {
    match world.resource::<TensorNames>().find(model, &name) {
        Ok(entity) if world.get_entity(entity).is_ok() => {
            world.entity_mut(entity).insert(tensor);
            entity
        }
        Ok(_) | Err(_) => world.spawn((Name::new(name), tensor, TensorOf(model))).id(),
    }
}
