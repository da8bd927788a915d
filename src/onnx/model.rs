//! Models as components: the loader of the asset, the upload of the weights, and hot reload.

use std::collections::HashSet;
use std::sync::Arc;

use bevy::asset::io::Reader;
use bevy::asset::{AssetLoadError, AssetLoader, AssetPath, LoadContext, LoadState};
use bevy::prelude::*;
use prost::bytes::Bytes;

use super::error::{OnnxError, OnnxRunError};
use super::program::{OnnxGraph, OnnxPort, external_files};
use super::run::image_settings;
use crate::formats::onnx::{ExternalFiles, decode_model};
use crate::formats::{Arriving, LoadWeights, TensorWeights, WeightsReady};
use crate::image::ImageSettings;
use crate::support::ModelBackend;
use crate::tensor::{ModelTensors, Tensor, TensorModel, TensorNames};

/// An ONNX model. Its weights are tensors of the entity, like those of any other model.
///
/// The file is read, checked and folded off the main thread. The weights are uploaded within
/// [`UploadSettings`](crate::formats::UploadSettings). [`OnnxLoaded`] is triggered when the model can run, or cannot be
/// loaded. A second model of the same file shares the weights. If the file changes, the model is loaded again.
///
/// ```
/// # use bevy::prelude::*;
/// # use bevy_tensor_compute::prelude::*;
/// use bevy_tensor_compute::onnx::{OnnxLoaded, OnnxModel};
///
/// fn spawn(mut commands: Commands, server: Res<AssetServer>) {
///     commands.spawn((OnnxModel::new(server.load("net.onnx")), Name::new("net"))).observe(
///         |loaded: On<OnnxLoaded>| match &loaded.result {
///             Ok(()) => info!("ready"),
///             Err(error) => error!("{error}"),
///         },
///     );
/// }
///
/// fn forward(model: Single<&OnnxModel>, input: Entity, ops: TensorCommands) -> Result {
///     let outputs = ops.run(&model, input)?;
///     let scores = ops.softmax(outputs.at(0)?, LAST)?;
/// #   drop(scores);
///     Ok(())
/// }
/// ```
#[derive(Component, Clone, Debug)]
#[require(TensorModel)]
pub struct OnnxModel {
    handle: Option<Handle<OnnxGraph>>,
    priority: i32,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// The file is not read yet.
    Waiting,
    /// The file is read; its weights are not uploaded yet.
    Read(OnnxGraph),
    Uploading(OnnxGraph),
    Ready(Arc<Loaded>),
    Failed(Arc<OnnxError>),
}

/// A model that can run.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub entity: Entity,
    pub graph: OnnxGraph,
    /// The tensors of the weights, in the order of the graph's list.
    pub weights: Arc<[Entity]>,
}

/// Triggered on a model when it can run, or cannot be loaded. Also after each hot reload.
#[derive(EntityEvent, Clone, Debug)]
pub struct OnnxLoaded {
    /// The model.
    pub entity: Entity,
    /// The error, if there is one.
    pub result: Result<(), OnnxError>,
}

impl OnnxModel {
    /// A model of a file.
    pub fn new(handle: Handle<OnnxGraph>) -> Self {
        Self { handle: Some(handle), priority: 0, state: State::Waiting }
    }

    /// A model of a graph that is read already.
    pub fn from_graph(graph: OnnxGraph) -> Self {
        Self { handle: None, priority: 0, state: State::Read(graph) }
    }

