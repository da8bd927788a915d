//! Real text and image encoders in one scene: type words, and the matching pictures come forward. Without a display it
//! prints rankings.

#[cfg_attr(not(feature = "inspector"), expect(dead_code, reason = "the scene uses all of it"))]
mod engine;
mod headless;
mod options;
#[cfg(feature = "inspector")]
mod scene;

use std::process::ExitCode;
use std::time::Instant;

use bevy::prelude::*;

use engine::library::{Library, read_pixels};
use options::{Options, USAGE};

fn main() -> ExitCode {
    let start = Instant::now();
    match run(start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("multimodal_similarity: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(start: Instant) -> Result<(), String> {
    let options = Options::parse(std::env::args().skip(1)).map_err(|message| format!("{message}\n\n{USAGE}"))?;
    if options.help {
        println!("{USAGE}");
        return Ok(());
    }
    let library = Library::open()?;
    // Reports invalid pictures before a window is opened.
    let picture = options.image.as_deref().map(read_pixels).transpose()?;
    let adapter = bevy_tensor_compute::support::has_adapter();
    if !options.headless && adapter && bevy_tensor_compute::support::has_display() && cfg!(feature = "inspector") {
        return outcome(scene::run(options, library, picture, start));
    }
    if options.screenshot.is_some() && !adapter {
        return Err("--screenshot: there is no graphics driver to render with".to_owned());
    }
    outcome(headless::run(options.clone(), library.clone(), picture.clone(), start)?)?;
    // A screenshot of the scene needs no window.
    if options.screenshot.is_some() { outcome(scene::picture(options, library, picture)) } else { Ok(()) }
}

fn outcome(exit: AppExit) -> Result<(), String> {
    match exit {
        AppExit::Success => Ok(()),
        AppExit::Error(code) => Err(format!("ended with code {code}")),
    }
}

/// Without the feature that adds windows and panels there is no scene.
#[cfg(not(feature = "inspector"))]
mod scene {
    use bevy::prelude::*;
    use bevy_tensor_compute::tensor::TensorData;

    use super::{Instant, Library, Options};

    pub fn run(_: Options, _: Library, _: Option<TensorData>, _: Instant) -> AppExit {
        AppExit::error()
    }

    pub fn picture(_: Options, _: Library, _: Option<TensorData>) -> AppExit {
        AppExit::error()
    }
}
