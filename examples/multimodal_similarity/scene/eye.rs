//! "What does the camera see": a second camera with the same view renders the pictures that are near, without cards and
//! light, into a small image, whose pixels are a tensor that the vision encoder looks at every half second.

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

/// Side of the image.
const SIDE: u32 = 224;

/// The layer of what it sees, and how far that may be.
const SEEN: usize = 1;
const REACH: f32 = 8.0;

/// How wide the camera looks: what the window shows in its middle.
const FOCUS: f32 = 0.32;

/// Seconds between looks.
const PAUSE: f32 = 0.5;

/// The name of what is seen, among the pictures that are looked at.
pub const VIEW: &str = "the view";

/// Whether the camera looks.
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

/// The camera that renders what is looked at.
#[derive(Component)]
struct EyeCamera;

/// The pixels of what it renders.
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

/// The first time somebody wants to know, there is no camera yet.
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
    // On the CPU backend it has to come to the host.
    image.texture_descriptor.usage |= TextureUsages::COPY_SRC;
    let image = images.add(image);
    commands.spawn((
        EyeCamera,
        Camera3d::default(),
        // White, as behind the pictures that the joint space was fitted on.
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

/// The same place and direction as the window's camera; active only while somebody wants to know.
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

/// Pictures far behind others would only be in the way.
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

/// Looks anew when the last look has been answered.
#[expect(clippy::type_complexity, reason = "a system's query")]
fn look(
    mut eye: ResMut<Eye>,
    mut search: ResMut<PictureSearch>,
    time: Res<Time>,
    mut view: Single<(Entity, &mut TensorFromImage), (With<View>, With<Tensor>)>,
) {
    let (tensor, pixels) = &mut *view;
    // Every frame, since the CPU backend gets what is seen a few frames late.
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
