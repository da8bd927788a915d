//! Decoders against a NumPy reference (`tools/text_models.py`): tiny random models of every architecture, stories15M, and
//! SmolLM2 where it was fetched.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bevy::prelude::*;
use bevy_tensor_compute::formats::UploadSettings;
use bevy_tensor_compute::formats::gguf::GgufModel;
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::text::{
    DoneReason, Sampler, Say, Speaker, SpeakerOf, TextDone, TextLogits, TextModel, TextModelReady, TextSettings,
    TextToken,
};

use crate::common::BACKENDS;

/// What the NumPy run gave.
pub struct Reference {
    pub prompt: Vec<u32>,
    pub ids: Vec<u32>,
    /// Difference of the two best logits.
    gap: Vec<f32>,
    /// Every 97th logit of the first steps.
    logits: Vec<Vec<f32>>,
}

pub fn reference(name: &str) -> Reference {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/text/{name}.json"));
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(path).expect("a reference")).expect("JSON");
    let floats = |value: &serde_json::Value| -> Vec<f32> {
        value.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number") as f32).collect()
    };
    let ids = |value: &serde_json::Value| floats(value).into_iter().map(|v| v as u32).collect();
    Reference {
        prompt: ids(&json["prompt"]),
        ids: ids(&json["ids"]),
        gap: floats(&json["gap"]),
        logits: json["logits"].as_array().expect("a list").iter().map(floats).collect(),
    }
}

/// What speakers told.
#[derive(Resource, Clone, Default)]
pub struct Heard(pub Arc<Mutex<Vec<Event>>>);

#[derive(Clone, Debug)]
pub enum Event {
    Ready(Result<(), String>),
    Token(Entity, u32),
    Logits(Vec<f32>),
    Done(Entity, String),
}

impl Heard {
    pub fn all(&self) -> Vec<Event> {
        self.0.lock().expect("no panic").clone()
    }

    pub fn ids(&self, speaker: Entity) -> Vec<u32> {
        let id = |event: Event| match event {
            Event::Token(of, id) if of == speaker => Some(id),
            _ => None,
        };
        self.all().into_iter().filter_map(id).collect()
    }

    pub fn done(&self, speaker: Entity) -> Vec<String> {
        let reason = |event: Event| match event {
            Event::Done(of, reason) if of == speaker => Some(reason),
            _ => None,
        };
        self.all().into_iter().filter_map(reason).collect()
    }
}

/// An app that loads models from `folder`.
pub fn app(backend: Backend, folder: &Path) -> (App, Heard) {
    let mut app = App::new();
    let choice = match backend {
        Backend::Gpu => BackendChoice::Gpu,
        Backend::Cpu => BackendChoice::Cpu,
    };
    let assets = AssetPlugin { file_path: folder.display().to_string(), ..default() };
    match backend {
        Backend::Gpu => app.add_plugins(AnywherePlugins::headless().set(assets)),
        Backend::Cpu => app.add_plugins((MinimalPlugins, assets)),
    };
    app.add_plugins(TensorComputePlugin {
        backend: choice,
        pipelines: PipelineSettings { synchronous: true, ..default() },
        ..default()
    });
    app.insert_resource(UploadSettings { bytes_per_frame: 64 << 20 });
    let heard = Heard::default();
    let push = |heard: &Heard| {
        let heard = heard.clone();
        move |event: Event| heard.0.lock().expect("no panic").push(event)
    };
    let (ready, token, logits, done) = (push(&heard), push(&heard), push(&heard), push(&heard));
    app.add_observer(move |event: On<TextModelReady>| {
        ready(Event::Ready(event.result.clone().map(drop).map_err(|error| error.to_string())));
    });
    app.add_observer(move |event: On<TextToken>| token(Event::Token(event.speaker, event.id)));
    app.add_observer(move |event: On<TextLogits>| logits(Event::Logits(event.logits.to_f32())));
    app.add_observer(move |event: On<TextDone>| {
        let reason = match &event.reason {
            DoneReason::Error(error) => error.to_string(),
            other => format!("{other:?}"),
        };
        done(Event::Done(event.speaker, reason));
    });
    app.finish();
    app.cleanup();
    (app, heard)
}

pub fn load(app: &mut App, file: &str, settings: TextSettings) -> Entity {
    let handle = app.world().resource::<AssetServer>().load::<GgufModel>(file.to_owned());
    app.world_mut().spawn(TextModel::new(handle).with_settings(settings)).id()
}

#[track_caller]
pub fn step_until(app: &mut App, heard: &Heard, done: impl Fn(&[Event]) -> bool) {
    for _ in 0..200_000 {
        if done(&heard.all()) {
            return;
        }
        app.update();
        std::thread::yield_now();
    }
    panic!("it did not end: {:?}", heard.all().last());
}

/// A prompt that the tokenisers of the test models read as these ids.
fn text_of(prompt: &[u32]) -> String {
    String::from_utf8(prompt[1..].iter().map(|&id| (id - 3) as u8).collect()).expect("ASCII")
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/text")
}

