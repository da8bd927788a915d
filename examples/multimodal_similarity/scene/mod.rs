//! The gallery as a 3-D scene: pictures on a curved wall that come forward for what is typed.

mod camera;
mod eye;
mod flat;
mod gallery;
mod panel;

use std::time::Instant;

use bevy::prelude::*;
use bevy::render::view::screenshot::{Screenshot, ScreenshotCaptured, save_to_disk};
use bevy_tensor_compute::prelude::*;

use crate::engine::library::Library;
use crate::engine::models::{ModelsFailed, ModelsPlugin};
use crate::engine::search::{PictureSearch, SearchPlugin, TextSearch};
use crate::options::Options;

/// Frames after which a screenshot is taken unless told.
const FRAMES: u32 = 300;

/// Frames that a screenshot gets to be written.
const PATIENCE: u32 = 120;

pub fn run(options: Options, library: Library, picture: Option<TensorData>, start: Instant) -> AppExit {
    let window = Window { title: "multimodal similarity".to_owned(), resolution: (1280, 720).into(), ..default() };
    let query = options.queries.first().cloned();
    let own = picture.zip(options.image.clone()).map(|(pixels, path)| (path.display().to_string(), pixels));
    App::new()
        // The scene goes on without what failed.
        .set_error_handler(bevy::ecs::error::error)
        .add_plugins((AnywherePlugins::windowed(window), TensorComputePlugin { backend: options.backend, ..default() }))
        .add_plugins((TensorInspectorPlugin::default(), ModelsPlugin, SearchPlugin))
        .add_plugins((flat::plugin, camera::plugin, eye::plugin, gallery::plugin, panel::plugin))
        .insert_resource(ClearColor(Color::srgb(0.02, 0.024, 0.05)))
        .insert_resource(TextSearch::new(query.clone()))
        .insert_resource(PictureSearch::new(own))
        .insert_resource(eye::Eye::new(options.camera))
        .insert_resource(panel::SearchBox::new(query, start))
        .insert_resource(options)
        .insert_resource(library)
        .add_systems(Update, (end, give_up))
        .run()
}

/// Takes the picture and ends the run after the frames that were asked for, and tells how long they took.
fn end(
    options: Res<Options>,
    time: Res<Time<Real>>,
    texts: Res<TextSearch>,
    pictures: Res<PictureSearch>,
    mut frames: Local<Vec<(f32, bool)>>,
    mut commands: Commands,
    mut exit: MessageWriter<AppExit>,
) {
    let Some(last) = options.frames.or(options.screenshot.as_ref().map(|_| FRAMES)) else { return };
    frames.push((time.delta_secs() * 1e3, !texts.is_idle() || !pictures.is_idle()));
    let frame = frames.len() as u32;
    if frame == last {
        for (what, busy) in [("at rest", false), ("while models ran", true)] {
            let mut times: Vec<f32> = frames.iter().filter(|(_, b)| *b == busy).map(|(ms, _)| *ms).collect();
            times.sort_by(f32::total_cmp);
            if let Some(most) = times.len().checked_sub(1) {
                let at = |part: f32| times[(most as f32 * part) as usize];
                let count = times.len();
                info!(
                    "{count} frames {what}: half within {:.1} ms, nineteen of twenty within {:.1} ms",
                    at(0.5),
                    at(0.95)
                );
            }
        }
        match options.screenshot.clone() {
            Some(path) => {
                commands.spawn(Screenshot::primary_window()).observe(save_to_disk(path)).observe(
                    |_: On<ScreenshotCaptured>, mut exit: MessageWriter<AppExit>| {
                        exit.write(AppExit::Success);
                    },
                );
            }
            None => {
                exit.write(AppExit::Success);
            }
        }
    } else if frame == last + PATIENCE {
        error!("no screenshot came");
        exit.write(AppExit::error());
    }
}

/// A window without models is of no use to a script; a person reads why.
fn give_up(mut failed: MessageReader<ModelsFailed>, options: Res<Options>, mut exit: MessageWriter<AppExit>) {
    for ModelsFailed(message) in failed.read() {
        error!("{message}");
        if options.frames.is_some() || options.screenshot.is_some() {
            exit.write(AppExit::error());
        }
    }
}
