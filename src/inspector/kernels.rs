//! How long kernels take.

use core::time::Duration;

use bevy::platform::collections::HashMap;
use bevy_egui::egui;
use egui_extras::Column;

use super::actions::InspectorAction;
use super::snapshot::{InspectorSnapshot, KernelKey};
use super::timeline::{TimelineState, timeline};
use super::{chart, format, style};
use crate::figures::{KernelTiming, TimingReport, TimingSource};
use crate::ir::Backend;

/// What kernels are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelSort {
    /// Their name.
    Name,
    /// The latest time.
    Last,
    /// The mean time.
    Mean,
    /// What all but a twentieth stay below.
    P95,
    /// The share of the frames' time.
    Share,
    /// How often they were launched.
    Launches,
    /// Bytes moved in a second.
    Bandwidth,
    /// Operations in a second.
    Flops,
}

/// What the user picked.
#[derive(Clone, Debug)]
pub struct KernelsState {
    /// What the kernel's name or form must contain.
    pub search: String,
    /// By what, and whether from high to low.
    pub sort: (KernelSort, bool),
    /// The frame shown as bars.
    pub(super) timeline: TimelineState,
}

impl Default for KernelsState {
    fn default() -> Self {
        Self { search: String::new(), sort: (KernelSort::Share, true), timeline: TimelineState::default() }
    }
}

/// A table of kernels, the slowest op, and one frame as bars.
pub fn kernels_panel(
    ui: &mut egui::Ui,
    snapshot: &InspectorSnapshot,
    state: &mut KernelsState,
) -> Vec<InspectorAction> {
    let mut actions = Vec::new();
    let Some(timings) = &snapshot.timings else {
        let source = |backend| snapshot.sources.iter().find(|source| source.0 == Some(backend)).map(|source| source.1);
        let on_gpu = snapshot.support.as_ref().is_some_and(|support| support.backend == Backend::Gpu);
        let hint = if on_gpu && source(Backend::Gpu) == Some(TimingSource::Unsupported) {
            "This device has no timestamps, so GPU kernels cannot be timed."
        } else {
            "Times appear once tensor work has run with the inspector open."
        };
        style::empty(ui, "No times yet", hint);
        return actions;
    };
    let shares = shares(timings);
    ui.horizontal_wrapped(|ui| {
        style::search(ui, &mut state.search, "Search kernels");
        if ui.button("Clear").on_hover_text("Forget what was measured").clicked() {
            actions.push(InspectorAction::ClearTimings);
        }
        if let Some(op) = timings.ops.iter().max_by_key(|op| op.stats.mean) {
            let site = op.site.to_string();
            let name = site.rsplit(['/', '\\']).next().unwrap_or(&site).to_owned();
            ui.label("Slowest op:");
            ui.strong(format!("{} {}", op.op, format::time(op.stats.mean)));
            ui.weak(format!("recorded at {name}")).on_hover_text(site);
        }
    });
    let search = state.search.to_lowercase();
    let fits = |kernel: &&KernelTiming| {
        search.is_empty()
            || kernel.kernel.to_lowercase().contains(&search)
            || kernel.variant.to_lowercase().contains(&search)
    };
    let mut kernels: Vec<&KernelTiming> = timings.kernels.iter().filter(fits).collect();
    sort(&mut kernels, state.sort, &shares);
    let height = (ui.available_height() * 0.55).max(110.0);
    ui.allocate_ui(egui::vec2(ui.available_width(), height), |ui| {
        ui.set_min_height(height);
        if kernels.is_empty() {
            style::empty(ui, "No kernel fits the search", "Names and forms are searched.");
        } else {
            table(ui, &kernels, snapshot, &shares, state);
        }
    });
    ui.separator();
    timeline(ui, timings, &mut state.timeline, |model| snapshot.model_name(Some(model)));
    actions
}

fn key(kernel: &KernelTiming) -> KernelKey {
    (kernel.backend, kernel.kernel, kernel.variant.clone())
}

