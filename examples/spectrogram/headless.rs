//! Without a window: the stream is played as fast as it can be analysed.

use std::time::{Duration, Instant};

use bevy::asset::RenderAssetUsages;
use bevy::ecs::system::RunSystemOnce;
use bevy::prelude::*;
use bevy::render::render_resource::{Extent3d, TextureDimension, TextureFormat};
use bevy_tensor_compute::audio::AudioFigures;
use bevy_tensor_compute::prelude::*;

use super::Options;
use super::listen::{BANDS, Chunk, ListenPlugin, Picture, Player, RATE, Shown, band_hz, brightness, pixels, settings};

/// Seconds of sound in a row of the table.
const ROW: f64 = 0.5;

/// What the rows of the table are about.
#[derive(Resource, Default)]
struct Heard {
    /// The sum of squares and the number of samples since the last row.
    squares: f64,
    count: usize,
    /// The brightness of the latest frame, and how many of them have arrived.
    latest: Vec<f32>,
    answers: usize,
}

pub fn run(options: Options) -> Result<(), String> {
    let mut app = App::new();
    match options.backend {
        BackendChoice::Gpu => app.add_plugins(AnywherePlugins::headless().build().disable::<bevy::log::LogPlugin>()),
        BackendChoice::Auto | BackendChoice::Cpu => {
            app.add_plugins((MinimalPlugins, AssetPlugin::default())).init_asset::<Image>()
        }
    };
    let picture = options.picture.clone();
    app.add_plugins((TensorComputePlugin { backend: options.backend, ..default() }, ListenPlugin))
        .insert_resource(options)
        .init_resource::<Heard>()
        .add_systems(PostStartup, |picture: Res<Picture>, mut player: ResMut<Player>, mut commands: Commands| {
            player.step = Some(1.0 / 60.0);
            commands.entity(picture.latest).observe(|ready: On<TensorReady>, mut heard: ResMut<Heard>| {
                if let Ok(data) = &ready.result {
                    heard.latest = data.to_f32();
                    heard.answers += 1;
                }
            });
        })
        .add_systems(PostUpdate, |chunk: Res<Chunk>, mut heard: ResMut<Heard>| {
            heard.squares += chunk.0.iter().map(|&x| f64::from(x * x)).sum::<f64>();
            heard.count += chunk.0.len();
        });
    #[cfg(feature = "onnx")]
    app.add_plugins(super::voice::VoicePlugin);
    app.finish();
    app.cleanup();

    println!("{:>8} {:>10} {:>14} {:>8}  bands, low to high", "seconds", "level dB", "loudest Hz", "voice");
    let begin = Instant::now();
    let mut next = ROW;
    while !app.world().get_resource::<Player>().is_some_and(Player::is_over) {
        step(&mut app);
        let Some(player) = app.world().get_resource::<Player>() else { continue };
        if player.samples.is_none() && begin.elapsed() > Duration::from_secs(60) {
            return Err("the sound could not be loaded".to_owned());
        }
        if player.seconds() >= next {
            print_row(&mut app, next);
            next += ROW;
        }
    }
    let figures = figures(&mut app);
    let backend = app.world().resource::<TensorSupport>().backend;
    println!(
        "{:.1} s of sound in {:.1} s on the {backend}; {} samples written, {} taken, at most {} waiting",
        figures.written as f64 / f64::from(RATE),
        begin.elapsed().as_secs_f64(),
        figures.written,
        figures.taken,
        figures.most_waiting,
    );
    save(&mut app, &picture)
}

fn figures(app: &mut App) -> AudioFigures {
    let mut inputs = app.world_mut().query_filtered::<&AudioInput, With<Shown>>();
    inputs.iter(app.world()).map(AudioInput::figures).next().unwrap_or_default()
}

/// Plays a sixtieth of a second, and waits for its spectrum so that the table shows this moment.
fn step(app: &mut App) {
    let (before, answers) = (figures(app).taken, app.world().resource::<Heard>().answers);
    app.update();
    if figures(app).taken == before {
        return;
    }
    let end = Instant::now() + Duration::from_secs(10);
    while app.world().resource::<Heard>().answers == answers && Instant::now() < end {
        app.world_mut().resource_mut::<Player>().is_paused = true;
        app.update();
    }
    app.world_mut().resource_mut::<Player>().is_paused = false;
}

fn print_row(app: &mut App, seconds: f64) {
    #[cfg(feature = "onnx")]
    let voice = app.world().resource::<super::voice::Voice>().0;
    #[cfg(not(feature = "onnx"))]
    let voice: Option<f32> = None;
    let mut heard = app.world_mut().resource_mut::<Heard>();
    let level = 10.0 * (heard.squares / heard.count.max(1) as f64).max(1e-10).log10();
    let loudest = (0..heard.latest.len()).max_by(|&a, &b| heard.latest[a].total_cmp(&heard.latest[b]));
    let loudest = loudest.map_or("-".to_owned(), |band| format!("{:.0}", band_hz(band)));
    const SHADES: [char; 6] = [' ', '.', ':', '+', '#', '@'];
    let bars: String = heard
        .latest
        .chunks(BANDS / 32)
        .map(|bands| bands.iter().copied().fold(0.0, f32::max))
        .map(|value| SHADES[((value * SHADES.len() as f32) as usize).min(SHADES.len() - 1)])
        .collect();
    let voice = voice.map_or("-".to_owned(), |voice| format!("{voice:.2}"));
    println!("{seconds:>8.1} {level:>10.1} {loudest:>14} {voice:>8}  |{bars}|");
    (heard.squares, heard.count) = (0.0, 0);
}

/// The picture of the whole sound at once.
fn save(app: &mut App, path: &std::path::Path) -> Result<(), String> {
    let fail = |error: &dyn core::fmt::Display| format!("{}: {error}", path.display());
    let samples = app.world().resource::<Player>().samples.clone().unwrap_or_default();
    let tensor = Tensor::from_slice(&samples, [samples.len()]).map_err(|error| fail(&error))?;
    let whole = app.world_mut().spawn((Name::new("whole sound"), tensor)).id();
    let record = move |picture: Res<Picture>, ops: TensorCommands| -> OpResult<TensorReceiver> {
        let db = ops.log_mel(whole, settings(Some(PadMode::Constant(0.0))))?;
        ops.read(pixels(&ops, brightness(&ops, db)?, picture.palette)?)
    };
    let receiver = app.world_mut().run_system_once(record).map_err(|error| fail(&error))?;
    let receiver = receiver.map_err(|error| fail(&error))?;
    let end = Instant::now() + Duration::from_secs(60);
    let data = loop {
        app.update();
        match receiver.try_recv() {
            Some(data) => break data.map_err(|error| fail(&error))?,
            None if Instant::now() > end => return Err(fail(&"no answer for a minute")),
            None => {}
        }
    };
    let (height, width) = (data.shape()[0] as u32, data.shape()[1] as u32);
    let size = Extent3d { width, height, depth_or_array_layers: 1 };
    let image = Image::new(
        size,
        TextureDimension::D2,
        data.bytes().to_vec(),
        TextureFormat::Rgba8UnormSrgb,
        RenderAssetUsages::MAIN_WORLD,
    );
    let image = image.try_into_dynamic().map_err(|error| fail(&error))?;
    image.save(path).map_err(|error| fail(&error))?;
    println!("{} ({width} x {height})", path.display());
    Ok(())
}
