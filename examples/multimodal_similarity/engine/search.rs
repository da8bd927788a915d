//! Questions to the models, and their answers over channels: no frame waits for either.

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

/// Answers searches for words and for pictures.
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

/// A text to search for, and the one being searched for.
#[derive(Resource, Default)]
pub struct TextSearch {
    /// What is to be searched for next; a newer one takes its place.
    pub wanted: Option<String>,
    under_way: Option<TextQuestion>,
}

struct TextQuestion {
    text: String,
    truncated: bool,
    asked: Instant,
    /// By the built-in op, and by the example's own kernel.
    receivers: [TensorReceiver; 2],
    answers: [Option<Result<Vec<f32>, String>>; 2],
}

/// The gallery's scores for a text, or why there are none.
#[derive(Message, Clone, Debug)]
pub struct TextRanked {
    pub text: String,
    pub scores: Result<Vec<f32>, String>,
    /// How far the scores of the example's own kernel are from these, at most.
    pub kernel_difference: f32,
    /// Whether only the beginning of the text was read.
    pub truncated: bool,
    /// From asking to having the answer.
    pub ms: f64,
}

/// Where a picture's pixels are.
#[derive(Clone, Debug)]
pub enum Pixels {
    /// On the host.
    Data(TensorData),
    /// In a tensor that somebody else keeps, as of a camera's view.
    Tensor(Entity),
}

/// A picture to find captions for, and the one under way.
#[derive(Resource, Default)]
pub struct PictureSearch {
    /// What is to be looked at next: a name for it, and its pixels.
    pub wanted: Option<(String, Pixels)>,
    /// One whose pixels are a tensor from the next frame on.
    prepared: Option<Prepared>,
    /// The tensor that pictures on the host are written to, and its shape: most are of the last one's size.
    pixels: Option<(Shape, Entity)>,
    under_way: Option<PictureQuestion>,
}

/// A picture's name, its pixels as a tensor, and since when it is looked at.
type Prepared = (String, Entity, Instant);

struct PictureQuestion {
    name: String,
    asked: Instant,
    /// The captions' scores, and the picture's point.
    receivers: [TensorReceiver; 2],
    answers: [Option<Result<Vec<f32>, String>>; 2],
}

/// The captions' scores for a picture, or why there are none.
#[derive(Message, Clone, Debug)]
pub struct PictureRanked {
    pub name: String,
    pub scores: Result<Vec<f32>, String>,
    /// The picture in the joint space, and what it loses by being popular.
    pub point: Vec<f32>,
    /// From asking to having the answer.
    pub ms: f64,
}

impl TextSearch {
    /// Begins with this text.
    pub fn new(wanted: Option<String>) -> Self {
        Self { wanted, under_way: None }
    }

    /// Whether nothing is wanted or under way.
    pub fn is_idle(&self) -> bool {
        self.wanted.is_none() && self.under_way.is_none()
    }
}

impl PictureSearch {
    /// Begins with this picture.
    pub fn new(wanted: Option<(String, TensorData)>) -> Self {
        Self { wanted: wanted.map(|(name, data)| (name, Pixels::Data(data))), ..default() }
    }

    /// Wants captions for a picture on the host.
    pub fn look_at(&mut self, (name, data): (String, TensorData)) {
        self.wanted = Some((name, Pixels::Data(data)));
    }

    /// Whether nothing is wanted or under way.
    pub fn is_idle(&self) -> bool {
        self.wanted.is_none() && self.prepared.is_none() && self.under_way.is_none()
    }

    /// The picture to look at now, if there is one and its pixels are there.
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
                let tensor = commands.spawn((Name::new("pixels"), Tensor::from(data), TensorOf(model))).id();
                self.pixels = Some((shape, tensor));
                self.prepared = Some((name, tensor, asked));
                None
            }
        })
    }
}

/// The best of a list of scores, best first.
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

/// Records the search for the wanted text, if the last one has been answered.
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
        // The first text of this length: its inputs are there from the next frame on.
        let mut own = |name: String, tensor| commands.spawn((Name::new(name), tensor, TensorOf(models.text))).id();
        let ids = own(format!("ids {length}"), Tensor::zeros([1, length], DType::I32)?);
        let mean = own(format!("mean {length}"), Tensor::zeros([1, length], DType::F32)?);
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

/// What has arrived, as numbers or as a complaint.
fn received(receiver: &TensorReceiver) -> Option<Result<Vec<f32>, String>> {
    receiver.try_recv().map(|answer| answer.map(|data| data.to_f32()).map_err(|error| error.to_string()))
}

/// Records the look at the wanted picture, if the last one has been answered.
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
    // The matcher's share of the features: its last row is what was just stored.
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
