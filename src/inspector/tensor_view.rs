//! The values of one tensor: statistics, histogram, image, pages of numbers, and editing of one element.

use std::path::PathBuf;
use std::sync::Arc;

use bevy::prelude::Entity;
use bevy_egui::egui;

use super::actions::{InspectorAction, Picture};
use super::snapshot::{InspectorSnapshot, TensorRow};
use super::values::{Plane, TensorValues};
use super::{chart, format, style};

/// Maximum rows and columns per page.
const PAGE: [usize; 2] = [12, 8];
/// Width of a number and its spacing.
const NUMBER: f32 = 70.0;
/// Maximum pixels of an image along an axis. Larger planes are subsampled.
const POINTS: usize = 512;

/// State of the tensor view.
#[derive(Clone, Default)]
pub(super) struct TensorViewState {
    tensor: Option<Entity>,
    /// The axes shown as rows and as columns.
    rows: usize,
    columns: usize,
    /// The index on all other axes.
    at: Vec<usize>,
    /// The first row and column of the page.
    page: [usize; 2],
    /// The index of the selected element.
    place: Vec<usize>,
    new_value: String,
    path: String,
    texture: Option<(PictureKey, egui::TextureHandle)>,
}

impl core::fmt::Debug for TensorViewState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TensorViewState")
            .field("tensor", &self.tensor)
            .field("page", &self.page)
            .finish_non_exhaustive()
    }
}

/// Identifies the data that an image was created from.
#[derive(Clone)]
struct PictureKey {
    /// Holding the values keeps their address unique.
    values: Arc<TensorValues>,
    axes: [usize; 2],
    at: Vec<usize>,
}

impl PictureKey {
    fn same(&self, values: &Arc<TensorValues>, axes: [usize; 2], at: &[usize]) -> bool {
        Arc::ptr_eq(&self.values, values) && self.axes == axes && self.at == at
    }
}

/// Shows the values of a tensor, if they were read.
pub(super) fn tensor_view(
    ui: &mut egui::Ui,
    row: &TensorRow,
    snapshot: &InspectorSnapshot,
    state: &mut TensorViewState,
    actions: &mut Vec<InspectorAction>,
) {
    let rank = row.shape.rank();
    if state.tensor != Some(row.entity) || state.at.len() != rank {
        // Another tensor was selected, or the shape changed. Start from the beginning.
        let texture = state.texture.take();
        *state = TensorViewState {
            tensor: Some(row.entity),
            rows: rank.saturating_sub(2),
            columns: rank.saturating_sub(1),
            at: vec![0; rank],
            place: vec![0; rank],
            path: format!("{}.npy", file_name(&row.name)),
            texture,
            ..TensorViewState::default()
        };
    }
    if let Some(error) = &snapshot.values_error {
        ui.colored_label(style::bad(ui), error);
    }
    let values = snapshot.values.as_ref().filter(|values| values.tensor == row.entity && values.shape == row.shape);
    let Some(values) = values else {
        if row.shape.elements() == 0 {
            ui.weak("This tensor has no elements, so there are no values to show.");
        } else if snapshot.reading {
            ui.horizontal(|ui| {
                ui.spinner();
                ui.weak("Reading the values.");
            });
        } else {
            ui.weak("The values were not read. Large tensors are only read with \"Read now\".");
        }
        return;
    };
    if values.values.is_empty() {
        ui.weak("This tensor has no elements, so there are no values to show.");
        return;
    }
    egui::ScrollArea::vertical().id_salt("values").auto_shrink([false, false]).show(ui, |ui| {
        ui.horizontal_top(|ui| {
            ui.vertical(|ui| {
                ui.set_width(250.0);
                statistics(ui, values);
                save(ui, row, values, state, actions);
                picture(ui, values, state);
            });
            ui.separator();
            ui.vertical(|ui| {
                axes(ui, values, state);
                page(ui, values, state);
                edit(ui, row, values, state, actions);
            });
        });
    });
}

/// Replaces characters that file systems may not accept.
fn file_name(name: &str) -> String {
    let plain = name.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' });
    plain.take(60).collect()
}

