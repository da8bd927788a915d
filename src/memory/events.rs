//! Memory events from executors and tasks to the main world.

use bevy::prelude::*;
use crossbeam_channel::{Receiver, Sender};

use super::{MemoryAdvice, MemoryPressure};
use crate::error::{RunError, TensorFault};
use crate::tensor::{Tensor, TensorOf};

/// Triggered on every tensor whose content was lost with the device. The event bubbles from the tensor to its model.
///
/// The tensor entity stays. Work that reads the tensor fails with [`RunError::Lost`]
/// until the whole tensor is written again.
///
/// By default Bevy exits the app when the device is lost. To continue with a new device, insert a `RenderErrorHandler`:
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
/// After recovery, work that had not started runs on the new device. Pending readbacks return
/// [`ReadError::DeviceLost`](crate::error::ReadError::DeviceLost). A tensor is restored on its next use if its content
/// is available on the host:
/// - The tensor was evicted to the host, or was not uploaded yet.
/// - Its content is generated (zeros, constants, ranges, random numbers), and it was not written since.
/// - A host copy exists because of [`HostCopies::Keep`](crate::memory::HostCopies::Keep) or
///   [`TensorMemory::synchronize`](crate::memory::TensorMemory::synchronize), and no kernel wrote to the tensor since.
///
/// All other tensors are lost. With the default settings this includes tensors that were created from host data,
/// because the host data is dropped after the upload.
///
/// If the app does not recover, [`TensorComputePlugin::cpu_fallback`](crate::TensorComputePlugin::cpu_fallback) can
/// move the work and the restorable tensors to the CPU.
#[derive(EntityEvent, Clone, Debug)]
#[entity_event(propagate = &'static TensorOf, auto_propagate)]
pub struct TensorLost {
    /// The entity that the event is currently on: first the tensor, then its model.
    pub entity: Entity,
    /// The tensor. Stays the same while the event bubbles.
    pub tensor: Entity,
    /// Its name, if it has one.
    pub name: Option<Name>,
    /// Bytes of its storage.
    pub bytes: usize,
}

/// A message from an executor or a task.
#[derive(Debug)]
pub(crate) enum MemoryNews {
    Pressure(MemoryPressure),
    /// Ids of storages whose content is lost.
    Lost(Vec<u64>),
    Advice(MemoryAdvice),
    /// A task failed.
    Failed(RunError),
}

/// Sending end, for executors and tasks.
#[derive(Resource, Clone)]
pub(crate) struct NewsSender(pub Sender<MemoryNews>);

/// Receiving end, in the main world.
#[derive(Resource)]
pub(crate) struct NewsReceiver(pub Receiver<MemoryNews>);

/// Triggers events for received messages.
pub(crate) fn trigger_news(
    receiver: Res<NewsReceiver>,
    tensors: Query<(Entity, &Tensor, Option<&Name>)>,
    mut commands: Commands,
) {
    for news in receiver.0.try_iter() {
        match news {
            MemoryNews::Pressure(pressure) => commands.trigger(pressure),
            MemoryNews::Advice(advice) => commands.trigger(advice),
            MemoryNews::Failed(error) => commands.trigger(TensorFault::Run(error)),
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