/// Each kernel's part of the time of all launches in the frames that are kept, by backend.
fn shares(timings: &TimingReport) -> HashMap<KernelKey, f64> {
    let mut times: HashMap<KernelKey, Duration> = HashMap::default();
    let mut totals: HashMap<Backend, Duration> = HashMap::default();
    for frame in &timings.frames {
        for span in &frame.spans {
            let time = span.end.saturating_sub(span.start);
            *times.entry((frame.backend, span.kernel, span.variant.clone())).or_default() += time;
            *totals.entry(frame.backend).or_default() += time;
        }
    }
    let share = |(key, time): (KernelKey, Duration)| {
        let total = totals[&key.0].as_secs_f64();
        (key, if total > 0.0 { time.as_secs_f64() / total } else { 0.0 })
    };
    times.into_iter().map(share).collect()
}

fn sort(kernels: &mut [&KernelTiming], (by, reverse): (KernelSort, bool), shares: &HashMap<KernelKey, f64>) {
    let share = |kernel: &KernelTiming| shares.get(&key(kernel)).copied().unwrap_or(0.0);
    kernels.sort_by(|a, b| {
        let (x, y) = (&a.stats, &b.stats);
        let order = match by {
            KernelSort::Name => (a.kernel, &a.variant).cmp(&(b.kernel, &b.variant)),
            KernelSort::Last => x.last.cmp(&y.last),
            KernelSort::Mean => x.mean.cmp(&y.mean),
            KernelSort::P95 => x.p95.cmp(&y.p95),
            KernelSort::Share => share(a).total_cmp(&share(b)).then(x.mean.cmp(&y.mean)),
            KernelSort::Launches => x.count.cmp(&y.count),
            KernelSort::Bandwidth => {
                x.gigabytes_per_second().unwrap_or(0.0).total_cmp(&y.gigabytes_per_second().unwrap_or(0.0))
            }
            KernelSort::Flops => x.gigaflops().unwrap_or(0.0).total_cmp(&y.gigaflops().unwrap_or(0.0)),
        };
        if reverse { order.reverse() } else { order }
    });
}

fn table(
    ui: &mut egui::Ui,
    kernels: &[&KernelTiming],
    snapshot: &InspectorSnapshot,
    shares: &HashMap<KernelKey, f64>,
    state: &mut KernelsState,
) {
    let table = style::table(ui, "kernels")
        .auto_shrink([false, false])
        .column(Column::remainder().at_least(130.0).clip(true))
        .columns(Column::exact(64.0), 3)
        .column(Column::exact(56.0))
        .column(Column::exact(70.0))
        .column(Column::exact(48.0))
        .column(Column::exact(66.0))
        .column(Column::exact(74.0));
    let sorts = [
        ("Kernel", KernelSort::Name, false),
        ("Last", KernelSort::Last, true),
        ("Mean", KernelSort::Mean, true),
        ("p95", KernelSort::P95, true),
        ("Share", KernelSort::Share, true),
        ("Launches", KernelSort::Launches, true),
        ("GB/s", KernelSort::Bandwidth, true),
        ("GFLOP/s", KernelSort::Flops, true),
    ];
    let header = table.header(style::ROW, |mut header| {
        style::sort_headers(&mut header, &sorts, &mut state.sort);
        header.col(|ui| {
            ui.strong("Recent");
        });
    });
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.2}"));
    header.body(|body| {
        body.rows(style::ROW, kernels.len(), |mut row| {
            let kernel = kernels[row.index()];
            let stats = &kernel.stats;
            row.col(|ui| {
                style::swatch(ui, style::colour_of(kernel.kernel));
                let text = match &*kernel.variant {
                    "" => kernel.kernel.to_owned(),
                    variant => format!("{} ({variant})", kernel.kernel),
                };
                let place = if kernel.backend == Backend::Cpu { " on the CPU" } else { "" };
                style::cut(ui, format!("{text}{place}"));
            });
            for time in [stats.last, stats.mean, stats.p95] {
                row.col(|ui| style::number(ui, format::time(time)));
            }
            let share =
                shares.get(&key(kernel)).map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0));
            row.col(|ui| style::number(ui, share));
            row.col(|ui| style::number(ui, format::count(stats.count)));
            row.col(|ui| style::number(ui, rate(stats.gigabytes_per_second())));
            row.col(|ui| style::number(ui, rate(stats.gigaflops())));
            row.col(|ui| {
                if let Some(sparks) = snapshot.kernel_history.get(&key(kernel)) {
                    chart::sparkline(ui, sparks.iter().copied(), style::colour_of(kernel.kernel));
                }
            });
        });
    });
}
