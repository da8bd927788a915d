//! The inspector over a 3D scene: two models run in every frame, and one of them moves the cubes. F12 closes and opens
//! it.
//!
//! `--gpu` runs the work on the GPU with any adapter. `--pictures FOLDER` saves a screenshot of every panel and a
//! report, then exits. `--size 1920x1080` and `--light` change the look of the screenshots.

use bevy::prelude::*;
use bevy::render::view::screenshot::{Screenshot, save_to_disk};
use bevy_tensor_compute::inspector::{
    InspectorAction, InspectorActions, InspectorPanel, InspectorState, InspectorTheme, TensorInspector,
};
use bevy_tensor_compute::pipelines::TensorPipelines;
use bevy_tensor_compute::prelude::*;

/// Number of cubes along a side.
const SIDE: usize = 16;
/// Number of answers after which the example exits if there is no display.
const ANSWERS: u32 = 30;

fn main() -> AppExit {
    let asked = Asked::from_arguments();
    let window = Window { resolution: asked.size.into(), title: "Tensors over a scene".to_owned(), ..default() };
    let backend = if asked.gpu { BackendChoice::Gpu } else { BackendChoice::Auto };
    let memory = MemorySettings { budget: Some(24 << 20), ..default() };
    let mut app = App::new();
    app.add_plugins((AnywherePlugins::windowed(window), TensorComputePlugin { backend, memory, ..default() }))
        .insert_resource(ClearColor(Color::srgb(0.09, 0.11, 0.15)))
        .add_systems(Startup, spawn_models)
        .add_systems(Update, (think, look))
        .add_observer(answer);
    if bevy_tensor_compute::support::has_adapter() && bevy_tensor_compute::support::has_display() {
        let theme = if asked.light { InspectorTheme::Light } else { InspectorTheme::Dark };
        app.add_plugins(TensorInspectorPlugin { open: true, theme, ..default() })
            .add_systems(Startup, spawn_scene)
            .add_systems(Update, take_pictures.run_if(|asked: Res<Asked>| asked.pictures.is_some()));
    }
    app.insert_resource(asked).run()
}

/// The parsed command line.
#[derive(Resource, Default)]
struct Asked {
    pictures: Option<String>,
    size: (u32, u32),
    light: bool,
    gpu: bool,
}

impl Asked {
    fn from_arguments() -> Self {
        let arguments: Vec<String> = std::env::args().collect();
        let after = |name: &str| {
            let place = arguments.iter().position(|argument| argument == name)?;
            arguments.get(place + 1).cloned()
        };
        let has = |name: &str| arguments.iter().any(|argument| argument == name);
        let size = after("--size").and_then(|size| {
            let (width, height) = size.split_once('x')?;
            Some((width.parse().ok()?, height.parse().ok()?))
        });
        Self {
            pictures: after("--pictures"),
            size: size.unwrap_or((1280, 720)),
            light: has("--light"),
            gpu: has("--gpu"),
        }
    }
}

/// A small network that computes a landscape from positions and a time.
#[derive(Resource)]
struct Landscape {
    places: Entity,
    clock: Entity,
    weights: [Entity; 3],
    heights: Entity,
}

/// A picture and the filters applied to it.
#[derive(Resource)]
struct Vision {
    picture: Entity,
    filters: [Entity; 2],
    scores: Entity,
    /// Only used once.
    atlas: Entity,
}

#[derive(Component)]
struct Cube(usize);

fn spawn_models(mut commands: Commands, support: Res<TensorSupport>) -> Result {
    println!("running on the {}: {}", support.backend, support.reason);
    let random = |shape: &[usize], scale: f32, seed: u32| {
        Tensor::random_normal(Shape::new(shape.iter().copied()), 0.0, scale, seed, DType::F32)
    };
    let places: Vec<[f32; 2]> =
        (0..SIDE * SIDE).map(|i| [(i % SIDE) as f32 / 8.0 - 1.5, (i / SIDE) as f32 / 8.0 - 1.5]).collect();
    let model = commands.spawn((TensorModel, Name::new("landscape"))).id();
    let landscape = Landscape {
        places: commands.spawn_tensor(model, "places", Tensor::from_rows(&places)?),
        clock: commands.spawn_tensor(model, "clock", Tensor::zeros([1, 64], DType::F32)?),
        weights: [
            commands.spawn_tensor(model, "layer0.weights", random(&[2, 64], 1.6, 11)?),
            commands.spawn_tensor(model, "layer1.weights", random(&[64, 64], 0.18, 12)?),
            commands.spawn_tensor(model, "layer2.weights", random(&[64, 1], 0.25, 13)?),
        ],
        heights: commands.spawn_tensor(model, "heights", Tensor::zeros([SIDE, SIDE], DType::F32)?),
    };
    commands.insert_resource(landscape);
    let model = commands.spawn((TensorModel, Name::new("vision"))).id();
    let vision = Vision {
        picture: commands.spawn_tensor(
            model,
            "picture",
            Tensor::random_uniform([1, 3, 48, 48], 0.0, 1.0, 3, DType::F32)?,
        ),
        filters: [
            commands.spawn_tensor(model, "stem.filters", random(&[16, 3, 3, 3], 0.3, 21)?),
            commands.spawn_tensor(model, "head.filters", random(&[8, 16, 3, 3], 0.1, 22)?),
        ],
        scores: commands.spawn_tensor(model, "scores", Tensor::zeros([8], DType::F32)?),
        atlas: commands.spawn_tensor(model, "atlas", random(&[1024, 1024], 1.0, 30)?),
    };
    commands.insert_resource(vision);
    Ok(())
}

