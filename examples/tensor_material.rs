//! A tensor in a material: 512 × 512 vertices are moved by a wave simulation that never leaves the device.
//!
//! Tensor ops simulate the waves. The vertex shader of a material reads the tensor's own buffer, for the camera and for
//! the shadow maps, so no byte is copied. Without a display it simulates some steps and prints a summary.
//!
//! ```text
//! tensor_material [--gpu] [--frames N] [--size 1280x720] [--grid 512] [--steps 2] [--screenshot FILE.png]
//! ```

use bevy::asset::AssetPlugin;
use bevy::camera::visibility::NoFrustumCulling;
use bevy::core_pipeline::tonemapping::Tonemapping;
use bevy::mesh::{Indices, PrimitiveTopology};
use bevy::pbr::{ExtendedMaterial, MaterialExtension};
use bevy::prelude::*;
use bevy::render::render_resource::AsBindGroup;
use bevy::render::storage::ShaderBuffer;
use bevy::render::view::screenshot::{Screenshot, save_to_disk};
use bevy::shader::ShaderRef;
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::support::{has_adapter, has_display};

/// Sides of the water, in units.
const WIDTH: f32 = 20.0;

fn main() -> AppExit {
    let options = Options::parse();
    let window = Window { title: "Waves".to_owned(), resolution: options.size.into(), ..default() };
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/assets").to_owned();
    let assets = AssetPlugin { file_path: folder, ..default() };
    let backend = if options.gpu { BackendChoice::Gpu } else { BackendChoice::Auto };
    let mut app = App::new();
    app.add_plugins((AnywherePlugins::windowed(window).set(assets), TensorComputePlugin { backend, ..default() }))
        .insert_resource(options)
        .add_systems(Startup, spawn_water)
        .add_systems(Update, (make_waves, end));
    if has_adapter() && has_display() {
        app.add_plugins((MaterialPlugin::<WaterMaterial>::default(), TensorMaterialPlugin::<WaterMaterial>::default()))
            .insert_resource(ClearColor(Color::srgb(0.55, 0.42, 0.40)))
            .insert_resource(GlobalAmbientLight { color: Color::srgb(0.6, 0.7, 1.0), brightness: 220.0, ..default() })
            .add_systems(Startup, spawn_scene.after(spawn_water))
            .add_systems(Update, turn_camera);
    }
    app.run()
}

/// Bevy's material, with another vertex shader.
type WaterMaterial = ExtendedMaterial<StandardMaterial, Water>;

#[derive(Asset, AsBindGroup, TypePath, Clone)]
struct Water {
    /// The buffer of the tensor.
    #[storage(100, read_only)]
    heights: Handle<ShaderBuffer>,
}

impl MaterialExtension for Water {
    fn vertex_shader() -> ShaderRef {
        "examples/water.wgsl".into()
    }

    fn prepass_vertex_shader() -> ShaderRef {
        "examples/water.wgsl".into()
    }
}

/// The tensors of the simulation, all `[1, 1, grid, grid]`, and the sum of neighbours as a convolution.
#[derive(Resource)]
struct Simulation {
    heights: Entity,
    speeds: Entity,
    neighbours: Entity,
    columns: Entity,
    rows: Entity,
}

fn spawn_water(mut commands: Commands, options: Res<Options>) -> Result {
    let grid = options.grid;
    let model = commands.spawn((TensorModel, Name::new("water"))).id();
    let places: Vec<f32> = (0..grid).map(|i| (i as f32 / (grid - 1) as f32 - 0.5) * WIDTH).collect();
    let laplace = [0.05f32, 0.2, 0.05, 0.2, -1.0, 0.2, 0.05, 0.2, 0.05];
    let simulation = Simulation {
        heights: commands.spawn_tensor(model, "heights", Tensor::zeros([grid, grid], DType::F32)?),
        speeds: commands.spawn_tensor(model, "speeds", Tensor::zeros([grid, grid], DType::F32)?),
        neighbours: commands.spawn_tensor(model, "neighbours", Tensor::from_slice(&laplace, [1, 1, 3, 3])?),
        columns: commands.spawn_tensor(model, "columns", Tensor::from_slice(&places, [1, grid])?),
        rows: commands.spawn_tensor(model, "rows", Tensor::from_slice(&places, [grid, 1])?),
    };
    commands.insert_resource(simulation);
    Ok(())
}