    /// Uploads the weights before those of models with a lower priority. 0 by default.
    #[must_use]
    pub fn with_priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Whether the model can run.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(_))
    }

    /// The error, if the model could not be loaded.
    pub fn error(&self) -> Option<&OnnxError> {
        match &self.state {
            State::Failed(error) => Some(error),
            State::Waiting | State::Read(_) | State::Uploading(_) | State::Ready(_) => None,
        }
    }

    /// The graph, once the file is read.
    pub fn graph(&self) -> Option<&OnnxGraph> {
        match &self.state {
            State::Read(graph) | State::Uploading(graph) => Some(graph),
            State::Ready(loaded) => Some(&loaded.graph),
            State::Waiting | State::Failed(_) => None,
        }
    }

    /// The inputs in order. Empty until the file is read.
    pub fn inputs(&self) -> Vec<OnnxPort> {
        self.graph().map(OnnxGraph::inputs).unwrap_or_default()
    }

    /// The outputs in order. Empty until the file is read.
    pub fn outputs(&self) -> Vec<OnnxPort> {
        self.graph().map(OnnxGraph::outputs).unwrap_or_default()
    }

    /// The conversion of pixels that the declared shape of an input asks for. `None` if the shape is not that of an image
    /// with three channels.
    pub fn image_settings(&self, input: &str) -> Option<ImageSettings> {
        image_settings(self.graph()?.graph.inputs.iter().find(|port| port.name == input)?)
    }

    pub(super) fn loaded(&self) -> Result<Arc<Loaded>, OnnxRunError> {
        match &self.state {
            State::Ready(loaded) => Ok(loaded.clone()),
            State::Failed(error) => Err(OnnxRunError::Load(Box::new((**error).clone()))),
            State::Waiting | State::Read(_) | State::Uploading(_) => Err(OnnxRunError::NotReady),
        }
    }
}

/// Asset loader for [`OnnxGraph`].
#[derive(Default, TypePath)]
pub(crate) struct OnnxLoader;

impl AssetLoader for OnnxLoader {
    type Asset = OnnxGraph;
    type Settings = ();
    type Error = OnnxError;

    async fn load(
        &self,
        reader: &mut dyn Reader,
        _: &(),
        context: &mut LoadContext<'_>,
    ) -> Result<OnnxGraph, OnnxError> {
        let path = context.path().clone();
        let io = |error: &dyn core::fmt::Display| OnnxError::Io { path: path.to_string(), message: error.to_string() };
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).await.map_err(|error| io(&error))?;
        let model = decode_model(Bytes::from(bytes))?;
        let mut files = ExternalFiles::new();
        for location in external_files(&model)? {
            let beside = AssetPath::from(path.path().with_file_name(&location)).with_source(path.source().clone());
            let content = context.read_asset_bytes(beside).await.map_err(|error| io(&error))?;
            files.insert(location, Bytes::from(content));
        }
        OnnxGraph::from_message(model, &files)
    }

    fn extensions(&self) -> &[&str] {
        &["onnx"]
    }
}

/// Takes files that were read, and starts the upload of their weights or shares those of another model.
pub(crate) fn begin_models(
    mut models: Query<(Entity, &mut OnnxModel, Option<&ModelBackend>)>,
    tensors: Query<&Tensor>,
    server: Option<Res<AssetServer>>,
    assets: Option<Res<Assets<OnnxGraph>>>,
    mut changes: Option<MessageReader<AssetEvent<OnnxGraph>>>,
    mut commands: Commands,
) {
    let modified: Vec<AssetId<OnnxGraph>> = changes
        .iter_mut()
        .flat_map(|changes| changes.read())
        .filter_map(|event| match event {
            AssetEvent::Modified { id } => Some(*id),
            _ => None,
        })
        .collect();
    let mut waiting = Vec::new();
    for (entity, mut model, backend) in &mut models {
        let changed = model.handle.as_ref().is_some_and(|handle| modified.contains(&handle.id()));
        if changed {
            model.state = State::Waiting;
        }
        if let (State::Waiting, Some(handle)) = (&model.state, &model.handle) {
            if let Some(graph) = assets.as_ref().and_then(|assets| assets.get(handle)) {
                model.state = State::Read(graph.clone());
            } else if let Some(LoadState::Failed(error)) =
                server.as_ref().and_then(|server| server.get_load_state(handle))
            {
                end(&mut commands, entity, &mut model, Err(load_error(&error)));
            }
        }
        if let State::Read(graph) = &model.state {
            waiting.push((entity, graph.clone(), backend.copied()));
        }
    }
    for (entity, graph, backend) in waiting {
        // The graph of a second model of the same file is the same allocation.
        let twin = models.iter().find(|(other, model, other_backend)| {
            *other != entity
                && other_backend.copied() == backend
                && model.graph().is_some_and(|twin| Arc::ptr_eq(&twin.graph, &graph.graph))
                && matches!(model.state, State::Ready(_) | State::Uploading(_))
        });
        match twin.map(|(_, model, _)| &model.state) {
            Some(State::Ready(loaded)) => {
                let shared: Option<Vec<Tensor>> =
                    loaded.weights.iter().map(|&weight| tensors.get(weight).ok().cloned()).collect();
                if let Some(shared) = shared {
                    let names = graph.weights.iter().map(|(name, _)| name.clone());
                    for (name, tensor) in names.zip(shared) {
                        commands.queue(move |world: &mut World| {
                            if world.get_entity(entity).is_ok() {
                                crate::formats::place(world, entity, name, tensor);
                            }
                        });
                    }
                    commands.queue(move |world: &mut World| arrive(world, entity));
                    set_uploading(&mut models, entity);
                    continue;
                }
            }
            // Its weights can be shared when they have arrived.
            Some(_) => continue,
            None => {}
        }
        let weights: TensorWeights = graph.weights.to_vec().into();
        let priority = models.get(entity).map_or(0, |(_, model, _)| model.priority);
        let load = LoadWeights::new(Handle::default()).with_priority(priority);
        let arriving = Arriving::new(&load, weights);
        commands.entity(entity).try_insert((load, arriving));
        set_uploading(&mut models, entity);
    }
}

