//! The camera: WASD and the right mouse button, a slow sway without input, and the backdrop.

use bevy::asset::RenderAssetUsages;
use bevy::input::mouse::AccumulatedMouseMotion;
use bevy::prelude::*;
use bevy::render::render_resource::{Extent3d, TextureDimension, TextureFormat};
use bevy_egui::input::egui_wants_any_keyboard_input;
use bevy_egui::{EguiContext, PrimaryEguiContext};

use super::Canvas;
use super::flat::Flat;

/// Where the camera starts and returns to.
pub const HOME: Vec3 = Vec3::new(0.0, 0.15, 9.6);

/// Vertical field of view, and the minimum aspect ratio for which the tiles in front fit.
const FOV: f32 = 0.8;
const ASPECT: f32 = 1.6;

/// Size of the backdrop, its distance, and the maximum part of it that is visible.
const BACKDROP: f32 = 110.0;
const BEHIND: f32 = 60.0;
const SEEN: f32 = 0.95;

/// Maximum distance from its start position.
const LEASH: f32 = 14.0;

/// The camera that the window shows.
#[derive(Component, Default)]
pub struct MainCamera {
    yaw: f32,
    pitch: f32,
    /// Whether the user has moved the camera.
    pub steered: bool,
}

/// The background of the scene.
#[derive(Component)]
struct Backdrop;

pub fn plugin(app: &mut App) {
    app.add_systems(Startup, spawn_camera)
        .add_systems(Update, (fit, look, fly.run_if(not(egui_wants_any_keyboard_input)), sway));
}

fn spawn_camera(
    canvas: Res<Canvas>,
    mut commands: Commands,
    mut meshes: ResMut<Assets<Mesh>>,
    mut materials: ResMut<Assets<Flat>>,
    mut images: ResMut<Assets<Image>>,
) {
    let image = images.add(backdrop_image());
    let backdrop = Flat { tint: LinearRgba::WHITE, image, mode: AlphaMode::Opaque };
    commands.spawn((
        MainCamera::default(),
        // Otherwise egui uses the first camera it finds.
        (EguiContext::default(), PrimaryEguiContext),
        Camera3d::default(),
        canvas.target(),
        bevy::core_pipeline::tonemapping::Tonemapping::None,
        Msaa::Off,
        Projection::from(PerspectiveProjection { fov: FOV, ..default() }),
        Transform::from_translation(HOME),
        children![(
            Backdrop,
            Mesh3d(meshes.add(Rectangle::new(BACKDROP, BACKDROP))),
            MeshMaterial3d(materials.add(backdrop)),
            Transform::from_xyz(0.0, 0.0, -BEHIND),
        )],
    ));
}

/// A soft light behind the wall that fades into night.
fn backdrop_image() -> Image {
    const SIZE: (usize, usize) = (256, 144);
    let mut data = Vec::with_capacity(SIZE.0 * SIZE.1 * 4);
    for y in 0..SIZE.1 {
        for x in 0..SIZE.0 {
            let (u, v) = (x as f32 / SIZE.0 as f32 - 0.5, y as f32 / SIZE.1 as f32 - 0.5);
            let glow = |at: Vec2, size: f32| (-((Vec2::new(u * 1.78, v) - at).length() / size).powi(2)).exp();
            let (violet, blue) = (glow(Vec2::new(-0.38, -0.12), 0.5), glow(Vec2::new(0.42, 0.1), 0.55));
            // A little noise prevents banding in dark gradients.
            let noise = ((x * 7919 + y * 104_729) % 97) as f32 / 97.0 * 0.006;
            let colour = Vec3::new(0.022, 0.026, 0.055)
                + violet * Vec3::new(0.105, 0.045, 0.16)
                + blue * Vec3::new(0.02, 0.08, 0.15)
                + noise;
            data.extend(colour.to_array().map(|c| (c.clamp(0.0, 1.0) * 255.0) as u8));
            data.push(255);
        }
    }
    let size = Extent3d { width: SIZE.0 as u32, height: SIZE.1 as u32, depth_or_array_layers: 1 };
    Image::new(size, TextureDimension::D2, data, TextureFormat::Rgba8UnormSrgb, RenderAssetUsages::RENDER_WORLD)
}

/// A window that is taller than wide shows more above and below instead of less at the sides. The backdrop always fills
/// the view.
fn fit(
    mut camera: Single<(&Camera, &mut Projection), With<MainCamera>>,
    mut backdrop: Single<&mut Transform, With<Backdrop>>,
) {
    let (camera, projection) = &mut *camera;
    let Some(size) = camera.logical_viewport_size().filter(|size| size.min_element() > 0.0) else { return };
    let wanted = 2.0 * ((FOV / 2.0).tan() * (ASPECT * size.y / size.x).max(1.0)).atan();
    if let Projection::Perspective(now) = &**projection
        && (now.fov - wanted).abs() > 1e-4
        && let Projection::Perspective(projection) = &mut **projection
    {
        projection.fov = wanted;
    }
    let seen = 2.0 * BEHIND * (wanted / 2.0).tan() * Vec2::new(size.x / size.y, 1.0);
    let scale = (seen / (BACKDROP * SEEN)).max(Vec2::ONE).extend(1.0);
    if backdrop.scale != scale {
        backdrop.scale = scale;
    }
}

fn look(
    buttons: Res<ButtonInput<MouseButton>>,
    motion: Res<AccumulatedMouseMotion>,
    mut camera: Single<(&mut Transform, &mut MainCamera)>,
) {
    if buttons.pressed(MouseButton::Right) && motion.delta != Vec2::ZERO {
        let (transform, camera) = &mut *camera;
        camera.steered = true;
        camera.yaw = (camera.yaw - motion.delta.x * 0.003).clamp(-1.4, 1.4);
        camera.pitch = (camera.pitch - motion.delta.y * 0.003).clamp(-1.0, 1.0);
        transform.rotation = Quat::from_euler(EulerRot::YXZ, camera.yaw, camera.pitch, 0.0);
    }
}

fn fly(keys: Res<ButtonInput<KeyCode>>, time: Res<Time>, mut camera: Single<(&mut Transform, &mut MainCamera)>) {
    let axis = |plus, minus| f32::from(keys.pressed(plus)) - f32::from(keys.pressed(minus));
    let wish = Vec3::new(
        axis(KeyCode::KeyD, KeyCode::KeyA),
        axis(KeyCode::KeyE, KeyCode::KeyQ),
        axis(KeyCode::KeyS, KeyCode::KeyW),
    );
    if wish != Vec3::ZERO {
        let (transform, camera) = &mut *camera;
        camera.steered = true;
        let step = transform.rotation * wish.normalize() * 5.0 * time.delta_secs();
        transform.translation = HOME + (transform.translation + step - HOME).clamp_length_max(LEASH);
    }
}

/// The camera sways until the user moves it.
fn sway(time: Res<Time>, mut camera: Single<(&mut Transform, &MainCamera)>) {
    let (transform, camera) = &mut *camera;
    if !camera.steered {
        let t = time.elapsed_secs() * 0.35;
        transform.translation = HOME + Vec3::new(t.sin() * 0.35, (t * 0.7).cos() * 0.12, 0.0);
        transform.look_at(Vec3::new(0.0, 0.15, 0.0), Vec3::Y);
    }
}
