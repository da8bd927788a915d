//! The same models without a window: a ranking for each query, timings, and a report.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use bevy::ecs::error::ErrorContext;
use bevy::prelude::*;
use bevy_tensor_compute::figures::TensorFigures;
use bevy_tensor_compute::formats::SafetensorsFile;
use bevy_tensor_compute::prelude::*;
use serde_json::{Value, json};

use crate::engine::library::{Library, decode_pixels, read_pixels};
use crate::engine::matcher::JOINT_WIDTH;
use crate::engine::models::{Models, ModelsFailed, ModelsPlugin, ModelsReady, Workspace, storage_bytes};
use crate::engine::search::{PictureRanked, PictureSearch, SearchPlugin, TextRanked, TextSearch, best};
use crate::options::Options;

/// The default queries.
const QUERIES: [&str; 4] = ["a cat", "something to drink", "fast vehicle", "it is raining"];

/// Number of gallery pictures that are encoded again, to measure the time of one.
const SAMPLES: usize = 8;

/// Number of lines of a ranking.
const LINES: usize = 5;

/// The state of the run.
#[derive(Resource)]
struct Run {
    start: Instant,
    report: Report,
    texts: Vec<String>,
    pictures: Vec<(String, TensorData)>,
    /// A picture from the command line, encoded after the samples.
    own: Option<(String, TensorData)>,
    evaluation: Option<Evaluation>,
    /// Whether a search is in flight.
    waiting: bool,
    /// The purpose of the picture search in flight.
    looking: Looking,
}

/// Why a picture is encoded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looking {
    Timing,
    Captions,
    Evaluation,
}

/// Measures retrieval on concepts that were not part of the fit.
struct Evaluation {
    captions: Vec<String>,
    pictures: Vec<(String, TensorData)>,
    points: Vec<f32>,
    popularity: Vec<f32>,
    ranks: Vec<usize>,
    /// Whether the gallery has been replaced by the pictures of the evaluation.
    indexed: bool,
}

#[derive(Default)]
struct Report {
    queries: Vec<Value>,
    first_result_ms: Option<f64>,
    image_ms: Vec<f64>,
    captions: Option<Value>,
    retrieval: Option<Value>,
}

/// The result of the run: an error message, if there is one.
#[derive(Resource, Clone, Default)]
struct Outcome(Arc<Mutex<Option<String>>>);

pub fn run(options: Options, library: Library, picture: Option<TensorData>, start: Instant) -> Result<AppExit, String> {
    let texts = if options.queries.is_empty() { QUERIES.map(str::to_owned).to_vec() } else { options.queries.clone() };
    let samples = library.gallery.iter().take(SAMPLES);
    let pictures = samples.map(|p| Ok((p.name.clone(), read_pixels(&library.picture(p))?)));
    let evaluation = if options.evaluate { Some(Evaluation::open(&library)?) } else { None };
    let own = picture.zip(options.image.clone()).map(|(pixels, path)| (path.display().to_string(), pixels));
    let run = Run {
        start,
        report: Report::default(),
        texts: texts.into_iter().rev().collect(),
        pictures: pictures.collect::<Result<_, String>>()?,
        own,
        evaluation,
        waiting: false,
        looking: Looking::Timing,
    };
    let outcome = Outcome::default();
    let backend = options.backend;
    let exit = App::new()
        .set_error_handler(end_with)
        .add_plugins((AnywherePlugins::headless(), TensorComputePlugin { backend, ..default() }))
        .add_plugins((ModelsPlugin, SearchPlugin))
        .insert_resource(options)
        .insert_resource(library)
        .insert_resource(run)
        .insert_resource(outcome.clone())
        .add_systems(Update, (hear_texts, hear_pictures, advance, give_up).chain())
        .run();
    let complaint = outcome.0.lock().ok().and_then(|mut outcome| outcome.take());
    complaint.map_or(Ok(exit), Err)
}

