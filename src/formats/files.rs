//! Saves and loads a model's tensors in the background.

use std::path::PathBuf;

use bevy::ecs::system::SystemParam;
use bevy::prelude::*;
use bevy::tasks::IoTaskPool;
use crossbeam_channel::{Receiver, Sender};

use super::safetensors::{FormatError, SafetensorsFile, save_safetensors};
use crate::error::OpError;
use crate::readback::TensorReceiver;
use crate::record::TensorCommands;
use crate::tensor::{ModelTensors, Tensor, TensorData, TensorNames, TensorOf};

/// Triggered on the model when [`TensorFiles::save`] has finished or failed.
#[derive(EntityEvent, Clone, Debug)]
pub struct TensorsSaved {
    /// The model.
    pub entity: Entity,
    /// Path of the file.
    pub path: PathBuf,
    /// Number of saved tensors, or the error. On an error, an existing file is unchanged.
    pub result: Result<usize, FormatError>,
}

/// Triggered on the model when [`TensorFiles::load`] has finished or failed.
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

/// Channel for results of file operations.
#[derive(Resource)]
pub(crate) struct FileChannel {
    sender: Sender<FileNews>,
    receiver: Receiver<FileNews>,
}

impl Default for FileChannel {
    fn default() -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded();
        Self { sender, receiver }
    }
}

/// System parameter that saves models to safetensors files and loads them. Files are read and written on Bevy's IO
/// threads.
#[derive(SystemParam)]
pub struct TensorFiles<'w, 's> {
    ops: TensorCommands<'w, 's>,
    models: Query<'w, 's, &'static ModelTensors>,
    names: Query<'w, 's, &'static Name, With<Tensor>>,
    channel: Res<'w, FileChannel>,
}

impl TensorFiles<'_, '_> {
    /// Saves a model's tensors under their names, with their values after all work recorded so far. [`TensorsSaved`] is
    /// triggered on the model when the file is written.
    ///
    /// Tensors without a name and duplicate names are errors of this call. Views and shared tensors are saved as
    /// separate, complete tensors.
    #[track_caller]
    pub fn save(&mut self, model: Entity, path: impl Into<PathBuf>) -> Result<(), OpError> {
        const OP: &str = "save";
        let path = path.into();
        let mut receivers: Vec<(String, TensorReceiver)> = Vec::new();
        for tensor in self.models.get(model).into_iter().flat_map(|tensors| tensors.iter()) {
            let reason = || format!("tensor {tensor} has no name and cannot be saved");
            let name = self.names.get(tensor).map_err(|_| OpError::Argument { op: OP, reason: reason() })?;
            receivers.push((name.to_string(), self.ops.read(tensor)?));
        }
        let sender = self.channel.sender.clone();
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
            let result = result.and_then(|()| save_safetensors(&path, &tensors)).map(|()| tensors.len());
            // Fails only if the app has exited.
            let _ = sender.send(FileNews::Saved(TensorsSaved { entity: model, path, result }));
        };
        IoTaskPool::get().spawn(task).detach();
        Ok(())
    }

    /// Loads tensors into a model: all tensors of a file, or only those in `names`. Existing tensors of the model with
    /// the same names are replaced, others are spawned. [`TensorsLoaded`] is triggered on the model when this has
    /// finished. If anything in the file is invalid, the model is not changed.
    pub fn load(&mut self, model: Entity, path: impl Into<PathBuf>, names: Option<&[&str]>) {
        let (path, sender) = (path.into(), self.channel.sender.clone());
        let names: Option<Vec<String>> = names.map(|names| names.iter().map(|&name| name.to_owned()).collect());
        let task = async move {
            let result = SafetensorsFile::open(&path).and_then(|mut file| {
                let names = names.unwrap_or_else(|| file.names());
                names.into_iter().map(|name| file.read(&name).map(|data| (name, data))).collect()
            });
            let _ = sender.send(FileNews::Loaded(model, path, result));
        };
        IoTaskPool::get().spawn(task).detach();
    }
}

/// Applies loaded tensors to the world and triggers the result events.
pub(crate) fn deliver_files(channel: Res<FileChannel>, mut commands: Commands) {
    for news in channel.receiver.try_iter() {
        commands.queue(move |world: &mut World| match news {
            FileNews::Saved(saved) => {
                if world.get_entity(saved.entity).is_ok() {
                    world.trigger(saved);
                }
            }
            FileNews::Loaded(entity, path, result) => {
                if world.get_entity(entity).is_ok() {
                    let result = result.map(|tensors| {
                        tensors.into_iter().map(|(name, data)| place(world, entity, name, data.into())).collect()
                    });
                    world.trigger(TensorsLoaded { entity, path, result });
                }
            }
        });
    }
}

/// Replaces the model's tensor with this name, or spawns a new one.
pub(crate) fn place(world: &mut World, model: Entity, name: String, tensor: Tensor) -> Entity {
    match world.resource::<TensorNames>().find(model, &name) {
        Ok(entity) => {
            world.entity_mut(entity).insert(tensor);
            entity
        }
        Err(_) => world.spawn((Name::new(name), tensor, TensorOf(model))).id(),
    }
}
