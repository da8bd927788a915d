//! The command line.

use std::path::PathBuf;

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

pub const USAGE: &str = "\
usage: multimodal_similarity [--query TEXT]… [--image FILE] [--backend gpu|cpu|auto] [--headless]
                             [--report FILE.json] [--evaluate] [--camera] [--screenshot FILE.png] [--frames N]

Opens a gallery that is searched by words; without a display, or with --headless, prints rankings instead.
  --query TEXT       search for this (repeatable); in the window, the first is typed in
  --image FILE       find captions for a picture of one's own
  --backend WHERE    where tensors live; auto takes a hardware GPU if there is one
  --report FILE      write the results as JSON (headless)
  --evaluate         measure retrieval on 320 pictures that the joint space was not fitted on (headless)
  --camera           say what the camera sees (in the scene; also the C key)
  --screenshot FILE  save the scene's last frame, also without a display
  --frames N         end the scene after N frames";

/// Maximum number of characters of a query. The encoder reads 256 tokens of it.
const MAX_CHARACTERS: usize = 4096;

/// The parsed options.
#[derive(Resource, Clone, Debug, Default)]
pub struct Options {
    pub queries: Vec<String>,
    pub image: Option<PathBuf>,
    pub backend: BackendChoice,
    pub headless: bool,
    pub report: Option<PathBuf>,
    pub evaluate: bool,
    pub camera: bool,
    pub screenshot: Option<PathBuf>,
    pub frames: Option<u32>,
    pub help: bool,
}

impl Options {
    /// Parses the words of a command line.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--query" => options.queries.push(checked(value()?)?),
                "--image" => options.image = Some(value()?.into()),
                "--report" => options.report = Some(value()?.into()),
                "--screenshot" => options.screenshot = Some(value()?.into()),
                "--frames" => {
                    let text = value()?;
                    options.frames = Some(text.parse().map_err(|_| format!("--frames: {text} is not a number"))?);
                }
                "--backend" => {
                    options.backend = match value()?.as_str() {
                        "gpu" => BackendChoice::Gpu,
                        "cpu" => BackendChoice::Cpu,
                        "auto" => BackendChoice::Auto,
                        other => return Err(format!("--backend must be gpu, cpu or auto, not {other}")),
                    };
                }
                "--headless" => options.headless = true,
                "--evaluate" => options.evaluate = true,
                "--camera" => options.camera = true,
                "--help" | "-h" => options.help = true,
                other => return Err(format!("unknown option {other}")),
            }
        }
        Ok(options)
    }
}

/// Validates a query.
pub fn checked(text: String) -> Result<String, String> {
    let length = text.chars().count();
    if text.trim().is_empty() {
        Err("the query is empty: there is nothing to search for".to_owned())
    } else if length > MAX_CHARACTERS {
        Err(format!("the query has {length} characters; at most {MAX_CHARACTERS} are searched for"))
    } else {
        Ok(text)
    }
}