/// Exits on an error instead of waiting for answers that will not arrive.
fn end_with(error: BevyError, context: ErrorContext) {
    eprintln!("multimodal_similarity: {}: {error}", context.name());
    std::process::exit(1);
}

/// Prints the ranking of a text or, in an evaluation, counts the rank of its picture.
fn hear_texts(
    mut ranked: MessageReader<TextRanked>,
    library: Res<Library>,
    mut run: ResMut<Run>,
    outcome: Res<Outcome>,
) {
    for TextRanked { text, scores, kernel_difference, truncated, ms } in ranked.read() {
        run.waiting = false;
        let scores = match scores {
            Ok(scores) => scores,
            Err(error) => {
                outcome.complain(format!("\"{text}\": {error}"));
                continue;
            }
        };
        if let Some(evaluation) = run.evaluation.as_mut().filter(|evaluation| evaluation.indexed) {
            let own = scores[evaluation.ranks.len()];
            evaluation.ranks.push(scores.iter().filter(|&&score| score > own).count());
            continue;
        }
        let first = run.start.elapsed().as_secs_f64() * 1e3;
        run.report.first_result_ms.get_or_insert(first);
        println!("\n\"{}\"  {ms:.1} ms", shortened(text));
        if *truncated {
            println!("  (only its first 256 tokens are read)");
        }
        let top = best(scores, LINES);
        for (i, score) in &top {
            println!("  {score:6.3}  {}", library.gallery[*i].name);
        }
        let top: Vec<Value> =
            top.iter().map(|(i, score)| json!({ "name": library.gallery[*i].name, "score": score })).collect();
        run.report.queries.push(json!({
            "text": text,
            "ms": ms,
            "truncated": truncated,
            "kernel_difference": kernel_difference,
            "top": top,
        }));
    }
}

fn hear_pictures(
    mut ranked: MessageReader<PictureRanked>,
    library: Res<Library>,
    mut run: ResMut<Run>,
    outcome: Res<Outcome>,
) {
    let run = &mut *run;
    for PictureRanked { name, scores, point, ms } in ranked.read() {
        run.waiting = false;
        let scores = match scores {
            Ok(scores) => scores,
            Err(error) => {
                outcome.complain(format!("{name}: {error}"));
                continue;
            }
        };
        run.report.image_ms.push(*ms);
        match (run.looking, &mut run.evaluation) {
            (Looking::Timing, _) | (Looking::Evaluation, None) => {}
            (Looking::Evaluation, Some(evaluation)) => {
                evaluation.points.extend(&point[..JOINT_WIDTH]);
                evaluation.popularity.push(point[JOINT_WIDTH]);
            }
            (Looking::Captions, _) => {
                println!("\n{name}  {ms:.1} ms");
                let top = best(scores, LINES);
                for (i, score) in &top {
                    println!("  {score:6.3}  {}", library.captions[*i]);
                }
                let top: Vec<Value> =
                    top.iter().map(|(i, score)| json!({ "name": library.captions[*i], "score": score })).collect();
                run.report.captions = Some(json!({ "file": name, "ms": ms, "top": top }));
            }
        }
    }
}

