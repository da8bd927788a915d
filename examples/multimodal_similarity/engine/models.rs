//! The three models: `text`, `vision`, and `matcher`, which uses the results of the others through shares and views
//! that add no bytes.

use bevy::platform::collections::{HashMap, HashSet};
use bevy::prelude::*;
use bevy_tensor_compute::formats::WeightsReady;
use bevy_tensor_compute::prelude::*;

use super::encoders::{TEXT_WIDTH, TextEncoder, VISION_WIDTH, VisionEncoder};
use super::library::Library;
use super::matcher::{JOINT_WIDTH, Matcher};

/// Loads the models and then indexes the gallery. Needs a [`Library`].
pub struct ModelsPlugin;

impl Plugin for ModelsPlugin {
    fn build(&self, app: &mut App) {
        app.add_message::<ModelsFailed>()
            .init_resource::<ModelsReady>()
            .add_systems(Startup, load_models)
            .add_systems(Update, (connect_models, index_gallery).chain().in_set(ModelsSystems));
    }
}

/// The systems that prepare the models.
#[derive(SystemSet, Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelsSystems;

/// The entities of the models.
#[derive(Resource, Clone, Copy, Debug)]
pub struct Models {
    pub text: Entity,
    pub vision: Entity,
    pub matcher: Entity,
}

/// A model failed to load, with the reason.
#[derive(Message, Clone, Debug)]
pub struct ModelsFailed(pub String);

/// Which models are ready.
#[derive(Resource, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelsReady {
    /// Texts can be encoded and searched.
    pub text: bool,
    /// Pictures can be encoded.
    pub vision: bool,
}

/// The tensors that the models use in addition to their weights.
#[derive(Resource, Clone, Debug)]
pub struct Workspace {
    /// `[1, 384]`, owned by the text model.
    pub embedding: Entity,
    /// The matcher's view of its pooled row.
    pub query: Entity,
    /// `[pictures + 1, 1280]`, owned by the vision model. The last row is for the current picture.
    pub features: Entity,
    /// The matcher's share of it.
    pub seen: Entity,
    /// A view of its last row.
    pub live: Entity,
    /// `[pictures, 256]`.
    pub index: Entity,
    /// `[pictures]`.
    pub popularity: Entity,
    /// `[1, pictures]`.
    pub scores: Entity,
    /// `[captions, 256]`.
    pub captions: Entity,
    /// `[1, captions]`.
    pub caption_scores: Entity,
    /// Token ids and weights of the mean, by padded length.
    pub inputs: HashMap<usize, (Entity, Entity)>,
    /// Bytes that shares and views have added to all storages.
    pub added_by_shares: u64,
    pub added_by_views: u64,
}

/// Bytes of the storages of tensors, each storage counted once.
pub fn storage_bytes<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> u64 {
    let mut counted = HashSet::new();
    tensors.into_iter().filter(|tensor| counted.insert(tensor.storage_id())).map(|t| t.storage_bytes() as u64).sum()
}

/// The text model is loaded first, because the first answer needs it.
fn load_models(mut commands: Commands, server: Res<AssetServer>) {
    let mut model = |name: &'static str, file: &'static str, priority| {
        let weights = LoadWeights::new(server.load(format!("models/{file}.safetensors"))).with_priority(priority);
        commands.spawn((TensorModel, Name::new(name), weights)).observe(report_failure).id()
    };
    let matcher = model("matcher", "head", 3);
    let text = model("text", "minilm", 2);
    let vision = model("vision", "efficientnet", 1);
    commands.insert_resource(Models { text, vision, matcher });
}

fn report_failure(ready: On<WeightsReady>, mut failed: MessageWriter<ModelsFailed>, mut commands: Commands) {
    match &ready.result {
        Ok(_) => {
            commands.entity(ready.entity).insert(Loaded);
        }
        Err(error) => {
            failed.write(ModelsFailed(error.to_string()));
        }
    }
}

/// A model whose weights are all loaded.
#[derive(Component)]
struct Loaded;

