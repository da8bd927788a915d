//! The picture: the texture on a wall, and a field of bars in front of it whose rows are the latest spectra.

use std::collections::VecDeque;

use bevy::asset::RenderAssetUsages;
use bevy::camera::Hdr;
use bevy::camera::visibility::NoFrustumCulling;
use bevy::core_pipeline::tonemapping::Tonemapping;
use bevy::mesh::{Indices, PrimitiveTopology};
use bevy::post_process::bloom::Bloom;
use bevy::prelude::*;
use bevy::render::view::screenshot::{Screenshot, ScreenshotCaptured, save_to_disk};
use bevy_tensor_compute::image::image_for_tensor;
use bevy_tensor_compute::prelude::*;

use super::Options;
use super::listen::{BANDS, COLUMNS, HOP, ListenPlugin, Picture, Player, RATE, Shown, band_hz, colour};

/// Bars of a row, and rows.
const BARS: usize = 64;
const ROWS: usize = 44;
/// The distance between bars and between rows, the width of a bar, and the height of the loudest.
const ACROSS: f32 = 0.31;
const ALONG: f32 = 0.27;
const WIDTH: f32 = 0.23;
const HEIGHT: f32 = 3.4;
/// The wall: size, height of its centre, and how far back it is.
const WALL: Vec2 = Vec2::new(20.2, 5.4);
const WALL_AT: Vec3 = Vec3::new(0.0, 4.9, -8.2);
/// Frequencies with a label.
const LABELS: [(f32, &str); 6] =
    [(100.0, "100 Hz"), (500.0, "500"), (1000.0, "1 kHz"), (2000.0, "2 kHz"), (4000.0, "4 kHz"), (7500.0, "7.5 kHz")];

/// The latest spectra, the newest first, and the mesh of their bars.
#[derive(Resource)]
struct Bars {
    rows: VecDeque<[f32; BARS]>,
    mesh: Handle<Mesh>,
}

#[derive(Component)]
struct Status;

#[derive(Component)]
struct VoiceMeter;

/// A label at a place of the wall.
#[derive(Component)]
struct Label(Vec3);

pub fn run(options: Options) -> Result<(), String> {
    let window = Window { resolution: options.size.into(), title: "Spectrogram".to_owned(), ..default() };
    let mut app = App::new();
    app.add_plugins((
        AnywherePlugins::windowed(window),
        TensorComputePlugin { backend: options.backend, ..default() },
        TensorInspectorPlugin::default(),
        ListenPlugin,
    ))
    .insert_resource(ClearColor(Color::srgb(0.008, 0.009, 0.018)))
    .insert_resource(options)
    .add_systems(PostStartup, spawn_scene)
    .add_systems(Update, (draw_bars, show_status, place_labels, take_picture));
    #[cfg(feature = "onnx")]
    app.add_plugins(super::voice::VoicePlugin).add_systems(Update, show_voice);
    match app.run() {
        AppExit::Success => Ok(()),
        AppExit::Error(code) => Err(format!("ended with code {code}")),
    }
}

