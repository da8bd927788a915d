//! Every tensor under its model, searchable and sortable; one of them in detail.

use core::time::Duration;

use bevy::platform::collections::{HashMap, HashSet};
use bevy::prelude::Entity;
use bevy_egui::egui;
use egui_extras::Column;

use super::actions::InspectorAction;
use super::snapshot::{InspectorSnapshot, TensorRow};
use super::tensor_view::{TensorViewState, tensor_view};
use super::{format, style};
use crate::tensor::Residency;

/// What tensors are sorted by, within their model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorSort {
    /// Their name.
    Name,
    /// Their shape, by its number of elements.
    Shape,
    /// Their element type.
    Type,
    /// The bytes of their storage.
    Bytes,
    /// Where they are.
    Residency,
    /// How many tensors share their storage.
    Owners,
    /// When they were last used.
    LastUse,
}

/// What the user picked.
#[derive(Clone, Debug)]
pub struct TensorsState {
    /// What the name, the model's name, the type or the shape must contain.
    pub search: String,
    /// By what, and whether the other way round than from low to high.
    pub sort: (TensorSort, bool),
    /// The tensor shown in detail.
    pub selected: Option<Entity>,
    /// Whether its values are read again and again.
    pub live: bool,
    /// The shortest time between two readings.
    pub interval: Duration,
    /// Whether its values are to be read once.
    pub read_now: bool,
    /// Models whose tensors are folded away.
    pub folded: HashSet<Option<Entity>>,
    /// How its values are looked at.
    pub(super) view: TensorViewState,
    listed: Listed,
}

impl Default for TensorsState {
    fn default() -> Self {
        Self {
            search: String::new(),
            sort: (TensorSort::Name, false),
            selected: None,
            live: true,
            interval: Duration::from_millis(500),
            read_now: false,
            folded: HashSet::default(),
            view: TensorViewState::default(),
            listed: Listed::default(),
        }
    }
}

/// The lines of the table, made anew only when something changed: with ten thousand tensors that is too much for every frame.
#[derive(Clone, Debug, Default)]
struct Listed {
    key: Option<(u64, String, (TensorSort, bool), usize)>,
    lines: Vec<Line>,
    /// Tensors that fit the search.
    found: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// A model, by its place in the snapshot, and how many of its tensors fit.
    Model(usize, usize),
    /// A tensor, by its place in the snapshot.
    Tensor(usize),
}

/// All tensors, and the values of the one that is selected.
pub fn tensors_panel(
    ui: &mut egui::Ui,
    snapshot: &InspectorSnapshot,
    state: &mut TensorsState,
) -> Vec<InspectorAction> {
    let mut actions = Vec::new();
    list(snapshot, state);
    ui.horizontal(|ui| {
        style::search(ui, &mut state.search, "Search tensors");
        let all = format::count(snapshot.tensors.len() as u64);
        ui.weak(match state.search.is_empty() {
            true => format!("{all} tensors"),
            false => format!("{} of {all} tensors", format::count(state.listed.found as u64)),
        });
    });
    if snapshot.tensors.is_empty() && state.selected.is_none() {
        style::empty(ui, "No tensors", "Spawn an entity with a Tensor component and it appears here.");
        return actions;
    }
    let whole = ui.available_height();
    let table_height = if state.selected.is_some() { (whole * 0.38).clamp(90.0, 300.0) } else { whole };
    ui.push_id("tensor table", |ui| {
        ui.allocate_ui(egui::vec2(ui.available_width(), table_height), |ui| {
            ui.set_min_height(table_height);
            table(ui, snapshot, state);
        });
    });
    let Some(selected) = state.selected else { return actions };
    ui.separator();
    match snapshot.tensor(selected) {
        Some(row) => {
            if detail(ui, row, snapshot, state, &mut actions) {
                state.selected = None;
            }
        }
        None => {
            ui.horizontal(|ui| {
                ui.label(format!("Tensor {selected} is gone: it was despawned while it was selected."));
                if ui.button("Close").clicked() {
                    state.selected = None;
                }
            });
        }
    }
    actions
}

