//! A scrolling spectrogram of a sound file, made on the device: samples go into a ring, frames of them become mel bands, and
//! the bands become the pixels of a texture and the heights of bars.
//!
//! With `assets/models/silero_vad.onnx` (MIT, from the PyPI package `silero-vad`) it also tells when somebody speaks. Without a
//! display, or with `--headless`, it prints a table and writes a picture of the whole file.
//!
//! ```text
//! spectrogram [FILE] [--headless] [--backend cpu|gpu] [--picture FILE.png] [--size 1280x720] [--at SECONDS --screenshot FILE.png]
//! ```

mod headless;
mod listen;
#[cfg(feature = "inspector")]
mod scene;
#[cfg(feature = "onnx")]
mod voice;

use std::process::ExitCode;

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

fn main() -> ExitCode {
    let result = Options::parse(std::env::args().skip(1)).and_then(|options| {
        let window = bevy_tensor_compute::support::has_adapter() && bevy_tensor_compute::support::has_display();
        match window && !options.headless && cfg!(feature = "inspector") {
            #[cfg(feature = "inspector")]
            true => scene::run(options),
            _ => headless::run(options),
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("spectrogram: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The parsed command line.
#[derive(Resource, Clone, Debug)]
struct Options {
    /// The sound, among the assets.
    file: String,
    headless: bool,
    backend: BackendChoice,
    picture: std::path::PathBuf,
    size: (u32, u32),
    /// The second of the sound at which the screenshot is taken.
    at: f64,
    screenshot: Option<String>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            file: "examples/spectrogram.ogg".to_owned(),
            headless: false,
            backend: BackendChoice::Auto,
            picture: std::env::temp_dir().join("spectrogram.png"),
            size: (1280, 720),
            at: 8.2,
            screenshot: None,
        };
        while let Some(name) = arguments.next() {
            match name.as_str() {
                "--headless" => {
                    options.headless = true;
                    continue;
                }
                name if !name.starts_with("--") => {
                    options.file = name.to_owned();
                    continue;
                }
                _ => {}
            }
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value, or is not an option"))?;
            match name.as_str() {
                "--backend" => {
                    options.backend = match value.as_str() {
                        "cpu" => BackendChoice::Cpu,
                        "gpu" => BackendChoice::Gpu,
                        "auto" => BackendChoice::Auto,
                        _ => return Err(format!("--backend: \"{value}\" is not cpu, gpu or auto")),
                    }
                }
                "--picture" => options.picture = value.into(),
                "--screenshot" => options.screenshot = Some(value),
                "--at" => options.at = value.parse().map_err(|_| format!("--at: \"{value}\" is not a number"))?,
                "--size" => {
                    let size = value.split_once('x').and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
                    options.size = size.ok_or_else(|| format!("--size: \"{value}\" is not like 1280x720"))?;
                }
                _ => return Err(format!("unknown option {name}")),
            }
        }
        Ok(options)
    }
}
