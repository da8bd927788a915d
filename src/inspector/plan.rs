//! What the last batch's ops became: launches, the scratch memory they share, and what was not joined, and why.

use bevy_egui::egui;
use egui_extras::Column;

use super::actions::InspectorAction;
use super::snapshot::InspectorSnapshot;
use super::{format, style};
use crate::figures::{PlanReport, Unfused};
use crate::ir::Backend;

/// What the user picked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanState {
    /// What a launch's kernel or ops must contain.
    pub search: String,
    /// The backend whose plan is shown, where both have one.
    pub backend: Option<Backend>,
}

/// Recorded ops, the launches they were joined into, and the scratch memory they share.
pub fn plan_panel(ui: &mut egui::Ui, snapshot: &InspectorSnapshot, state: &mut PlanState) -> Vec<InspectorAction> {
    let chosen = state.backend.and_then(|backend| snapshot.plans.iter().find(|plan| plan.0 == backend));
    let Some((backend, report)) = chosen.or(snapshot.plans.first()) else {
        style::empty(ui, "No plan yet", "The plan of the last batch appears once ops have been recorded and run.");
        return Vec::new();
    };
    ui.horizontal_wrapped(|ui| {
        style::search(ui, &mut state.search, "Search launches");
        if snapshot.plans.len() > 1 {
            for (other, _) in &snapshot.plans {
                if ui.selectable_label(other == backend, other.to_string()).clicked() {
                    state.backend = Some(*other);
                }
            }
        } else {
            ui.strong(format!("Last plan on the {backend}"));
        }
        ui.label(format!(
            "{} recorded nodes, {} of them unused, became {} launches",
            report.recorded,
            report.dead,
            report.steps.len()
        ));
    });
    ui.weak(format!(
        "{} of scratch memory for {} of values; no packing could do with less than {}",
        format::bytes(report.scratch_bytes as u64),
        format::bytes(report.unpacked_scratch_bytes as u64),
        format::bytes(report.live_scratch_bytes as u64),
    ));
    if report.steps.is_empty() {
        style::empty(ui, "Nothing to launch", "The batch only moved or read memory.");
        return Vec::new();
    }
    let reserved = if report.unfused.is_empty() { 44.0 } else { (ui.available_height() * 0.3).clamp(70.0, 220.0) };
    let height = (ui.available_height() - reserved).max(80.0);
    ui.allocate_ui(egui::vec2(ui.available_width(), height), |ui| {
        ui.set_min_height(height);
        launches(ui, report, &state.search.to_lowercase());
    });
    ui.separator();
    if report.unfused.is_empty() {
        ui.weak("Nothing elementwise went through memory between two launches.");
        return Vec::new();
    }
    ui.strong(format!("{} values went through memory between two launches", report.unfused.len()));
    let row_height = ui.text_style_height(&egui::TextStyle::Body);
    egui::ScrollArea::vertical().id_salt("unfused").auto_shrink([false, false]).show_rows(
        ui,
        row_height,
        report.unfused.len(),
        |ui, rows| {
            for Unfused { producer, consumer, steps: [from, to], reason } in &report.unfused[rows] {
                style::cut(ui, format!("{from} {producer} to {to} {consumer}: {reason}"));
            }
        },
    );
    Vec::new()
}

fn launches(ui: &mut egui::Ui, report: &PlanReport, search: &str) {
    let fits = |i: &usize| {
        let step = &report.steps[*i];
        search.is_empty() || step.kernel.contains(search) || step.ops.iter().any(|op| op.contains(search))
    };
    let shown: Vec<usize> = (0..report.steps.len()).filter(fits).collect();
    if shown.is_empty() {
        style::empty(ui, "No launch fits the search", "Kernels and ops are searched.");
        return;
    }
    let table = style::table(ui, "plan")
        .auto_shrink([false, false])
        .column(Column::exact(34.0))
        .column(Column::exact(110.0).clip(true))
        .column(Column::remainder().at_least(110.0).clip(true))
        .column(Column::exact(76.0))
        .column(Column::exact(70.0))
        .column(Column::exact(150.0))
        .column(Column::exact(140.0).clip(true));
    let header = table.header(style::ROW, |mut header| {
        for title in ["#", "Kernel", "Ops in it", "Bytes", "MFLOP", "Scratch written", "Recorded at"] {
            header.col(|ui| {
                ui.strong(title);
            });
        }
    });
    header.body(|body| {
        body.rows(style::ROW, shown.len(), |mut row| {
            let i = shown[row.index()];
            let step = &report.steps[i];
            row.col(|ui| {
                ui.weak(i.to_string());
            });
            row.col(|ui| {
                style::swatch(ui, style::colour_of(step.kernel));
                style::cut(ui, egui::RichText::new(step.kernel).monospace());
            });
            row.col(|ui| {
                style::cut(ui, step.ops.join(" + "));
            });
            row.col(|ui| style::number(ui, format::bytes(step.bytes)));
            row.col(|ui| style::number(ui, format!("{:.2}", step.flops as f64 / 1e6)));
            row.col(|ui| scratch(ui, &step.scratch, report.scratch_bytes));
            row.col(|ui| {
                let site = step.site.to_string();
                let short = site.rsplit(['/', '\\']).next().unwrap_or(&site).to_owned();
                style::cut(ui, short).on_hover_text(site);
            });
        });
    });
}

/// Where in the scratch memory a launch writes.
fn scratch(ui: &mut egui::Ui, parts: &[core::ops::Range<usize>], whole: usize) {
    if parts.is_empty() || whole == 0 {
        ui.weak("into tensors");
        return;
    }
    let (rect, response) = ui.allocate_exact_size(egui::vec2(ui.available_width(), 10.0), egui::Sense::hover());
    let painter = ui.painter();
    painter.rect_filled(rect, 2.0, ui.visuals().extreme_bg_color);
    let x = |byte: usize| rect.left() + byte as f32 / whole as f32 * rect.width();
    for part in parts {
        let slot = egui::Rect::from_x_y_ranges(x(part.start)..=x(part.end).max(x(part.start) + 1.5), rect.y_range());
        painter.rect_filled(slot, 1.0, style::colour(2));
    }
    let text: Vec<String> = parts.iter().map(|part| format!("bytes {} to {}", part.start, part.end)).collect();
    response.on_hover_text(text.join(", "));
}