/// Brings the lines up to date.
fn list(snapshot: &InspectorSnapshot, state: &mut TensorsState) {
    let key = (snapshot.revision, state.search.clone(), state.sort, state.folded.len());
    if state.listed.key.as_ref() == Some(&key) {
        return;
    }
    let search = state.search.to_lowercase();
    let fits = |row: &TensorRow, model: &str| {
        search.is_empty()
            || row.name.to_lowercase().contains(&search)
            || model.contains(&search)
            || row.dtype.name().contains(&search)
            || format::shape(&row.shape).contains(&search)
    };
    let mut lines = Vec::with_capacity(snapshot.tensors.len() + snapshot.models.len());
    let mut by_model: HashMap<Option<Entity>, Vec<usize>> = HashMap::default();
    for (i, row) in snapshot.tensors.iter().enumerate() {
        by_model.entry(row.model).or_default().push(i);
    }
    let mut found = 0;
    for (i, model) in snapshot.models.iter().enumerate() {
        let name = model.name.to_lowercase();
        let mut tensors = by_model.remove(&model.model).unwrap_or_default();
        tensors.retain(|&i| fits(&snapshot.tensors[i], &name));
        if tensors.is_empty() {
            continue;
        }
        found += tensors.len();
        lines.push(Line::Model(i, tensors.len()));
        if !state.folded.contains(&model.model) {
            sort(&mut tensors, snapshot, state.sort);
            lines.extend(tensors.into_iter().map(Line::Tensor));
        }
    }
    state.listed = Listed { key: Some(key), lines, found };
}

fn sort(tensors: &mut [usize], snapshot: &InspectorSnapshot, (by, reverse): (TensorSort, bool)) {
    let row = |i: &usize| &snapshot.tensors[*i];
    match by {
        TensorSort::Name => tensors.sort_by(|a, b| row(a).name.cmp(&row(b).name)),
        TensorSort::Shape => tensors.sort_by_key(|i| row(i).shape.elements()),
        TensorSort::Type => tensors.sort_by_key(|i| row(i).dtype.name()),
        TensorSort::Bytes => tensors.sort_by_key(|i| row(i).usage.bytes),
        TensorSort::Residency => tensors.sort_by_key(|i| residency(row(i).usage.residency)),
        TensorSort::Owners => tensors.sort_by_key(|i| row(i).owners),
        TensorSort::LastUse => tensors.sort_by_key(|i| row(i).usage.last_used),
    }
    if reverse {
        tensors.reverse();
    }
}

pub(super) fn residency(residency: Residency) -> &'static str {
    match residency {
        Residency::Host => "host",
        Residency::Device => "device",
        Residency::Both => "both",
        Residency::Lost => "lost",
    }
}

fn table(ui: &mut egui::Ui, snapshot: &InspectorSnapshot, state: &mut TensorsState) {
    let lines = core::mem::take(&mut state.listed.lines);
    if lines.is_empty() {
        style::empty(ui, "No tensor fits the search", "Names, models, types and shapes are searched.");
    } else {
        let table = style::table(ui, "tensors")
            .auto_shrink([false, false])
            .column(Column::remainder().at_least(140.0).clip(true))
            .column(Column::exact(120.0).clip(true))
            .column(Column::exact(48.0))
            .column(Column::exact(78.0))
            .column(Column::exact(68.0))
            .column(Column::exact(62.0))
            .column(Column::exact(82.0));
        let sorts = [
            ("Name", TensorSort::Name, false),
            ("Shape", TensorSort::Shape, false),
            ("Type", TensorSort::Type, false),
            ("Bytes", TensorSort::Bytes, true),
            ("Where", TensorSort::Residency, false),
            ("Shared", TensorSort::Owners, true),
            ("Last use", TensorSort::LastUse, false),
        ];
        let header = table.header(style::ROW, |mut header| {
            style::sort_headers(&mut header, &sorts, &mut state.sort);
        });
        header.body(|body| {
            body.rows(style::ROW, lines.len(), |mut row| match lines[row.index()] {
                Line::Model(i, count) => model_line(&mut row, snapshot, state, i, count),
                Line::Tensor(i) => tensor_line(&mut row, &snapshot.tensors[i], snapshot.time, state),
            });
        });
    }
    state.listed.lines = lines;
}

