//! What the last batch's ops became.

use bevy_egui::egui;

use crate::plan::PlanReport;
use crate::support::Backend;

/// Recorded ops, the launches they were fused into, and the scratch memory they share.
pub fn plan_panel(ui: &mut egui::Ui, backend: Backend, report: &PlanReport) {
    ui.strong(format!("Last plan on the {backend}"));
    ui.label(format!("{} recorded nodes, {} unused, {} launches", report.recorded, report.dead, report.steps.len()));
    ui.label(format!(
        "{} bytes of scratch; {} without sharing, {} alive at once",
        report.scratch_bytes, report.unpacked_scratch_bytes, report.live_scratch_bytes
    ));
    egui::ScrollArea::vertical().id_salt(backend).max_height(320.0).auto_shrink([false, true]).show(ui, |ui| {
        egui::Grid::new(("plan", backend)).num_columns(3).striped(true).show(ui, |ui| {
            for (i, step) in report.steps.iter().enumerate() {
                ui.weak(i.to_string());
                ui.monospace(step.kernel);
                ui.label(step.ops.join(", ")).on_hover_text(step.site.to_string());
                ui.end_row();
            }
        });
    });
    if report.unfused.is_empty() {
        return;
    }
    egui::CollapsingHeader::new(format!("{} values kept in memory between launches", report.unfused.len()))
        .id_salt(("unfused", backend))
        .show(ui, |ui| {
            egui::ScrollArea::vertical().id_salt(("why", backend)).max_height(200.0).show(ui, |ui| {
                for edge in &report.unfused {
                    let [from, to] = edge.steps;
                    ui.label(format!("{from} {} to {to} {}: {}", edge.producer, edge.consumer, edge.reason));
                }
            });
        });
}
