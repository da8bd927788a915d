//! The graph panel: the nodes of ONNX models, where they ran, how long they took, and what they were fused with.

use core::time::Duration;

use bevy::prelude::Entity;
use bevy_egui::egui;
use egui_extras::Column;

use super::actions::InspectorAction;
use super::snapshot::{GraphNodeRow, GraphRow, InspectorSnapshot};
use super::{format, style};
use crate::figures::NodePlace;

/// State of the graph panel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphState {
    /// Search text for names and operators.
    pub search: String,
    /// The model that is shown, if there are several.
    pub model: Option<Entity>,
    /// Whether the slowest node comes first, instead of the order of the file.
    pub slowest_first: bool,
}

/// The nodes of a model: name, operator, output shape, time, where they ran, and what they were fused with.
pub fn graph_panel(ui: &mut egui::Ui, snapshot: &InspectorSnapshot, state: &mut GraphState) -> Vec<InspectorAction> {
    let chosen = state.model.and_then(|model| snapshot.graphs.iter().find(|graph| graph.model == model));
    let Some(graph) = chosen.or(snapshot.graphs.first()) else {
        style::empty(ui, "No ONNX model", "Spawn an OnnxModel. Its nodes appear when its file is read.");
        return Vec::new();
    };
    ui.horizontal_wrapped(|ui| {
        style::search(ui, &mut state.search, "Search nodes");
        if snapshot.graphs.len() > 1 {
            for other in &snapshot.graphs {
                if ui.selectable_label(other.model == graph.model, &other.name).clicked() {
                    state.model = Some(other.model);
                }
            }
        } else {
            ui.strong(&graph.name);
        }
        ui.checkbox(&mut state.slowest_first, "Slowest first");
    });
    ui.weak(summary(graph));
    if graph.nodes.is_empty() {
        style::empty(ui, "No nodes yet", "The nodes appear when the file of the model is read.");
        return Vec::new();
    }
    let search = state.search.to_lowercase();
    let fits = |node: &&GraphNodeRow| {
        node.name.to_lowercase().contains(&search) || node.operator.to_lowercase().contains(&search)
    };
    let mut shown: Vec<&GraphNodeRow> = graph.nodes.iter().filter(fits).collect();
    if shown.is_empty() {
        style::empty(ui, "No node matches the search", "The search covers names and operators.");
        return Vec::new();
    }
    if state.slowest_first {
        shown.sort_by_key(|node| core::cmp::Reverse(node.time.unwrap_or(Duration::ZERO)));
    }
    nodes(ui, &shown);
    Vec::new()
}

/// How many nodes ran where.
fn summary(graph: &GraphRow) -> String {
    let count = |place: NodePlace| graph.nodes.iter().filter(|node| node.place == place).count();
    let places = [NodePlace::Device, NodePlace::Host, NodePlace::Folded, NodePlace::Idle];
    let parts = places.map(|place| (count(place), place)).into_iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts.map(|(count, place)| format!("{count} {place}")).collect();
    format!("{} nodes: {}", graph.nodes.len(), parts.join(", "))
}

fn nodes(ui: &mut egui::Ui, shown: &[&GraphNodeRow]) {
    let slowest = shown.iter().filter_map(|node| node.time).max().unwrap_or_default().as_secs_f32();
    let table = style::table(ui, "graph")
        .auto_shrink([false, false])
        .column(Column::remainder().at_least(120.0).clip(true))
        .column(Column::exact(120.0).clip(true))
        .column(Column::exact(110.0).clip(true))
        .column(Column::exact(120.0))
        .column(Column::exact(58.0))
        .column(Column::exact(240.0).clip(true));
    let heads = style::heads(table, &["Node", "Operator", "Output", "Time", "Ran", "Launch"]);
    heads.body(|body| {
        body.rows(style::ROW, shown.len(), |mut row| {
            let node = shown[row.index()];
            row.col(|ui| {
                style::cut(ui, &node.name).on_hover_text(&node.name);
            });
            row.col(|ui| {
                style::swatch(ui, style::colour_of(&node.operator));
                style::cut(ui, egui::RichText::new(&node.operator).monospace());
            });
            row.col(|ui| {
                style::cut(ui, node.shape.as_ref().map_or_else(|| "-".to_owned(), format::shape));
            });
            row.col(|ui| time(ui, node.time, slowest));
            row.col(|ui| match node.place {
                NodePlace::Device => drop(ui.colored_label(style::good(ui), node.place.to_string())),
                place => drop(ui.weak(place.to_string())),
            });
            row.col(|ui| {
                let text = launch(node);
                style::cut(ui, &text).on_hover_text(text);
            });
        });
    });
}

/// A time, with a bar beside it that compares it with the slowest node.
fn time(ui: &mut egui::Ui, time: Option<Duration>, slowest: f32) {
    let Some(known) = time else {
        ui.weak("-");
        return;
    };
    let share = if slowest > 0.0 { known.as_secs_f32() / slowest } else { 0.0 };
    let (rect, _) = ui.allocate_exact_size(egui::vec2(46.0, 10.0), egui::Sense::hover());
    let painter = ui.painter();
    painter.rect_filled(rect, 2.0, ui.visuals().extreme_bg_color);
    let filled = egui::Rect::from_min_size(rect.min, egui::vec2((rect.width() * share).max(1.0), rect.height()));
    painter.rect_filled(filled, 2.0, style::colour(0));
    ui.label(format::time(known));
}

/// The kernels of a node and the nodes that share them.
fn launch(node: &GraphNodeRow) -> String {
    let kernels = node.kernels.join(", ");
    match (node.kernels.is_empty(), node.shares.is_empty()) {
        (true, _) if node.place == NodePlace::Device => "a view, or in another plan".to_owned(),
        (true, _) => "-".to_owned(),
        (false, true) => kernels,
        (false, false) => format!("{kernels}, with {}", node.shares.join(", ")),
    }
}