/// Speaks greedily and compares with the reference. Tokens are compared as long as the two best logits differ enough.
fn compare(app: &mut App, heard: &Heard, model: Entity, prompt: String, reference: &Reference, bound: f32, gap: f32) {
    let speaker = app.world_mut().spawn((Speaker::new(Sampler::greedy()), SpeakerOf(model))).id();
    let count = reference.ids.len();
    app.world_mut().trigger(Say::prompt(speaker, prompt).with_tokens(count).with_logits());
    step_until(app, heard, |events| events.iter().any(|event| matches!(event, Event::Done(of, ..) if *of == speaker)));
    let events = heard.all();
    let logits = events.iter().rev().find_map(|event| match event {
        Event::Logits(logits) => Some(logits.clone()),
        _ => None,
    });
    let logits = logits.unwrap_or_else(|| panic!("no logits: {:?}", heard.done(speaker)));
    for (i, (got, want)) in logits.iter().step_by(97).zip(&reference.logits[0]).enumerate() {
        assert!((got - want).abs() <= bound, "logit {} is {got}, not {want}", i * 97);
    }
    let ids = heard.ids(speaker);
    let compared = reference.gap.iter().position(|&g| g < gap).unwrap_or(count);
    let same = ids.iter().zip(&reference.ids).take_while(|(a, b)| a == b).count();
    assert!(same >= compared.min(ids.len()) && (ids.len() >= compared), "{same} of {compared} are equal: {ids:?}");
}

#[test]
fn tiny_models_of_every_architecture_match_the_reference() {
    for backend in BACKENDS {
        let (mut app, heard) = app(backend, &folder());
        for name in ["llama", "qwen2", "qwen3", "gemma3"] {
            let reference = reference(name);
            // A small chunk, so that the prompt takes several.
            let settings = TextSettings { chunk: 8, ..default() };
            let model = load(&mut app, &format!("{name}.gguf"), settings);
            heard.0.lock().expect("no panic").clear();
            eprintln!("{name} on the {backend}");
            compare(&mut app, &heard, model, text_of(&reference.prompt), &reference, 2e-3, 5e-3);
            app.world_mut().despawn(model);
        }
    }
}

#[test]
fn stories_match_the_reference_for_200_tokens() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/models");
    let (mut app, heard) = app(Backend::Cpu, &assets);
    let reference = reference("stories");
    let model = load(&mut app, "stories15m.gguf", TextSettings::default());
    compare(&mut app, &heard, model, "Once upon a time".to_owned(), &reference, 1e-3, 1e-3);
}

/// `TEXT_MODELS=FOLDER`: what `tools/text_models.py fetch FOLDER` fetched.
#[test]
#[ignore = "needs the model that tools/text_models.py fetches"]
fn smollm2_matches_the_reference() {
    let folder = PathBuf::from(std::env::var_os("TEXT_MODELS").expect("TEXT_MODELS names a folder"));
    let (mut app, heard) = app(Backend::Cpu, &folder);
    let model = load(&mut app, "SmolLM2-135M-Instruct.Q4_1.gguf", TextSettings::default());
    for (i, prompt) in ["The capital of France is", "def fibonacci(n):\n", "Once upon a time, in a land far away,"]
        .into_iter()
        .enumerate()
    {
        compare(&mut app, &heard, model, prompt.to_owned(), &reference(&format!("smollm_{i}")), 1e-2, 0.3);
    }
}

#[test]
fn unknown_architectures_and_missing_parts_are_named_at_load() {
    use crate::gguf::Writer;
    let temporary = std::env::temp_dir();
    let mut cases = Vec::new();
    cases.push((Writer::new().text("general.architecture", "mamba"), "mamba"));
    cases.push((Writer::new().text("general.architecture", "llama"), "llama.block_count"));
    for (i, (writer, says)) in cases.into_iter().enumerate() {
        let name = format!("{}_wrong_{i}.gguf", std::process::id());
        std::fs::write(temporary.join(&name), writer.bytes()).expect("the temporary folder is writable");
        let (mut app, heard) = app(Backend::Cpu, &temporary);
        let model = load(&mut app, &name, TextSettings::default());
        let speaker = app.world_mut().spawn((Speaker::default(), SpeakerOf(model))).id();
        app.world_mut().trigger(Say::prompt(speaker, "Hello"));
        step_until(&mut app, &heard, |events| events.iter().any(|event| matches!(event, Event::Done(..))));
        let ready = heard.all().into_iter().find_map(|event| match event {
            Event::Ready(result) => Some(result),
            _ => None,
        });
        let error = ready.expect("an event").expect_err("it cannot speak");
        assert!(error.contains(says), "{error}");
        assert_eq!(heard.done(speaker), [error]);
        std::fs::remove_file(temporary.join(&name)).expect("it was written");
    }
}