/// Records the wave equation: the surface accelerates towards the mean of its neighbours. Two swimmers and rain push it.
fn make_waves(water: Res<Simulation>, options: Res<Options>, ops: TensorCommands, mut step: Local<u32>) -> Result {
    let grid = ops.shape(water.heights)?[0] as isize;
    let (mut heights, mut speeds) = (ops.value(water.heights)?, ops.value(water.speeds)?);
    for _ in 0..options.steps {
        *step += 1;
        let t = *step as f32 * 0.02;
        let hash = (*step / 40).wrapping_mul(2_654_435_761) >> 8;
        let drop = Vec2::new((hash % 4096) as f32, (hash / 4096 % 4096) as f32) / 4096.0 - 0.5;
        let pushes = [
            (Vec2::from_angle(t * 0.7) * 5.0, 0.022 * (t * 9.0).sin()),
            (Vec2::from_angle(-t * 0.45 + 2.0) * vec2(7.0, 4.0), 0.022 * (t * 7.0).sin()),
            (drop * WIDTH * 0.8, if *step % 40 < 4 { -0.09 } else { 0.0 }),
        ];
        let image = ops.reshape(heights, &[1, 1, grid, grid])?;
        let same = ConvSettings { padding: Padding::Same, ..default() };
        let bend = ops.reshape(ops.conv2d(image, water.neighbours, None, same)?, &[grid, grid])?;
        let mut force = ops.mul(bend, 0.45)?;
        for (place, strength) in pushes {
            let x = ops.sub(water.columns, place.x)?;
            let z = ops.sub(water.rows, place.y)?;
            let distance = ops.add(x * x, z * z)?;
            force = ops.add(ops.exp(distance * -9.0)? * strength, force)?;
        }
        speeds = ops.mul(speeds + force, 0.9985)?;
        heights = ops.mul(ops.add(heights, speeds)?, 0.9995)?;
    }
    ops.store(speeds, water.speeds)?;
    ops.store(heights, water.heights)?;
    Ok(())
}

fn spawn_scene(
    mut commands: Commands,
    mut bindings: TensorBindings,
    water: Res<Simulation>,
    options: Res<Options>,
    mut meshes: ResMut<Assets<Mesh>>,
    mut waters: ResMut<Assets<WaterMaterial>>,
    mut materials: ResMut<Assets<StandardMaterial>>,
) -> Result {
    // The shader imports `tensor::heights`, at the binding of the material's field.
    let settings = BindingSettings { binding: 100, dtype: Some(DType::F32), ..BindingSettings::new("heights") };
    let heights = bindings.bind(water.heights, settings)?;
    let surface = StandardMaterial { perceptual_roughness: 0.12, reflectance: 0.6, cull_mode: None, ..default() };
    commands.spawn((
        Mesh3d(meshes.add(grid_mesh(options.grid))),
        MeshMaterial3d(waters.add(WaterMaterial { base: surface, extension: Water { heights } })),
        // The mesh does not know where its vertices go.
        NoFrustumCulling,
    ));
    let stone = materials.add(StandardMaterial { base_color: Color::srgb(0.42, 0.40, 0.38), ..default() });
    let gold = materials.add(StandardMaterial {
        base_color: Color::srgb(1.0, 0.72, 0.3),
        metallic: 1.0,
        perceptual_roughness: 0.25,
        ..default()
    });
    let red = materials.add(StandardMaterial { base_color: Color::srgb(0.8, 0.12, 0.06), ..default() });
    let (pillar, ball, cap) =
        (meshes.add(Cylinder::new(0.55, 5.0)), meshes.add(Sphere::new(0.75)), meshes.add(Cuboid::new(1.5, 0.3, 1.5)));
    for i in 0..7 {
        let angle = i as f32 / 7.0 * core::f32::consts::TAU + 0.3;
        let at = Vec3::new(angle.cos() * 7.6, 0.0, angle.sin() * 7.6);
        commands.spawn((Mesh3d(pillar.clone()), MeshMaterial3d(stone.clone()), Transform::from_translation(at)));
        let top = Transform::from_translation(at + Vec3::Y * 2.6);
        commands.spawn((Mesh3d(cap.clone()), MeshMaterial3d(stone.clone()), top));
        let material = if i % 2 == 0 { gold.clone() } else { red.clone() };
        let ball_at = Transform::from_translation(at + Vec3::Y * 3.5);
        commands.spawn((Mesh3d(ball.clone()), MeshMaterial3d(material), ball_at));
    }
    let sun = DirectionalLight {
        illuminance: 14_000.0,
        color: Color::srgb(1.0, 0.82, 0.6),
        shadow_maps_enabled: true,
        ..default()
    };
    commands.spawn((sun, Transform::from_xyz(-9.0, 6.5, -8.0).looking_at(Vec3::ZERO, Vec3::Y)));
    let lamp = PointLight { color: Color::srgb(0.4, 0.7, 1.0), intensity: 4_000_000.0, range: 60.0, ..default() };
    commands.spawn((lamp, Transform::from_xyz(9.0, 7.0, 9.0)));
    commands.spawn((Camera3d::default(), Tonemapping::AcesFitted, camera_at(0.0)));
    Ok(())
}