fn spawn_scene(
    mut commands: Commands,
    mut meshes: ResMut<Assets<Mesh>>,
    mut materials: ResMut<Assets<StandardMaterial>>,
    mut images: ResMut<Assets<Image>>,
    mut player: ResMut<Player>,
    picture: Res<Picture>,
    options: Res<Options>,
) {
    player.repeats = true;
    // A screenshot shows the same moment on fast and slow machines.
    player.step = options.screenshot.as_ref().map(|_| 1.0 / 40.0);
    commands.spawn((
        Camera3d::default(),
        Hdr,
        Tonemapping::TonyMcMapface,
        Bloom { intensity: 0.12, ..Bloom::NATURAL },
        Transform::from_xyz(0.0, 7.0, 14.2).looking_at(Vec3::new(0.0, 2.35, -2.5), Vec3::Y),
    ));
    // The texture that the device writes.
    let image = images.add(image_for_tensor(COLUMNS as u32, BANDS as u32));
    commands.entity(picture.pixels).insert(ImageFromTensor { image: image.clone(), live: true });
    let screen = materials.add(StandardMaterial { base_color_texture: Some(image), unlit: true, ..default() });
    let wall = meshes.add(Rectangle::new(WALL.x, WALL.y));
    commands.spawn((Mesh3d(wall), MeshMaterial3d(screen), Transform::from_translation(WALL_AT)));
    let frame = materials.add(StandardMaterial { base_color: Color::srgb(0.05, 0.05, 0.09), unlit: true, ..default() });
    let frame_mesh = meshes.add(Rectangle::new(WALL.x + 0.14, WALL.y + 0.14));
    let behind = Transform::from_translation(WALL_AT - Vec3::Z * 0.05);
    commands.spawn((Mesh3d(frame_mesh), MeshMaterial3d(frame), behind));
    let ground =
        materials.add(StandardMaterial { base_color: Color::srgb(0.011, 0.012, 0.022), unlit: true, ..default() });
    let plane = meshes.add(Plane3d::default().mesh().size(120.0, 60.0));
    commands.spawn((Mesh3d(plane), MeshMaterial3d(ground), Transform::from_xyz(0.0, -0.01, 0.0)));
    let mesh = meshes.add(Mesh::new(PrimitiveTopology::TriangleList, RenderAssetUsages::default()));
    let paint = materials.add(StandardMaterial { unlit: true, ..default() });
    // The mesh changes in every frame, so its bounds would have to be computed in every frame.
    commands.spawn((Mesh3d(mesh.clone()), MeshMaterial3d(paint), NoFrustumCulling));
    commands.insert_resource(Bars { rows: VecDeque::new(), mesh });
    commands.entity(picture.latest).observe(keep_spectrum);
    spawn_texts(&mut commands);
}

fn spawn_texts(commands: &mut Commands) {
    let text =
        |text: &str, size: f32, colour: Color| (Text::new(text), TextFont::from_font_size(size), TextColor(colour));
    let (bright, dim) = (Color::srgb(0.93, 0.9, 0.96), Color::srgb(0.58, 0.55, 0.66));
    let at =
        |left: f32, top: f32| Node { position_type: PositionType::Absolute, left: px(left), top: px(top), ..default() };
    commands.spawn((text("Mel spectrogram, made on the device", 24.0, bright), at(28.0, 18.0)));
    commands.spawn((Status, text("", 15.0, dim), at(28.0, 50.0)));
    let right = Node { position_type: PositionType::Absolute, right: px(28.0), top: px(22.0), ..default() };
    commands.spawn((VoiceMeter, text("", 20.0, dim), right));
    for (hz, name) in LABELS {
        let band = (0..BANDS).min_by(|&a, &b| (band_hz(a) - hz).abs().total_cmp(&(band_hz(b) - hz).abs())).unwrap_or(0);
        let up = (band as f32 + 0.5) / BANDS as f32 - 0.5;
        let place = WALL_AT + Vec3::new(-WALL.x / 2.0 - 0.15, up * WALL.y, 0.0);
        commands.spawn((Label(place), text(name, 13.0, dim), at(0.0, -50.0)));
    }
}

/// Keeps the spectrum that has arrived, two bands to a bar.
fn keep_spectrum(ready: On<TensorReady>, bars: Option<ResMut<Bars>>) {
    let (Ok(data), Some(mut bars)) = (&ready.result, bars) else { return };
    let values = data.to_f32();
    let each = BANDS / BARS;
    let row = core::array::from_fn(|i| values[i * each..(i + 1) * each].iter().copied().fold(0.0, f32::max));
    bars.rows.push_front(row);
    bars.rows.truncate(ROWS);
}