fn statistics(ui: &mut egui::Ui, values: &TensorValues) {
    let s = &values.statistics;
    let known = |x: Option<f64>| x.map_or_else(|| "-".to_owned(), format::value);
    egui::Grid::new("statistics").num_columns(4).spacing([10.0, 2.0]).show(ui, |ui| {
        let rows = [
            [("min", known(s.min)), ("max", known(s.max))],
            [("mean", known(s.mean)), ("std", known(s.deviation))],
            [("zeros", format::count(s.zeros as u64)), ("values", format::count(s.count as u64))],
        ];
        for row in rows {
            for (name, value) in row {
                ui.weak(name);
                ui.monospace(value);
            }
            ui.end_row();
        }
        for (name, count) in [("NaN", s.nan), ("infinite", s.infinite)] {
            ui.weak(name);
            let text = egui::RichText::new(format::count(count as u64)).monospace();
            ui.label(if count > 0 { text.color(style::bad(ui)) } else { text });
        }
        ui.end_row();
    });
    match (s.min, s.max) {
        (Some(min), Some(max)) => {
            chart::histogram(ui, &values.histogram, min, max, 64.0);
            ui.horizontal(|ui| {
                ui.weak(format::value(min));
                ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| ui.weak(format::value(max)));
            });
        }
        _ => {
            ui.weak("No finite values, so no histogram.");
        }
    }
}

/// Selects the row and column axes, and the index on the other axes.
fn axes(ui: &mut egui::Ui, values: &TensorValues, state: &mut TensorViewState) {
    let shape = &values.shape;
    if shape.rank() < 2 {
        return;
    }
    ui.horizontal_wrapped(|ui| {
        let before = (state.rows, state.columns, state.at.clone());
        for (label, across) in [("Rows", false), ("Columns", true)] {
            let chosen = if across { state.columns } else { state.rows };
            let text = format!("axis {chosen} ({})", shape[chosen]);
            let combo = egui::ComboBox::from_id_salt(label).selected_text(text).width(84.0).show_ui(ui, |ui| {
                for axis in 0..shape.rank() {
                    if ui.selectable_label(chosen == axis, format!("axis {axis} ({})", shape[axis])).clicked() {
                        // The two axes must differ. If they collide, swap them.
                        let other = if across { &mut state.rows } else { &mut state.columns };
                        if *other == axis {
                            *other = chosen;
                        }
                        *if across { &mut state.columns } else { &mut state.rows } = axis;
                    }
                }
            });
            style::name(ui, &combo.response, &format!("{label} axis"));
            ui.weak(if across { "across" } else { "down" });
        }
        for axis in (0..shape.rank()).filter(|axis| ![state.rows, state.columns].contains(axis)) {
            let last = shape[axis].saturating_sub(1);
            let at = &mut state.at[axis];
            *at = (*at).min(last);
            let response = ui.add(egui::DragValue::new(at).range(0..=last).prefix(format!("axis {axis}: ")));
            style::name(ui, &response, &format!("Index on axis {axis}"));
        }
        if before != (state.rows, state.columns, state.at.clone()) {
            state.page = [0, 0];
        }
    });
}

/// A page of values. Clicking a value selects it for editing.
fn page(ui: &mut egui::Ui, values: &TensorValues, state: &mut TensorViewState) {
    let at = state.at.clone();
    let plane = values.plane((values.shape.rank() > 1).then_some(state.rows), state.columns, &at);
    let size = plane.size();
    let fit = ((ui.available_width() - NUMBER) / NUMBER) as usize;
    let pages = [PAGE[0], fit.clamp(2, PAGE[1])];
    for (first, (size, page)) in state.page.iter_mut().zip(size.into_iter().zip(pages)) {
        // The shape may have changed since the page was selected.
        *first = (*first).min(size.saturating_sub(1)) / page * page;
    }
    let [rows, columns] = [0, 1].map(|i| state.page[i]..(state.page[i] + pages[i]).min(size[i]));
    ui.horizontal(|ui| {
        turn(ui, "rows", &mut state.page[0], size[0], pages[0]);
        turn(ui, "columns", &mut state.page[1], size[1], pages[1]);
    });
    egui::ScrollArea::horizontal().id_salt("page").auto_shrink([false, true]).show(ui, |ui| {
        egui::Grid::new("page").striped(true).min_col_width(62.0).spacing([6.0, 2.0]).show(ui, |ui| {
            ui.label("");
            for column in columns.clone() {
                ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| ui.weak(column.to_string()));
            }
            ui.end_row();
            for row in rows {
                ui.weak(row.to_string());
                for column in columns.clone() {
                    cell(ui, &plane, row, column, state);
                }
                ui.end_row();
            }
        });
    });
}

fn cell(ui: &mut egui::Ui, plane: &Plane, row: usize, column: usize, state: &mut TensorViewState) {
    let (value, index) = (plane.get(row, column).unwrap_or(f64::NAN), plane.index(row, column));
    let mut text = egui::RichText::new(format::value(value)).monospace();
    if !value.is_finite() {
        text = text.color(style::bad(ui));
    }
    ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
        let response = ui.add(egui::Button::selectable(state.place == index, text));
        if response.on_hover_text(format!("{index:?} = {value}")).clicked() {
            (state.place, state.new_value) = (index, value.to_string());
        }
    });
}