/// Three layers with sines that move with time.
fn think(landscape: Res<Landscape>, time: Res<Time>, ops: TensorCommands) -> Result {
    let phases: Vec<f32> = (0..64).map(|i| time.elapsed_secs() * (0.4 + i as f32 * 0.02)).collect();
    ops.write(landscape.clock, &phases)?;
    let [first, second, third] = landscape.weights;
    let hidden = ops.sin(ops.matmul(landscape.places, first)? + landscape.clock)?;
    let hidden = ops.tanh(ops.matmul(hidden, second)?)?;
    let heights = ops.reshape(ops.matmul(hidden, third)?, &[SIDE as isize, SIDE as isize])?;
    ops.store(heights, landscape.heights)?;
    ops.notify(landscape.heights)?;
    Ok(())
}

/// Two convolutions, a mean over the picture, a softmax.
fn look(vision: Res<Vision>, ops: TensorCommands, mut prepared: Local<bool>) -> Result {
    if !core::mem::replace(&mut *prepared, true) {
        ops.store(ops.tanh(vision.atlas)?, vision.atlas)?;
    }
    let same = ConvSettings { padding: Padding::Same, ..default() };
    let [stem, head] = vision.filters;
    let features = ops.relu(ops.conv2d(vision.picture, stem, None, same)?)?;
    let features = ops.reshape(ops.conv2d(features, head, None, same)?, &[8, -1])?;
    ops.store(ops.softmax(ops.mean(features, LAST)?, LAST)?, vision.scores)?;
    Ok(())
}

fn answer(
    ready: On<TensorReady>,
    mut cubes: Query<(&Cube, &mut Transform)>,
    windows: Query<(), With<Window>>,
    mut answers: Local<u32>,
    mut exit: MessageWriter<AppExit>,
) -> Result {
    if ready.entity != ready.tensor {
        return Ok(());
    }
    let heights = ready.result.clone()?.to_f32();
    for (cube, mut transform) in &mut cubes {
        transform.translation.y = heights[cube.0];
    }
    *answers += 1;
    if windows.is_empty() && *answers == ANSWERS {
        let (low, high) = heights.iter().fold((f32::MAX, f32::MIN), |(low, high), &y| (low.min(y), high.max(y)));
        println!("{ANSWERS} landscapes, the last from {low:.2} to {high:.2}");
        exit.write(AppExit::Success);
    }
    Ok(())
}

fn spawn_scene(
    mut commands: Commands,
    mut meshes: ResMut<Assets<Mesh>>,
    mut materials: ResMut<Assets<StandardMaterial>>,
) {
    let mesh = meshes.add(Cuboid::new(0.8, 0.8, 0.8));
    for i in 0..SIDE * SIDE {
        let (x, z) = ((i % SIDE) as f32, (i / SIDE) as f32);
        let colour = Color::oklch(0.7, 0.13, 200.0 + 6.0 * (x + z));
        let place = Transform::from_xyz(x - SIDE as f32 / 2.0, 0.0, z - SIDE as f32 / 2.0);
        commands.spawn((Cube(i), Mesh3d(mesh.clone()), MeshMaterial3d(materials.add(colour)), place));
    }
    commands.spawn((
        DirectionalLight { illuminance: 9_000.0, ..default() },
        Transform::from_xyz(4.0, 9.0, 6.0).looking_at(Vec3::ZERO, Vec3::Y),
    ));
    commands.spawn((
        Camera3d::default(),
        Transform::from_xyz(0.0, 9.0, 13.0).looking_at(Vec3::new(-5.0, 0.0, 0.0), Vec3::Y),
    ));
}

/// Saves a screenshot of every panel, each after some frames so that its curves show something.
#[expect(clippy::too_many_arguments, reason = "a system's parameters")]
fn take_pictures(
    mut commands: Commands,
    asked: Res<Asked>,
    vision: Res<Vision>,
    landscape: Res<Landscape>,
    pipelines: Res<TensorPipelines>,
    mut inspector: ResMut<TensorInspector>,
    mut state: ResMut<InspectorState>,
    mut actions: ResMut<InspectorActions>,
    mut monitor: ResMut<TensorMonitor>,
    mut frame: Local<usize>,
    mut exit: MessageWriter<AppExit>,
) -> Result {
    /// Number of frames per panel. One of them is saved.
    const FRAMES: usize = 14;
    let Some(folder) = &asked.pictures else { return Ok(()) };
    if *frame == 0 {
        monitor.start();
    }
    *frame += 1;
    let Some(&panel) = InspectorPanel::ALL.get(*frame / FRAMES) else {
        if let Some(report) = monitor.stop() {
            report.save_html(format!("{folder}/report.html"))?;
            report.save_trace(format!("{folder}/report.trace.json"))?;
        }
        exit.write(AppExit::Success);
        return Ok(());
    };
    if inspector.panel != panel {
        inspector.panel = panel;
    }
    match (panel, *frame % FRAMES) {
        (InspectorPanel::Tensors, 1) => state.tensors.selected = Some(landscape.heights),
        (InspectorPanel::Pipelines, 1) => {
            let report = pipelines.report();
            state.pipelines.selected = report.pipelines.first().map(|pipeline| pipeline.id);
        }
        // Creates entries for the log and the history.
        (InspectorPanel::Memory, 4) => actions.0.push(InspectorAction::Spill(vision.atlas)),
        (_, 11) => {
            let file = format!("{folder}/{}.png", panel.name().to_lowercase());
            commands.spawn(Screenshot::primary_window()).observe(save_to_disk(file));
        }
        _ => {}
    }
    Ok(())
}
