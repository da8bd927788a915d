//! Characters that talk: a small language model tells stories, token by token, for several speakers at once.
//!
//! Each character is a speaker with its own context. All of them share the weights of one model, and their steps are one
//! batch. Without a display, or with `--headless`, the text is printed and the speed is measured.
//!
//! ```text
//! talk [--headless] [--model FILE.gguf] [--prompt TEXT] [--chat] [--tokens N] [--greedy] [--temperature T] [--seed N]
//!      [--speakers N] [--backend cpu|gpu|auto] [--report FILE.json] [--logits FILE.npy] [--size 1280x720]
//!      [--screenshot FILE.png]
//! ```
//!
//! Any GGUF file with a llama, qwen2, qwen3 or gemma3 decoder works. `--chat` uses the file's chat template.

mod print;
#[cfg(feature = "inspector")]
mod scene;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::text::{ChatMessage, Sampler, Say};

/// Beginnings of the stories that the characters tell.
const BEGINNINGS: [&str; 3] = ["Once upon a time", "One day, a little girl named Lily", "Tom and his dog"];

fn main() -> ExitCode {
    let result = Options::parse(std::env::args().skip(1)).and_then(|options| {
        let window = bevy_tensor_compute::support::has_adapter() && bevy_tensor_compute::support::has_display();
        match window && !options.headless && cfg!(feature = "inspector") {
            #[cfg(feature = "inspector")]
            true => scene::run(options),
            _ => print::run(&options),
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("talk: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The parsed command line.
#[derive(Resource, Clone, Debug)]
pub struct Options {
    headless: bool,
    model: Option<PathBuf>,
    prompt: Option<String>,
    chat: bool,
    tokens: usize,
    greedy: bool,
    temperature: f32,
    seed: u64,
    speakers: usize,
    backend: BackendChoice,
    report: Option<PathBuf>,
    logits: Option<PathBuf>,
    size: (u32, u32),
    screenshot: Option<String>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            headless: false,
            model: None,
            prompt: None,
            chat: false,
            tokens: 160,
            greedy: false,
            temperature: 0.8,
            seed: 1,
            speakers: 0,
            backend: BackendChoice::Auto,
            report: None,
            logits: None,
            size: (1280, 720),
            screenshot: None,
        };
        while let Some(name) = arguments.next() {
            match name.as_str() {
                "--headless" => options.headless = true,
                "--greedy" => options.greedy = true,
                "--chat" => options.chat = true,
                _ => {
                    let value = arguments.next().ok_or_else(|| format!("{name} needs a value, or is not an option"))?;
                    options.set(&name, value)?;
                }
            }
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), String> {
        let number = || value.parse().map_err(|_| format!("{name}: \"{value}\" is not a number"));
        match name {
            "--model" => self.model = Some(value.into()),
            "--prompt" => self.prompt = Some(value),
            "--tokens" => self.tokens = number()? as usize,
            "--seed" => self.seed = number()?,
            "--speakers" => self.speakers = (number()? as usize).clamp(1, 64),
            "--temperature" => {
                self.temperature = value.parse().map_err(|_| format!("{name}: \"{value}\" is not a number"))?;
            }
            "--backend" => {
                self.backend = match value.as_str() {
                    "cpu" => BackendChoice::Cpu,
                    "gpu" => BackendChoice::Gpu,
                    "auto" => BackendChoice::Auto,
                    _ => return Err(format!("--backend: \"{value}\" is not cpu, gpu or auto")),
                }
            }
            "--report" => self.report = Some(value.into()),
            "--logits" => self.logits = Some(value.into()),
            "--screenshot" => self.screenshot = Some(value),
            "--size" => {
                let size = value.split_once('x').and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
                self.size = size.ok_or_else(|| format!("--size: \"{value}\" is not like 1280x720"))?;
            }
            _ => return Err(format!("unknown option {name}")),
        }
        Ok(())
    }

    /// The folder of the model, for the asset server, and its name there.
    fn file(&self) -> Result<(Option<String>, String), String> {
        let Some(path) = &self.model else { return Ok((None, "models/stories15m.gguf".to_owned())) };
        let path = path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?;
        let folder = path.parent().unwrap_or(Path::new("/")).display().to_string();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok((Some(folder), name))
    }

    /// What speaker `i` is told.
    fn say(&self, speaker: Entity, i: usize) -> Say {
        let prompt = self.prompt.clone().unwrap_or_else(|| BEGINNINGS[i % BEGINNINGS.len()].to_owned());
        let say = match self.chat {
            true => Say::chat(speaker, [ChatMessage::user(prompt)]),
            false => Say::prompt(speaker, prompt),
        };
        let say = say.with_tokens(self.tokens);
        if self.logits.is_some() && i == 0 { say.with_logits() } else { say }
    }

    /// How speaker `i` chooses.
    fn sampler(&self, i: usize) -> Sampler {
        match self.greedy {
            true => Sampler::greedy(),
            false => Sampler { temperature: self.temperature, ..default() }.with_seed(self.seed + i as u64),
        }
    }
}