fn turn(ui: &mut egui::Ui, what: &str, first: &mut usize, size: usize, page: usize) {
    ui.add_enabled_ui(*first > 0, |ui| {
        if style::icon_button(ui, "⏴", &format!("Previous {what}")).clicked() {
            *first = first.saturating_sub(page);
        }
    });
    ui.label(format!("{what} {} to {} of {size}", *first, (*first + page).min(size).saturating_sub(1)));
    ui.add_enabled_ui(*first + page < size, |ui| {
        if style::icon_button(ui, "⏵", &format!("Next {what}")).clicked() {
            *first += page;
        }
    });
}

fn edit(
    ui: &mut egui::Ui,
    row: &TensorRow,
    values: &TensorValues,
    state: &mut TensorViewState,
    actions: &mut Vec<InspectorAction>,
) {
    if row.dtype.is_quantized() {
        ui.weak("Single elements of a quantised tensor cannot be changed because they are packed in blocks.");
        return;
    }
    ui.horizontal(|ui| {
        for (place, &size) in state.place.iter_mut().zip(values.shape.iter()) {
            *place = (*place).min(size.saturating_sub(1));
        }
        ui.label(format!("Value at {:?}", state.place));
        let field = egui::TextEdit::singleline(&mut state.new_value).hint_text("new value").desired_width(90.0);
        let response = ui.add(field);
        style::name(ui, &response, "New value");
        let number = state.new_value.trim().parse::<f64>().ok();
        let entered = response.lost_focus() && ui.input(|input| input.key_pressed(egui::Key::Enter));
        let clicked = ui.add_enabled(number.is_some(), egui::Button::new("Write")).clicked();
        if let (true, Some(value)) = (clicked || entered, number) {
            actions.push(InspectorAction::Write { tensor: row.entity, index: state.place.clone(), value });
            actions.push(InspectorAction::Read);
        }
    });
}

fn save(
    ui: &mut egui::Ui,
    row: &TensorRow,
    values: &TensorValues,
    state: &mut TensorViewState,
    actions: &mut Vec<InspectorAction>,
) {
    ui.horizontal(|ui| {
        let response = ui.add(egui::TextEdit::singleline(&mut state.path).desired_width(140.0));
        style::name(ui, &response, "File");
        let explained = "Save all values: as a NumPy array if the name ends in .npy, otherwise as safetensors";
        if ui.button("Save").on_hover_text(explained).clicked() && !state.path.trim().is_empty() {
            let (name, path) = (row.name.clone(), PathBuf::from(state.path.trim()));
            actions.push(InspectorAction::Save { tensor: row.entity, name, path });
        }
        if ui.button("PNG").on_hover_text("Save the image below").clicked() {
            let path = PathBuf::from(state.path.trim()).with_extension("png");
            let picture = draw(values, [state.rows, state.columns], &state.at);
            actions.push(InspectorAction::SavePicture { path, picture });
        }
    });
}

/// Shows the plane as a heat map, or the tensor as an image if it looks like one.
fn picture(ui: &mut egui::Ui, values: &Arc<TensorValues>, state: &mut TensorViewState) {
    let axes = [state.rows, state.columns];
    if !state.texture.as_ref().is_some_and(|(key, _)| key.same(values, axes, &state.at)) {
        let picture = draw(values, axes, &state.at);
        let size = [picture.width, picture.height];
        let image = egui::ColorImage::from_rgba_unmultiplied(size, &picture.rgba);
        let key = PictureKey { values: values.clone(), axes, at: state.at.clone() };
        let texture = match state.texture.take() {
            Some((_, mut texture)) => {
                texture.set(image, egui::TextureOptions::NEAREST);
                texture
            }
            None => ui.ctx().load_texture("tensor picture", image, egui::TextureOptions::NEAREST),
        };
        state.texture = Some((key, texture));
    }
    let Some((_, texture)) = &state.texture else { return };
    let size = texture.size_vec2();
    let scale = (246.0 / size.x).min(150.0 / size.y);
    // Planes with a single row get a minimum height.
    let shown = egui::vec2((size.x * scale).max(12.0), (size.y * scale).max(12.0));
    let is_image = colours(values).is_some();
    let response = ui.add(egui::Image::new((texture.id(), shown)));
    let label = if is_image { "Image" } else { "Heat map" };
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Image, true, label));
    ui.weak(if is_image { "as an image" } else { "heat map: dark is low, red is NaN or infinite" });
}

/// The channel axis, if the tensor looks like an image: it has three axes, and the last or the first has size 1, 3 or
/// 4.
fn colours(values: &TensorValues) -> Option<usize> {
    let shape = &values.shape;
    let fits = |axis: usize| [1, 3, 4].contains(&shape[axis]);
    match shape.rank() {
        3 if fits(2) => Some(2),
        3 if fits(0) => Some(0),
        _ => None,
    }
}