fn model_line(
    row: &mut egui_extras::TableRow<'_, '_>,
    snapshot: &InspectorSnapshot,
    state: &mut TensorsState,
    i: usize,
    count: usize,
) {
    let model = &snapshot.models[i];
    let folded = state.folded.contains(&model.model);
    row.col(|ui| {
        let (icon, verb) = if folded { ("⏵", "Unfold") } else { ("⏷", "Fold") };
        if style::icon_button(ui, icon, &format!("{verb} {}", model.name)).clicked() {
            if folded {
                state.folded.remove(&model.model);
            } else {
                state.folded.insert(model.model);
            }
        }
        style::cut(ui, egui::RichText::new(&model.name).strong());
    });
    row.col(|ui| {
        ui.weak(format!("{} tensors", format::count(count as u64)));
    });
    row.col(|_| {});
    row.col(|ui| style::number(ui, format::bytes(model.usage.bytes)));
    for _ in 0..3 {
        row.col(|_| {});
    }
}

fn tensor_line(row: &mut egui_extras::TableRow<'_, '_>, tensor: &TensorRow, now: Duration, state: &mut TensorsState) {
    let selected = state.selected == Some(tensor.entity);
    row.set_selected(selected);
    row.col(|ui| {
        ui.add_space(18.0);
        let name = egui::Button::selectable(selected, tensor.name.as_str()).truncate();
        if ui.add(name).on_hover_text(&tensor.name).clicked() {
            state.selected = Some(tensor.entity);
        }
    });
    row.col(|ui| {
        style::cut(ui, egui::RichText::new(format::shape(&tensor.shape)).monospace());
    });
    row.col(|ui| {
        ui.label(tensor.dtype.name());
    });
    row.col(|ui| style::number(ui, format::bytes(tensor.usage.bytes)));
    row.col(|ui| {
        let text = residency(tensor.usage.residency);
        let pin = if tensor.usage.pinned { "📌" } else { "" };
        match tensor.usage.residency {
            Residency::Lost => ui.colored_label(style::bad(ui), text),
            Residency::Host => ui.weak(text),
            _ => ui.label(format!("{text} {pin}")),
        };
    });
    row.col(|ui| style::number(ui, if tensor.owners > 1 { tensor.owners.to_string() } else { String::new() }));
    row.col(|ui| {
        ui.weak(format::ago(now, tensor.usage.last_used));
    });
}

/// The selected tensor; whether it is to be closed.
fn detail(
    ui: &mut egui::Ui,
    row: &TensorRow,
    snapshot: &InspectorSnapshot,
    state: &mut TensorsState,
    actions: &mut Vec<InspectorAction>,
) -> bool {
    let mut close = false;
    ui.horizontal(|ui| {
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            close = style::icon_button(ui, "❌", "Close the tensor").clicked();
            if ui.button("Read now").on_hover_text("Read the values once").clicked() {
                actions.push(InspectorAction::Read);
            }
            ui.checkbox(&mut state.live, "Live").on_hover_text("Read again twice a second");
            let pinned = row.usage.pinned;
            if ui.add_enabled(!pinned, egui::Button::new("Spill now")).on_hover_text("Move it to the host").clicked() {
                actions.push(InspectorAction::Spill(row.entity));
            }
            let (label, action) = if pinned {
                ("Unpin", InspectorAction::Unpin(row.entity))
            } else {
                ("Pin", InspectorAction::Pin(row.entity))
            };
            if ui.button(label).on_hover_text("Whether it may leave the device").clicked() {
                actions.push(action);
            }
            ui.with_layout(egui::Layout::left_to_right(egui::Align::Center), |ui| {
                style::cut(ui, egui::RichText::new(&row.name).strong());
            });
        });
    });
    let owners = if row.owners > 1 { format!(", shared by {} tensors", row.owners) } else { String::new() };
    ui.horizontal_wrapped(|ui| {
        ui.weak(format!(
            "{} {} · {} on the {}{owners} · of {} · used {}",
            row.dtype.name(),
            format::shape(&row.shape),
            format::bytes(row.usage.bytes),
            residency(row.usage.residency),
            snapshot.model_name(row.model),
            format::ago(snapshot.time, row.usage.last_used),
        ));
    });
    tensor_view(ui, row, snapshot, &mut state.view, actions);
    close
}
