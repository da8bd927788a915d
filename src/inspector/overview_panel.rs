//! The overview panel: backend, frame cost, budget and warnings.

use bevy_egui::egui;

use super::actions::InspectorAction;
use super::log::LogKind;
use super::snapshot::InspectorSnapshot;
use super::{chart, format, style};
use crate::figures::TimingSource;
use crate::ir::Backend;
use crate::pipelines::PipelineState;
use crate::support::AdapterFacts;
use crate::tensor::Residency;

/// The backend and why it was chosen, the cost of a frame, the use of the budget, and warnings.
pub fn overview_panel(ui: &mut egui::Ui, snapshot: &InspectorSnapshot) -> Vec<InspectorAction> {
    let mut actions = Vec::new();
    let Some(support) = &snapshot.support else {
        style::empty(
            ui,
            "No tensor backend yet",
            "Add TensorComputePlugin to the app. Figures appear after its first frame.",
        );
        return actions;
    };
    egui::ScrollArea::vertical().auto_shrink([false, false]).show(ui, |ui| {
        ui.heading(format!("Runs on the {}", support.backend));
        ui.label(&support.reason);
        if let Some(adapter) = &support.adapter {
            ui.weak(format!("{} · {} · {} · {}", adapter.name, adapter.kind, adapter.api, adapter.driver));
        }
        for warning in warnings(snapshot) {
            ui.horizontal_wrapped(|ui| {
                ui.colored_label(style::doubtful(ui), "⚠");
                ui.label(warning);
            });
        }
        ui.add_space(8.0);
        ui.strong("Frame");
        frame(ui, snapshot);
        ui.add_space(8.0);
        budget(ui, snapshot);
        ui.add_space(8.0);
        ui.columns_const(|[left, right]| {
            left.strong("Total work");
            style::facts(left, "work", &work(snapshot));
            right.strong("Created (constant once the work repeats)");
            style::facts(right, "built", &built(snapshot));
        });
        ui.add_space(8.0);
        let mut debug = snapshot.debug;
        let explained =
            "Logs plans, names launches for GPU tools, and reports the op that first produces a NaN or an infinity. Slow.";
        if ui.checkbox(&mut debug, "Debug mode").on_hover_text(explained).changed() {
            actions.push(InspectorAction::SetDebug(debug));
        }
        if let Some(adapter) = &support.adapter {
            egui::CollapsingHeader::new("Device features and limits").show(ui, |ui| device(ui, adapter));
        }
    });
    actions
}

/// Large figures side by side.
fn frame(ui: &mut egui::Ui, snapshot: &InspectorSnapshot) {
    let cost = &snapshot.frame;
    let rate = cost.frame.map_or_else(|| "-".to_owned(), |frame| format!("{:.0}", 1.0 / frame.as_secs_f64()));
    let mut tiles = vec![("frame", format::known(cost.frame)), ("per second", rate)];
    let uses_gpu = snapshot.support.as_ref().is_some_and(|support| support.backend == Backend::Gpu);
    if uses_gpu || cost.gpu.is_some() {
        tiles.push(("kernels, GPU", format::known(cost.gpu)));
        tiles.push(("encoding", format::time(cost.encode)));
        tiles.push(("launches", format!("{:.1}", cost.dispatches)));
    }
    if !uses_gpu || cost.cpu.is_some() {
        tiles.push(("kernels, CPU", format::known(cost.cpu)));
        tiles.push(("CPU kernels", format!("{:.1}", cost.cpu_steps)));
    }
    ui.horizontal_wrapped(|ui| {
        for (name, value) in tiles {
            egui::Frame::group(ui.style()).show(ui, |ui| {
                ui.set_width(84.0);
                ui.vertical_centered(|ui| {
                    ui.label(egui::RichText::new(value).size(17.0).strong());
                    ui.weak(name);
                });
            });
        }
    });
}

/// The device memory in use.
fn budget(ui: &mut egui::Ui, snapshot: &InspectorSnapshot) {
    let figures = &snapshot.figures;
    let parts = [
        ("tensors", figures.device_bytes),
        ("scratch", figures.scratch_bytes),
        ("plans", figures.plan_bytes),
        ("idle buffers", figures.pool_idle_bytes),
    ];
    let total = format::bytes(figures.total_device_bytes);
    let (whole, text) = match snapshot.settings.budget {
        Some(budget) => {
            let per_cent = figures.total_device_bytes as f64 * 100.0 / budget.max(1) as f64;
            (budget, format!("{total} of a budget of {} ({per_cent:.0} %)", format::bytes(budget)))
        }
        None => (
            figures.peak_device_bytes,
            format!("{total}, no budget, peak {}", { format::bytes(figures.peak_device_bytes) }),
        ),
    };
    ui.strong("Device memory");
    ui.label(text);
    let coloured: Vec<_> =
        parts.iter().enumerate().map(|(i, &(name, bytes))| (name.to_owned(), bytes, style::colour(i))).collect();
    chart::stacked_bar(ui, "Device memory in use", &coloured, whole, snapshot.settings.budget.is_some());
    ui.horizontal_wrapped(|ui| {
        for (name, bytes, colour) in &coloured {
            style::swatch(ui, *colour);
            ui.label(format!("{name} {}", format::bytes(*bytes)));
            ui.add_space(6.0);
        }
    });
}

