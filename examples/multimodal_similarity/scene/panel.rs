//! The search box, the list of results, names under the tiles, and loading progress.

use std::time::Instant;

use bevy::prelude::*;
use bevy_egui::egui::{self, Align2, Color32, CornerRadius, FontId, Margin, RichText, Stroke, vec2};
use bevy_egui::{EguiContexts, EguiPrimaryContextPass};
use bevy_tensor_compute::formats::WeightsProgress;
use bevy_tensor_compute::prelude::*;

use super::camera::MainCamera;
use super::eye::{Eye, VIEW};
use super::gallery::Tile;
use crate::engine::library::Library;
use crate::engine::models::{ModelsFailed, ModelsReady};
use crate::engine::search::{PictureRanked, TextRanked, TextSearch, best};
use crate::options::checked;

/// Queries that are shown in turn until the user types.
const SAMPLES: [&str; 6] =
    ["something to drink", "travel", "a musical instrument", "winter", "a fruit", "it is raining"];

/// Seconds for which each sample is shown.
const STAY: f32 = 6.0;

const ACCENT: Color32 = Color32::from_rgb(255, 206, 120);
const WRONG: Color32 = Color32::from_rgb(255, 138, 122);
const TEXT: Color32 = Color32::from_rgb(226, 230, 245);
const FAINT: Color32 = Color32::from_rgb(140, 148, 178);
const GLASS: Color32 = Color32::from_rgba_premultiplied(13, 15, 28, 214);

/// Distance of panels from the edge of the window, and the width of a list with its margins.
const EDGE: f32 = 22.0;
const LIST: f32 = 248.0;

/// Whether there is room for lists next to the search box.
fn is_wide(context: &egui::Context) -> bool {
    context.content_rect().width() > 900.0
}

/// The text in the search box, and its results.
#[derive(Resource)]
pub struct SearchBox {
    text: String,
    /// Whether the text was entered by the user or on the command line.
    typed: bool,
    sample: usize,
    next_sample: f32,
    note: Option<String>,
    /// Why a model failed to load.
    failure: Option<String>,
    ms: Option<f64>,
    start: Instant,
    first_result: Option<f64>,
    captions: Vec<(usize, f32)>,
    /// What the captions describe.
    seen: String,
}

impl SearchBox {
    pub fn new(query: Option<String>, start: Instant) -> Self {
        Self {
            typed: query.is_some(),
            text: query.unwrap_or_default(),
            sample: 0,
            next_sample: 0.0,
            note: None,
            failure: None,
            ms: None,
            start,
            first_result: None,
            captions: Vec::new(),
            seen: String::new(),
        }
    }
}

/// Bytes of loaded weights, by model.
#[derive(Resource, Default)]
struct Progress(bevy::platform::collections::HashMap<Entity, (u64, u64)>);

pub fn plugin(app: &mut App) {
    app.init_resource::<Progress>()
        .add_observer(|event: On<WeightsProgress>, mut progress: ResMut<Progress>| {
            progress.0.insert(event.entity, (event.done, event.total));
        })
        .add_systems(Update, (hear, play_samples))
        .add_systems(EguiPrimaryContextPass, (show_names, show_search, show_best, show_foot).chain());
}

/// Stores the time of answers, and errors.
fn hear(
    mut texts: MessageReader<TextRanked>,
    mut pictures: MessageReader<PictureRanked>,
    mut failed: MessageReader<ModelsFailed>,
    mut search: ResMut<SearchBox>,
) {
    for ModelsFailed(message) in failed.read() {
        search.failure = Some(message.clone());
    }
    for answer in texts.read() {
        search.note = match &answer.scores {
            Ok(_) if answer.truncated => Some("only the first 256 tokens are read".to_owned()),
            Ok(_) => None,
            Err(error) => Some(error.clone()),
        };
        search.ms = answer.scores.is_ok().then_some(answer.ms);
        let first = search.start.elapsed().as_secs_f64();
        if search.first_result.is_none() {
            info!("first result {first:.2} s after the start");
        }
        search.first_result.get_or_insert(first);
    }
    for answer in pictures.read() {
        if let Ok(scores) = &answer.scores {
            (search.captions, search.seen) = (best(scores, 4), answer.name.clone());
        }
    }
}

