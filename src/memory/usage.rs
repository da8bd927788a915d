//! Memory use of tensors and models, and memory requests.

use crate::mailbox::{MemoryRequest, Outbox};
use crate::tensor::{ModelTensors, Tensor, TensorUsage};

use bevy::ecs::system::SystemParam;
use bevy::platform::collections::HashMap;
use bevy::prelude::*;

use super::{Pinned, Residency, SyncDirection};
use crate::error::OpError;

/// Memory use of the tensors of a model. Each storage is counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelUsage {
    /// Number of tensors.
    pub tensors: usize,
    /// Number of different storages.
    pub storages: usize,
    /// Bytes of their contents, wherever they are.
    pub bytes: u64,
    /// Bytes on the device.
    pub device_bytes: u64,
    /// Bytes on the host.
    pub host_bytes: u64,
}

impl ModelUsage {
    /// Sums up tensors. Each storage is counted once.
    fn of<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Self {
        let mut usage = Self::default();
        let mut storages: HashMap<u64, TensorUsage> = HashMap::default();
        for tensor in tensors {
            usage.tensors += 1;
            storages.entry(tensor.storage_id()).or_insert_with(|| tensor.usage());
        }
        for storage in storages.values() {
            usage.storages += 1;
            usage.bytes += storage.bytes;
            usage.device_bytes += storage.device_bytes;
            usage.host_bytes += storage.host_bytes;
        }
        usage
    }
}

impl Tensor {
    /// The memory use and location of this tensor's storage.
    pub fn usage(&self) -> TensorUsage {
        self.storage().usage()
    }

    /// Where the content currently is.
    pub fn residency(&self) -> Residency {
        self.usage().residency
    }
}

/// System parameter for the memory use of tensors and models, and for memory requests. Requests are handled in order,
/// after the work that was recorded in the same frame.
///
/// [`TensorDiagnostics::figures`](crate::figures::TensorDiagnostics::figures) returns the totals.
#[derive(SystemParam)]
pub struct TensorMemory<'w, 's> {
    tensors: Query<'w, 's, &'static Tensor>,
    models: Query<'w, 's, &'static ModelTensors>,
    outbox: ResMut<'w, Outbox>,
    commands: Commands<'w, 's>,
}

impl TensorMemory<'_, '_> {
    /// The memory use of a tensor.
    pub fn tensor(&self, tensor: Entity) -> Result<TensorUsage, OpError> {
        Ok(self.get("memory", tensor)?.usage())
    }

    /// The memory use of a model's tensors. A storage that several models share counts in each of them.
    pub fn model(&self, model: Entity) -> ModelUsage {
        let tensors = self.models.get(model).into_iter().flat_map(|tensors| tensors.iter());
        ModelUsage::of(tensors.filter_map(|tensor| self.tensors.get(tensor).ok()))
    }

    /// The memory use of all tensors. Each storage is counted once.
    pub fn total(&self) -> ModelUsage {
        ModelUsage::of(self.tensors.iter())
    }

    /// Copies a tensor's content to the device or the host. Does nothing if the content is already up to date there.
    /// [`Tensor::residency`] changes when the copy has finished.
    pub fn synchronize(&mut self, tensor: Entity, direction: SyncDirection) -> Result<(), OpError> {
        let storage = self.get("synchronize", tensor)?.storage().clone();
        self.outbox.post(MemoryRequest::Synchronize(storage, direction));
        Ok(())
    }

    /// Evicts a tensor to the host. Does nothing if the tensor is pinned, or if it is used again before the copy has
    /// finished. Tensors that are bound as storage buffers of shaders cannot be evicted: [`OpError::Bound`].
    pub fn evict(&mut self, tensor: Entity) -> Result<(), OpError> {
        let storage = self.get("evict", tensor)?.storage().clone();
        if storage.is_bound() {
            return Err(OpError::Bound { op: "evict", tensor: storage.label() });
        }
        self.outbox.post(MemoryRequest::Evict(storage));
        Ok(())
    }

    /// Applies [`MemorySettings::policy`](crate::memory::MemorySettings::policy) now.
    pub fn optimize(&mut self) {
        self.outbox.post(MemoryRequest::Optimize);
    }

    /// Frees every idle buffer of the pool.
    pub fn trim(&mut self) {
        self.outbox.post(MemoryRequest::Trim);
    }

    /// Keeps a tensor on the device, by inserting [`Pinned`].
    pub fn pin(&mut self, tensor: Entity) -> Result<(), OpError> {
        self.get("pin", tensor)?;
        self.commands.entity(tensor).try_insert(Pinned);
        Ok(())
    }

    /// Lets a tensor be evicted again, by removing [`Pinned`].
    pub fn unpin(&mut self, tensor: Entity) -> Result<(), OpError> {
        self.get("unpin", tensor)?;
        self.commands.entity(tensor).try_remove::<Pinned>();
        Ok(())
    }

    /// Despawns all tensors of a model, but not the model itself.
    pub fn release(&mut self, model: Entity) {
        for tensor in self.models.get(model).into_iter().flat_map(|tensors| tensors.iter()) {
            self.commands.entity(tensor).try_despawn();
        }
    }

    fn get(&self, op: &'static str, entity: Entity) -> Result<&Tensor, OpError> {
        self.tensors.get(entity).map_err(|_| OpError::MissingTensor { op, entity })
    }
}
