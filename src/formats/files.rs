//! Saving a model's tensors and loading them, off the frame.

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

/// A model's tensors have been saved, or not: the answer to [`TensorFiles::save`].
#[derive(EntityEvent, Clone, Debug)]
pub struct TensorsSaved {
    /// The model.
    pub entity: Entity,
    /// The file.
    pub path: PathBuf,
    /// How many tensors, or what went wrong; the file is then as it was before.
    pub result: Result<usize, FormatError>,
}

/// Tensors have been loaded into a model, or not: the answer to [`TensorFiles::load`].
#[derive(EntityEvent, Clone, Debug)]
pub struct TensorsLoaded {
    /// The model.
    pub entity: Entity,
    /// The file.
    pub path: PathBuf,
    /// The tensors, or what went wrong; the model is then as it was before.
    pub result: Result<Vec<Entity>, FormatError>,
}

/// Work with files that is done.
enum FileNews {
    Saved(TensorsSaved),
    Loaded(Entity, PathBuf, Result<Vec<(String, TensorData)>, FormatError>),
}

/// Where tasks report.
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

/// Saves models to safetensors files and loads them. Files are read and written on Bevy's IO threads.
#[derive(SystemParam)]
pub struct TensorFiles<'w, 's> {
    ops: TensorCommands<'w, 's>,
    models: Query<'w, 's, &'static ModelTensors>,
    names: Query<'w, 's, &'static Name, With<Tensor>>,
    channel: Res<'w, FileChannel>,
}

impl TensorFiles<'_, '_> {
    /// Saves a model's tensors under their names, with the values they have after the work recorded so far. [`TensorsSaved`] tells on the model how it
    /// went. A tensor without a name, or with another's, is an error at once. Every tensor is saved whole: views and shares become tensors of their
    /// own.
    #[track_caller]
    pub fn save(&mut self, model: Entity, path: impl Into<PathBuf>) -> Result<(), OpError> {
        const OP: &str = "save";
        let path = path.into();
        let mut receivers: Vec<(String, TensorReceiver)> = Vec::new();
        for tensor in self.models.get(model).into_iter().flat_map(|tensors| tensors.iter()) {
            let reason = || format!("tensor {tensor} has no name to be saved under");
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
            // The app may have ended.
            let _ = sender.send(FileNews::Saved(TensorsSaved { entity: model, path, result }));
        };
        IoTaskPool::get().spawn(task).detach();
        Ok(())
    }

    /// Loads tensors into a model: all of a file, or those of the given names. A tensor that the model has by that name is replaced, others are
    /// spawned. [`TensorsLoaded`] tells on the model how it went; a file with anything wrong in it changes nothing.
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

/// Puts what was loaded into the world and tells how it went.
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

/// Replaces the model's tensor of that name, or spawns one.
pub(super) fn place(world: &mut World, model: Entity, name: String, tensor: Tensor) -> Entity {
    match world.resource::<TensorNames>().find(model, &name) {
        Ok(entity) => {
            world.entity_mut(entity).insert(tensor);
            entity
        }
        Err(_) => world.spawn((Name::new(name), tensor, TensorOf(model))).id(),
    }
}
