//! Searches with the models. Answers arrive over channels, and no frame waits.

use std::time::Instant;

use bevy::prelude::*;
use bevy::tasks::{AsyncComputeTaskPool, Task, block_on, poll_once};
use bevy_tensor_compute::prelude::*;

use super::encoders::{TextEncoder, VisionEncoder};
use super::kernel::{self, ScoreKernel};
use super::library::Library;
use super::matcher::Matcher;
use super::models::{Models, ModelsFailed, ModelsReady, ModelsSystems, Workspace};
use super::tokens::Tokens;

/// Runs searches for texts and for pictures.
pub struct SearchPlugin;

impl Plugin for SearchPlugin {
    fn build(&self, app: &mut App) {
        app.add_message::<TextRanked>()
            .add_message::<PictureRanked>()
            .init_resource::<TextSearch>()
            .init_resource::<PictureSearch>()
            .add_systems(Startup, (load_tokenizer, kernel::register))
            .add_systems(
                Update,
                (take_tokenizer, answer_text, answer_picture, ask_text, ask_picture).chain().after(ModelsSystems),
            );
    }
}

/// The text to search for, and the search in flight.
#[derive(Resource, Default)]
pub struct TextSearch {
    /// The text to search for next. A newer one replaces it.
    pub wanted: Option<String>,
    under_way: Option<TextQuestion>,
}

struct TextQuestion {
    text: String,
    truncated: bool,
    asked: Instant,
    /// Scores of the built-in op and of the custom kernel.
    receivers: [TensorReceiver; 2],
    answers: [Option<Result<Vec<f32>, String>>; 2],
}

/// The scores of the gallery for a text, or an error.
#[derive(Message, Clone, Debug)]
pub struct TextRanked {
    pub text: String,
    pub scores: Result<Vec<f32>, String>,
    /// Maximum difference from the scores of the custom kernel.
    pub kernel_difference: f32,
    /// Whether only the beginning of the text was used.
    pub truncated: bool,
    /// Time from the request to the answer.
    pub ms: f64,
}

/// The source of a picture's pixels.
#[derive(Clone, Debug)]
pub enum Pixels {
    /// On the host.
    Data(TensorData),
    /// In an existing tensor, such as a camera view.
    Tensor(Entity),
}

/// A picture to find captions for, and the search in flight.
#[derive(Resource, Default)]
pub struct PictureSearch {
    /// The picture to encode next: its name and its pixels.
    pub wanted: Option<(String, Pixels)>,
    /// A picture whose pixels are in a tensor from the next frame on.
    prepared: Option<Prepared>,
    /// The tensor that pictures from the host are written to, and its shape. Most pictures have the size of the
    /// previous one.
    pixels: Option<(Shape, Entity)>,
    under_way: Option<PictureQuestion>,
}

/// The name of a picture, its pixels as a tensor, and when it was requested.
type Prepared = (String, Entity, Instant);

struct PictureQuestion {
    name: String,
    asked: Instant,
    /// The scores of the captions, and the point of the picture.
    receivers: [TensorReceiver; 2],
    answers: [Option<Result<Vec<f32>, String>>; 2],
}

/// The scores of the captions for a picture, or an error.
#[derive(Message, Clone, Debug)]
pub struct PictureRanked {
    pub name: String,
    pub scores: Result<Vec<f32>, String>,
    /// The picture in the joint space, and its popularity penalty.
    pub point: Vec<f32>,
    /// Time from the request to the answer.
    pub ms: f64,
}

impl TextSearch {
    /// Starts with this text.
    pub fn new(wanted: Option<String>) -> Self {
        Self { wanted, under_way: None }
    }

    /// Whether no search is requested or in flight.
    pub fn is_idle(&self) -> bool {
        self.wanted.is_none() && self.under_way.is_none()
    }
}

impl PictureSearch {
    /// Starts with this picture.
    pub fn new(wanted: Option<(String, TensorData)>) -> Self {
        Self { wanted: wanted.map(|(name, data)| (name, Pixels::Data(data))), ..default() }
    }

    /// Requests captions for a picture on the host.
    pub fn look_at(&mut self, (name, data): (String, TensorData)) {
        self.wanted = Some((name, Pixels::Data(data)));
    }

    /// Whether no search is requested or in flight.
    pub fn is_idle(&self) -> bool {
        self.wanted.is_none() && self.prepared.is_none() && self.under_way.is_none()
    }

