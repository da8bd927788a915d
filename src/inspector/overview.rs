//! Backend, memory and counts at a glance.

use bevy_egui::egui;

use crate::diagnostics::TensorFigures;
use crate::support::TensorSupport;

/// The backend and why, the adapter, memory in use, and what has been built so far.
pub fn overview_panel(ui: &mut egui::Ui, support: &TensorSupport, figures: &TensorFigures) {
    ui.heading(format!("Runs on the {}", support.backend));
    ui.label(&support.reason);
    if let Some(adapter) = &support.adapter {
        ui.weak(format!("{} · {} · {}", adapter.kind, adapter.api, adapter.driver));
    }
    section(
        ui,
        "Memory",
        &[
            ("tensors on the device", bytes(figures.device_bytes)),
            ("tensors on the CPU", bytes(figures.host_bytes)),
            ("scratch", bytes(figures.scratch_bytes)),
            ("staging", bytes(figures.staging_bytes)),
            ("plans", bytes(figures.plan_bytes)),
            ("idle in the pool", bytes(figures.pool_idle_bytes)),
            ("device in all / peak", {
                let (all, peak) = (bytes(figures.total_device_bytes), bytes(figures.peak_device_bytes));
                format!("{all} / {peak}")
            }),
            ("device tensors on the host", bytes(figures.host_copy_bytes)),
        ],
    );
    section(
        ui,
        "Work",
        &[
            ("batches run", figures.batches_run.to_string()),
            ("batches waiting for pipelines", figures.batches_waiting_now.to_string()),
            ("kernel launches", (figures.dispatches + figures.cpu_steps).to_string()),
            ("passes / submissions", format!("{} / {}", figures.passes, figures.submits)),
            ("readbacks / in flight", format!("{} / {}", figures.readbacks, figures.readbacks_now)),
        ],
    );
    section(
        ui,
        "Built (a steady frame adds nothing)",
        &[
            ("plans / found again", format!("{} / {}", figures.plans_built, figures.plan_hits)),
            ("pipelines / compiling", format!("{} / {}", figures.pipelines_built, figures.pipelines_compiling_now)),
            ("buffers", figures.buffers_allocated.to_string()),
            ("bind groups", figures.bind_groups_made.to_string()),
        ],
    );
}

fn section(ui: &mut egui::Ui, title: &str, rows: &[(&str, String)]) {
    ui.add_space(6.0);
    ui.strong(title);
    egui::Grid::new(title).num_columns(2).min_col_width(200.0).striped(true).show(ui, |ui| {
        for (name, value) in rows {
            ui.label(*name);
            ui.monospace(value);
            ui.end_row();
        }
    });
}

/// Bytes as a person reads them.
fn bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{:.1} KiB", n as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", n as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", n as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_read_well_at_every_size() {
        let sizes = [0, 1023, 1024, 1_572_864, 3 << 30].map(bytes);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "3.00 GiB"]);
    }
}
