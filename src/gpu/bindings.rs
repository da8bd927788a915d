//! Buffers that tensors share with the shaders of others. No content is copied.
//!
//! A shared tensor lends its buffer to a storage buffer asset, so that materials and other passes can bind it. A
//! borrowed buffer goes the other way: it belongs to an asset and is the device memory of a tensor.

use std::sync::{Arc, Weak};

use bevy::asset::AssetId;
use bevy::ecs::resource::Resource;
use bevy::render::render_asset::RenderAssets;
use bevy::render::render_resource::{Buffer, BufferDescriptor, BufferId, BufferUsages};
use bevy::render::storage::{GpuShaderBuffer, ShaderBuffer};

use super::buffers::{DeviceBuffer, Purpose};
use super::device::buffer_size;
use super::executor::GpuExecutor;
use crate::error::BindingError;
use crate::ir::{Backend, DType, Shape};
use crate::mailbox::{BindingNews, BindingNewsSender, BindingRequest, SharedTensor};
use crate::tensor::{DeviceSlot, Storage};

/// All buffers that are shared with other shaders.
#[derive(Resource)]
pub(crate) struct SharedBuffers {
    shared: Vec<Shared>,
    borrowed: Vec<Borrowed>,
    news: BindingNewsSender,
}

/// A tensor whose buffer an asset has.
struct Shared {
    tensor: SharedTensor,
    /// The id of the tensor's buffer, and the id under which Bevy knows it.
    given: Option<(u64, BufferId)>,
    /// The last error, so that it is reported once.
    error: Option<BindingError>,
}

/// An asset whose buffer a tensor has.
struct Borrowed {
    asset: AssetId<ShaderBuffer>,
    storage: Weak<Storage>,
    dtype: DType,
    shape: Shape,
    taken: Option<BufferId>,
    error: Option<BindingError>,
}

impl SharedBuffers {
    pub(crate) fn new(news: BindingNewsSender) -> Self {
        Self { shared: Vec::new(), borrowed: Vec::new(), news }
    }

    /// Takes in the requests of a frame.
    pub(crate) fn accept(&mut self, requests: impl Iterator<Item = BindingRequest>) {
        for request in requests {
            match request {
                BindingRequest::Share(tensor) => {
                    let old = self.shared.iter().position(|shared| shared.tensor.asset == tensor.asset);
                    // The asset may have had the buffer of another tensor.
                    let given = old.and_then(|old| self.shared.swap_remove(old).given);
                    self.shared.push(Shared { tensor, given, error: None });
                }
                BindingRequest::Withdraw(asset) => self.shared.retain(|shared| shared.tensor.asset != asset),
                BindingRequest::Borrow { asset, tensor } => self.borrowed.push(Borrowed {
                    asset,
                    storage: Arc::downgrade(tensor.storage()),
                    dtype: tensor.dtype(),
                    shape: tensor.shape().clone(),
                    taken: None,
                    error: None,
                }),
            }
        }
    }

    /// Brings the shared tensors to the device and gives their buffers to the assets, where that is still to be done.
    pub(crate) fn share(&mut self, executor: &mut GpuExecutor, assets: &mut RenderAssets<GpuShaderBuffer>) {
        for shared in &mut self.shared {
            let asset = shared.tensor.asset;
            match shared.buffer(executor) {
                Ok(Some(buffer)) => {
                    shared.error = None;
                    let known = assets.get(asset).map(|buffer| buffer.buffer.id());
                    if known.is_none() || shared.given != known.map(|known| (buffer.id, known)) {
                        let again = shared.given.is_some();
                        shared.given = Some((buffer.id, give(&buffer, asset, assets)));
                        self.news.send(BindingNews::Shared { asset, again });
                    }
                    if shared.tensor.writable {
                        shared.tensor.storage.wrote(None, &executor.gpu().counters);
                    }
                }
                // There is no room yet, or the tensor is on its way.
                Ok(None) => {}
                Err(error) if shared.error.as_ref() == Some(&error) => {}
                Err(error) => {
                    shared.error = Some(error.clone());
                    self.news.send(BindingNews::NotShared { asset, error });
                }
            }
        }
    }

    /// Gives tensors the buffers of their assets, where that is still to be done.
    pub(crate) fn borrow(&mut self, executor: &GpuExecutor, assets: &RenderAssets<GpuShaderBuffer>) {
        self.borrowed.retain_mut(|borrowed| {
            let Some(storage) = borrowed.storage.upgrade() else { return false };
            let Some(asset) = assets.get(borrowed.asset) else { return true };
            let current = borrowed.taken == Some(asset.buffer.id());
            let stays = storage.decided_home() == Some(Backend::Gpu);
            if stays && !(current && storage.device(executor.gpu().generation).is_some()) {
                let taken = borrowed.take(executor, &storage, &asset.buffer);
                borrowed.taken = taken.is_ok().then(|| asset.buffer.id());
                let error = taken.err();
                if let Some(error) = error.clone().filter(|_| error != borrowed.error) {
                    self.news.send(BindingNews::NotBorrowed { error });
                }
                borrowed.error = error;
            }
            stays
        });
    }
}

impl Shared {
    /// The buffer of the tensor. `None` while it cannot be on the device.
    fn buffer(&self, executor: &mut GpuExecutor) -> Result<Option<Arc<DeviceBuffer>>, BindingError> {
        let available = executor.gpu().limits.max_storage_buffer_binding_size;
        let SharedTensor { storage, name, .. } = &self.tensor;
        let bytes = executor.gpu().bytes(Purpose::of(storage), storage.words());
        if bytes > available {
            return Err(BindingError::TooLarge { name: name.to_string(), bytes, available });
        }
        Ok(executor.resident(storage)?)
    }
}

/// Makes a tensor's buffer the buffer of an asset. Returns the id under which Bevy knows it.
fn give(buffer: &DeviceBuffer, asset: AssetId<ShaderBuffer>, assets: &mut RenderAssets<GpuShaderBuffer>) -> BufferId {
    let wgpu_buffer = buffer.share().clone();
    let buffer_descriptor = BufferDescriptor {
        label: Some("tensor:storage"),
        size: buffer.bytes,
        usage: wgpu_buffer.usage(),
        mapped_at_creation: false,
    };
    let buffer = Buffer::from(wgpu_buffer);
    let id = buffer.id();
    assets.insert(asset, GpuShaderBuffer { buffer, buffer_descriptor, had_data: false });
    id
}

impl Borrowed {
    fn take(&self, executor: &GpuExecutor, storage: &Storage, buffer: &Buffer) -> Result<(), BindingError> {
        let (expected, found) = (buffer_size(storage.words()), buffer.size());
        if found < expected {
            let (dtype, shape) = (self.dtype, self.shape.clone());
            return Err(BindingError::BufferTooSmall { dtype, shape, expected, found });
        }
        if !buffer.usage().contains(BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST) {
            return Err(BindingError::BufferUsage);
        }
        let held = executor.gpu().foreign((**buffer).clone(), storage.words());
        storage.lend(DeviceSlot { generation: held.generation, bytes: 0, held });
        Ok(())
    }
}

impl BindingNewsSender {
    fn send(&self, news: BindingNews) {
        // Fails only when the main world is gone.
        let _ = self.0.send(news);
    }
}