    /// The picture to encode now, if there is one and its pixels are ready.
    fn next(&mut self, model: Entity, ops: &TensorCommands, commands: &mut Commands) -> Result<Option<Prepared>> {
        if self.under_way.is_some() {
            return Ok(None);
        }
        if self.prepared.is_some() {
            return Ok(self.prepared.take());
        }
        let Some((name, pixels)) = self.wanted.take() else { return Ok(None) };
        let asked = Instant::now();
        Ok(match (pixels, &self.pixels) {
            (Pixels::Tensor(tensor), _) => Some((name, tensor, asked)),
            (Pixels::Data(data), Some((shape, tensor))) if shape == data.shape() => {
                ops.write_data(*tensor, &data)?;
                Some((name, *tensor, asked))
            }
            (Pixels::Data(data), before) => {
                before.iter().for_each(|(_, tensor)| commands.entity(*tensor).despawn());
                let shape = data.shape().clone();
                let tensor = commands.spawn_tensor(model, "pixels", data);
                self.pixels = Some((shape, tensor));
                self.prepared = Some((name, tensor, asked));
                None
            }
        })
    }
}

/// The best scores of a list, best first.
pub fn best(scores: &[f32], count: usize) -> Vec<(usize, f32)> {
    let mut order: Vec<_> = scores.iter().copied().enumerate().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.truncate(count);
    order
}

#[derive(Resource)]
struct LoadingTokens(Option<Task<Result<Tokens, String>>>);

fn load_tokenizer(library: Res<Library>, mut commands: Commands) {
    let path = library.folder.join("models/tokenizer.json");
    let task = AsyncComputeTaskPool::get().spawn(async move { Tokens::load(&path) });
    commands.insert_resource(LoadingTokens(Some(task)));
}

fn take_tokenizer(mut loading: ResMut<LoadingTokens>, mut failed: MessageWriter<ModelsFailed>, mut commands: Commands) {
    let Some(result) = loading.0.as_mut().and_then(|task| block_on(poll_once(task))) else { return };
    loading.0 = None;
    match result {
        Ok(tokens) => commands.insert_resource(tokens),
        Err(message) => {
            failed.write(ModelsFailed(message));
        }
    }
}

/// Records the search for the requested text, if the previous one has been answered.
#[expect(clippy::too_many_arguments, reason = "a system's parameters")]
fn ask_text(
    models: Res<Models>,
    ready: Res<ModelsReady>,
    tokens: Option<Res<Tokens>>,
    workspace: Option<ResMut<Workspace>>,
    encoders: Query<&TextEncoder>,
    matchers: Query<&Matcher>,
    kernel: Res<ScoreKernel>,
    mut search: ResMut<TextSearch>,
    mut ranked: MessageWriter<TextRanked>,
    ops: TensorCommands,
    mut commands: Commands,
) -> Result {
    let (Some(tokens), Some(mut workspace)) = (tokens, workspace) else { return Ok(()) };
    if !ready.text || search.under_way.is_some() || search.wanted.is_none() {
        return Ok(());
    }
    let Some(text) = search.wanted.take() else { return Ok(()) };
    let asked = Instant::now();
    let encoded =
        if text.trim().is_empty() { Err("there is nothing to search for".to_owned()) } else { tokens.encode(&text) };
    let encoded = match encoded {
        Ok(encoded) => encoded,
        Err(message) => {
            let scores = Err(message);
            ranked.write(TextRanked { text, scores, kernel_difference: 0.0, truncated: false, ms: 0.0 });
            return Ok(());
        }
    };
    let (encoder, matcher) = (encoders.get(models.text)?, matchers.get(models.matcher)?);
    let length = encoded.padded();
    let (ids, mean) = encoded.rows();
    let Some(&(ids_tensor, mean_tensor)) = workspace.inputs.get(&length) else {
        // The first text of this length: its input tensors exist from the next frame on.
        let ids = commands.spawn_tensor(models.text, format!("ids {length}"), Tensor::zeros([1, length], DType::I32)?);
        let mean =
            commands.spawn_tensor(models.text, format!("mean {length}"), Tensor::zeros([1, length], DType::F32)?);
        workspace.inputs.insert(length, (ids, mean));
        search.wanted = Some(text);
        return Ok(());
    };
    ops.write(ids_tensor, &ids)?;
    ops.write(mean_tensor, &mean)?;
    let embedding = encoder.encode(&ops, ids_tensor, mean_tensor, encoded.ids.len())?;
    ops.store(embedding, workspace.embedding)?;
    let point = matcher.place_texts(&ops, workspace.query)?;
    let scores = matcher.score(&ops, point, workspace.index, workspace.popularity)?;
    ops.store(scores, workspace.scores)?;
    let again = ops.custom(&kernel.0, (point, workspace.index, workspace.popularity), &())?;
    let receivers = [ops.read(workspace.scores)?, ops.read(again)?];
    let (truncated, answers) = (encoded.truncated, [None, None]);
    search.under_way = Some(TextQuestion { text, truncated, asked, receivers, answers });
    Ok(())
}