fn set_uploading(models: &mut Query<(Entity, &mut OnnxModel, Option<&ModelBackend>)>, entity: Entity) {
    if let Ok((_, mut model, _)) = models.get_mut(entity)
        && let State::Read(graph) = &model.state
    {
        model.state = State::Uploading(graph.clone());
    }
}

/// The loader's own error if there is one. The message of the asset server contains Rust type names.
fn load_error(error: &Arc<AssetLoadError>) -> OnnxError {
    if let AssetLoadError::AssetLoaderError(failed) = &**error
        && let Some(error) = failed.error().downcast_ref::<OnnxError>()
    {
        return error.clone();
    }
    OnnxError::Io { path: String::new(), message: error.to_string() }
}

fn end(commands: &mut Commands, entity: Entity, model: &mut OnnxModel, result: Result<(), OnnxError>) {
    if let Err(error) = &result {
        model.state = State::Failed(Arc::new(error.clone()));
    }
    commands.trigger(OnnxLoaded { entity, result });
}

/// Ends the upload of a model's weights.
pub(crate) fn end_upload(ready: On<WeightsReady>, mut models: Query<&mut OnnxModel>, mut commands: Commands) {
    let entity = ready.entity;
    let Ok(mut model) = models.get_mut(entity) else { return };
    match &ready.result {
        Ok(_) => commands.queue(move |world: &mut World| arrive(world, entity)),
        Err(error) => end(&mut commands, entity, &mut model, Err(error.clone().into())),
    }
}

/// All weights of a model are tensors now.
fn arrive(world: &mut World, entity: Entity) {
    let Some(State::Uploading(graph)) = world.get::<OnnxModel>(entity).map(|model| model.state.clone()) else { return };
    let names = world.resource::<TensorNames>();
    let found: Result<Vec<Entity>, _> = graph.weights.iter().map(|(name, _)| names.find(entity, name)).collect();
    let result = found.map_err(|error| OnnxError::Weights(error.to_string()));
    let (state, result) = match result {
        Ok(weights) => {
            // A file that was loaded again may have fewer weights than before.
            let old: Vec<Entity> = world.get::<ModelTensors>(entity).into_iter().flat_map(|all| all.iter()).collect();
            let kept: HashSet<Entity> = weights.iter().copied().collect();
            for tensor in old {
                if !kept.contains(&tensor) && world.get::<OnnxWeight>(tensor).is_some() {
                    world.despawn(tensor);
                }
            }
            for &weight in &weights {
                world.entity_mut(weight).insert(OnnxWeight);
            }
            (State::Ready(Arc::new(Loaded { entity, graph, weights: weights.into() })), Ok(()))
        }
        Err(error) => (State::Failed(Arc::new(error.clone())), Err(error)),
    };
    if let Some(mut model) = world.get_mut::<OnnxModel>(entity) {
        model.state = state;
    }
    world.trigger(OnnxLoaded { entity, result });
}

/// Marks the tensors that came from a file.
#[derive(Component)]
struct OnnxWeight;