/// Finds the weights of the layers as models are loaded, and shares the results of the encoders with the matcher.
fn connect_models(
    models: Res<Models>,
    arrived: Query<Entity, Added<Loaded>>,
    library: Res<Library>,
    names: TensorModels,
    tensors: Query<&Tensor>,
    mut failed: MessageWriter<ModelsFailed>,
    mut commands: Commands,
) -> Result {
    for model in &arrived {
        let weights = names.weights(model);
        let found = if model == models.text {
            TextEncoder::find(&weights).map(|encoder| commands.entity(model).insert(encoder).id())
        } else if model == models.vision {
            VisionEncoder::find(&weights).map(|encoder| commands.entity(model).insert(encoder).id())
        } else {
            Matcher::find(&weights).map(|matcher| commands.entity(model).insert(matcher).id())
        };
        if let Err(error) = found {
            failed.write(ModelsFailed(error.to_string()));
        } else if model == models.matcher {
            let workspace = spawn_workspace(&mut commands, &models, &library, &tensors)?;
            commands.insert_resource(workspace);
        }
    }
    Ok(())
}

fn spawn_workspace(
    commands: &mut Commands,
    models: &Models,
    library: &Library,
    tensors: &Query<&Tensor>,
) -> Result<Workspace> {
    let mut own = |model, name: &'static str, tensor: Tensor| commands.spawn_tensor(model, name, tensor);
    let (pictures, captions) = (library.gallery.len(), library.captions.len());
    let zeros = |shape: [usize; 2]| Tensor::zeros(shape, DType::F32);
    let embedding = zeros([1, TEXT_WIDTH])?;
    let features = zeros([pictures + 1, VISION_WIDTH])?;
    let mine = [&embedding, &features];
    let before = storage_bytes(tensors.iter().chain(mine));
    let share = features.clone();
    let after_share = storage_bytes(tensors.iter().chain(mine).chain([&share]));
    let query = embedding.slice(0, 0, 1)?;
    let live = features.slice(0, pictures as isize, pictures as isize + 1)?;
    let after_views = storage_bytes(tensors.iter().chain(mine).chain([&share, &query, &live]));
    Ok(Workspace {
        query: own(models.matcher, "query", query),
        embedding: own(models.text, "embedding", embedding),
        seen: own(models.matcher, "features", share),
        live: own(models.vision, "live", live),
        features: own(models.vision, "features", features),
        index: own(models.matcher, "index", zeros([pictures, JOINT_WIDTH])?),
        popularity: own(models.matcher, "popularity", Tensor::zeros([pictures], DType::F32)?),
        scores: own(models.matcher, "scores", zeros([1, pictures])?),
        captions: own(models.matcher, "caption index", zeros([captions, JOINT_WIDTH])?),
        caption_scores: own(models.matcher, "caption scores", zeros([1, captions])?),
        inputs: HashMap::default(),
        added_by_shares: after_share - before,
        added_by_views: after_views - after_share,
    })
}

/// Fills in the precomputed features of the gallery, and indexes them and the captions.
fn index_gallery(
    models: Res<Models>,
    workspace: Option<Res<Workspace>>,
    matchers: Query<&Matcher>,
    encoders: (Query<(), With<TextEncoder>>, Query<(), With<VisionEncoder>>),
    mut ready: ResMut<ModelsReady>,
    mut indexed: Local<bool>,
    ops: TensorCommands,
) -> Result {
    let (Some(workspace), Ok(matcher)) = (workspace, matchers.get(models.matcher)) else { return Ok(()) };
    let now = ModelsReady { text: encoders.0.contains(models.text), vision: encoders.1.contains(models.vision) };
    if !*indexed {
        let stored = ops.cast(matcher.gallery, DType::F32)?;
        let live = ops.full([1, VISION_WIDTH], 0.0, DType::F32)?;
        let all = ops.concat([stored, live], 0)?;
        ops.store(all, workspace.features)?;
        place_gallery(matcher, &workspace, &ops)?;
        let captions = ops.cast(matcher.captions, DType::F32)?;
        ops.store(captions, workspace.captions)?;
        *indexed = true;
    }
    ready.set_if_neq(now);
    Ok(())
}

/// Projects the features of the gallery into the joint space.
fn place_gallery(matcher: &Matcher, workspace: &Workspace, ops: &TensorCommands) -> Result {
    let features = ops.slice(workspace.seen, 0, 0, -1)?;
    let points = matcher.place_pictures(ops, features)?;
    ops.store(points, workspace.index)?;
    let popularity = matcher.popularity(ops, points, matcher.captions)?;
    ops.store(popularity, workspace.popularity)?;
    Ok(())
}