/// Starts the next search, one at a time. Exits when there is none left.
#[expect(clippy::too_many_arguments, reason = "the end of the run looks at everything")]
fn advance(
    mut run: ResMut<Run>,
    ready: Res<ModelsReady>,
    mut texts: ResMut<TextSearch>,
    mut pictures: ResMut<PictureSearch>,
    workspace: Option<ResMut<Workspace>>,
    models: Res<Models>,
    figures: Figures,
    options: Res<Options>,
    outcome: Res<Outcome>,
    mut commands: Commands,
    mut exit: MessageWriter<AppExit>,
) -> Result {
    let run = &mut *run;
    let Some(mut workspace) = workspace.filter(|_| !run.waiting) else { return Ok(()) };
    run.waiting = true;
    if let Some(text) = run.texts.pop() {
        texts.wanted = Some(text);
    } else if !ready.vision {
        run.waiting = false;
    } else if !run.pictures.is_empty() {
        pictures.look_at(run.pictures.remove(0));
    } else if let Some(own) = run.own.take() {
        run.looking = Looking::Captions;
        pictures.look_at(own);
    } else if let Some(evaluation) = &mut run.evaluation {
        if !evaluation.pictures.is_empty() {
            run.looking = Looking::Evaluation;
            pictures.look_at(evaluation.pictures.remove(0));
        } else if !evaluation.indexed {
            evaluation.index(&mut commands, &models, &mut workspace)?;
            run.waiting = false;
        } else if let Some(caption) = evaluation.captions.get(evaluation.ranks.len()) {
            texts.wanted = Some(caption.clone());
        } else {
            run.report.retrieval = Some(evaluation.summary());
            run.evaluation = None;
            run.waiting = false;
        }
    } else {
        let report = figures.report(&run.report, &workspace, &models);
        print_end(&report);
        if let Some(path) = &options.report
            && let Err(error) = std::fs::write(path, format!("{report:#}\n"))
        {
            outcome.complain(format!("{}: {error}", path.display()));
        }
        exit.write(AppExit::Success);
    }
    Ok(())
}

impl Evaluation {
    fn open(library: &Library) -> Result<Self, String> {
        let path = library.folder.join("models/held_out.safetensors");
        let mut file = SafetensorsFile::open(&path).map_err(|error| error.to_string())?;
        let (mut captions, mut pictures) = (Vec::new(), Vec::new());
        for name in file.names() {
            let missing = || format!("{}: no caption of {name}", path.display());
            captions.push(file.metadata(&name).ok_or_else(missing)?.to_owned());
            let data = file.read(&name).map_err(|error| error.to_string())?;
            let pixels = decode_pixels(data.bytes(), "webp").map_err(|error| format!("{name}: {error}"))?;
            pictures.push((name, pixels));
        }
        let (points, popularity, ranks) = default();
        Ok(Self { captions, pictures, points, popularity, ranks, indexed: false })
    }

    /// Replaces the gallery by these pictures.
    fn index(&mut self, commands: &mut Commands, models: &Models, workspace: &mut Workspace) -> Result {
        let count = self.captions.len();
        workspace.index = commands.spawn_tensor(
            models.matcher,
            "held-out index",
            Tensor::from_slice(&self.points, [count, JOINT_WIDTH])?,
        );
        workspace.popularity = commands.spawn_tensor(
            models.matcher,
            "held-out popularity",
            Tensor::from_slice(&self.popularity, [count])?,
        );
        workspace.scores =
            commands.spawn_tensor(models.matcher, "held-out scores", Tensor::zeros([1, count], DType::F32)?);
        self.indexed = true;
        Ok(())
    }

    fn summary(&self) -> Value {
        let count = self.ranks.len();
        let within = |rank: usize| self.ranks.iter().filter(|&&r| r < rank).count() as f64 / count.max(1) as f64;
        let mut sorted = self.ranks.clone();
        sorted.sort_unstable();
        // The median of an even number of ranks is the mean of the two in the middle.
        let middle = sorted.get(count.saturating_sub(1) / 2..=count / 2).unwrap_or_default();
        let median = middle.iter().map(|&rank| rank as f64 + 1.0).sum::<f64>() / middle.len().max(1) as f64;
        json!({ "concepts": count, "r_at_1": within(1), "r_at_10": within(10), "median_rank": median })
    }
}

/// Everything in the report apart from the answers.
#[derive(bevy::ecs::system::SystemParam)]
struct Figures<'w, 's> {
    support: Res<'w, TensorSupport>,
    diagnostics: Res<'w, TensorDiagnostics>,
    tensors: Query<'w, 's, (&'static Tensor, Option<&'static TensorOf>)>,
}