/// Builds the mesh of all bars: a top, and the three sides that the camera may see.
fn draw_bars(bars: Res<Bars>, mut meshes: ResMut<Assets<Mesh>>) {
    if !bars.is_changed() {
        return;
    }
    let Some(mut mesh) = meshes.get_mut(&bars.mesh) else { return };
    let count = bars.rows.len() * BARS;
    let (mut positions, mut colours) = (Vec::with_capacity(count * 16), Vec::with_capacity(count * 16));
    let mut indices: Vec<u32> = Vec::with_capacity(count * 24);
    for (row, values) in bars.rows.iter().enumerate() {
        let z = 5.6 - row as f32 * ALONG;
        let age = 1.0 - row as f32 / ROWS as f32 * 0.72;
        for (i, &value) in values.iter().enumerate() {
            let x = (i as f32 - (BARS as f32 - 1.0) / 2.0) * ACROSS;
            let height = 0.03 + value.powf(1.4) * HEIGHT;
            let [r, g, b, _] = colour(0.1 + value * 0.9);
            let tint = Color::srgb_u8(r, g, b).to_linear().to_f32_array();
            let (w, y) = (WIDTH / 2.0, height);
            let faces = [
                (1.5, [[-w, y, w], [w, y, w], [w, y, -w], [-w, y, -w]]),
                (0.85, [[-w, 0.0, w], [w, 0.0, w], [w, y, w], [-w, y, w]]),
                (0.5, [[w, 0.0, w], [w, 0.0, -w], [w, y, -w], [w, y, w]]),
                (0.5, [[-w, 0.0, -w], [-w, 0.0, w], [-w, y, w], [-w, y, -w]]),
            ];
            for (shade, corners) in faces {
                let first = positions.len() as u32;
                indices.extend([0, 1, 2, 0, 2, 3].map(|corner| first + corner));
                for [dx, dy, dz] in corners {
                    positions.push([x + dx, dy, z + dz]);
                    // Darker at the foot, and with age.
                    let light = shade * age * (0.35 + 0.65 * dy / height.max(0.3)) * (1.0 + value);
                    colours.push([tint[0] * light, tint[1] * light, tint[2] * light, 1.0]);
                }
            }
        }
    }
    mesh.insert_attribute(Mesh::ATTRIBUTE_NORMAL, vec![[0.0, 1.0, 0.0]; positions.len()]);
    mesh.insert_attribute(Mesh::ATTRIBUTE_POSITION, positions);
    mesh.insert_attribute(Mesh::ATTRIBUTE_COLOR, colours);
    mesh.insert_indices(Indices::U32(indices));
}

fn show_status(
    player: Res<Player>,
    support: Res<TensorSupport>,
    input: Single<&AudioInput, With<Shown>>,
    mut text: Single<&mut Text, With<Status>>,
) {
    let total = player.samples.as_ref().map_or(0.0, |samples| samples.len() as f64 / f64::from(RATE));
    let waiting = input.figures().waiting;
    text.0 = format!(
        "{:.1} s of {total:.1} s   ·   {BANDS} bands, one column each {} ms   ·   {} backend   ·   {waiting} samples waiting",
        player.seconds(),
        HOP * 1000 / RATE as usize,
        support.backend,
    );
}

#[cfg(feature = "onnx")]
fn show_voice(voice: Res<super::voice::Voice>, mut meter: Single<(&mut Text, &mut TextColor), With<VoiceMeter>>) {
    let (text, colour) = &mut *meter;
    let Some(probability) = voice.0 else { return };
    text.0 = format!("voice {:>3.0} %", probability * 100.0);
    let quiet = Color::srgb(0.42, 0.4, 0.5);
    colour.0 = quiet.mix(&Color::srgb(1.0, 0.78, 0.3), probability);
}

/// Puts the labels beside the wall, wherever the camera sees it.
fn place_labels(camera: Single<(&Camera, &GlobalTransform)>, mut labels: Query<(&Label, &mut Node, &ComputedNode)>) {
    let (camera, transform) = *camera;
    for (label, mut node, size) in &mut labels {
        let Ok(at) = camera.world_to_viewport(transform, label.0) else { continue };
        let size = size.size() * size.inverse_scale_factor();
        (node.left, node.top) = (px(at.x - size.x - 4.0), px(at.y - size.y / 2.0));
    }
}

/// Saves a screenshot at the second that the command line asks for, and exits.
fn take_picture(options: Res<Options>, player: Res<Player>, mut done: Local<bool>, mut commands: Commands) {
    let Some(path) = options.screenshot.clone().filter(|_| !*done && player.seconds() >= options.at) else { return };
    *done = true;
    commands.spawn(Screenshot::primary_window()).observe(save_to_disk(path)).observe(
        |_: On<ScreenshotCaptured>, mut exit: MessageWriter<AppExit>| {
            exit.write(AppExit::Success);
        },
    );
}
