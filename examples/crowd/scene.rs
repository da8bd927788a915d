//! The picture: all agents are one mesh with a colour per vertex, among lights and pillars.

use std::collections::VecDeque;

use bevy::asset::RenderAssetUsages;
use bevy::camera::Hdr;
use bevy::core_pipeline::tonemapping::Tonemapping;
use bevy::mesh::{Indices, PrimitiveTopology};
use bevy::post_process::bloom::Bloom;
use bevy::prelude::*;
use bevy::render::view::screenshot::{Screenshot, ScreenshotCaptured, save_to_disk};
use bevy_egui::{EguiContext, EguiContexts, EguiGlobalSettings, EguiPrimaryContextPass, PrimaryEguiContext, egui};
use bevy_tensor_compute::crowd::TensorCrowd;
use bevy_tensor_compute::prelude::*;

use super::agents::{Acts, Agent, Field, Senses, act, heading, populate, sense};
use super::{CrowdPlugin, Herd, Options};

/// Number of agents at the start.
const AGENTS: usize = 5_000;
/// Frames before a screenshot, so that flocks have formed.
const FRAMES: u32 = 400;
/// Number of frame times in the graph.
const HISTORY: usize = 240;
/// The corners of an agent: nose, left, right, and the ridge of its back. Triangles by corner.
const CORNERS: [Vec3; 4] =
    [Vec3::new(0.9, 0.0, 0.1), Vec3::new(-0.5, 0.1, 0.36), Vec3::new(-0.5, 0.1, -0.36), Vec3::new(-0.35, 0.4, 0.0)];
const TRIANGLES: [u32; 9] = [0, 3, 1, 0, 2, 3, 1, 3, 2];
/// Colours of the three lights.
const LIGHTS: [Color; 3] = [Color::srgb(1.0, 0.55, 0.2), Color::srgb(0.3, 0.8, 1.0), Color::srgb(0.85, 0.4, 1.0)];

/// The settings of the panel, and what it shows.
#[derive(Resource)]
struct Panel {
    agents: usize,
    frames: VecDeque<f32>,
}

/// The mesh of all agents.
#[derive(Resource)]
struct Flock(Handle<Mesh>);

#[derive(Component)]
struct Light(usize);

#[derive(Component)]
struct Pillar(usize);

#[derive(Component)]
struct Ground;

pub fn run(options: Options) -> Result<(), String> {
    let window = Window { resolution: options.size.into(), title: "A crowd with one network".to_owned(), ..default() };
    let agents = options.agents.unwrap_or(AGENTS);
    let mut app = App::new();
    app.add_plugins((
        AnywherePlugins::windowed(window),
        TensorComputePlugin { backend: options.backend, ..default() },
        TensorInspectorPlugin::default(),
        CrowdPlugin,
    ))
    .insert_resource(ClearColor(Color::srgb(0.012, 0.016, 0.03)))
    // The camera of the panels is the context; egui would take the first camera too.
    .insert_resource(EguiGlobalSettings { auto_create_primary_context: false, ..default() })
    .insert_resource(Field::new(agents))
    .insert_resource(Panel { agents, frames: VecDeque::new() })
    .insert_resource(options)
    .add_systems(Startup, spawn_scene)
    .add_systems(Update, (follow_panel, act, sense, (draw, place_lights, place_camera)).chain())
    .add_systems(Update, take_picture)
    .add_systems(EguiPrimaryContextPass, show_panel);
    match app.run() {
        AppExit::Success => Ok(()),
        AppExit::Error(code) => Err(format!("ended with code {code}")),
    }
}

