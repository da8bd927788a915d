//! Without a display: one view is traced and denoised, and compared with a converged image.

use std::time::{Duration, Instant};

use bevy::asset::RenderAssetUsages;
use bevy::ecs::system::SystemState;
use bevy::prelude::*;
use bevy::render::render_resource::{Extent3d, TextureDimension, TextureFormat};
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::tensor::ModelTensors;

use super::{Options, Tracer, View, set_up};

/// Nothing takes longer.
const PATIENCE: Duration = Duration::from_secs(600);

pub fn run(options: &Options) -> Result<(), String> {
    let mut app = App::new();
    let plugins = AnywherePlugins::headless().build().set(super::assets()).disable::<bevy::log::LogPlugin>();
    app.add_plugins((plugins, TensorComputePlugin { backend: options.backend, ..default() }))
        .insert_resource(options.clone())
        .add_systems(Startup, set_up);
    app.finish();
    app.cleanup();
    wait(&mut app, |app| {
        let tracer = app.world().get_resource::<Tracer>()?;
        (tracer.kernel.is_ready() && tracer.denoiser.is_some()).then_some(())
    })?;
    let (view, frames) = (View::number(options.view), options.frames.unwrap_or(1));
    // The first frame also makes plans and pipelines.
    compute(&mut app, |tracer, ops| {
        let images = tracer.trace(ops, view, options.samples)?;
        corner(ops, tracer.denoise(ops, images)?)
    })?;
    app.world_mut().resource_mut::<Tracer>().view = None;
    let mut trace_times = Vec::new();
    for _ in 0..frames {
        let begin = Instant::now();
        compute(&mut app, |tracer, ops| corner(ops, tracer.trace(ops, view, options.samples)?[0]))?;
        trace_times.push(begin.elapsed());
    }
    let launches = |app: &App| {
        let figures = app.world().resource::<TensorDiagnostics>().figures();
        figures.dispatches + figures.cpu_steps
    };
    let before = launches(&app);
    let begin = Instant::now();
    let clean = compute(&mut app, |tracer, ops| {
        let images = means(tracer, ops)?;
        ops.read(tracer.denoise(ops, images)?)
    })?;
    let first = begin.elapsed();
    let launched = launches(&app) - before;
    let begin = Instant::now();
    compute(&mut app, |tracer, ops| {
        let images = means(tracer, ops)?;
        corner(ops, tracer.denoise(ops, images)?)
    })?;
    let denoise_time = begin.elapsed().min(first);
    let noisy = compute(&mut app, |tracer, ops| ops.read(means(tracer, ops)?[0]))?;
    let pixels = compute(&mut app, |tracer, ops| {
        let images = means(tracer, ops)?;
        let clean = tracer.denoise(ops, images)?;
        ops.read(tracer.show(ops, images[0], clean, tracer.size.x as f32 / 2.0)?)
    })?;
    if let Some(file) = &options.screenshot {
        save(file, &pixels, options.size)?;
    }
    while app.world().resource::<Tracer>().count < options.reference {
        compute(&mut app, |tracer, ops| corner(ops, tracer.trace(ops, view, 8)?[0]))?;
    }
    let converged = compute(&mut app, |tracer, ops| ops.read(means(tracer, ops)?[0]))?;
    let [noisy, clean, converged] = [noisy, clean, converged].map(|image| image.to_f32());
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let traced = trace_times.iter().copied().min().map_or(0.0, ms);
    let (psnr_noisy, psnr_denoised) = (psnr(&noisy, &converged), psnr(&clean, &converged));
    let (gflop, denoised) = (gflop(&mut app, options.size), ms(denoise_time));
    let support = app.world().resource::<TensorSupport>();
    println!("{} x {} on the {}: {}", options.size.x, options.size.y, support.backend, support.reason);
    println!("view {}, {} samples per pixel", options.view, frames * options.samples);
    println!("tracing {traced:.1} ms a frame, denoising {denoised:.1} ms ({gflop:.2} GFLOP, {launched} launches)");
    println!("{psnr_noisy:.1} dB traced, {psnr_denoised:.1} dB denoised");
    let Some(path) = &options.report else { return Ok(()) };
    let report = format!(
        "{{\"width\": {}, \"height\": {}, \"view\": {}, \"samples\": {}, \"backend\": \"{}\", \"network\": \"{}\", \"ms_trace\": {traced:.3}, \"ms_denoise\": {denoised:.3}, \"psnr_noisy\": {psnr_noisy:.3}, \"psnr_denoised\": {psnr_denoised:.3}, \"launches\": {launched}, \"gflop\": {gflop:.4}}}\n",
        options.size.x,
        options.size.y,
        options.view,
        frames * options.samples,
        support.backend,
        options.network
    );
    std::fs::write(path, report).map_err(|error| format!("{path}: {error}"))
}

