//! The bound tensors of the app, and the systems that follow their changes.

use std::sync::Arc;

use bevy::asset::{AssetEvent, AssetId, Assets, RenderAssetUsages};
use bevy::platform::collections::HashMap;
use bevy::prelude::*;
use bevy::render::storage::ShaderBuffer;
use bevy::shader::Shader;
use crossbeam_channel::Receiver;

use super::{BindingSettings, BindingState, TensorBinding, module};
use crate::error::{BindingError, TensorFault};
use crate::figures::{Count, TensorDiagnostics};
use crate::gpu::buffer_size;
use crate::ir::{Backend, Layout};
use crate::mailbox::{BindingNews, BindingRequest, Outbox, SharedTensor};
use crate::readback::TensorReceiver;
use crate::record::TensorCommands;
use crate::support::{ModelBackend, TensorSupport};
use crate::tensor::{Storage, Tensor, TensorOf};

/// Frames in which a replaced buffer counts as new. On the CPU backend, the buffer may come after the materials of a
/// frame.
const REFRESHES: u8 = 2;

/// Frames after which a handle that was not dropped with its binding counts as used by others.
const GRACE: u8 = 4;

/// The systems that keep bindings up to date.
#[derive(SystemSet, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BindingSystems;

/// All bound tensors, by storage buffer.
#[derive(Resource)]
pub struct BoundTensors {
    entries: HashMap<AssetId<ShaderBuffer>, Bound>,
    /// Buffers that were replaced, and for how many frames this is still news.
    rebound: HashMap<AssetId<ShaderBuffer>, u8>,
    news: Receiver<BindingNews>,
}

/// A bound tensor.
struct Bound {
    entity: Entity,
    tensor: Tensor,
    settings: BindingSettings,
    /// Keeps the storage pinned.
    hold: Hold,
    /// The backend whose way to the shaders is set up.
    backend: Backend,
    state: BindingState,
    /// On the CPU backend: the version of the content that was last requested, and the content on its way.
    requested: Option<u64>,
    arriving: Option<TensorReceiver>,
    /// Why the entity's tensor, another one by now, cannot be bound.
    refusal: Option<BindingError>,
    /// Frames since the component was removed.
    removed: Option<u8>,
}

/// Keeps a storage bound until dropped.
struct Hold(Arc<Storage>);

impl Hold {
    fn new(storage: &Arc<Storage>) -> Self {
        storage.bind();
        Self(storage.clone())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.unbind();
    }
}

impl BoundTensors {
    pub(super) fn new(news: Receiver<BindingNews>) -> Self {
        Self { entries: HashMap::default(), rebound: HashMap::default(), news }
    }

    pub(super) fn state(&self, asset: AssetId<ShaderBuffer>) -> BindingState {
        self.entries.get(&asset).map_or(BindingState::Waiting, |bound| match &bound.refusal {
            Some(error) => BindingState::Failed(error.clone()),
            None => bound.state.clone(),
        })
    }

    /// Whether the buffer of any bound tensor was replaced.
    pub(super) fn any_rebound(&self) -> bool {
        !self.rebound.is_empty()
    }
}

impl Bound {
    fn request(&self, asset: AssetId<ShaderBuffer>) -> BindingRequest {
        BindingRequest::Share(SharedTensor {
            asset,
            storage: self.tensor.storage().clone(),
            name: self.settings.name.as_str().into(),
            writable: self.settings.writable,
        })
    }

    /// Starts the tensor's way to the shaders on a backend.
    fn start(
        &mut self,
        asset: AssetId<ShaderBuffer>,
        backend: Backend,
        buffers: &mut Assets<ShaderBuffer>,
        outbox: &mut Outbox,
    ) {
        (self.backend, self.requested, self.arriving) = (backend, None, None);
        match backend {
            Backend::Gpu => {
                // The renderer must not create a buffer for the asset.
                if let Some(buffer) = buffers.get_mut_untracked(asset) {
                    (buffer.asset_usage, buffer.data) = (RenderAssetUsages::MAIN_WORLD, None);
                }
                outbox.post(self.request(asset));
            }
            Backend::Cpu => outbox.post(BindingRequest::Withdraw(asset)),
        }
    }

