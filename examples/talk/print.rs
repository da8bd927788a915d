//! Prints what the speakers say, and measures how fast they are.

use std::io::Write;
use std::time::{Duration, Instant};

use bevy::prelude::*;
use bevy_tensor_compute::formats::gguf::GgufModel;
use bevy_tensor_compute::formats::{UploadSettings, save_npy};
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::text::{
    DoneReason, Speaker, SpeakerOf, TextDone, TextLogits, TextModel, TextModelInfo, TextModelReady, TextToken,
};

use super::Options;

/// What was heard so far.
#[derive(Resource, Default)]
struct Heard {
    model: Option<Entity>,
    first_speaker: Option<Entity>,
    ids: Vec<u32>,
    text: String,
    /// Tokens of all speakers.
    tokens: usize,
    prompt_tokens: usize,
    done: usize,
    loaded: Option<Instant>,
    first: Option<Instant>,
    last: Option<Instant>,
    logits: Option<TensorData>,
    error: Option<String>,
}

pub fn run(options: &Options) -> Result<(), String> {
    let (folder, name) = options.file()?;
    let mut assets = AssetPlugin::default();
    if let Some(folder) = folder {
        assets.file_path = folder;
    }
    let mut app = App::new();
    // Without a renderer unless the GPU is asked for.
    match options.backend {
        BackendChoice::Gpu => {
            app.add_plugins(AnywherePlugins::headless().set(assets).disable::<bevy::log::LogPlugin>())
        }
        BackendChoice::Auto | BackendChoice::Cpu => app.add_plugins((MinimalPlugins, assets)),
    };
    app.add_plugins(TensorComputePlugin { backend: options.backend, ..default() })
        .insert_resource(UploadSettings { bytes_per_frame: 64 << 20 })
        .init_resource::<Heard>()
        .insert_resource(options.clone())
        .add_observer(begin)
        .add_observer(hear)
        .add_observer(keep_logits)
        .add_observer(end);
    app.finish();
    app.cleanup();
    let handle = app.world().resource::<AssetServer>().load::<GgufModel>(name.clone());
    let model = app.world_mut().spawn(TextModel::new(handle)).id();
    app.world_mut().resource_mut::<Heard>().model = Some(model);
    let count = options.speakers.max(1);
    let mut progress = (0, Instant::now());
    while app.world().resource::<Heard>().done < count {
        app.update();
        let heard = app.world().resource::<Heard>();
        if let Some(error) = &heard.error {
            return Err(error.clone());
        }
        if heard.tokens != progress.0 {
            progress = (heard.tokens, Instant::now());
        } else if progress.1.elapsed() > Duration::from_secs(600) {
            return Err("nothing was said for ten minutes".to_owned());
        } else {
            // Leaves the cores to the threads that compute.
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    println!();
    let support = app.world().resource::<TensorSupport>().backend;
    let info = app.world().get::<TextModelInfo>(model).cloned();
    report(options, app.world().resource::<Heard>(), &name, info.as_ref(), support)
}

/// Spawns the speakers once the model is loaded.
fn begin(ready: On<TextModelReady>, options: Res<Options>, mut heard: ResMut<Heard>, mut commands: Commands) {
    if let Err(error) = &ready.result {
        heard.error = Some(error.to_string());
        return;
    }
    heard.loaded = Some(Instant::now());
    for i in 0..options.speakers.max(1) {
        let speaker = commands.spawn((Speaker::new(options.sampler(i)), SpeakerOf(ready.entity))).id();
        heard.first_speaker.get_or_insert(speaker);
        commands.trigger(options.say(speaker, i));
    }
}

fn hear(token: On<TextToken>, mut heard: ResMut<Heard>) {
    heard.tokens += 1;
    let now = Instant::now();
    heard.first.get_or_insert(now);
    heard.last = Some(now);
    if heard.first_speaker == Some(token.speaker) {
        heard.ids.push(token.id);
        print!("{}", token.text);
        // Fails only if nobody reads.
        let _ = std::io::stdout().flush();
    }
}

fn keep_logits(logits: On<TextLogits>, mut heard: ResMut<Heard>) {
    heard.logits = Some(logits.logits.clone());
}

fn end(done: On<TextDone>, mut heard: ResMut<Heard>) {
    heard.done += 1;
    heard.prompt_tokens += done.prompt_tokens;
    if heard.first_speaker == Some(done.speaker) {
        heard.text = done.text.clone();
    }
    if let DoneReason::Error(error) = &done.reason {
        heard.error = Some(error.to_string());
    }
}

fn report(
    options: &Options,
    heard: &Heard,
    name: &str,
    info: Option<&TextModelInfo>,
    backend: Backend,
) -> Result<(), String> {
    let seconds = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
        (Some(from), Some(to)) => Some(to.duration_since(from).as_secs_f64()),
        _ => None,
    };
    let speakers = options.speakers.max(1);
    let first = seconds(heard.loaded, heard.first);
    let speaking = seconds(heard.first, heard.last).filter(|&time| time > 0.0);
    let rate = speaking.map(|time| heard.tokens.saturating_sub(speakers) as f64 / time);
    let prompt_rate = first.map(|time| heard.prompt_tokens as f64 / speakers as f64 / time);
    if let (Some(path), Some(logits)) = (&options.logits, &heard.logits) {
        save_npy(path, logits).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if let Some(rate) = rate {
        println!("{} tokens, {rate:.1} tokens a second on the {backend}", heard.tokens);
    }
    let Some(path) = &options.report else { return Ok(()) };
    let json = serde_json::json!({
        "model": name,
        "arch": info.map(|info| format!("{:?}", info.config.architecture).to_lowercase()),
        "prompt_tokens": heard.prompt_tokens / speakers,
        "tokens": heard.ids.len(),
        "ids": heard.ids,
        "text": heard.text,
        "speakers": speakers,
        "all_tokens": heard.tokens,
        "prompt_tok_s": prompt_rate,
        "tok_s": rate,
        "first_token_ms": first.map(|time| time * 1e3),
        "bytes": info.map(|info| info.bytes),
        "backend": backend.to_string(),
    });
    std::fs::write(path, format!("{json:#}\n")).map_err(|error| format!("{}: {error}", path.display()))
}
