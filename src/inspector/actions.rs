//! What panels ask for, and how it is done.

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
use crate::error::OpError;
use crate::figures::TensorDiagnostics;
use crate::formats::{save_npy, save_safetensors};
use crate::memory::{AdviceSettings, MemoryAdvisor, TensorMemory};
use crate::pipelines::TensorPipelines;
use crate::record::TensorCommands;
use crate::tensor::{Tensor, TensorData};

/// Something a panel asks for. The plugin carries it out before the frame's work is handed over.
#[derive(Clone, Debug, PartialEq)]
pub enum InspectorAction {
    /// Keep a tensor on the device.
    Pin(Entity),
    /// Let it leave again.
    Unpin(Entity),
    /// Move it to the host now.
    Spill(Entity),
    /// Do now what the memory policy does on a timer.
    Optimize,
    /// Give idle buffers back to the device.
    Trim,
    /// Look for what could be saved.
    Advise,
    /// Read the selected tensor now.
    Read,
    /// Put a number into one place of a tensor.
    Write {
        /// The tensor.
        tensor: Entity,
        /// The place, one number for each axis.
        index: Vec<usize>,
        /// The number, converted as a cast would.
        value: f64,
    },
    /// Save a tensor's values.
    Save {
        /// The tensor.
        tensor: Entity,
        /// Its name in the file, where the format has names.
        name: String,
        /// The file; `.npy`, or safetensors for any other ending.
        path: PathBuf,
    },
    /// Save a picture as PNG.
    SavePicture {
        /// The file.
        path: PathBuf,
        /// The picture.
        picture: Picture,
    },
    /// Compile a pipeline again.
    Rebuild(u64),
    /// Give up pipelines that no plan uses.
    TrimPipelines,
    /// Forget what was measured.
    ClearTimings,
    /// Forget what happened.
    ClearLog,
    /// Switch debug mode.
    SetDebug(bool),
}

/// A picture, four bytes (red, green, blue, opacity) for each point, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Points in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `width · height · 4` bytes.
    pub rgba: Vec<u8>,
}

/// Actions that wait to be carried out. An app that shows panels itself puts here what they return.
#[derive(Resource, Clone, Debug, Default)]
pub struct InspectorActions(pub Vec<InspectorAction>);

/// What tasks with files have to tell.
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

/// Whether there is something to do.
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

/// Carries one action out: what to note about it, or why it failed.
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
            return Ok(Some("idle tensors were asked to leave, by the policy".to_owned()));
        }
        InspectorAction::Trim => {
            let idle = world.resource::<TensorDiagnostics>().figures().pool_idle_bytes;
            memory(world, |memory| {
                memory.trim();
                Ok(())
            })?;
            return Ok(Some(format!("{} of idle buffers go back to the device", format::bytes(idle))));
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

/// Stores a number in a view of one element: nothing else is touched, whatever the frame's other work does.
fn write(world: &mut World, tensor: Entity, index: &[usize], value: f64) -> Result<String, String> {
    let gone = || format!("tensor {tensor} is gone");
    let mut view = world.get::<Tensor>(tensor).ok_or_else(gone)?.clone();
    if view.dtype().is_quantized() {
        return Err(format!("values of a {} tensor are packed in blocks and cannot be written singly", view.dtype()));
    }
    for (axis, &at) in index.iter().enumerate() {
        let (axis, at) = (axis as isize, at as isize);
        view = view.slice(axis, at, at + 1).map_err(|error| error.to_string())?;
    }
    let model = world.get::<crate::TensorOf>(tensor).map(|of| of.0);
    let backend = model.and_then(|model| world.get::<crate::ModelBackend>(model)).copied();
    // Ops are given entities; this one lives for as long as it takes to record. The storage's home is decided already, or is by its model.
    let helper = world.spawn(view).id();
    if let (Some(model), Some(_)) = (model, backend) {
        world.entity_mut(helper).insert(crate::TensorOf(model));
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
            Ok(data) => save_data(&path, &name, data),
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

/// Works with a file off the frame and notes how it went.
fn report(world: &World, work: impl FnOnce() -> Result<PathBuf, String> + Send + 'static) {
    let sender = world.resource::<SaveChannel>().sender.clone();
    IoTaskPool::get().spawn(async move { tell(&sender, work()) }).detach();
}

fn tell(sender: &Sender<(LogKind, String)>, result: Result<PathBuf, String>) {
    let note = match result {
        Ok(path) => (LogKind::Note, format!("saved {}", path.display())),
        Err(error) => (LogKind::Fault, format!("could not save: {error}")),
    };
    // The app may have ended.
    let _ = sender.send(note);
}

fn save_png(path: &Path, picture: Picture) -> Result<(), String> {
    let size = Extent3d { width: picture.width as u32, height: picture.height as u32, depth_or_array_layers: 1 };
    let (dimension, format) = (TextureDimension::D2, TextureFormat::Rgba8UnormSrgb);
    let image = Image::new(size, dimension, picture.rgba, format, RenderAssetUsages::MAIN_WORLD);
    let image = image.try_into_dynamic().map_err(|error| error.to_string())?;
    image.save(path).map_err(|error| format!("{}: {error}", path.display()))
}
