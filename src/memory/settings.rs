//! What an app decides about memory.

use std::sync::Arc;

use bevy::prelude::*;

use super::MemoryPolicy;
use crate::tensor::{Storage, Tensor};

/// How much device memory tensors may take, and what is kept ready. A resource: changes take effect with the next frame.
#[derive(Resource, Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// Bytes of the device that tensors, scratch memory, plans and idle buffers may take together; `None` for as much as there is.
    ///
    /// Never exceeded. What does not fit makes the least recently used tensors that are not [`Pinned`] move to the host, without a
    /// stall: work waits, in order, until they have gone. They come back, bit for bit, with their next use. Work that cannot fit even so fails with
    /// [`RunError::Budget`](crate::RunError::Budget). Staging buffers lie in memory that the host can map and do not count.
    pub budget: Option<u64>,
    /// Bytes of idle device buffers to keep for coming tensors, scratch memory and plans.
    pub pool_bytes: u64,
    /// Frames after which an idle buffer is given back.
    pub pool_frames: u64,
    /// Bytes of idle staging buffers to keep for coming readbacks; also how much is on its way to the host at once for lack of room.
    pub idle_staging_bytes: u64,
    /// Whether tensors on the device keep the host data they were made from.
    pub host_copies: HostCopies,
    /// When idle tensors leave the device although there is room.
    pub policy: MemoryPolicy,
    /// Per cent of the budget at which [`MemoryPressure`](crate::MemoryPressure) events come.
    pub pressure: [u8; 2],
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self {
            budget: None,
            pool_bytes: 256 << 20,
            pool_frames: 300,
            idle_staging_bytes: 64 << 20,
            host_copies: HostCopies::Drop,
            policy: MemoryPolicy::default(),
            pressure: [80, 90],
        }
    }
}

/// What becomes of host data once the device has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Reflect)]
pub enum HostCopies {
    /// It goes: half the memory. A lost device takes these tensors with it ([`TensorLost`](crate::TensorLost)), and making room for others costs
    /// a copy.
    #[default]
    Drop,
    /// It stays for as long as no kernel writes to the tensor, as with a model's weights: the tensor survives a lost device, and can leave
    /// the device at once when room is needed.
    Keep,
}

/// Keeps a tensor on the device: neither budget nor policy moves it. Put it beside the [`Tensor`].
#[derive(Component, Clone, Copy, Debug, Default, PartialEq, Eq, Reflect)]
#[reflect(Component)]
pub struct Pinned;

/// Holds the pin of a storage for as long as the entity is pinned; goes with it, however that happens.
#[derive(Component)]
struct PinHold(Arc<Storage>);

impl PinHold {
    fn new(storage: &Arc<Storage>) -> Self {
        storage.pin();
        Self(storage.clone())
    }
}

impl Drop for PinHold {
    fn drop(&mut self) {
        self.0.unpin();
    }
}

/// Keeps pins and names of storages true, whichever component comes or goes.
pub(crate) fn plugin(app: &mut App) {
    app.register_type::<Pinned>()
        .add_observer(|insert: On<Insert, Pinned>, query: Query<&Tensor>, commands: Commands| {
            hold(insert.entity, query.get(insert.entity).ok(), commands);
        })
        .add_observer(|insert: On<Insert, Tensor>, query: Query<&Tensor, With<Pinned>>, commands: Commands| {
            hold(insert.entity, query.get(insert.entity).ok(), commands);
        })
        .add_observer(|gone: On<Remove, Pinned>, commands: Commands| release(gone.entity, commands))
        .add_observer(|gone: On<Remove, Tensor>, commands: Commands| release(gone.entity, commands))
        .add_observer(|insert: On<Insert, (Tensor, Name)>, query: Query<(&Tensor, &Name)>| {
            if let Ok((tensor, name)) = query.get(insert.entity) {
                tensor.storage().set_label(name);
            }
        });
}

fn hold(entity: Entity, tensor: Option<&Tensor>, mut commands: Commands) {
    if let Some(tensor) = tensor {
        commands.entity(entity).try_insert(PinHold::new(tensor.storage()));
    }
}

fn release(entity: Entity, mut commands: Commands) {
    if let Ok(mut entity) = commands.get_entity(entity) {
        entity.try_remove::<PinHold>();
    }
}
