//! Models: from a file to a decoder.

use std::collections::VecDeque;
use std::sync::Arc;

use bevy::asset::LoadState;
use bevy::ecs::lifecycle::Remove;
use bevy::prelude::*;
use bevy::tasks::futures::check_ready;
use bevy::tasks::{AsyncComputeTaskPool, Task};

use super::config::{DecoderConfig, TextError};
use super::decoder::Decoder;
use super::events::TextModelReady;
use super::speaker::Speakers;
use super::step::Pending;
use super::tokens::Tokenizer;
use crate::formats::gguf::GgufModel;
use crate::formats::{LoadWeights, TensorWeights, WeightsError, WeightsReady};
use crate::ir::DType;
use crate::tensor::{TensorModel, TensorModels};

/// A language model: a GGUF file whose weights become tensors of the entity.
///
/// [`TextModelReady`] is triggered when it is loaded or has failed.
#[derive(Component, Clone, Debug)]
#[require(TensorModel)]
pub struct TextModel {
    /// The file.
    pub file: Handle<GgufModel>,
    /// How it runs. Read when it is loaded.
    pub settings: TextSettings,
}

impl TextModel {
    /// A model with the default settings.
    pub fn new(file: Handle<GgufModel>) -> Self {
        Self { file, settings: TextSettings::default() }
    }

    /// Sets how it runs.
    pub fn with_settings(mut self, settings: TextSettings) -> Self {
        self.settings = settings;
        self
    }
}

/// How a model runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextSettings {
    /// Maximum number of tokens of a speaker's context. `None`, the default, means that of the file, at most 4096.
    pub context: Option<usize>,
    /// Element type of keys and values: `F32`, the default, or `F16`.
    pub cache: DType,
    /// Maximum number of tokens of a prompt that are processed per frame. 64 by default.
    pub chunk: usize,
    /// Maximum number of steps that are recorded and not read back yet. 4 by default.
    pub in_flight: usize,
    /// Maximum number of steps per frame. 1 by default.
    pub steps_per_frame: usize,
}

impl Default for TextSettings {
    fn default() -> Self {
        Self { context: None, cache: DType::F32, chunk: 64, in_flight: 4, steps_per_frame: 1 }
    }
}

/// What was loaded. A component of models that are ready.
#[derive(Component, Clone, Debug)]
pub struct TextModelInfo {
    /// Sizes and settings of the decoder.
    pub config: Arc<DecoderConfig>,
    /// The tokeniser of the file.
    pub tokenizer: Arc<Tokenizer>,
    /// Maximum number of tokens of a speaker's context.
    pub context: usize,
    /// Bytes of the weights.
    pub bytes: u64,
}

/// A model that is being loaded.
#[derive(Component)]
pub(super) struct Loading {
    header: Arc<crate::formats::gguf::GgufHeader>,
    config: DecoderConfig,
    tokenizer: Option<Task<Result<Tokenizer, TextError>>>,
    made: Option<Arc<Tokenizer>>,
    factors: Vec<f32>,
    bytes: u64,
    weights: Option<Result<usize, WeightsError>>,
}

/// A model that can make steps.
#[derive(Component)]
pub(super) struct Ready {
    pub decoder: Decoder,
    pub tokenizer: Arc<Tokenizer>,
    pub settings: TextSettings,
    pub context: usize,
    /// Number of logits.
    words: usize,
    /// Steps that are not read back yet.
    pub pending: VecDeque<Pending>,
}

impl Ready {
    /// Number of logits.
    pub(super) fn vocabulary(&self) -> usize {
        self.words
    }
}

/// A model that failed. Its speakers end with its error.
#[derive(Component)]
pub(super) struct Failed(pub TextError);

type New = (Without<Loading>, Without<Ready>, Without<Failed>);

/// Begins to load models whose files have arrived.
pub(super) fn load_models(
    models: Query<(Entity, &TextModel), New>,
    server: Option<Res<AssetServer>>,
    files: Option<Res<Assets<GgufModel>>>,
    weights: Option<Res<Assets<TensorWeights>>>,
    mut commands: Commands,
) {
    let (Some(server), Some(files), Some(weights)) = (server, files, weights) else { return };
    for (entity, model) in &models {
        let Some(file) = files.get(&model.file) else {
            if let Some(LoadState::Failed(error)) = server.get_load_state(&model.file) {
                let error = WeightsError::from(&error);
                fail(&mut commands, entity, TextError::File(error.to_string()));
            }
            continue;
        };
        let config = match DecoderConfig::from_gguf(&file.header) {
            Ok(config) => config,
            Err(error) => {
                fail(&mut commands, entity, error);
                continue;
            }
        };
        let Some(content) = weights.get(&file.weights) else { continue };
        let factors = content.get("rope_freqs.weight").map(|data| data.to_f32()).unwrap_or_default();
        let header = file.header.clone();
        let make = async move { Tokenizer::from_gguf(&header).map_err(TextError::from) };
        let tokenizer = Some(AsyncComputeTaskPool::get().spawn(make));
        let (header, bytes) = (file.header.clone(), content.bytes());
        let loading = Loading { header, config, tokenizer, made: None, factors, bytes, weights: None };
        commands.entity(entity).try_insert((loading, LoadWeights::new(file.weights.clone())));
    }
}