fn spawn_scene(
    mut commands: Commands,
    mut meshes: ResMut<Assets<Mesh>>,
    mut materials: ResMut<Assets<StandardMaterial>>,
    field: Res<Field>,
) {
    commands.spawn((Camera3d::default(), Hdr, Tonemapping::TonyMcMapface, Bloom::NATURAL, Transform::default()));
    // The panels have a camera of their own, after the effects of the other one.
    let over = Camera { order: 1, clear_color: ClearColorConfig::None, ..default() };
    commands.spawn((Camera2d, over, EguiContext::default(), PrimaryEguiContext));
    let ground =
        StandardMaterial { base_color: Color::srgb(0.035, 0.045, 0.07), perceptual_roughness: 0.95, ..default() };
    commands.spawn((
        Ground,
        Mesh3d(meshes.add(Plane3d::default().mesh().size(1.0, 1.0))),
        MeshMaterial3d(materials.add(ground)),
        Transform::default(),
    ));
    let pillar = meshes.add(Cylinder::new(1.0, 1.0).mesh().resolution(48));
    let stone = materials.add(StandardMaterial {
        base_color: Color::srgb(0.16, 0.17, 0.22),
        perceptual_roughness: 0.6,
        ..default()
    });
    for i in 0..field.pillars.len() {
        commands.spawn((Pillar(i), Mesh3d(pillar.clone()), MeshMaterial3d(stone.clone()), Transform::default()));
    }
    let ball = meshes.add(Sphere::new(1.0).mesh().ico(4).unwrap_or_else(|_| Sphere::new(1.0).mesh().uv(24, 16)));
    for (i, colour) in LIGHTS.into_iter().enumerate() {
        let glow = StandardMaterial { base_color: Color::BLACK, emissive: colour.to_linear() * 14.0, ..default() };
        let light = PointLight { color: colour, intensity: 9_000_000.0, range: 80.0, ..default() };
        commands.spawn((
            Light(i),
            Mesh3d(ball.clone()),
            MeshMaterial3d(materials.add(glow)),
            light,
            Transform::default(),
        ));
    }
    let sun = DirectionalLight { illuminance: 900.0, color: Color::srgb(0.7, 0.8, 1.0), ..default() };
    commands.spawn((sun, Transform::from_xyz(-4.0, 10.0, 3.0).looking_at(Vec3::ZERO, Vec3::Y)));
    let flock = meshes.add(Mesh::new(PrimitiveTopology::TriangleList, RenderAssetUsages::default()));
    let paint = materials.add(StandardMaterial { unlit: true, cull_mode: None, ..default() });
    // The mesh changes in every frame, so its bounds would have to be computed in every frame.
    let flying = (Mesh3d(flock.clone()), MeshMaterial3d(paint), bevy::camera::visibility::NoFrustumCulling);
    commands.spawn(flying);
    commands.insert_resource(Flock(flock));
}

/// Changes the number of agents as the panel asks.
fn follow_panel(
    panel: Res<Panel>,
    agents: Query<Entity, With<Agent>>,
    mut field: ResMut<Field>,
    herd: Res<Herd>,
    mut commands: Commands,
) {
    if agents.iter().count() != panel.agents {
        field.resize(panel.agents);
        populate(panel.agents, &agents, &field, &herd, &mut commands);
    }
}

/// Builds the mesh of all agents.
fn draw(agents: Query<(&Agent, Option<&Acts>)>, flock: Res<Flock>, mut meshes: ResMut<Assets<Mesh>>) {
    let Some(mut mesh) = meshes.get_mut(&flock.0) else { return };
    let count = agents.iter().count();
    let (mut positions, mut colours) = (Vec::with_capacity(count * 4), Vec::with_capacity(count * 4));
    let mut indices = Vec::with_capacity(count * 9);
    for (agent, acts) in &agents {
        let ahead = heading(agent.velocity);
        let (size, colour) = acts.map_or((0.7, [0.5; 3]), |acts| (acts.size.clamp(0.4, 1.4), acts.colour));
        // The colour of its light, changed by the network: agents in a crowd or near a pillar are warmer.
        let own = LIGHTS[agent.light].to_linear().to_f32_array();
        let [r, g, b] = [0, 1, 2].map(|i| own[i] * 0.75 + colour[i].clamp(0.0, 1.0) * 0.25);
        let first = positions.len() as u32;
        indices.extend(TRIANGLES.map(|corner| first + corner));
        for (i, corner) in CORNERS.into_iter().enumerate() {
            let flat = (ahead * corner.x + ahead.perp() * corner.z) * size + agent.position;
            positions.push([flat.x, corner.y * size + 0.25, -flat.y]);
            // The nose glows, the back is darker.
            let shade = [1.9, 0.75, 0.75, 1.1][i];
            colours.push([r * shade, g * shade, b * shade, 1.0]);
        }
    }
    mesh.insert_attribute(Mesh::ATTRIBUTE_NORMAL, vec![[0.0, 1.0, 0.0]; positions.len()]);
    mesh.insert_attribute(Mesh::ATTRIBUTE_POSITION, positions);
    mesh.insert_attribute(Mesh::ATTRIBUTE_COLOR, colours);
    mesh.insert_indices(Indices::U32(indices));
}

/// Neither a pillar nor the ground, so that the queries do not overlap.
type Fixed = (Without<Pillar>, Without<Ground>);