/// Shows sample queries until the user types.
fn play_samples(
    time: Res<Time>,
    ready: Res<ModelsReady>,
    mut search_box: ResMut<SearchBox>,
    mut search: ResMut<TextSearch>,
) {
    if search_box.typed || !ready.text || time.elapsed_secs() < search_box.next_sample {
        return;
    }
    search_box.next_sample = time.elapsed_secs() + STAY;
    let sample = SAMPLES[search_box.sample % SAMPLES.len()];
    search_box.sample += 1;
    search_box.text = sample.to_owned();
    search.wanted = Some(sample.to_owned());
}

fn glass() -> egui::Frame {
    egui::Frame::new()
        .fill(GLASS)
        .stroke(Stroke::new(1.0, Color32::from_rgba_premultiplied(60, 66, 96, 120)))
        .corner_radius(CornerRadius::same(14))
        .inner_margin(Margin::symmetric(16, 10))
}

fn show_search(
    mut contexts: EguiContexts,
    mut search_box: ResMut<SearchBox>,
    mut search: ResMut<TextSearch>,
    mut eye: ResMut<Eye>,
    ready: Res<ModelsReady>,
    progress: Res<Progress>,
) -> Result {
    let context = contexts.ctx_mut()?;
    let beside = if is_wide(context) { 2.0 * (LIST + EDGE) } else { 2.0 * EDGE };
    let width = (context.content_rect().width() - beside - 32.0).clamp(200.0, 560.0);
    egui::Area::new("search".into()).anchor(Align2::CENTER_TOP, vec2(0.0, EDGE)).show(context, |ui| {
        glass().show(ui, |ui| {
            ui.set_width(width);
            ui.horizontal(|ui| {
                let (size, font) = (vec2(width - 84.0, 30.0), FontId::proportional(22.0));
                let edit = egui::TextEdit::singleline(&mut search_box.text)
                    .hint_text(RichText::new("search the pictures by words").font(font.clone()))
                    .font(font)
                    .text_color(TEXT)
                    .frame(egui::Frame::NONE);
                let response = ui.add_sized(size, edit);
                if response.gained_focus() && !search_box.typed {
                    search_box.text.clear();
                    search_box.typed = true;
                }
                if response.changed() {
                    search_box.typed = true;
                    match checked(search_box.text.clone()) {
                        Ok(text) => search.wanted = Some(text),
                        Err(message) => search_box.note = Some(message),
                    }
                }
                ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                    let colour = if eye.open { ACCENT } else { FAINT };
                    let label = RichText::new("camera").size(14.0).color(colour);
                    let button = egui::Button::new(label).fill(Color32::TRANSPARENT).stroke(Stroke::new(1.0, colour));
                    if ui.add(button.corner_radius(8)).on_hover_text("what does the camera see?").clicked() {
                        eye.open = !eye.open;
                    }
                });
            });
            let (done, total) = progress.0.values().fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
            if search_box.failure.is_none() && (!ready.text || !ready.vision) {
                let part = if total == 0 { 0.0 } else { done as f32 / total as f32 };
                let bar = egui::ProgressBar::new(part).desired_height(4.0).fill(ACCENT);
                ui.add(bar);
            }
            for (note, colour) in [(&search_box.failure, WRONG), (&search_box.note, ACCENT)] {
                if let Some(note) = note {
                    ui.label(RichText::new(note).size(13.0).color(colour));
                }
            }
        });
    });
    Ok(())
}

/// A name, truncated to the available width, and its score on the right.
fn scored(ui: &mut egui::Ui, name: &str, colour: Color32, score: f32) {
    let size = vec2(ui.available_width(), 18.0);
    ui.allocate_ui_with_layout(size, egui::Layout::right_to_left(egui::Align::Center), |ui| {
        ui.label(RichText::new(format!("{score:.2}")).size(13.0).color(FAINT));
        ui.with_layout(egui::Layout::left_to_right(egui::Align::Center), |ui| {
            ui.add(egui::Label::new(RichText::new(name).size(14.0).color(colour)).truncate());
        });
    });
}

