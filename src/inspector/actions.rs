//! Actions that panels request, and how they are carried out.

use core::time::Duration;
use std::path::{Path, PathBuf};

use bevy::asset::RenderAssetUsages;
use bevy::ecs::system::SystemState;
use bevy::image::Image;
use bevy::prelude::*;
use bevy::render::render_resource::{Extent3d, TextureDimension, TextureFormat};
use bevy::tasks::IoTaskPool;
use crossbeam_channel::{Receiver, Sender};

use super::log::{InspectorLog, LogKind};
use super::{InspectorState, format};
use crate::error::{OpError, catch};
use crate::figures::TensorDiagnostics;
use crate::formats::{save_npy, save_safetensors};
use crate::memory::{AdviceSettings, MemoryAdvisor, TensorMemory};
use crate::pipelines::TensorPipelines;
use crate::record::TensorCommands;
use crate::tensor::{Tensor, TensorData};

/// A request of a panel. The plugin carries it out before the frame's work is submitted.
#[derive(Clone, Debug, PartialEq)]
pub enum InspectorAction {
    /// Pin a tensor to the device.
    Pin(Entity),
    /// Unpin a tensor.
    Unpin(Entity),
    /// Evict a tensor to the host.
    Spill(Entity),
    /// Apply the memory policy now.
    Optimize,
    /// Free all idle buffers.
    Trim,
    /// Look for memory that could be saved.
    Advise,
    /// Read the values of the selected tensor now.
    Read,
    /// Write one element of a tensor.
    Write {
        /// The tensor.
        tensor: Entity,
        /// The index of the element.
        index: Vec<usize>,
        /// The value. It is converted as a cast does.
        value: f64,
    },
    /// Save a tensor's values.
    Save {
        /// The tensor.
        tensor: Entity,
        /// Its name in the file, if the format stores names.
        name: String,
        /// The file. NumPy format if the extension is `.npy`, safetensors otherwise.
        path: PathBuf,
    },
    /// Save an image as PNG.
    SavePicture {
        /// The file.
        path: PathBuf,
        /// The image.
        picture: Picture,
    },
    /// Compile a pipeline again.
    Rebuild(u64),
    /// Drop pipelines that no plan uses.
    TrimPipelines,
    /// Delete all timings.
    ClearTimings,
    /// Delete all log entries.
    ClearLog,
    /// Switch debug mode on or off.
    SetDebug(bool),
}

/// An RGBA image with 8 bits per channel, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// `width · height · 4` bytes.
    pub rgba: Vec<u8>,
}

/// Pending actions. Apps that show panels themselves add the actions that the panels return.
#[derive(Resource, Clone, Debug, Default)]
pub struct InspectorActions(pub Vec<InspectorAction>);

/// Channel for log messages of background file tasks.
#[derive(Resource)]
pub(super) struct SaveChannel {
    sender: Sender<(LogKind, String)>,
    receiver: Receiver<(LogKind, String)>,
}

impl Default for SaveChannel {
    fn default() -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded();
        Self { sender, receiver }
    }
}

/// Whether there are actions or messages to process.
pub(super) fn any_actions(actions: Res<InspectorActions>, saves: Res<SaveChannel>) -> bool {
    !actions.0.is_empty() || !saves.receiver.is_empty()
}

pub(super) fn apply_actions(world: &mut World) {
    let now = world.get_resource::<Time<Real>>().map_or(Duration::ZERO, |time| time.elapsed());
    let mut notes: Vec<(LogKind, String)> = world.resource::<SaveChannel>().receiver.try_iter().collect();
    for action in core::mem::take(&mut world.resource_mut::<InspectorActions>().0) {
        match apply(world, action) {
            Ok(Some(note)) => notes.push((LogKind::Note, note)),
            Ok(None) => {}
            Err(error) => notes.push((LogKind::Fault, error)),
        }
    }
    let mut log = world.resource_mut::<InspectorLog>();
    for (kind, text) in notes {
        log.push(now, kind, text);
    }
}

/// Carries out one action. Returns a log message or an error.
fn apply(world: &mut World, action: InspectorAction) -> Result<Option<String>, String> {
    match action {
        InspectorAction::Pin(tensor) => memory(world, |memory| memory.pin(tensor))?,
        InspectorAction::Unpin(tensor) => memory(world, |memory| memory.unpin(tensor))?,
        InspectorAction::Spill(tensor) => memory(world, |memory| memory.evict(tensor))?,
        InspectorAction::Optimize => {
            memory(world, |memory| {
                memory.optimize();
                Ok(())
            })?;
            return Ok(Some("the memory policy was applied".to_owned()));
        }
        InspectorAction::Trim => {
            let idle = world.resource::<TensorDiagnostics>().figures().pool_idle_bytes;
            memory(world, |memory| {
                memory.trim();
                Ok(())
            })?;
            return Ok(Some(format!("{} of idle buffers were freed", format::bytes(idle))));
        }
        InspectorAction::Advise => {
            let mut state = SystemState::<MemoryAdvisor>::new(world);
            let mut advisor = state.get_mut(world).map_err(|error| error.to_string())?;
            advisor.advise(AdviceSettings::default()).map_err(|error| error.to_string())?;
            state.apply(world);
        }
        InspectorAction::Read => world.resource_mut::<InspectorState>().tensors.read_now = true,
        InspectorAction::Write { tensor, index, value } => return write(world, tensor, &index, value).map(Some),
        InspectorAction::Save { tensor, name, path } => save(world, tensor, name, path)?,
        InspectorAction::SavePicture { path, picture } => {
            report(world, move || save_png(&path, picture).map(|()| path));
        }
        InspectorAction::Rebuild(id) => world.resource::<TensorPipelines>().rebuild(id),
        InspectorAction::TrimPipelines => world.resource::<TensorPipelines>().trim(),
        InspectorAction::ClearTimings => world.resource::<TensorDiagnostics>().clear_timings(),
        InspectorAction::ClearLog => world.resource_mut::<InspectorLog>().clear(),
        InspectorAction::SetDebug(on) => world.resource::<TensorDiagnostics>().set_debug(on),
    }
    Ok(None)
}

