//! What tensors and models take, and what to do about it: the main world's window onto memory.

use crate::mailbox::{MemoryRequest, Outbox};
use crate::tensor::{ModelTensors, Tensor, TensorUsage};

use bevy::ecs::system::SystemParam;
use bevy::platform::collections::HashMap;
use bevy::prelude::*;

use super::{Pinned, Residency, SyncDirection};
use crate::error::OpError;

/// What a model's tensors take, each storage once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelUsage {
    /// Tensors.
    pub tensors: usize,
    /// Different storages behind them.
    pub storages: usize,
    /// Bytes of their contents, wherever those are, each storage once.
    pub bytes: u64,
    /// Bytes on the device.
    pub device_bytes: u64,
    /// Bytes on the host.
    pub host_bytes: u64,
}

impl ModelUsage {
    /// Adds up tensors, each storage once.
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
    /// What this tensor's storage takes, and where it is.
    pub fn usage(&self) -> TensorUsage {
        self.storage().usage()
    }

    /// Where the content is.
    pub fn residency(&self) -> Residency {
        self.usage().residency
    }
}

/// What tensors and models take on device and host, and requests about it. Requests are carried out after the work recorded in the same
/// frame, in order.
///
/// Totals are in [`TensorDiagnostics::figures`](crate::TensorDiagnostics::figures).
#[derive(SystemParam)]
pub struct TensorMemory<'w, 's> {
    tensors: Query<'w, 's, &'static Tensor>,
    models: Query<'w, 's, &'static ModelTensors>,
    outbox: ResMut<'w, Outbox>,
    commands: Commands<'w, 's>,
}

impl TensorMemory<'_, '_> {
    /// What a tensor takes.
    pub fn tensor(&self, tensor: Entity) -> Result<TensorUsage, OpError> {
        Ok(self.get("memory", tensor)?.usage())
    }

    /// What a model's tensors take, each storage once. Storages shared with other models count in each of them, and once in the total.
    pub fn model(&self, model: Entity) -> ModelUsage {
        let tensors = self.models.get(model).into_iter().flat_map(|tensors| tensors.iter());
        ModelUsage::of(tensors.filter_map(|tensor| self.tensors.get(tensor).ok()))
    }

    /// What all tensors take, each storage once.
    pub fn total(&self) -> ModelUsage {
        ModelUsage::of(self.tensors.iter())
    }

    /// Brings a tensor's content where it is not yet; moves nothing that is up to date. Where it is shows in
    /// [`Tensor::residency`] once it has arrived.
    pub fn synchronize(&mut self, tensor: Entity, direction: SyncDirection) -> Result<(), OpError> {
        let storage = self.get("synchronize", tensor)?.storage().clone();
        self.outbox.post(MemoryRequest::Synchronize(storage, direction));
        Ok(())
    }

    /// Moves a tensor to the host, unless it is pinned or used again before it has gone.
    pub fn evict(&mut self, tensor: Entity) -> Result<(), OpError> {
        let storage = self.get("evict", tensor)?.storage().clone();
        self.outbox.post(MemoryRequest::Evict(storage));
        Ok(())
    }

    /// Does at once what [`MemorySettings::policy`](crate::MemorySettings::policy) does on a timer.
    pub fn optimize(&mut self) {
        self.outbox.post(MemoryRequest::Optimize);
    }

    /// Gives every idle buffer of the pool back to the device.
    pub fn trim(&mut self) {
        self.outbox.post(MemoryRequest::Trim);
    }

    /// Keeps a tensor on the device ([`Pinned`]).
    pub fn pin(&mut self, tensor: Entity) -> Result<(), OpError> {
        self.get("pin", tensor)?;
        self.commands.entity(tensor).insert(Pinned);
        Ok(())
    }

    /// Lets a tensor leave the device again.
    pub fn unpin(&mut self, tensor: Entity) -> Result<(), OpError> {
        self.get("unpin", tensor)?;
        self.commands.entity(tensor).remove::<Pinned>();
        Ok(())
    }

    /// Despawns all tensors of a model, but not the model.
    pub fn release(&mut self, model: Entity) {
        for tensor in self.models.get(model).into_iter().flat_map(|tensors| tensors.iter()) {
            self.commands.entity(tensor).despawn();
        }
    }

    fn get(&self, op: &'static str, entity: Entity) -> Result<&Tensor, OpError> {
        self.tensors.get(entity).map_err(|_| OpError::MissingTensor { op, entity })
    }
}
