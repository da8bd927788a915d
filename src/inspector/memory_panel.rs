//! The memory panel: memory by model, by kind, by size class and over time.

use bevy_egui::egui;
use egui_extras::Column;
use egui_plot::{ColorConflictHandling, FilledArea, HLine, Legend, Line, LineStyle, Plot, PlotPoints, VLine};

use super::actions::InspectorAction;
use super::snapshot::{InspectorSnapshot, MemorySample};
use super::{chart, format, style};
use crate::figures::PoolKind;
use crate::memory::{AdvisedTensor, MemoryAdvice};

/// A figure of a memory sample.
type Figure = fn(&MemorySample) -> u64;

/// State of the memory panel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryState {
    /// Whether the history is split by kind of memory instead of by model.
    pub by_kind: bool,
}

/// Total and budget, models, history, host memory, buffers, and memory actions.
pub fn memory_panel(ui: &mut egui::Ui, snapshot: &InspectorSnapshot, state: &mut MemoryState) -> Vec<InspectorAction> {
    let mut actions = Vec::new();
    let figures = &snapshot.figures;
    ui.horizontal_wrapped(|ui| {
        let total = format::bytes(figures.total_device_bytes);
        ui.strong(match snapshot.settings.budget {
            Some(budget) => format!("{total} of {} on the device", format::bytes(budget)),
            None => format!("{total} on the device, no budget"),
        });
        ui.weak(format!("peak {}", format::bytes(figures.peak_device_bytes)));
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            let buttons = [
                (
                    "Recommend",
                    "Find the largest tensors, idle tensors, and tensors with equal contents",
                    InspectorAction::Advise,
                ),
                ("Trim", "Free all idle buffers", InspectorAction::Trim),
                ("Optimise", "Apply the memory policy now: evict idle tensors", InspectorAction::Optimize),
            ];
            for (label, explained, action) in buttons {
                if ui.button(label).on_hover_text(explained).clicked() {
                    actions.push(action);
                }
            }
        });
    });
    egui::ScrollArea::vertical().auto_shrink([false, false]).show(ui, |ui| {
        models(ui, snapshot);
        ui.add_space(6.0);
        history(ui, snapshot, state);
        ui.add_space(6.0);
        ui.columns_const(|[left, right]| {
            left.strong("Host");
            let rows = [
                ("host copies of GPU tensors", format::bytes(figures.host_copy_bytes)),
                ("CPU tensors", format::bytes(figures.host_bytes)),
                ("CPU scratch", format::bytes(figures.cpu_scratch_bytes)),
                ("packed weights", format::bytes(figures.packed_bytes)),
                ("staging buffers", format::bytes(figures.staging_bytes)),
                ("evictions", format::count(figures.evictions)),
                ("copied to the host", format::bytes(figures.downloaded_bytes)),
                ("copied to the device", format::bytes(figures.uploaded_bytes)),
            ];
            style::facts(left, "host", &rows);
            pool(right, snapshot);
        });
        ui.add_space(6.0);
        advice(ui, snapshot, &mut actions);
    });
    actions
}

/// A bar and a table of the memory use of each model.
fn models(ui: &mut egui::Ui, snapshot: &InspectorSnapshot) {
    let figures = &snapshot.figures;
    let mut parts: Vec<_> = snapshot
        .models
        .iter()
        .enumerate()
        .map(|(i, row)| (row.name.clone(), row.own_device_bytes, style::colour(i)))
        .collect();
    let grey = ui.visuals().weak_text_color();
    parts.push((
        "scratch, plans, idle".to_owned(),
        { figures.scratch_bytes + figures.plan_bytes + figures.pool_idle_bytes },
        grey,
    ));
    let whole = snapshot.settings.budget.unwrap_or(figures.total_device_bytes);
    chart::stacked_bar(ui, "Device memory by model", &parts, whole, snapshot.settings.budget.is_some());
    ui.add_space(4.0);
    if snapshot.models.is_empty() {
        ui.weak("No tensors yet.");
        return;
    }
    let table = style::table(ui, "models")
        .auto_shrink([false, true])
        .max_scroll_height(140.0)
        .column(Column::remainder().at_least(120.0).clip(true))
        .columns(Column::exact(66.0), 2)
        .columns(Column::exact(86.0), 2);
    let header = style::heads(table, &["Model", "Tensors", "Storages", "Device", "Host"]);
    header.body(|body| {
        body.rows(style::ROW, snapshot.models.len(), |mut row| {
            let i = row.index();
            let model = &snapshot.models[i];
            row.col(|ui| {
                style::swatch(ui, style::colour(i));
                style::cut(ui, &model.name);
            });
            row.col(|ui| style::number(ui, model.usage.tensors.to_string()));
            row.col(|ui| style::number(ui, model.usage.storages.to_string()));
            row.col(|ui| style::number(ui, format::bytes(model.usage.device_bytes)));
            row.col(|ui| style::number(ui, format::bytes(model.usage.host_bytes)));
        });
    });
}

