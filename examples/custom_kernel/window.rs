//! With a display: the pictures on a texture, sliders next to them, and the result of the last edit.

use bevy::asset::RenderAssetUsages;
use bevy::prelude::*;
use bevy::render::render_resource::{Extent3d, TextureDimension, TextureFormat};
use bevy::render::view::screenshot::{Screenshot, save_to_disk};

use crate::{Progress, SIZE, next_picture};

pub fn plugin(app: &mut App) {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|i| arguments.get(i + 1).cloned());
    app.insert_resource(Ending {
        frames: value("--frames").and_then(|frames| frames.parse().ok()),
        screenshot: value("--screenshot"),
    })
    .add_systems(Startup, spawn_canvas)
    .add_systems(Update, (show, end));
    #[cfg(feature = "inspector")]
    app.add_plugins(bevy_egui::EguiPlugin::default()).add_systems(bevy_egui::EguiPrimaryContextPass, sliders);
}

/// When to exit, and where to save the screenshot.
#[derive(Resource)]
struct Ending {
    frames: Option<u32>,
    screenshot: Option<String>,
}

#[derive(Component)]
struct Canvas;

fn spawn_canvas(mut commands: Commands, mut images: ResMut<Assets<Image>>) {
    let size = Extent3d { width: SIZE.x, height: SIZE.y, depth_or_array_layers: 1 };
    let image = Image::new_fill(
        size,
        TextureDimension::D2,
        &[5, 8, 23, 255],
        TextureFormat::Rgba8UnormSrgb,
        RenderAssetUsages::default(),
    );
    commands.spawn(Camera3d::default());
    let fills = Node { width: percent(100), height: percent(100), ..default() };
    commands.spawn((Canvas, fills, ImageNode::new(images.add(image))));
}

/// Pictures arrive a frame or two after they were recorded. Only the newest is shown.
fn show(
    canvas: Single<&ImageNode, With<Canvas>>,
    mut images: ResMut<Assets<Image>>,
    mut progress: ResMut<Progress>,
) -> Result {
    while let Some(picture) = next_picture(&mut progress)? {
        if let Some(mut image) = images.get_mut(&canvas.image) {
            image.data = Some(picture.bytes().to_vec());
        }
    }
    Ok(())
}

fn end(ending: Res<Ending>, mut frame: Local<u32>, mut commands: Commands, mut exit: MessageWriter<AppExit>) {
    *frame += 1;
    let Some(last) = ending.frames else { return };
    if *frame == last
        && let Some(file) = &ending.screenshot
    {
        commands.spawn(Screenshot::primary_window()).observe(save_to_disk(file.clone()));
    }
    // Saving the screenshot takes some frames.
    if *frame > last + 30 {
        exit.write(AppExit::Success);
    }
}

#[cfg(feature = "inspector")]
fn sliders(
    mut contexts: bevy_egui::EguiContexts,
    plane: Option<Res<crate::Plane>>,
    progress: Res<Progress>,
    support: Res<bevy_tensor_compute::support::TensorSupport>,
    mut params: ResMut<crate::Params>,
) -> Result {
    use bevy_egui::egui;
    let mut changed = *params;
    egui::Window::new("Gray-Scott").default_pos([16.0, 16.0]).default_width(280.0).show(contexts.ctx_mut()?, |ui| {
        ui.add(egui::Slider::new(&mut changed.feed, 0.01..=0.09).text("feed").fixed_decimals(4));
        ui.add(egui::Slider::new(&mut changed.kill, 0.045..=0.07).text("kill").fixed_decimals(4));
        ui.horizontal(|ui| {
            for (name, feed, kill) in
                [("coral", 0.0545, 0.062), ("mitosis", 0.0367, 0.0649), ("maze", 0.029, 0.057), ("worms", 0.078, 0.061)]
            {
                if ui.button(name).clicked() {
                    (changed.feed, changed.kill) = (feed, kill);
                }
            }
        });
        ui.separator();
        ui.label(format!("{} steps on the {}", progress.steps, support.backend));
        let Some(plane) = plane else { return };
        ui.label(format!("version {} of gray_scott.wgsl: edit it and save", plane.step.version()));
        if let Some(error) = plane.step.error().or(plane.paint.error()) {
            ui.colored_label(egui::Color32::LIGHT_RED, error.to_string());
        }
    });
    *params = changed;
    Ok(())
}
