//! Shows what the camera sees: a second camera with the same view renders nearby pictures, without cards and glow, into
//! a small image. Its pixels are a tensor that the vision encoder processes every half second.

use bevy::camera::RenderTarget;
use bevy::camera::visibility::RenderLayers;
use bevy::prelude::*;
use bevy::render::render_resource::{TextureFormat, TextureUsages};
use bevy_egui::input::egui_wants_any_keyboard_input;
use bevy_tensor_compute::image::TensorFromImage;
use bevy_tensor_compute::prelude::*;

use super::camera::MainCamera;
use super::gallery::Face;
use crate::engine::models::Models;
use crate::engine::search::{PictureSearch, Pixels};

/// Side length of the image.
const SIDE: u32 = 224;

/// The render layer of visible pictures, and their maximum distance.
const SEEN: usize = 1;
const REACH: f32 = 8.0;

/// Field of view: the middle of the window.
const FOCUS: f32 = 0.32;

/// Seconds between searches.
const PAUSE: f32 = 0.5;

/// The name of the view among the searched pictures.
pub const VIEW: &str = "the view";

/// Whether this mode is on.
#[derive(Resource, Default)]
pub struct Eye {
    pub open: bool,
    since: f32,
}

impl Eye {
    pub fn new(open: bool) -> Self {
        Self { open, since: 0.0 }
    }
}

/// The camera that renders the view.
#[derive(Component)]
struct EyeCamera;

/// The pixels of the view.
#[derive(Component)]
struct View;

pub fn plugin(app: &mut App) {
    let toggled = toggle.run_if(not(egui_wants_any_keyboard_input));
    app.init_resource::<Eye>().add_systems(Update, (toggled, open_eye, follow, sort_out, look).chain());
}

fn toggle(keys: Res<ButtonInput<KeyCode>>, mut eye: ResMut<Eye>) {
    if keys.just_pressed(KeyCode::KeyC) {
        eye.open = !eye.open;
    }
}

/// Spawns the camera when the mode is turned on for the first time.
fn open_eye(
    eye: Res<Eye>,
    cameras: Query<(), With<EyeCamera>>,
    models: Res<Models>,
    mut images: ResMut<Assets<Image>>,
    mut commands: Commands,
) {
    if !eye.open || !cameras.is_empty() {
        return;
    }
    let mut image = Image::new_target_texture(SIDE, SIDE, TextureFormat::Rgba8UnormSrgb, None);
    // The CPU backend reads the image back to the host.
    image.texture_descriptor.usage |= TextureUsages::COPY_SRC;
    let image = images.add(image);
    commands.spawn((
        EyeCamera,
        Camera3d::default(),
        // White, like the background of the pictures that the joint space was fitted on.
        Camera { order: -1, clear_color: Color::WHITE.into(), ..default() },
        RenderLayers::layer(SEEN),
        RenderTarget::Image(image.clone().into()),
        bevy::core_pipeline::tonemapping::Tonemapping::None,
        Msaa::Off,
        Projection::from(PerspectiveProjection { fov: FOCUS, ..default() }),
        Transform::default(),
    ));
    commands.spawn((View, Name::new("view"), TensorFromImage { image, live: false }, TensorOf(models.vision)));
}

/// Copies the transform of the window's camera. Only active while the mode is on.
fn follow(
    eye: Res<Eye>,
    main: Single<&Transform, (With<MainCamera>, Without<EyeCamera>)>,
    mut camera: Single<(&mut Transform, &mut Camera), With<EyeCamera>>,
) {
    let (transform, camera) = &mut *camera;
    if camera.is_active != eye.open {
        camera.is_active = eye.open;
    }
    **transform = **main;
}

/// Hides pictures that are far behind others.
fn sort_out(
    eye: Res<Eye>,
    main: Single<&Transform, With<MainCamera>>,
    mut faces: Query<(&GlobalTransform, &mut RenderLayers), With<Face>>,
) {
    for (place, mut layers) in faces.iter_mut().filter(|_| eye.open) {
        let near = place.translation().distance(main.translation) < REACH;
        layers.set_if_neq(if near { RenderLayers::from_layers(&[0, SEEN]) } else { RenderLayers::default() });
    }
}

/// Starts a new search when the previous one has been answered.
#[expect(clippy::type_complexity, reason = "a system's query")]
fn look(
    mut eye: ResMut<Eye>,
    mut search: ResMut<PictureSearch>,
    time: Res<Time>,
    mut view: Single<(Entity, &mut TensorFromImage), (With<View>, With<Tensor>)>,
) {
    let (tensor, pixels) = &mut *view;
    // Copied every frame, because the CPU backend gets the view a few frames late.
    if pixels.live != eye.open {
        pixels.live = eye.open;
    }
    if !eye.open {
        return;
    }
    eye.since += time.delta_secs();
    if eye.since < PAUSE || !search.is_idle() {
        return;
    }
    eye.since = 0.0;
    search.wanted = Some((VIEW.to_owned(), Pixels::Tensor(*tensor)));
}