fn work(snapshot: &InspectorSnapshot) -> [(&'static str, String); 6] {
    let figures = &snapshot.figures;
    [
        ("batches", format::count(figures.batches_run)),
        ("launches", format::count(figures.dispatches + figures.cpu_steps)),
        ("passes / submissions", format!("{} / {}", format::count(figures.passes), format::count(figures.submits))),
        ("readbacks", format!("{} ({} pending)", format::count(figures.readbacks), figures.readbacks_now)),
        ("backlog", {
            let (flying, waiting) = (figures.recordings_in_flight_now, figures.recordings_waiting_now);
            let age = format::time(core::time::Duration::from_nanos(figures.oldest_waiting_nanos_now));
            match waiting {
                0 => format!("{flying} in flight"),
                _ => format!("{flying} in flight, {waiting} waiting for up to {age}"),
            }
        }),
        ("on the host", {
            let (tensors, copies) = (format::bytes(figures.host_bytes), format::bytes(figures.host_copy_bytes));
            format!("{tensors} CPU tensors, {copies} copies")
        }),
    ]
}

fn built(snapshot: &InspectorSnapshot) -> [(&'static str, String); 5] {
    let figures = &snapshot.figures;
    [
        ("plans", format!("{} ({} reused)", format::count(figures.plans_built), format::count(figures.plan_hits))),
        ("pipelines", {
            let built = format::count(figures.pipelines_built);
            format!("{built} ({} compiling)", figures.pipelines_compiling_now)
        }),
        ("buffers", {
            let reused = format::count(figures.buffers_reused);
            format!("{} ({reused} reused)", format::count(figures.buffers_allocated))
        }),
        ("bind groups", format::count(figures.bind_groups_made)),
        ("staging", format::bytes(figures.staging_bytes)),
    ]
}

fn device(ui: &mut egui::Ui, adapter: &AdapterFacts) {
    let limits = &adapter.limits;
    let subgroup = match adapter.subgroup_size {
        Some((min, max)) if min == max => format!("{min}"),
        Some((min, max)) => format!("{min} to {max}"),
        None => "none".to_owned(),
    };
    let rows = [
        ("subgroups", subgroup),
        ("largest buffer", format::bytes(limits.max_buffer_size)),
        ("largest binding", format::bytes(limits.max_storage_buffer_binding_size)),
        ("storage buffers per stage", limits.max_storage_buffers_per_shader_stage.to_string()),
        ("workgroup memory", format::bytes(u64::from(limits.max_compute_workgroup_storage_size))),
        ("threads per workgroup", limits.max_compute_invocations_per_workgroup.to_string()),
    ];
    style::facts(ui, "limits", &rows);
    let features: Vec<String> =
        adapter.features.iter_names().map(|(name, _)| name.to_lowercase().replace('_', " ")).collect();
    ui.label(egui::RichText::new(features.join(" · ")).weak());
}

/// Conditions that the user should know about.
fn warnings(snapshot: &InspectorSnapshot) -> Vec<String> {
    let mut warnings = Vec::new();
    let figures = &snapshot.figures;
    for stall in &snapshot.stalls {
        let text = stall.to_string();
        let mut letters = text.chars();
        let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
        warnings.push(format!("{first}{}.", letters.as_str()));
    }
    if let Some(support) = &snapshot.support
        && support.backend == Backend::Gpu
    {
        if support.adapter.as_ref().is_some_and(|adapter| adapter.software) {
            warnings.push("The adapter is a software renderer. The CPU backend is probably faster.".to_owned());
        }
        if snapshot.sources.contains(&(Some(Backend::Gpu), TimingSource::Unsupported)) {
            warnings.push("The device has no timestamps, so there are no GPU timings.".to_owned());
        }
    }
    if let Some(budget) = snapshot.settings.budget {
        let per_cent = (figures.total_device_bytes - figures.pool_idle_bytes) * 100 / budget.max(1);
        if per_cent >= u64::from(snapshot.settings.pressure[0]) {
            warnings.push(format!("{per_cent} % of the memory budget is in use. Tensors are evicted when it is full."));
        }
    }
    let lost = snapshot.tensors.iter().filter(|row| row.usage.residency == Residency::Lost).count();
    if lost > 0 {
        warnings.push(format!(
            "{lost} tensors lost their content with the device. Write them completely to use them again."
        ));
    }
    let failed = snapshot.pipelines.pipelines.iter().filter(|pipeline| pipeline.state == PipelineState::Failed).count();
    if failed > 0 {
        warnings.push(format!("{failed} pipelines did not compile. See the Pipelines panel."));
    }
    if figures.batches_waiting_now > 0 {
        warnings.push(format!("{} batches wait for pipelines or memory.", figures.batches_waiting_now));
    }
    let faults = snapshot.log.iter().filter(|entry| entry.kind == LogKind::Fault).count();
    if faults > 0 {
        let noun = if faults == 1 { "failure is" } else { "failures are" };
        warnings.push(format!("{faults} {noun} in the log."));
    }
    warnings
}
