//! Runs 300 frames in a real window: a 3D scene, two cameras, pipelined rendering, and tensor work in every frame whose
//! results are checked.
//!
//! A separate program, because the event loop of a window needs the main thread. Needs a display; `scripts/test`
//! provides one.

use std::sync::atomic::{AtomicU32, Ordering};

use bevy::camera::Viewport;
use bevy::log::tracing::{self, Subscriber};
use bevy::log::tracing_subscriber::{Layer, layer::Context};
use bevy::log::{BoxedLayer, LogPlugin};
use bevy::prelude::*;
use bevy::render::view::screenshot::{Screenshot, save_to_disk};
use bevy_tensor_compute::inspector::{InspectorPanel, InspectorState, TensorInspector};
use bevy_tensor_compute::prelude::*;

const FRAMES: u32 = 300;

/// Messages at error level, including wgpu's validation errors.
static ERRORS: AtomicU32 = AtomicU32::new(0);

fn main() {
    if !bevy_tensor_compute::support::has_display() {
        eprintln!("no display: run under xvfb-run, or scripts/test, which installs it");
        std::process::exit(1);
    }
    if !bevy_tensor_compute::support::has_adapter() {
        eprintln!("no Vulkan adapter: apt-get install mesa-vulkan-drivers, or run scripts/test");
        std::process::exit(1);
    }
    let window = Window { resolution: (1280, 720).into(), title: "tensor window test".to_owned(), ..default() };
    let exit = App::new()
        .add_plugins((
            DefaultPlugins
                .set(WindowPlugin { primary_window: Some(window), ..default() })
                .set(LogPlugin { custom_layer: count_errors, ..default() }),
            TensorComputePlugin { backend: BackendChoice::Gpu, ..default() },
            TensorInspectorPlugin { open: true, ..default() },
        ))
        .init_resource::<Progress>()
        .add_systems(Startup, (spawn_scene, spawn_tensors))
        .add_systems(Update, (spin, step, tour, picture, end).chain())
        .add_observer(check)
        .run();
    let errors = ERRORS.load(Ordering::Relaxed);
    let passed = exit.is_success() && errors == 0;
    println!("window: exit {exit:?}, {errors} messages at error level");
    println!("{} passed, {} failed", u32::from(passed), u32::from(!passed));
    std::process::exit(i32::from(!passed));
}

#[derive(Resource, Default)]
struct Progress {
    frames: u32,
    checked: u32,
}

#[derive(Resource)]
struct Tensors {
    input: Entity,
    output: Entity,
}

#[derive(Component)]
struct Spin;

fn spawn_scene(
    mut commands: Commands,
    mut meshes: ResMut<Assets<Mesh>>,
    mut materials: ResMut<Assets<StandardMaterial>>,
) {
    commands.spawn((
        Spin,
        Mesh3d(meshes.add(Cuboid::default())),
        MeshMaterial3d(materials.add(Color::srgb(0.9, 0.5, 0.2))),
    ));
    commands.spawn((DirectionalLight::default(), Transform::from_xyz(3.0, 5.0, 4.0).looking_at(Vec3::ZERO, Vec3::Y)));
    for (order, x) in [(0, -4.0), (1, 4.0)] {
        // The second camera must not clear the half of the first one.
        let clear_color = if order == 0 { ClearColorConfig::Default } else { ClearColorConfig::None };
        let half = UVec2::new(640, 720);
        let viewport =
            Viewport { physical_position: UVec2::new(order as u32 * half.x, 0), physical_size: half, ..default() };
        commands.spawn((
            Camera3d::default(),
            Camera { order, viewport: Some(viewport), clear_color, ..default() },
            Transform::from_xyz(x, 2.5, 4.0).looking_at(Vec3::ZERO, Vec3::Y),
        ));
    }
}

fn spawn_tensors(mut commands: Commands) -> Result {
    let input = commands.spawn(Tensor::zeros([64, 64], DType::F32)?).id();
    let output = commands.spawn(Tensor::zeros([64], DType::F32)?).id();
    commands.insert_resource(Tensors { input, output });
    Ok(())
}

fn spin(mut cubes: Query<&mut Transform, With<Spin>>) {
    for mut cube in &mut cubes {
        cube.rotate_y(0.03);
    }
}

/// Row sums of a matrix filled with the frame number, computed with a product with itself.
fn step(tensors: Res<Tensors>, mut progress: ResMut<Progress>, ops: TensorCommands) -> Result {
    progress.frames += 1;
    let number = (progress.frames % 7) as f32;
    ops.write(tensors.input, &[number; 64 * 64])?;
    let square = ops.matmul(tensors.input, tensors.input)?;
    let sums = ops.mean(square, -1)?;
    let back = ops.sqrt(sums / 64.0)?;
    ops.store(back, tensors.output)?;
    ops.notify(tensors.output)?;
    Ok(())
}

fn check(ready: On<TensorReady>, mut progress: ResMut<Progress>) -> Result {
    let values = ready.result.clone()?.to_f32();
    // Answers arrive in frame order, each exactly once.
    progress.checked += 1;
    let expected = (progress.checked % 7) as f32;
    if values.len() != 64 || values.iter().any(|value| (value - expected).abs() > 1e-4) {
        error!("answer {} is {:?}, expected {expected}", progress.checked, values.first());
    }
    Ok(())
}

/// Brings every panel of the inspector to the front once.
fn tour(
    progress: Res<Progress>,
    tensors: Res<Tensors>,
    mut inspector: ResMut<TensorInspector>,
    mut state: ResMut<InspectorState>,
) {
    let panel = InspectorPanel::ALL[progress.frames as usize / 16 % InspectorPanel::ALL.len()];
    if inspector.panel != panel {
        inspector.panel = panel;
    }
    if state.tensors.selected.is_none() {
        state.tensors.selected = Some(tensors.input);
    }
}

/// Saves a screenshot of the window near the end, if requested with `TENSOR_WINDOW_PICTURE=file.png`.
fn picture(progress: Res<Progress>, mut commands: Commands, mut done: Local<bool>) {
    if progress.checked == FRAMES - 40
        && !core::mem::replace(&mut *done, true)
        && let Ok(file) = std::env::var("TENSOR_WINDOW_PICTURE")
    {
        commands.spawn(Screenshot::primary_window()).observe(save_to_disk(file));
    }
}

fn end(progress: Res<Progress>, mut exit: MessageWriter<AppExit>) {
    if progress.checked >= FRAMES {
        println!("window: {} frames, {} answers", progress.frames, progress.checked);
        exit.write(AppExit::Success);
    } else if progress.frames > 4 * FRAMES {
        error!("only {} answers after {} frames", progress.checked, progress.frames);
        exit.write(AppExit::error());
    }
}

struct CountErrors;

impl<S: Subscriber> Layer<S> for CountErrors {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() == tracing::Level::ERROR {
            ERRORS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn count_errors(_: &mut App) -> Option<BoxedLayer> {
    Some(Box::new(CountErrors))
}
