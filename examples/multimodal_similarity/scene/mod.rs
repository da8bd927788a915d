//! The gallery as a 3D scene: pictures on a curved wall that come forward if they match the query. In a window, or
//! rendered to an image.

mod camera;
mod eye;
mod flat;
mod gallery;
mod panel;

use std::time::Instant;

use bevy::app::{PluginGroupBuilder, TerminalCtrlCHandlerPlugin};
use bevy::camera::RenderTarget;
use bevy::log::LogPlugin;
use bevy::prelude::*;
use bevy::render::render_resource::{TextureFormat, TextureUsages};
use bevy::render::view::screenshot::{Screenshot, ScreenshotCaptured, save_to_disk};
use bevy_tensor_compute::prelude::*;

use crate::engine::library::Library;
use crate::engine::models::{ModelsFailed, ModelsPlugin};
use crate::engine::search::{PictureSearch, SearchPlugin, TextSearch};
use crate::options::Options;

/// Default number of frames before the screenshot.
const FRAMES: u32 = 300;

/// Maximum number of frames that saving a screenshot may take.
const PATIENCE: u32 = 120;

/// The size of the window, or of the image without one.
const SIZE: (u32, u32) = (1280, 720);

/// The render target: the window unless there is an image.
#[derive(Resource, Default)]
struct Canvas(Option<Handle<Image>>);

impl Canvas {
    fn target(&self) -> RenderTarget {
        self.0.clone().map_or_else(RenderTarget::default, |image| RenderTarget::Image(image.into()))
    }

    fn screenshot(&self) -> Screenshot {
        self.0.clone().map_or_else(Screenshot::primary_window, Screenshot::image)
    }
}

/// Runs the scene in a window.
pub fn run(options: Options, library: Library, picture: Option<TensorData>, start: Instant) -> AppExit {
    let window = Window { title: "multimodal similarity".to_owned(), resolution: SIZE.into(), ..default() };
    app(AnywherePlugins::windowed(window).build(), options, library, picture, start).init_resource::<Canvas>().run()
}

/// Runs the scene without a window until its screenshot is saved.
pub fn picture(options: Options, library: Library, picture: Option<TensorData>) -> AppExit {
    // An earlier app has already set these up.
    let plugins = AnywherePlugins::headless().build().disable::<LogPlugin>().disable::<TerminalCtrlCHandlerPlugin>();
    let mut app = app(plugins, options, library, picture, Instant::now());
    let mut image = Image::new_target_texture(SIZE.0, SIZE.1, TextureFormat::Rgba8UnormSrgb, None);
    image.texture_descriptor.usage |= TextureUsages::COPY_SRC;
    let image = app.world_mut().resource_mut::<Assets<Image>>().add(image);
    app.insert_resource(Canvas(Some(image))).run()
}

fn app(
    plugins: PluginGroupBuilder,
    options: Options,
    library: Library,
    picture: Option<TensorData>,
    start: Instant,
) -> App {
    let query = options.queries.first().cloned();
    let own = picture.zip(options.image.clone()).map(|(pixels, path)| (path.display().to_string(), pixels));
    let mut app = App::new();
    // The scene continues after errors.
    app.set_error_handler(bevy::ecs::error::error)
        .add_plugins((plugins, TensorComputePlugin { backend: options.backend, ..default() }))
        .add_plugins((TensorInspectorPlugin::default(), ModelsPlugin, SearchPlugin))
        .add_plugins((flat::plugin, camera::plugin, eye::plugin, gallery::plugin, panel::plugin))
        .insert_resource(ClearColor(Color::srgb(0.02, 0.024, 0.05)))
        .insert_resource(TextSearch::new(query.clone()))
        .insert_resource(PictureSearch::new(own))
        .insert_resource(eye::Eye::new(options.camera))
        .insert_resource(panel::SearchBox::new(query, start))
        .insert_resource(options)
        .insert_resource(library)
        .add_systems(Update, (end, give_up));
    app
}

/// Saves the screenshot and exits after the requested frames. Prints frame times.
fn end(
    options: Res<Options>,
    time: Res<Time<Real>>,
    (texts, pictures): (Res<TextSearch>, Res<PictureSearch>),
    canvas: Res<Canvas>,
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
                info!("{count} frames {what}: median {:.1} ms, 95th percentile {:.1} ms", at(0.5), at(0.95));
            }
        }
        match options.screenshot.clone() {
            Some(path) => {
                commands.spawn(canvas.screenshot()).observe(save_to_disk(path)).observe(
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
        error!("the screenshot was not saved in time");
        exit.write(AppExit::error());
    }
}

/// Exits if models failed to load and a screenshot or a number of frames was requested. Otherwise the window shows the
/// error.
fn give_up(mut failed: MessageReader<ModelsFailed>, options: Res<Options>, mut exit: MessageWriter<AppExit>) {
    for ModelsFailed(message) in failed.read() {
        error!("{message}");
        if options.frames.is_some() || options.screenshot.is_some() {
            exit.write(AppExit::error());
        }
    }
}
