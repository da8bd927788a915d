//! The log panel.

use bevy_egui::egui;
use egui_extras::Column;

use super::actions::InspectorAction;
use super::log::LogKind;
use super::snapshot::InspectorSnapshot;
use super::style;

/// State of the log panel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogState {
    /// Search text for messages.
    pub search: String,
    /// Kinds that are hidden.
    pub hidden: Vec<LogKind>,
}

/// The log, newest entries first.
pub fn log_panel(ui: &mut egui::Ui, snapshot: &InspectorSnapshot, state: &mut LogState) -> Vec<InspectorAction> {
    let mut actions = Vec::new();
    ui.horizontal_wrapped(|ui| {
        style::search(ui, &mut state.search, "Search the log");
        for kind in LogKind::ALL {
            let mut shown = !state.hidden.contains(&kind);
            if ui.toggle_value(&mut shown, kind.name()).changed() {
                if shown {
                    state.hidden.retain(|hidden| *hidden != kind);
                } else {
                    state.hidden.push(kind);
                }
            }
        }
        if ui.button("Clear").clicked() {
            actions.push(InspectorAction::ClearLog);
        }
    });
    let search = state.search.to_lowercase();
    let shown = |entry: &&super::LogEntry| {
        !state.hidden.contains(&entry.kind) && (search.is_empty() || entry.text.to_lowercase().contains(&search))
    };
    let entries: Vec<_> = snapshot.log.iter().rev().filter(shown).collect();
    if entries.is_empty() {
        let hint = if snapshot.log.is_empty() {
            "Failures, evicted tensors, device changes and slow frames are listed here."
        } else {
            "No entry matches the search and the selected kinds."
        };
        style::empty(ui, "Nothing to report", hint);
        return actions;
    }
    ui.add_space(4.0);
    // Estimated number of characters per line.
    let letters = ((ui.available_width() - 180.0) / 6.5).max(20.0) as usize;
    let heights = entries.iter().map(|entry| {
        let lines =
            entry.text.lines().map(|line| line.chars().count().div_ceil(letters).max(1)).sum::<usize>().clamp(1, 8);
        style::ROW + (lines - 1) as f32 * 15.0
    });
    let heights: Vec<f32> = heights.collect();
    style::table(ui, "log")
        .auto_shrink([false, false])
        .cell_layout(egui::Layout::left_to_right(egui::Align::Min))
        .column(Column::exact(70.0))
        .column(Column::exact(80.0))
        .column(Column::remainder().clip(true))
        .body(|body| {
            body.heterogeneous_rows(heights.into_iter(), |mut row| {
                let entry = entries[row.index()];
                row.col(|ui| {
                    ui.monospace(format!("{:.1} s", entry.time.as_secs_f64()));
                });
                row.col(|ui| {
                    let colour = match entry.kind {
                        LogKind::Fault => style::bad(ui),
                        LogKind::Memory | LogKind::SlowFrame => style::doubtful(ui),
                        LogKind::Recovery => style::good(ui),
                        LogKind::Note => ui.visuals().weak_text_color(),
                    };
                    ui.colored_label(colour, entry.kind.name());
                });
                row.col(|ui| {
                    let times = if entry.times > 1 { format!(" ({} times)", entry.times) } else { String::new() };
                    ui.add(egui::Label::new(format!("{}{times}", entry.text)).wrap());
                });
            });
        });
    actions
}
