//! A small scene: characters in a row, with their text over their heads as it comes.

use std::time::Instant;

use bevy::prelude::*;
use bevy::render::view::screenshot::{Screenshot, save_to_disk};
use bevy::window::WindowResolution;
use bevy_tensor_compute::formats::gguf::GgufModel;
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::text::{DoneReason, Speaker, SpeakerOf, TextDone, TextModel, TextModelReady, TextToken};

use super::Options;

/// The text over a character's head.
#[derive(Component)]
struct Bubble(Entity);

/// The line with figures.
#[derive(Component)]
struct Figures;

/// Tokens of the last seconds.
#[derive(Resource, Default)]
struct Pace {
    tokens: usize,
    start: Option<Instant>,
    done: usize,
    /// Frames since everything was said, for the picture.
    frames: u32,
}

pub fn run(options: Options) -> Result<(), String> {
    let (folder, name) = options.file()?;
    let mut assets = AssetPlugin::default();
    if let Some(folder) = folder {
        assets.file_path = folder;
    }
    let window = Window {
        title: "Characters that talk".to_owned(),
        resolution: WindowResolution::new(options.size.0, options.size.1),
        ..default()
    };
    let exit = App::new()
        .add_plugins(
            AnywherePlugins::default().set(assets).set(WindowPlugin { primary_window: Some(window), ..default() }),
        )
        .add_plugins((TensorComputePlugin { backend: options.backend, ..default() }, TensorInspectorPlugin::default()))
        .insert_resource(ClearColor(Color::srgb(0.09, 0.10, 0.14)))
        .insert_resource(options)
        .init_resource::<Pace>()
        .add_systems(Startup, move |mut commands: Commands, server: Res<AssetServer>| {
            commands.spawn(Camera2d);
            commands.spawn((Name::new("storyteller"), TextModel::new(server.load::<GgufModel>(name.clone()))));
        })
        .add_observer(build)
        .add_observer(show)
        .add_observer(end)
        .add_systems(Update, (show_figures, take_picture))
        .run();
    if exit.is_success() { Ok(()) } else { Err("the app ended with an error".to_owned()) }
}

/// Spawns the characters once the model is loaded.
fn build(ready: On<TextModelReady>, options: Res<Options>, mut commands: Commands) {
    if let Err(error) = &ready.result {
        error!("{error}");
        commands.write_message(AppExit::error());
        return;
    }
    let count = if options.speakers == 0 { 3 } else { options.speakers };
    let colours = [Color::srgb(0.93, 0.55, 0.40), Color::srgb(0.45, 0.72, 0.95), Color::srgb(0.60, 0.85, 0.50)];
    let root = Node {
        width: Val::Percent(100.0),
        height: Val::Percent(100.0),
        justify_content: JustifyContent::SpaceEvenly,
        align_items: AlignItems::End,
        padding: UiRect::all(Val::Px(24.0)),
        ..default()
    };
    let root = commands.spawn(root).id();
    for i in 0..count {
        let speaker = commands.spawn((Speaker::new(options.sampler(i)), SpeakerOf(ready.entity))).id();
        let say = options.say(speaker, i);
        let beginning = options.prompt.clone().unwrap_or_else(|| super::BEGINNINGS[i % 3].to_owned());
        commands.trigger(say);
        let colour = colours[i % colours.len()];
        let column = Node {
            flex_direction: FlexDirection::Column,
            align_items: AlignItems::Center,
            width: Val::Percent(90.0 / count as f32),
            row_gap: Val::Px(12.0),
            ..default()
        };
        let text =
            Node { padding: UiRect::all(Val::Px(14.0)), border_radius: BorderRadius::all(Val::Px(14.0)), ..default() };
        let round = |size: f32, height: f32, radius: BorderRadius| {
            (
                Node { width: Val::Px(size), height: Val::Px(height), border_radius: radius, ..default() },
                BackgroundColor(colour),
            )
        };
        commands.entity(root).with_child((
            column,
            children![
                (
                    text,
                    BackgroundColor(Color::srgb(0.96, 0.95, 0.91)),
                    children![(
                        Text::new(beginning),
                        TextFont { font_size: FontSize::Px(17.0), ..default() },
                        TextColor(Color::srgb(0.13, 0.13, 0.16)),
                        Bubble(speaker),
                    )],
                ),
                round(64.0, 64.0, BorderRadius::MAX),
                round(
                    120.0,
                    110.0,
                    BorderRadius { top_left: Val::Px(56.0), top_right: Val::Px(56.0), ..BorderRadius::ZERO }
                ),
            ],
        ));
    }
    commands.spawn((
        Text::new(""),
        TextFont { font_size: FontSize::Px(15.0), ..default() },
        TextColor(Color::srgb(0.75, 0.78, 0.85)),
        Node { position_type: PositionType::Absolute, left: Val::Px(14.0), top: Val::Px(10.0), ..default() },
        Figures,
    ));
}

fn show(token: On<TextToken>, mut bubbles: Query<(&Bubble, &mut Text)>, mut pace: ResMut<Pace>) {
    pace.tokens += 1;
    pace.start.get_or_insert_with(Instant::now);
    for (_, mut text) in bubbles.iter_mut().filter(|(bubble, _)| bubble.0 == token.speaker) {
        text.push_str(&token.text);
    }
}

fn end(done: On<TextDone>, mut pace: ResMut<Pace>) {
    pace.done += 1;
    if let DoneReason::Error(error) = &done.reason {
        error!("{error}");
    }
}

fn show_figures(pace: Res<Pace>, mut line: Query<&mut Text, With<Figures>>, diagnostics: Res<TensorDiagnostics>) {
    let (Some(start), Ok(mut line)) = (pace.start, line.single_mut()) else { return };
    let rate = pace.tokens as f64 / start.elapsed().as_secs_f64().max(0.001);
    let figures = diagnostics.figures();
    line.0 = format!("{} tokens, {rate:.0} a second, {} plans built. F12: inspector", pace.tokens, figures.plans_built);
}

/// Saves a picture when everything was said, and exits.
fn take_picture(
    options: Res<Options>,
    mut pace: ResMut<Pace>,
    speakers: Query<(), With<Speaker>>,
    mut commands: Commands,
) {
    let Some(path) = options.screenshot.clone() else { return };
    if pace.done == 0 || pace.done < speakers.iter().count() {
        return;
    }
    pace.frames += 1;
    match pace.frames {
        5 => drop(commands.spawn(Screenshot::primary_window()).observe(save_to_disk(path))),
        60 => drop(commands.write_message(AppExit::Success)),
        _ => {}
    }
}