/// A flat grid. Its vertices have colours, which the shader sets.
fn grid_mesh(grid: usize) -> Mesh {
    let uv = |i: usize| [(i % grid) as f32 / (grid - 1) as f32, (i / grid) as f32 / (grid - 1) as f32];
    let uvs: Vec<[f32; 2]> = (0..grid * grid).map(uv).collect();
    let place = |[u, v]: &[f32; 2]| [(u - 0.5) * WIDTH, 0.0, (v - 0.5) * WIDTH];
    let positions: Vec<[f32; 3]> = uvs.iter().map(place).collect();
    let (grid, mut indices) = (grid as u32, Vec::new());
    for at in (0..grid - 1).flat_map(|row| (0..grid - 1).map(move |column| row * grid + column)) {
        indices.extend([at, at + grid, at + 1, at + 1, at + grid, at + grid + 1]);
    }
    let count = positions.len();
    Mesh::new(PrimitiveTopology::TriangleList, default())
        .with_inserted_attribute(Mesh::ATTRIBUTE_POSITION, positions)
        .with_inserted_attribute(Mesh::ATTRIBUTE_NORMAL, vec![[0.0, 1.0, 0.0]; count])
        .with_inserted_attribute(Mesh::ATTRIBUTE_COLOR, vec![[1.0f32; 4]; count])
        .with_inserted_attribute(Mesh::ATTRIBUTE_UV_0, uvs)
        .with_inserted_indices(Indices::U32(indices))
}

fn camera_at(time: f32) -> Transform {
    let angle = 0.9 + time * 0.05;
    Transform::from_xyz(angle.cos() * 13.5, 6.8, angle.sin() * 13.5).looking_at(vec3(0.0, -0.6, 0.0), Vec3::Y)
}

fn turn_camera(mut camera: Single<&mut Transform, With<Camera3d>>, time: Res<Time>) {
    **camera = camera_at(time.elapsed_secs());
}

/// The parsed command line.
#[derive(Resource)]
struct Options {
    gpu: bool,
    frames: Option<u32>,
    size: (u32, u32),
    grid: usize,
    /// Steps of the simulation per frame.
    steps: usize,
    screenshot: Option<String>,
}

impl Options {
    fn parse() -> Self {
        let arguments: Vec<String> = std::env::args().collect();
        let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|i| arguments.get(i + 1).cloned());
        let size = value("--size").and_then(|size| {
            let (width, height) = size.split_once('x')?;
            Some((width.parse().ok()?, height.parse().ok()?))
        });
        Self {
            gpu: arguments.iter().any(|argument| argument == "--gpu"),
            frames: value("--frames").and_then(|frames| frames.parse().ok()),
            size: size.unwrap_or((1280, 720)),
            grid: value("--grid").and_then(|grid| grid.parse().ok()).unwrap_or(512).clamp(2, 2048),
            steps: value("--steps").and_then(|steps| steps.parse().ok()).unwrap_or(2).clamp(1, 100),
            screenshot: value("--screenshot"),
        }
    }
}

/// Takes the screenshot and exits. Without a window, exits after some frames and prints what was copied.
fn end(
    options: Res<Options>,
    windows: Query<&Window>,
    diagnostics: Res<TensorDiagnostics>,
    support: Res<TensorSupport>,
    mut frame: Local<u32>,
    mut commands: Commands,
    mut exit: MessageWriter<AppExit>,
) {
    *frame += 1;
    let headless = windows.is_empty();
    let Some(last) = options.frames.or(headless.then_some(60)) else { return };
    if *frame == last
        && !headless
        && let Some(file) = &options.screenshot
    {
        commands.spawn(Screenshot::primary_window()).observe(save_to_disk(file.clone()));
    }
    // Saving the screenshot takes some frames.
    if *frame > last + if headless { 0 } else { 20 } {
        let figures = diagnostics.figures();
        println!("{} frames on the {}: {}", *frame, support.backend, support.reason);
        println!("{} bytes uploaded, {} read back", figures.uploaded_bytes, figures.downloaded_bytes);
        exit.write(AppExit::Success);
    }
}