    /// Whether the tensor is the one that is bound.
    fn is(&self, tensor: &Tensor) -> bool {
        self.tensor.storage_id() == tensor.storage_id() && self.tensor.layout() == tensor.layout()
    }
}

/// Forgets old news, and bindings whose storage buffer nobody uses any more.
pub(super) fn begin_frame(
    mut bound: ResMut<BoundTensors>,
    mut events: MessageReader<AssetEvent<ShaderBuffer>>,
    mut outbox: ResMut<Outbox>,
) {
    let bound = &mut *bound;
    bound.rebound.retain(|_, frames| {
        *frames -= 1;
        *frames > 0
    });
    for event in events.read() {
        if let AssetEvent::Unused { id } = event
            && bound.entries.remove(id).is_some()
        {
            outbox.post(BindingRequest::Withdraw(*id));
        }
    }
}

/// Reports tensors that were removed while shaders use their buffers. The buffers stay until they are not used.
pub(super) fn notice_removals(
    mut bound: ResMut<BoundTensors>,
    mut bindings: RemovedComponents<TensorBinding>,
    mut tensors: RemovedComponents<Tensor>,
    present: Query<(), (With<Tensor>, With<TensorBinding>)>,
    mut commands: Commands,
) {
    if bound.entries.is_empty() {
        return;
    }
    for entity in bindings.read().chain(tensors.read()).filter(|entity| !present.contains(*entity)) {
        let of_entity = bound.entries.values_mut().filter(|bound| bound.entity == entity);
        of_entity.for_each(|bound| _ = bound.removed.get_or_insert(0));
    }
    for bound in bound.entries.values_mut() {
        let Some(frames) = &mut bound.removed else { continue };
        *frames = frames.saturating_add(1);
        if *frames == GRACE {
            let (entity, name) = (bound.entity, bound.settings.name.clone());
            let error = BindingError::Removed { name, entity };
            bound.state = BindingState::Failed(error.clone());
            commands.trigger(TensorFault::Binding { entity: Some(entity), error });
        }
    }
}

/// Takes in new bindings, and tensors that were replaced.
#[expect(clippy::type_complexity, clippy::too_many_arguments, reason = "a system's parameters")]
pub(super) fn bind_tensors(
    mut bound: ResMut<BoundTensors>,
    changed: Query<(Entity, &Tensor, &TensorBinding, Option<&TensorOf>), Or<(Changed<Tensor>, Changed<TensorBinding>)>>,
    models: Query<&ModelBackend>,
    support: Res<TensorSupport>,
    buffers: Option<ResMut<Assets<ShaderBuffer>>>,
    shaders: Option<ResMut<Assets<Shader>>>,
    mut outbox: ResMut<Outbox>,
    mut commands: Commands,
) {
    let (Some(mut buffers), Some(mut shaders)) = (buffers, shaders) else { return };
    let bound = &mut *bound;
    for (entity, tensor, binding, of) in &changed {
        let (asset, settings) = (binding.buffer.id(), &binding.settings);
        let old = bound.entries.get_mut(&asset);
        if let Err(error) = settings.check(tensor) {
            if let Some(old) = old {
                old.refusal = Some(error.clone());
            }
            commands.trigger(TensorFault::Binding { entity: Some(entity), error });
            continue;
        }
        if let Some(old) = old.filter(|old| old.is(tensor) && old.entity == entity) {
            (old.removed, old.refusal) = (None, None);
            continue;
        }
        let storage = tensor.storage();
        let wish = of.and_then(|of| models.get(of.0).ok()).map(|wish| support.available(wish.0));
        let backend = storage.home(wish.unwrap_or(support.backend));
        let before = bound.entries.remove(&asset);
        let (same_layout, same_storage) = before.as_ref().map_or((false, false), |before| {
            let same = |old: &Layout, new: &Layout| old == new && before.tensor.dtype() == tensor.dtype();
            (same(before.tensor.layout(), tensor.layout()), before.tensor.storage_id() == tensor.storage_id())
        });
        if before.is_some() && !same_layout {
            // Shaders that import the module are compiled again.
            let text = module(tensor, settings);
            if let Some(shader) = shaders.get_mut(&binding.module) {
                *shader.into_inner() = text;
            }
        }
        if before.is_some() && !same_storage {
            bound.rebound.insert(asset, REFRESHES);
        }
        let mut entry = Bound {
            entity,
            tensor: tensor.clone(),
            settings: settings.clone(),
            hold: Hold::new(storage),
            backend,
            state: BindingState::Waiting,
            requested: None,
            arriving: None,
            refusal: None,
            removed: None,
        };
        entry.start(asset, backend, &mut buffers, &mut outbox);
        bound.entries.insert(asset, entry);
    }
}