fn place_lights(
    field: Res<Field>,
    mut lights: Query<(&Light, &mut Transform), Fixed>,
    mut pillars: Query<(&Pillar, &mut Transform), Without<Ground>>,
    mut ground: Single<&mut Transform, With<Ground>>,
) {
    let scale = field.size.x / super::agents::FIELD.x;
    for (&Light(i), mut transform) in &mut lights {
        let at = field.lights[i];
        *transform = Transform::from_xyz(at.x, 3.5, -at.y).with_scale(Vec3::splat(1.1 * scale.max(0.5)));
    }
    for (&Pillar(i), mut transform) in &mut pillars {
        let (centre, radius) = field.pillars[i];
        let height = radius * 1.1;
        *transform =
            Transform::from_xyz(centre.x, height * 0.5, -centre.y).with_scale(Vec3::new(radius, height, radius));
    }
    ground.scale = Vec3::new(field.size.x * 3.0, 1.0, field.size.y * 3.0);
}

/// Keeps the whole field in view, whatever the window's shape.
fn place_camera(field: Res<Field>, window: Single<&Window>, mut camera: Single<&mut Transform, With<Camera3d>>) {
    let aspect = window.width() / window.height().max(1.0);
    let distance = (field.size.x * 0.62 / aspect.min(2.0)).max(field.size.y * 0.62) + field.size.y * 0.35;
    let sway = (field.time * 0.07).sin() * 0.12;
    let from = Quat::from_rotation_y(sway) * Vec3::new(0.0, distance * 0.86, distance * 0.72);
    **camera = Transform::from_translation(from).looking_at(Vec3::new(0.0, 0.0, field.size.y * 0.04), Vec3::Y);
}

fn show_panel(
    mut contexts: EguiContexts,
    mut panel: ResMut<Panel>,
    crowds: Query<&TensorCrowd<Senses, Acts>>,
    support: Res<TensorSupport>,
    time: Res<Time<Real>>,
) -> Result {
    let panel = panel.bypass_change_detection();
    if panel.frames.len() == HISTORY {
        panel.frames.pop_front();
    }
    panel.frames.push_back(time.delta_secs() * 1e3);
    let stats = crowds.single().map(TensorCrowd::stats).unwrap_or_default();
    egui::Window::new("Crowd").default_pos([16.0, 16.0]).resizable(false).default_width(270.0).show(
        contexts.ctx_mut()?,
        |ui| {
            ui.add(egui::Slider::new(&mut panel.agents, 0..=20_000).text("agents").step_by(100.0));
            ui.add_space(4.0);
            let row = |ui: &mut egui::Ui, name: &str, value: String| {
                ui.label(name);
                ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| ui.monospace(value));
                ui.end_row();
            };
            let ms = |duration: std::time::Duration| format!("{:.2} ms", duration.as_secs_f64() * 1e3);
            egui::Grid::new("figures").num_columns(2).min_col_width(120.0).show(ui, |ui| {
                row(ui, "backend", support.backend.to_string());
                row(ui, "rows in the batch", stats.rows.to_string());
                row(ui, "gather", ms(stats.gather));
                row(ui, "answer after", format!("{} ({} frames)", ms(stats.step), stats.latency));
                row(ui, "frames without a step", stats.skipped.to_string());
                let mean = panel.frames.iter().sum::<f32>() / panel.frames.len().max(1) as f32;
                row(ui, "frame", format!("{mean:.1} ms"));
            });
            graph(ui, &panel.frames);
            ui.weak("F12 opens the inspector");
        },
    );
    Ok(())
}

/// The last frame times, with a line at 60 frames per second.
fn graph(ui: &mut egui::Ui, frames: &VecDeque<f32>) {
    let (response, painter) = ui.allocate_painter(egui::vec2(ui.available_width(), 56.0), egui::Sense::hover());
    let area = response.rect;
    painter.rect_filled(area, 3.0, ui.visuals().extreme_bg_color);
    let most = frames.iter().copied().fold(33.0f32, f32::max) * 1.1;
    let at = |i: usize, ms: f32| {
        egui::pos2(area.left() + i as f32 / HISTORY as f32 * area.width(), area.bottom() - ms / most * area.height())
    };
    let line = egui::Stroke::new(1.0, egui::Color32::from_gray(90));
    painter.line_segment([at(0, 1000.0 / 60.0), at(HISTORY, 1000.0 / 60.0)], line);
    let points: Vec<egui::Pos2> = frames.iter().enumerate().map(|(i, &ms)| at(i, ms)).collect();
    painter.line(points, egui::Stroke::new(1.5, egui::Color32::from_rgb(110, 200, 255)));
}

/// Saves a screenshot and exits, if the command line asks for it.
fn take_picture(options: Res<Options>, mut frame: Local<u32>, mut commands: Commands) {
    *frame += 1;
    let last = options.frames.or(options.screenshot.as_ref().map(|_| FRAMES));
    if last != Some(*frame) {
        return;
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
            commands.write_message(AppExit::Success);
        }
    }
}