/// Stacked area chart of memory over time, with the budget and evictions.
fn history(ui: &mut egui::Ui, snapshot: &InspectorSnapshot, state: &mut MemoryState) {
    ui.horizontal(|ui| {
        ui.strong("History");
        ui.selectable_value(&mut state.by_kind, false, "by model");
        ui.selectable_value(&mut state.by_kind, true, "by kind");
    });
    let now = snapshot.time;
    let samples: Vec<&MemorySample> = snapshot.history.iter().collect();
    if samples.len() < 2 {
        ui.weak("The chart appears after the second sample.");
        return;
    }
    let xs: Vec<f64> = samples.iter().map(|sample| -(now.saturating_sub(sample.time).as_secs_f64())).collect();
    let mebibytes = |bytes: u64| bytes as f64 / 1_048_576.0;
    let series: Vec<(String, Vec<f64>, egui::Color32)> = if state.by_kind {
        let kinds: [(&str, Figure); 4] = [
            ("tensors", |sample| sample.tensors),
            ("scratch", |sample| sample.scratch),
            ("plans", |sample| sample.plans),
            ("idle", |sample| sample.idle),
        ];
        let kind = |(i, (name, bytes)): (usize, (&str, Figure))| {
            (name.to_owned(), samples.iter().map(|sample| mebibytes(bytes(sample))).collect(), style::colour(i))
        };
        kinds.into_iter().enumerate().map(kind).collect()
    } else {
        let of = |sample: &MemorySample, model| {
            sample.models.iter().find(|(m, _)| *m == model).map_or(0, |(_, bytes)| *bytes)
        };
        let model = |(i, row): (usize, &super::ModelRow)| {
            let ys = samples.iter().map(|sample| mebibytes(of(sample, row.model))).collect();
            (short(&row.name), ys, style::colour(i))
        };
        let mut series: Vec<_> = snapshot.models.iter().take(12).enumerate().map(model).collect();
        let rest = |sample: &&MemorySample| {
            let listed: u64 = snapshot.models.iter().take(12).map(|row| of(sample, row.model)).sum();
            mebibytes(sample.total().saturating_sub(listed))
        };
        series.push(("others".to_owned(), samples.iter().map(rest).collect(), ui.visuals().weak_text_color()));
        series
    };
    let evictions: Vec<f64> = samples.iter().zip(&xs).filter(|(s, _)| s.evictions > 0).map(|(_, &x)| x).collect();
    let (budget, red, amber) = (snapshot.settings.budget, style::bad(ui), style::doubtful(ui));
    let highest = samples.iter().map(|sample| mebibytes(sample.total())).fold(0.0, f64::max);
    Plot::new("memory history")
        .height(150.0)
        .legend(Legend::default().background_alpha(0.6).color_conflict_handling(ColorConflictHandling::PickLast))
        .allow_drag(false)
        .allow_zoom(false)
        .allow_scroll(false)
        .allow_boxed_zoom(false)
        .include_y(0.0)
        .include_y(highest * 1.1 + 0.001)
        .include_x(-30.0)
        .x_axis_formatter(|mark, _| format!("{} s", mark.value.round()))
        .y_axis_formatter(|mark, _| format!("{} MiB", (mark.value * 100.0).round() / 100.0))
        .y_axis_min_width(64.0)
        .label_formatter(|name, point| format!("{name}\n{:.1} s ago\n{:.2} MiB", -point.x, point.y))
        .show(ui, |plot| {
            let mut below = vec![0.0; xs.len()];
            for (name, ys, colour) in series {
                let above: Vec<f64> = below.iter().zip(&ys).map(|(below, y)| below + y).collect();
                plot.add(FilledArea::new(name.clone(), &xs, &below, &above).fill_color(colour.gamma_multiply(0.55)));
                let points: Vec<[f64; 2]> = xs.iter().zip(&above).map(|(&x, &y)| [x, y]).collect();
                plot.line(Line::new(name, PlotPoints::from(points)).color(colour).width(1.0));
                below = above;
            }
            for x in evictions {
                plot.vline(VLine::new("eviction", x).color(amber).width(1.5).style(LineStyle::dashed_loose()));
            }
            if let Some(budget) = budget.map(mebibytes).filter(|budget| *budget < highest * 4.0) {
                plot.hline(HLine::new("budget", budget).color(red).width(1.5));
            }
        });
}

