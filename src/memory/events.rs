//! News from the device's memory for the main world.

use bevy::prelude::*;
use crossbeam_channel::{Receiver, Sender};

use super::{MemoryAdvice, MemoryPressure};
use crate::tensor::{Tensor, TensorOf};

/// The device was lost, and with it this tensor's content, of which the host had no copy. Triggered on every tensor of the storage, and bubbles to
/// its model. The tensor stays: write it whole to make it good again; until then work that reads it fails with
/// [`RunError::Lost`](crate::RunError::Lost).
///
/// Bevy ends the app when its device is lost, unless the app asks for a new one:
///
/// ```
/// # use bevy::prelude::*;
/// use bevy::render::error_handler::{ErrorType, RenderErrorHandler, RenderErrorPolicy};
/// use bevy::render::settings::RenderCreation;
///
/// # let mut app = App::new();
/// app.insert_resource(RenderErrorHandler(|error, _, _| match error.ty {
///     ErrorType::DeviceLost => RenderErrorPolicy::Recover(RenderCreation::default()),
///     _ => RenderErrorPolicy::StopRendering,
/// }));
/// ```
///
/// Then the plugin goes on with the new device: work that had not begun runs there, readbacks that were under way are answered with
/// [`ReadError::DeviceLost`](crate::ReadError::DeviceLost), and tensors come back with their next use if the host has their content: they were moved
/// there, were made by a constructor and not written since, or are kept there by [`HostCopies::Keep`](crate::HostCopies::Keep) or
/// [`TensorMemory::synchronize`](crate::TensorMemory::synchronize). Without recovery,
/// [`TensorComputePlugin::cpu_fallback`](crate::TensorComputePlugin::cpu_fallback) moves everything to the CPU.
#[derive(EntityEvent, Clone, Debug)]
#[entity_event(propagate = &'static TensorOf, auto_propagate)]
pub struct TensorLost {
    /// Where the event is: the tensor first, then its model.
    pub entity: Entity,
    /// The tensor, also while the event bubbles.
    pub tensor: Entity,
    /// Its name.
    pub name: Option<Name>,
    /// Bytes of its storage.
    pub bytes: usize,
}

/// What executors and tasks have to tell.
#[derive(Debug)]
pub(crate) enum MemoryNews {
    Pressure(MemoryPressure),
    /// Storages whose content is gone.
    Lost(Vec<u64>),
    Advice(MemoryAdvice),
}

/// The executor's end.
#[derive(Resource, Clone)]
pub(crate) struct NewsSender(pub Sender<MemoryNews>);

/// The main world's end.
#[derive(Resource)]
pub(crate) struct NewsReceiver(pub Receiver<MemoryNews>);

/// Turns news into events.
pub(crate) fn trigger_news(
    receiver: Res<NewsReceiver>,
    tensors: Query<(Entity, &Tensor, Option<&Name>)>,
    mut commands: Commands,
) {
    for news in receiver.0.try_iter() {
        match news {
            MemoryNews::Pressure(pressure) => commands.trigger(pressure),
            MemoryNews::Advice(advice) => commands.trigger(advice),
            MemoryNews::Lost(mut storages) => {
                storages.sort_unstable();
                for (entity, tensor, name) in &tensors {
                    if storages.binary_search(&tensor.storage_id()).is_ok() {
                        let bytes = tensor.storage_bytes();
                        commands.trigger(TensorLost { entity, tensor: entity, name: name.cloned(), bytes });
                    }
                }
            }
        }
    }
}