fn show_best(
    mut contexts: EguiContexts,
    search_box: Res<SearchBox>,
    library: Res<Library>,
    tiles: Query<&Tile>,
    eye: Res<Eye>,
) -> Result {
    let context = contexts.ctx_mut()?;
    let mut best: Vec<_> = tiles.iter().filter_map(|tile| Some((tile.rank?, tile))).collect();
    best.sort_by_key(|(rank, _)| *rank);
    // On a narrow window the names under the tiles are enough.
    let wide = is_wide(context);
    if !best.is_empty() && wide {
        egui::Area::new("best".into()).anchor(Align2::RIGHT_TOP, vec2(-EDGE, EDGE)).show(context, |ui| {
            glass().show(ui, |ui| {
                ui.set_width(190.0);
                for (rank, tile) in &best {
                    let colour = if *rank == 0 { ACCENT } else { TEXT };
                    scored(ui, &library.gallery[tile.index].name, colour, tile.score);
                }
                if let Some(ms) = search_box.ms {
                    ui.label(RichText::new(format!("found in {ms:.0} ms")).size(12.0).color(FAINT));
                }
            });
        });
    }
    let of_view = search_box.seen == VIEW;
    if !search_box.captions.is_empty() && (eye.open || !of_view) {
        let title = if of_view { "the camera sees" } else { search_box.seen.as_str() };
        // A list next to the search box, or a line below it.
        let (top, width) = if wide { (EDGE, 210.0) } else { (EDGE + 62.0, context.content_rect().width() - 76.0) };
        egui::Area::new("captions".into()).anchor(Align2::LEFT_TOP, vec2(EDGE, top)).show(context, |ui| {
            glass().show(ui, |ui| {
                ui.set_width(width);
                if !wide {
                    let names: Vec<&str> =
                        search_box.captions.iter().map(|(i, _)| library.captions[*i].as_str()).collect();
                    let line = RichText::new(format!("{title}: {}", names.join(", "))).size(13.0).color(TEXT);
                    ui.add(egui::Label::new(line).truncate());
                    return;
                }
                ui.label(RichText::new(title).size(12.0).color(FAINT));
                for (i, score) in &search_box.captions {
                    scored(ui, &library.captions[*i], TEXT, *score);
                }
            });
        });
    }
    Ok(())
}

/// The names of the tiles in front, under them.
fn show_names(
    mut contexts: EguiContexts,
    camera: Single<(&Camera, &Transform), With<MainCamera>>,
    tiles: Query<(&Tile, &Transform)>,
    library: Res<Library>,
) -> Result {
    let context = contexts.ctx_mut()?;
    let scale = (context.content_rect().width() / 1280.0).clamp(0.6, 1.0);
    let painter = context.layer_painter(egui::LayerId::background());
    let (camera, view) = *camera;
    // The current transforms: Bevy's global transforms are still those of the last frame.
    let view = GlobalTransform::from(*view);
    for (tile, place) in &tiles {
        let Some(rank) = tile.rank else { continue };
        let below = place.translation - Vec3::Y * place.scale.y * 0.52;
        let Ok(at) = camera.world_to_viewport(&view, below) else { continue };
        let (size, colour) = if rank == 0 { (19.0, ACCENT) } else { (15.0, TEXT) };
        let name = library.gallery[tile.index].name.clone();
        let text = painter.layout_no_wrap(name, FontId::proportional(size * scale), colour);
        let rect = Align2::CENTER_TOP.anchor_size(egui::pos2(at.x, at.y + 4.0), text.size());
        // Keeps the name readable on any background.
        painter.rect_filled(rect.expand2(vec2(9.0, 2.0)), CornerRadius::same(10), Color32::from_black_alpha(150));
        painter.galley(rect.min, text, colour);
    }
    Ok(())
}

fn show_foot(mut contexts: EguiContexts, support: Res<TensorSupport>) -> Result {
    let context = contexts.ctx_mut()?;
    let rect = context.content_rect();
    let painter = context.layer_painter(egui::LayerId::background());
    let font = FontId::proportional((rect.width() / 40.0).clamp(8.0, 12.5));
    let keys = "WASD, Q, E and right mouse to fly   ·   C what the camera sees   ·   F12 inspector";
    let keys = painter.text(rect.left_bottom() + vec2(24.0, -16.0), Align2::LEFT_BOTTOM, keys, font.clone(), FAINT);
    let backend = painter.layout_no_wrap(format!("tensors on the {}", support.backend), font, FAINT);
    // Above the keys if both do not fit side by side.
    let above = if keys.width() + backend.size().x + 80.0 > rect.width() { keys.height() + 4.0 } else { 0.0 };
    let place = Align2::RIGHT_BOTTOM.anchor_size(rect.right_bottom() + vec2(-24.0, -16.0 - above), backend.size());
    painter.galley(place.min, backend, FAINT);
    Ok(())
}