/// Updates the app until there is a result.
fn wait<T>(app: &mut App, mut look: impl FnMut(&mut App) -> Option<T>) -> Result<T, String> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        app.update();
        if let Some(exit) = app.should_exit() {
            return Err(format!("ended early: {exit:?}"));
        }
        if let Some(result) = look(app) {
            return Ok(result);
        }
        // The CPU backend's threads need the cores more than an empty frame does.
        std::thread::yield_now();
    }
    Err("nothing happened for ten minutes".to_owned())
}

/// Records work and waits for the values that it reads.
fn compute(
    app: &mut App,
    record: impl FnOnce(&mut Tracer, &TensorCommands) -> OpResult<TensorReceiver>,
) -> Result<TensorData, String> {
    let mut state = SystemState::<(ResMut<Tracer>, TensorCommands)>::new(app.world_mut());
    let receiver = {
        let (mut tracer, ops) = state.get_mut(app.world_mut()).map_err(|error| error.to_string())?;
        record(&mut tracer, &ops).map_err(|error| error.to_string())?
    };
    state.apply(app.world_mut());
    wait(app, |_| receiver.try_recv())?.map_err(|error| error.to_string())
}

/// The means of the samples so far.
fn means<'a>(tracer: &Tracer, ops: &'a TensorCommands) -> OpResult<[TensorValue<'a>; 3]> {
    let share = 1.0 / tracer.count.max(1) as f32;
    let [color, albedo, normal] = tracer.sums.map(|sum| ops.mul(sum, share));
    Ok([color?, albedo?, normal?])
}

/// Reads one pixel: the work is done when it is here.
fn corner(ops: &TensorCommands, image: TensorValue) -> OpResult<TensorReceiver> {
    ops.read(ops.slice(ops.slice(image, 0, 0, 1)?, 1, 0, 1)?)
}

/// Peak signal-to-noise ratio of tone-mapped colours, in dB.
fn psnr(actual: &[f32], expected: &[f32]) -> f64 {
    let tone = |x: f32| f64::from(x.max(0.0) / (1.0 + x.max(0.0))).powf(1.0 / 2.2);
    let errors = actual.iter().zip(expected).map(|(&a, &e)| (tone(a) - tone(e)).powi(2));
    -10.0 * (errors.sum::<f64>() / actual.len().max(1) as f64).max(1e-20).log10()
}

/// Multiply-adds of the network for an image of this size, times two, in billions.
fn gflop(app: &mut App, size: UVec2) -> f64 {
    let model = app.world().resource::<Tracer>().model;
    let pixels = f64::from(size.x.next_multiple_of(16) * size.y.next_multiple_of(16));
    let layers = app.world().get::<ModelTensors>(model).map(|tensors| tensors.iter().collect::<Vec<_>>());
    let flop = layers.unwrap_or_default().into_iter().filter_map(|layer| {
        let tensor = app.world().get::<Tensor>(layer).filter(|tensor| tensor.shape().rank() == 4)?;
        let name = app.world().get::<Name>(layer)?.as_str();
        // How often the image is halved before this layer.
        let number: i32 = name.chars().find(char::is_ascii_digit)?.to_digit(10)? as i32;
        let halvings = (number - 1).max(0);
        Some(2.0 * tensor.shape().elements() as f64 * pixels / 4f64.powi(halvings))
    });
    flop.sum::<f64>() / 1e9
}

fn save(file: &str, pixels: &TensorData, size: UVec2) -> Result<(), String> {
    let extent = Extent3d { width: size.x, height: size.y, depth_or_array_layers: 1 };
    let (format, usage) = (TextureFormat::Rgba8UnormSrgb, RenderAssetUsages::default());
    let image = Image::new(extent, TextureDimension::D2, pixels.bytes().to_vec(), format, usage);
    let picture = image.try_into_dynamic().map_err(|error| error.to_string())?;
    picture.save(file).map_err(|error| format!("{file}: {error}"))
}
