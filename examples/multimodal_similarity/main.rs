//! Real text and image encoders in one scene: type words, and the pictures that mean them come forward. Without a display it prints rankings.

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
    // Whatever is wrong with it is said before anything is opened.
    let picture = options.image.as_deref().map(read_pixels).transpose()?;
    let display = bevy_tensor_compute::has_display() && bevy_tensor_compute::has_adapter();
    let exit = if options.headless || !display || cfg!(not(feature = "inspector")) {
        headless::run(options, library, picture, start)?
    } else {
        window(options, library, picture, start)
    };
    match exit {
        AppExit::Success => Ok(()),
        AppExit::Error(code) => Err(format!("ended with code {code}")),
    }
}

#[cfg(feature = "inspector")]
use scene::run as window;

/// Without the feature that opens windows there is none.
#[cfg(not(feature = "inspector"))]
fn window(_: Options, _: Library, _: Option<bevy_tensor_compute::TensorData>, _: Instant) -> AppExit {
    AppExit::error()
}