fn memory(world: &mut World, ask: impl FnOnce(&mut TensorMemory) -> Result<(), OpError>) -> Result<(), String> {
    let mut state = SystemState::<TensorMemory>::new(world);
    let mut memory = state.get_mut(world).map_err(|error| error.to_string())?;
    ask(&mut memory).map_err(|error| error.to_string())?;
    state.apply(world);
    Ok(())
}

fn record<T>(world: &mut World, ask: impl FnOnce(&TensorCommands) -> Result<T, OpError>) -> Result<T, String> {
    let mut state = SystemState::<TensorCommands>::new(world);
    let ops = state.get_mut(world).map_err(|error| error.to_string())?;
    let answer = ask(&ops).map_err(|error| error.to_string());
    state.apply(world);
    answer
}

/// Writes one element through a view of that element, so that concurrent work on other elements is not affected.
fn write(world: &mut World, tensor: Entity, index: &[usize], value: f64) -> Result<String, String> {
    let gone = || format!("tensor {tensor} does not exist");
    let mut view = world.get::<Tensor>(tensor).ok_or_else(gone)?.clone();
    if view.dtype().is_quantized() {
        return Err(format!(
            "single elements of a {} tensor cannot be written because they are packed in blocks",
            view.dtype()
        ));
    }
    for (axis, &at) in index.iter().enumerate() {
        let (axis, at) = (axis as isize, at as isize);
        view = view.slice(axis, at, at + 1).map_err(|error| error.to_string())?;
    }
    let model = world.get::<crate::tensor::TensorOf>(tensor).map(|of| of.0);
    let backend = model.and_then(|model| world.get::<crate::support::ModelBackend>(model)).copied();
    // Ops take entities, so the view needs a temporary one. The backend of the storage is already decided, or follows
    // from its model.
    let helper = world.spawn(view).id();
    if let (Some(model), Some(_)) = (model, backend) {
        world.entity_mut(helper).insert(crate::tensor::TensorOf(model));
    }
    let recorded = record(world, |ops| ops.store(value, helper));
    world.despawn(helper);
    recorded.map(|()| format!("wrote {} at {index:?} of tensor {tensor}", format::value(value)))
}

fn save(world: &mut World, tensor: Entity, name: String, path: PathBuf) -> Result<(), String> {
    let receiver = record(world, |ops| ops.read(tensor))?;
    let sender = world.resource::<SaveChannel>().sender.clone();
    let task = async move {
        let result = match receiver.recv().await {
            Ok(data) => catch(|| save_data(&path, &name, data)).unwrap_or_else(Err),
            Err(error) => Err(error.to_string()),
        };
        tell(&sender, result.map(|()| path));
    };
    IoTaskPool::get().spawn(task).detach();
    Ok(())
}

fn save_data(path: &Path, name: &str, data: TensorData) -> Result<(), String> {
    let saved = if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npy")) {
        save_npy(path, &data)
    } else {
        save_safetensors(path, &[(name.to_owned(), data)])
    };
    saved.map_err(|error| error.to_string())
}

/// Runs a file operation in the background and logs the result.
fn report(world: &World, work: impl FnOnce() -> Result<PathBuf, String> + Send + 'static) {
    let sender = world.resource::<SaveChannel>().sender.clone();
    IoTaskPool::get().spawn(async move { tell(&sender, catch(work).unwrap_or_else(Err)) }).detach();
}

fn tell(sender: &Sender<(LogKind, String)>, result: Result<PathBuf, String>) {
    let note = match result {
        Ok(path) => (LogKind::Note, format!("saved {}", path.display())),
        Err(error) => (LogKind::Fault, format!("could not save: {error}")),
    };
    // Fails only if the app has exited.
    let _ = sender.send(note);
}

fn save_png(path: &Path, picture: Picture) -> Result<(), String> {
    let size = Extent3d { width: picture.width as u32, height: picture.height as u32, depth_or_array_layers: 1 };
    let (dimension, format) = (TextureDimension::D2, TextureFormat::Rgba8UnormSrgb);
    let image = Image::new(size, dimension, picture.rgba, format, RenderAssetUsages::MAIN_WORLD);
    let image = image.try_into_dynamic().map_err(|error| error.to_string())?;
    image.save(path).map_err(|error| format!("{}: {error}", path.display()))
}