/// Notes that the weights of a model have arrived.
pub(super) fn weights_ready(ready: On<WeightsReady>, mut models: Query<&mut Loading>) {
    if let Ok(mut loading) = models.get_mut(ready.entity) {
        loading.weights = Some(ready.result.clone());
    }
}

/// Makes decoders of models whose weights and tokenisers are there.
pub(super) fn finish_models(
    mut models: Query<(Entity, &TextModel, &mut Loading)>,
    tensors: TensorModels,
    mut commands: Commands,
) {
    for (entity, model, mut loading) in &mut models {
        if let Some(made) = loading.tokenizer.as_mut().and_then(check_ready) {
            loading.tokenizer = None;
            match made {
                Ok(tokenizer) => loading.made = Some(Arc::new(tokenizer)),
                Err(error) => {
                    fail(&mut commands, entity, error);
                    continue;
                }
            }
        }
        let (Some(tokenizer), Some(weights)) = (loading.made.clone(), loading.weights.clone()) else { continue };
        if let Err(error) = weights {
            fail(&mut commands, entity, error.into());
            continue;
        }
        let found = check_shapes(&loading, &tokenizer)
            .and_then(|()| Decoder::find(loading.config.clone(), &tensors.weights(entity), &loading.factors));
        let decoder = match found {
            Ok(decoder) => decoder,
            Err(error) => {
                fail(&mut commands, entity, error);
                continue;
            }
        };
        let context = model.settings.context.unwrap_or(4096).min(loading.config.context).max(2);
        let config = Arc::new(loading.config.clone());
        let info = TextModelInfo { config, tokenizer: tokenizer.clone(), context, bytes: loading.bytes };
        let settings = TextSettings {
            chunk: model.settings.chunk.clamp(8, 512).next_power_of_two(),
            in_flight: model.settings.in_flight.max(1),
            steps_per_frame: model.settings.steps_per_frame.max(1),
            ..model.settings
        };
        let words = loading.header.tensor("token_embd.weight").map_or(0, |tensor| tensor.shape()[0]);
        let ready = Ready { decoder, tokenizer, settings, context, words, pending: VecDeque::new() };
        commands.entity(entity).try_insert((ready, info.clone())).try_remove::<Loading>();
        commands.trigger(TextModelReady { entity, result: Ok(info) });
    }
}

/// Checks the shapes of the weights against the settings, so that mistakes are found once and not in every step.
fn check_shapes(loading: &Loading, tokenizer: &Tokenizer) -> Result<(), TextError> {
    let config = &loading.config;
    let wrong = |name: &str, reason: String| TextError::Metadata { key: name.to_owned(), reason };
    let check = |name: &str, rows: Option<usize>, width: usize| {
        let Some(tensor) = loading.header.tensor(name) else { return Ok(()) };
        match tensor.shape()[..] {
            [n, k] if k == width && rows.is_none_or(|rows| rows == n) => Ok(()),
            _ => Err(wrong(name, format!("has the shape {}, which does not fit the metadata", tensor.shape()))),
        }
    };
    check("token_embd.weight", None, config.width)?;
    let words = loading.header.tensor("token_embd.weight").map_or(0, |tensor| tensor.shape()[0]);
    if words < tokenizer.len() {
        return Err(wrong("token_embd.weight", format!("has {words} rows for {} tokens", tokenizer.len())));
    }
    check("output.weight", Some(words), config.width)?;
    for i in 0..config.layers {
        check(&format!("blk.{i}.attn_q.weight"), Some(config.heads * config.key), config.width)?;
        check(&format!("blk.{i}.attn_k.weight"), Some(config.kv_heads * config.key), config.width)?;
        check(&format!("blk.{i}.attn_v.weight"), Some(config.kv_heads * config.value), config.width)?;
        check(&format!("blk.{i}.attn_output.weight"), Some(config.width), config.heads * config.value)?;
        check(&format!("blk.{i}.ffn_gate.weight"), None, config.width)?;
        check(&format!("blk.{i}.ffn_up.weight"), None, config.width)?;
    }
    Ok(())
}

fn fail(commands: &mut Commands, entity: Entity, error: TextError) {
    commands.entity(entity).try_insert(Failed(error.clone())).try_remove::<(Loading, LoadWeights)>();
    commands.trigger(TextModelReady { entity, result: Err(error) });
}

/// Despawns the speakers of an entity that is no model any more.
pub(super) fn forget(removed: On<Remove, TextModel>, models: Query<Option<&Speakers>>, mut commands: Commands) {
    let Ok(speakers) = models.get(removed.entity) else { return };
    commands.entity(removed.entity).try_remove::<(Loading, Ready, Failed, TextModelInfo)>();
    for speaker in speakers.into_iter().flat_map(Speakers::iter) {
        commands.entity(speaker).try_despawn();
    }
}