impl Figures<'_, '_> {
    fn report(&self, report: &Report, workspace: &Workspace, models: &Models) -> Value {
        let figures: TensorFigures = self.diagnostics.figures();
        let of = |model| {
            storage_bytes(self.tensors.iter().filter(|(_, of)| of.is_some_and(|of| of.0 == model)).map(|(t, _)| t))
        };
        let mut image_ms = report.image_ms.clone();
        image_ms.sort_by(f64::total_cmp);
        json!({
            "backend": self.support.backend.to_string(),
            "reason": self.support.reason,
            "adapter": self.support.adapter.as_ref().map(|adapter| adapter.name.clone()),
            "queries": report.queries,
            "image_ms": image_ms.get(image_ms.len() / 2),
            "first_result_ms": report.first_result_ms,
            "image": report.captions,
            "bytes": {
                "total": storage_bytes(self.tensors.iter().map(|(tensor, _)| tensor)),
                "by_model": { "text": of(models.text), "vision": of(models.vision), "matcher": of(models.matcher) },
                "added_by_shares": workspace.added_by_shares,
                "added_by_views": workspace.added_by_views,
            },
            "retrieval": report.retrieval,
            "counters": {
                "plans": figures.plans_built,
                "buffers": figures.buffers_allocated,
                "bind_groups": figures.bind_groups_made,
                "pipelines": figures.pipelines_built,
                "dispatches": figures.dispatches + figures.cpu_steps,
            },
        })
    }
}

/// Prints the readable part of the report.
fn print_end(report: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or("none").to_owned();
    let mb = |value: &Value| value.as_f64().unwrap_or(0.0) / 1e6;
    let (bytes, counters) = (&report["bytes"], &report["counters"]);
    println!("\nbackend      {} ({})", text(&report["backend"]), text(&report["reason"]));
    println!(
        "time         first result after {:.0} ms; {:.1} ms a picture",
        report["first_result_ms"].as_f64().unwrap_or(0.0),
        report["image_ms"].as_f64().unwrap_or(0.0)
    );
    println!(
        "memory       {:.1} MB: text {:.1}, vision {:.1}, matcher {:.1}; shares add {} bytes, views {}",
        mb(&bytes["total"]),
        mb(&bytes["by_model"]["text"]),
        mb(&bytes["by_model"]["vision"]),
        mb(&bytes["by_model"]["matcher"]),
        bytes["added_by_shares"],
        bytes["added_by_views"]
    );
    println!("work         {} plans, {} kernels", counters["plans"], counters["dispatches"]);
    if let Some(retrieval) = report["retrieval"].as_object() {
        println!(
            "retrieval    of {} unseen concepts the right one is first for {:.1} %, in the first ten for {:.1} %; median rank {}",
            retrieval["concepts"],
            retrieval["r_at_1"].as_f64().unwrap_or(0.0) * 100.0,
            retrieval["r_at_10"].as_f64().unwrap_or(0.0) * 100.0,
            retrieval["median_rank"]
        );
    }
}

fn shortened(text: &str) -> String {
    if text.chars().count() > 60 { text.chars().take(59).chain(['…']).collect() } else { text.to_owned() }
}

impl Outcome {
    /// Stores the first error message, with which the run ends.
    fn complain(&self, message: String) {
        if let Ok(mut outcome) = self.0.lock() {
            outcome.get_or_insert(message);
        }
    }
}

/// Exits if a model failed to load or there was an error.
fn give_up(mut failed: MessageReader<ModelsFailed>, outcome: Res<Outcome>, mut exit: MessageWriter<AppExit>) {
    for ModelsFailed(message) in failed.read() {
        outcome.complain(message.clone());
    }
    if outcome.0.lock().is_ok_and(|outcome| outcome.is_some()) {
        exit.write(AppExit::error());
    }
}
