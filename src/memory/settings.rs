//! Memory settings, pinning, and storage names.

use std::sync::Arc;

use bevy::prelude::*;

use super::MemoryPolicy;
use crate::tensor::{Storage, Tensor};

/// Memory settings of the app. Changes take effect in the next frame.
#[derive(Resource, Clone, Copy, Debug, PartialEq, Eq, Reflect)]
#[reflect(Resource, Default, Debug, PartialEq, Clone)]
pub struct MemorySettings {
    /// Maximum number of device bytes for tensors, scratch memory, plans and idle buffers together. `None` means no
    /// limit.
    ///
    /// The plugin allocates no buffer that would exceed the budget. To make room it evicts the least recently used
    /// tensors that are not [`Pinned`] to the host. Frames do not wait for this: recorded work is delayed, in order,
    /// until there is room. Evicted tensors are restored bit for bit on their next use. Work that cannot fit fails with
    /// [`RunError::Budget`](crate::error::RunError::Budget). Staging buffers do not count, because they are in
    /// host-visible memory.
    pub budget: Option<u64>,
    /// Maximum number of bytes of idle device buffers that are kept for reuse.
    pub pool_bytes: u64,
    /// Number of frames after which an idle buffer is freed.
    pub pool_frames: u64,
    /// Maximum number of bytes of idle staging buffers that are kept for reuse. Also limits how many bytes are copied
    /// to the host at once to make room.
    pub idle_staging_bytes: u64,
    /// Whether host data is kept after it was uploaded to the device.
    pub host_copies: HostCopies,
    /// When idle tensors are evicted although the budget is not exceeded.
    pub policy: MemoryPolicy,
    /// The two thresholds for [`MemoryPressure`](crate::memory::MemoryPressure) events, in percent of the budget.
    pub pressure: [u8; 2],
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self {
            budget: None,
            pool_bytes: 256 << 20,
            pool_frames: 300,
            idle_staging_bytes: 128 << 20,
            host_copies: HostCopies::Drop,
            policy: MemoryPolicy::default(),
            pressure: [80, 90],
        }
    }
}

/// What happens to host data after it was uploaded to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Reflect)]
pub enum HostCopies {
    /// Host data is dropped, which halves the memory use. The tensors are lost if the device is lost
    /// ([`TensorLost`](crate::memory::TensorLost)), and evicting them needs a copy to the host.
    #[default]
    Drop,
    /// Host data is kept until a kernel writes to the tensor. Unmodified tensors, such as the weights of a model,
    /// survive a lost device and can be evicted without a copy.
    Keep,
}

/// Keeps a tensor on the device. Neither the budget nor the policy evicts it. Insert it on the entity of the
/// [`Tensor`].
#[derive(Component, Clone, Copy, Debug, Default, PartialEq, Eq, Reflect)]
#[reflect(Component, Default, Debug, PartialEq, Clone)]
pub struct Pinned;

/// Holds the pin of a storage while the entity is pinned. Dropping it removes the pin.
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

/// Registers the types, and keeps the pins and names of storages in sync with the components.
pub(crate) fn plugin(app: &mut App) {
    app.register_type::<Pinned>()
        .register_type::<MemorySettings>()
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