/// Shortens a name for the legend.
fn short(name: &str) -> String {
    if name.chars().count() <= 20 { name.to_owned() } else { name.chars().take(19).chain(['…']).collect() }
}

/// Buffers by size class, in use and idle.
fn pool(ui: &mut egui::Ui, snapshot: &InspectorSnapshot) {
    ui.strong("Buffers by size");
    if snapshot.pool.is_empty() {
        ui.weak("No buffers: there is no device, or nothing has run on it.");
        return;
    }
    let table = style::table(ui, "pool")
        .auto_shrink([false, true])
        .max_scroll_height(150.0)
        .column(Column::remainder().at_least(70.0))
        .column(Column::exact(84.0))
        .columns(Column::exact(54.0), 2);
    let header = style::heads(table, &["Use", "Size", "Used", "Idle"]);
    header.body(|body| {
        body.rows(style::ROW, snapshot.pool.len(), |mut row| {
            let class = snapshot.pool[row.index()];
            row.col(|ui| {
                style::cut(
                    ui,
                    match class.kind {
                        PoolKind::Tensors => "tensors",
                        PoolKind::Plans => "plans",
                        PoolKind::Staging => "staging",
                    },
                );
            });
            row.col(|ui| style::number(ui, format::bytes(class.bytes)));
            row.col(|ui| style::number(ui, class.used.to_string()));
            row.col(|ui| style::number(ui, class.idle.to_string()));
        });
    });
}

/// The results of the memory advisor, with actions.
fn advice(ui: &mut egui::Ui, snapshot: &InspectorSnapshot, actions: &mut Vec<InspectorAction>) {
    let Some(MemoryAdvice { largest, idle, duplicates }) = &snapshot.advice else { return };
    ui.strong("Recommendations");
    if largest.is_empty() && idle.is_empty() && duplicates.is_empty() {
        ui.weak("No recommendations: all tensors are smaller than 64 KiB.");
    }
    for twice in duplicates {
        let names: Vec<String> = twice.tensors.iter().map(advised_name).collect();
        ui.label(format!(
            "sharing would save {}: {} have equal contents",
            format::bytes(twice.bytes),
            names.join(", ")
        ));
    }
    for (title, list) in [("idle", idle), ("large", largest)] {
        for advised in list {
            ui.horizontal(|ui| {
                let pinned = snapshot.tensor(advised.tensor).is_some_and(|row| row.usage.pinned);
                if ui.add_enabled(!pinned, egui::Button::new("Evict now").small()).clicked() {
                    actions.push(InspectorAction::Spill(advised.tensor));
                }
                let (label, action) = if pinned {
                    ("Unpin", InspectorAction::Unpin(advised.tensor))
                } else {
                    ("Pin", InspectorAction::Pin(advised.tensor))
                };
                if ui.add(egui::Button::new(label).small()).clicked() {
                    actions.push(action);
                }
                style::cut(ui, format!("{} is {title}: {}", advised_name(advised), format::bytes(advised.bytes)));
            });
        }
    }
}

fn advised_name(advised: &AdvisedTensor) -> String {
    advised.name.as_ref().map_or_else(|| format!("tensor {}", advised.tensor), |name| name.to_string())
}