fn draw(values: &TensorValues, axes: [usize; 2], at: &[usize]) -> Picture {
    let (min, max) = (values.statistics.min.unwrap_or(0.0), values.statistics.max.unwrap_or(0.0));
    let (down, across) = match colours(values) {
        Some(2) => (0, 1),
        Some(_) => (1, 2),
        None => (axes[0], axes[1]),
    };
    let plane = values.plane((values.shape.rank() > 1).then_some(down), across, at);
    let [rows, columns] = plane.size();
    let step = [rows.div_ceil(POINTS).max(1), columns.div_ceil(POINTS).max(1)];
    let (height, width) = (rows.div_ceil(step[0]).max(1), columns.div_ceil(step[1]).max(1));
    let mut rgba = Vec::with_capacity(width * height * 4);
    // Images usually range from 0 to 1 or from 0 to 255. Other ranges are scaled.
    let (low, high) = match (min, max) {
        (min, max) if min >= 0.0 && max <= 1.0 => (0.0, 1.0),
        (min, max) if min >= 0.0 && max <= 255.0 => (0.0, 255.0),
        range => range,
    };
    for row in (0..rows).step_by(step[0]) {
        for column in (0..columns).step_by(step[1]) {
            match colours(values) {
                Some(axis) => {
                    let channel = |c: usize| {
                        let mut index = plane.index(row, column);
                        index[axis] = c;
                        let flat = index.iter().zip(values.shape.iter()).fold(0, |flat, (&i, &n)| flat * n + i);
                        let value = values.values.get(flat).copied().unwrap_or(0.0);
                        // NaN becomes 0.
                        ((value - low) / (high - low).max(f64::MIN_POSITIVE) * 255.0).clamp(0.0, 255.0) as u8
                    };
                    rgba.extend(match values.shape[axis] {
                        1 => [channel(0), channel(0), channel(0), 255],
                        3 => [channel(0), channel(1), channel(2), 255],
                        _ => [channel(0), channel(1), channel(2), channel(3)],
                    });
                }
                None => {
                    let value = plane.get(row, column).unwrap_or(f64::NAN);
                    let [r, g, b] = match value.is_finite() {
                        true => chart::heat((value - min) / (max - min).max(f64::MIN_POSITIVE)),
                        false => [230, 30, 60],
                    };
                    rgba.extend([r, g, b, 255]);
                }
            }
        }
    }
    rgba.resize(width * height * 4, 0);
    Picture { width, height, rgba }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::tensor::TensorData;

    fn values(data: TensorData) -> TensorValues {
        TensorValues::new(Entity::PLACEHOLDER, Duration::ZERO, &data)
    }

    #[test]
    fn images_are_drawn_with_their_colours_first_or_last() {
        let last = values(TensorData::new(&[255u8, 0, 0, 0, 0, 255], [1, 2, 3]).unwrap());
        assert_eq!(draw(&last, [1, 2], &[0; 3]).rgba, [255, 0, 0, 255, 0, 0, 255, 255]);
        let first = values(TensorData::new(&[1.0f32, 0.0, 0.0, 0.0, 0.0, 1.0], [3, 1, 2]).unwrap());
        let drawn = draw(&first, [1, 2], &[0; 3]);
        assert_eq!((drawn.width, drawn.height), (2, 1));
        assert_eq!(drawn.rgba, [255, 0, 0, 255, 0, 0, 255, 255]);
    }

    #[test]
    fn a_heat_map_shows_what_is_no_number_in_red() {
        let map = values(TensorData::new(&[0.0f32, f32::NAN, 5.0, 10.0], [2, 2]).unwrap());
        let drawn = draw(&map, [0, 1], &[0; 2]);
        assert_eq!(drawn.rgba[4..8], [230, 30, 60, 255]);
        assert_eq!(drawn.rgba[..3], chart::heat(0.0));
        assert_eq!(drawn.rgba[12..15], chart::heat(1.0));
    }

    #[test]
    fn large_planes_are_thinned_out() {
        let wide = values(TensorData::new(&vec![1u8; 2 * 1500], [2, 1500]).unwrap());
        let drawn = draw(&wide, [0, 1], &[0; 2]);
        assert_eq!((drawn.height, drawn.width, drawn.rgba.len()), (2, 500, 2 * 500 * 4));
    }

    #[test]
    fn names_become_file_names() {
        assert_eq!(file_name("layer/0 weights 🦀"), "layer_0_weights__");
        assert_eq!(file_name(&"x".repeat(300)).len(), 60);
    }
}