/// Follows tensors that moved to the other backend.
pub(super) fn follow_backends(
    mut bound: ResMut<BoundTensors>,
    buffers: Option<ResMut<Assets<ShaderBuffer>>>,
    mut outbox: ResMut<Outbox>,
) {
    let Some(mut buffers) = buffers else { return };
    let bound = &mut *bound;
    for (&asset, entry) in &mut bound.entries {
        let home = entry.hold.0.home(entry.backend);
        if home != entry.backend {
            entry.start(asset, home, &mut buffers, &mut outbox);
            bound.rebound.insert(asset, REFRESHES);
        }
    }
}

/// Uploads the contents of tensors of the CPU backend that have changed.
pub(super) fn upload_contents(
    mut bound: ResMut<BoundTensors>,
    buffers: Option<ResMut<Assets<ShaderBuffer>>>,
    diagnostics: Res<TensorDiagnostics>,
    ops: TensorCommands,
    mut commands: Commands,
) {
    let Some(mut buffers) = buffers else { return };
    let bound = &mut *bound;
    for (&asset, entry) in bound.entries.iter_mut().filter(|(_, entry)| entry.backend == Backend::Cpu) {
        if let Some(answer) = entry.arriving.as_ref().and_then(TensorReceiver::try_recv) {
            entry.arriving = None;
            match answer {
                Ok(data) => {
                    let size = buffer_size(data.words().len());
                    let mut bytes: Vec<u8> = bytemuck::cast_slice(data.words()).to_vec();
                    bytes.resize(size as usize, 0);
                    let Some(buffer) = buffers.get_mut(asset) else { continue };
                    let buffer = buffer.into_inner();
                    if buffer.buffer_description.size != size || entry.state != BindingState::Uploaded {
                        bound.rebound.insert(asset, REFRESHES);
                    }
                    buffer.buffer_description.size = size;
                    buffer.asset_usage = RenderAssetUsages::default();
                    buffer.data = Some(bytes);
                    diagnostics.counters().uploaded_bytes.add(size);
                    entry.state = BindingState::Uploaded;
                }
                Err(error) => fail(entry, error.into(), &mut commands),
            }
        }
        let version = entry.hold.0.version();
        if entry.arriving.is_none() && entry.requested != Some(version) {
            entry.requested = Some(version);
            match ops.read_tensor(&entry.tensor.whole_storage()) {
                Ok(receiver) => entry.arriving = Some(receiver),
                Err(error) => fail(entry, error.into(), &mut commands),
            }
        }
    }
}

/// Takes in what became of bindings on the device.
pub(super) fn hear_news(mut bound: ResMut<BoundTensors>, mut commands: Commands) {
    let bound = &mut *bound;
    for news in bound.news.try_iter() {
        match news {
            BindingNews::Shared { asset, again } => {
                if let Some(entry) = bound.entries.get_mut(&asset).filter(|entry| entry.removed.is_none()) {
                    entry.state = BindingState::Shared;
                }
                if again {
                    bound.rebound.insert(asset, REFRESHES);
                }
            }
            BindingNews::NotShared { asset, error } => {
                if let Some(entry) = bound.entries.get_mut(&asset) {
                    fail(entry, error, &mut commands);
                }
            }
            BindingNews::NotBorrowed { error } => commands.trigger(TensorFault::Binding { entity: None, error }),
        }
    }
}

fn fail(entry: &mut Bound, error: BindingError, commands: &mut Commands) {
    entry.state = BindingState::Failed(error.clone());
    commands.trigger(TensorFault::Binding { entity: Some(entry.entity), error });
}
