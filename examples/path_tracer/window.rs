//! With a display: the picture fills the window. The mouse moves the camera and the bar.

use bevy::input::mouse::{AccumulatedMouseMotion, AccumulatedMouseScroll};
use bevy::prelude::*;
use bevy::render::view::screenshot::{Screenshot, save_to_disk};
use bevy::window::PrimaryWindow;
use bevy_tensor_compute::image::image_for_tensor;
use bevy_tensor_compute::prelude::*;

use super::{Options, Tracer, View, set_up};

/// Work of at most this many frames is in flight, so that a slow machine is not overloaded.
const IN_FLIGHT: usize = 2;

pub fn run(options: Options) -> Result<(), String> {
    // Small pictures are enlarged.
    let scale = (1280.0 / options.size.x as f32).max(1.0);
    let size = (options.size.as_vec2() * scale).as_uvec2();
    let window = Window { title: "Path tracer".to_owned(), resolution: (size.x, size.y).into(), ..default() };
    let mut app = App::new();
    app.add_plugins((
        AnywherePlugins::windowed(window).set(super::assets()),
        TensorComputePlugin { backend: options.backend, ..default() },
    ))
    .insert_resource(View::number(options.view))
    .insert_resource(Controls { bar: 0.5, drags_bar: false, pending: Vec::new(), frames: 0 })
    .insert_resource(options)
    .add_systems(Startup, (set_up, spawn_canvas).chain())
    .add_systems(Update, (follow_mouse, draw, label, end).chain());
    match app.run() {
        AppExit::Success => Ok(()),
        AppExit::Error(code) => Err(format!("ended with code {code}")),
    }
}

/// Where the bar is, as a share of the width, and the frames in flight.
#[derive(Resource)]
struct Controls {
    bar: f32,
    drags_bar: bool,
    pending: Vec<TensorReceiver>,
    frames: u32,
}

fn spawn_canvas(mut commands: Commands, options: Res<Options>, tracer: Res<Tracer>, mut images: ResMut<Assets<Image>>) {
    let image = images.add(image_for_tensor(options.size.x, options.size.y));
    commands.entity(tracer.pixels).insert(ImageFromTensor { image: image.clone(), live: true });
    commands.spawn(Camera2d);
    let font = TextFont { font_size: FontSize::Px(18.0), ..default() };
    let place = Node { position_type: PositionType::Absolute, left: px(14), bottom: px(10), ..default() };
    commands.spawn((
        Node { width: percent(100), height: percent(100), ..default() },
        ImageNode::new(image),
        // A child is drawn over its parent.
        children![(Text::default(), font, TextShadow::default(), place)],
    ));
}

fn follow_mouse(
    window: Single<&Window, With<PrimaryWindow>>,
    buttons: Res<ButtonInput<MouseButton>>,
    motion: Res<AccumulatedMouseMotion>,
    scroll: Res<AccumulatedMouseScroll>,
    mut controls: ResMut<Controls>,
    mut view: ResMut<View>,
) {
    let cursor = window.cursor_position().map(|cursor| cursor.x / window.width().max(1.0));
    if buttons.just_pressed(MouseButton::Left) {
        controls.drags_bar = cursor.is_some_and(|cursor| (cursor - controls.bar).abs() < 0.02);
    }
    let mut moved = *view;
    if buttons.pressed(MouseButton::Left) && controls.drags_bar {
        controls.bar = cursor.unwrap_or(controls.bar).clamp(0.0, 1.0);
    } else if buttons.pressed(MouseButton::Left) {
        moved.yaw -= motion.delta.x * 0.004;
        moved.pitch += motion.delta.y * 0.004;
    }
    moved.distance *= 1.0 - scroll.delta.y * 0.05;
    let moved = moved.clamped();
    if moved != *view {
        *view = moved;
    }
}

fn draw(
    mut tracer: ResMut<Tracer>,
    mut controls: ResMut<Controls>,
    view: Res<View>,
    options: Res<Options>,
    ops: TensorCommands,
) -> Result {
    controls.pending.retain(|receiver| receiver.try_recv().is_none());
    if controls.pending.len() >= IN_FLIGHT || !tracer.kernel.is_ready() || tracer.denoiser.is_none() {
        return Ok(());
    }
    let images = tracer.trace(&ops, *view, options.samples)?;
    let clean = tracer.denoise(&ops, images)?;
    let bar = controls.bar * options.size.x as f32;
    let pixels = tracer.show(&ops, images[0], clean, bar)?;
    ops.store(pixels, tracer.pixels)?;
    // Four bytes tell when the frame is done.
    let corner = ops.slice(ops.slice(pixels, 0, 0, 1)?, 1, 0, 1)?;
    controls.pending.push(ops.read(corner)?);
    controls.frames += 1;
    Ok(())
}

fn label(tracer: Res<Tracer>, support: Res<TensorSupport>, options: Res<Options>, mut text: Single<&mut Text>) {
    text.0 = format!(
        "traced | denoised   {} samples per pixel, {} x {}, {} network on the {}",
        tracer.count, options.size.x, options.size.y, options.network, support.backend
    );
}

fn end(
    options: Res<Options>,
    controls: Res<Controls>,
    mut waited: Local<u32>,
    mut commands: Commands,
    mut exit: MessageWriter<AppExit>,
) {
    if options.frames.is_none_or(|frames| controls.frames < frames) {
        return;
    }
    *waited += 1;
    // The last frame has to arrive, and saving the screenshot takes some frames.
    if *waited == 20
        && let Some(file) = &options.screenshot
    {
        commands.spawn(Screenshot::primary_window()).observe(save_to_disk(file.clone()));
    }
    if *waited > 50 {
        exit.write(AppExit::Success);
    }
}