fn answer_text(mut search: ResMut<TextSearch>, mut ranked: MessageWriter<TextRanked>) {
    let Some(question) = &mut search.under_way else { return };
    for (answer, receiver) in question.answers.iter_mut().zip(&question.receivers) {
        *answer = answer.take().or_else(|| received(receiver));
    }
    if question.answers.iter().any(Option::is_none) {
        return;
    }
    let Some(TextQuestion { text, truncated, asked, answers: [Some(scores), Some(again)], .. }) =
        search.under_way.take()
    else {
        return;
    };
    let kernel_difference = match (&scores, &again) {
        (Ok(scores), Ok(again)) => scores.iter().zip(again).fold(0.0, |most, (a, b)| f32::max(most, (a - b).abs())),
        _ => f32::NAN,
    };
    let ms = asked.elapsed().as_secs_f64() * 1e3;
    ranked.write(TextRanked { text, scores: again.and(scores), kernel_difference, truncated, ms });
}

/// An answer that has arrived, as numbers or an error message.
fn received(receiver: &TensorReceiver) -> Option<Result<Vec<f32>, String>> {
    receiver.try_recv().map(|answer| answer.map(|data| data.to_f32()).map_err(|error| error.to_string()))
}

/// Records the search for the requested picture, if the previous one has been answered.
#[expect(clippy::too_many_arguments, reason = "a system's parameters")]
fn ask_picture(
    models: Res<Models>,
    ready: Res<ModelsReady>,
    workspace: Option<Res<Workspace>>,
    encoders: Query<&VisionEncoder>,
    matchers: Query<&Matcher>,
    mut search: ResMut<PictureSearch>,
    ops: TensorCommands,
    mut commands: Commands,
) -> Result {
    let Some(workspace) = workspace.filter(|_| ready.vision) else { return Ok(()) };
    let Some((name, pixels, asked)) = search.next(models.vision, &ops, &mut commands)? else { return Ok(()) };
    let (encoder, matcher) = (encoders.get(models.vision)?, matchers.get(models.matcher)?);
    let input = ops.image_input(pixels, &VisionEncoder::input())?;
    let features = encoder.encode(&ops, input)?;
    ops.store(features, workspace.live)?;
    // The matcher's share of the features. Its last row was just stored.
    let live = ops.slice(workspace.seen, 0, -1, isize::MAX)?;
    let point = matcher.place_pictures(&ops, live)?;
    let scores = matcher.score(&ops, point, workspace.captions, matcher.caption_popularity)?;
    ops.store(scores, workspace.caption_scores)?;
    let popularity = matcher.popularity(&ops, point, workspace.captions)?;
    let popularity = ops.unsqueeze(popularity, &[1])?;
    let point = ops.concat([point, popularity], 1)?;
    let receivers = [ops.read(workspace.caption_scores)?, ops.read(point)?];
    search.under_way = Some(PictureQuestion { name, asked, receivers, answers: [None, None] });
    Ok(())
}

fn answer_picture(mut search: ResMut<PictureSearch>, mut ranked: MessageWriter<PictureRanked>) {
    let Some(question) = &mut search.under_way else { return };
    for (answer, receiver) in question.answers.iter_mut().zip(&question.receivers) {
        *answer = answer.take().or_else(|| received(receiver));
    }
    if question.answers.iter().any(Option::is_none) {
        return;
    }
    let Some(PictureQuestion { name, asked, answers: [Some(scores), Some(point)], .. }) = search.under_way.take()
    else {
        return;
    };
    let (scores, point) = match point {
        Ok(point) => (scores, point),
        Err(error) => (Err(error), Vec::new()),
    };
    ranked.write(PictureRanked { name, scores, point, ms: asked.elapsed().as_secs_f64() * 1e3 });
}
