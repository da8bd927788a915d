//! Compiled kernels: state, cost, the form that was chosen and why, the text.

use bevy_egui::egui;
use egui_extras::Column;

use super::actions::InspectorAction;
use super::snapshot::InspectorSnapshot;
use super::{format, style};
use crate::pipelines::{CacheFound, PipelineInfo, PipelineState, TuneOutcome};

/// What pipelines are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PipelineSort {
    /// Their kernel's name.
    Kernel,
    /// How far they are.
    State,
    /// How often a new plan found them.
    Hits,
    /// Launches.
    Launches,
    /// How long they took to compile.
    Compile,
    /// How long they have not been used.
    Idle,
}

/// What the user picked.
#[derive(Clone, Debug)]
pub struct PipelinesState {
    /// What the kernel's name or form must contain.
    pub search: String,
    /// By what, and whether from high to low.
    pub sort: (PipelineSort, bool),
    /// The pipeline shown in detail, by [`PipelineInfo::id`].
    pub selected: Option<u64>,
}

impl Default for PipelinesState {
    fn default() -> Self {
        Self { search: String::new(), sort: (PipelineSort::Launches, true), selected: None }
    }
}

/// The cache, one line for each pipeline, and the text of the one that is selected.
pub fn pipelines_panel(
    ui: &mut egui::Ui,
    snapshot: &InspectorSnapshot,
    state: &mut PipelinesState,
) -> Vec<InspectorAction> {
    let mut actions = Vec::new();
    let report = &snapshot.pipelines;
    if report.pipelines.is_empty() {
        style::empty(
            ui,
            "No pipelines",
            "Kernels are compiled when work first needs them on the GPU; the CPU backend has none.",
        );
        return actions;
    }
    ui.horizontal_wrapped(|ui| {
        style::search(ui, &mut state.search, "Search pipelines");
        if ui.button("Trim").on_hover_text("Give up pipelines that no plan uses").clicked() {
            actions.push(InspectorAction::TrimPipelines);
        }
        let asked = (report.hits + report.misses).max(1);
        ui.weak(format!(
            "{} pipelines · {} hits, {} misses ({:.0} %) · compiled for {} in all{}{}",
            report.pipelines.len(),
            format::count(report.hits),
            format::count(report.misses),
            report.hits as f64 * 100.0 / asked as f64,
            format::time(report.compile),
            if report.in_flight > 0 { format!(" · {} on their way", report.in_flight) } else { String::new() },
            if report.evicted > 0 { format!(" · {} given up", report.evicted) } else { String::new() },
        ));
    });
    if let Some(file) = &report.file {
        let found = match &file.found {
            CacheFound::Nothing => "there was none at the start".to_owned(),
            CacheFound::Read { pipelines, tuned } => format!("{pipelines} pipelines and {tuned} choices were in it"),
            CacheFound::Ignored(why) => format!("ignored: {why}"),
        };
        style::cut(ui, egui::RichText::new(format!("Cache file {} · {found}", file.path.display())).weak());
    }
    let search = state.search.to_lowercase();
    let fits = |pipeline: &&PipelineInfo| {
        search.is_empty()
            || pipeline.kernel.to_lowercase().contains(&search)
            || pipeline.variant.to_lowercase().contains(&search)
    };
    let mut pipelines: Vec<&PipelineInfo> = report.pipelines.iter().filter(fits).collect();
    sort(&mut pipelines, state.sort);
    let selected = state.selected.and_then(|id| report.pipelines.iter().find(|pipeline| pipeline.id == id));
    let height = ui.available_height() * if selected.is_some() { 0.4 } else { 1.0 };
    ui.allocate_ui(egui::vec2(ui.available_width(), height), |ui| {
        ui.set_min_height(height.max(80.0));
        if pipelines.is_empty() {
            style::empty(ui, "No pipeline fits the search", "Kernels and forms are searched.");
        } else {
            table(ui, &pipelines, state);
        }
    });
    if let Some(pipeline) = selected {
        ui.separator();
        detail(ui, pipeline, snapshot, state, &mut actions);
    }
    actions
}

fn sort(pipelines: &mut [&PipelineInfo], (by, reverse): (PipelineSort, bool)) {
    match by {
        PipelineSort::Kernel => pipelines.sort_by(|a, b| (&a.kernel, &a.variant).cmp(&(&b.kernel, &b.variant))),
        PipelineSort::State => pipelines.sort_by_key(|pipeline| pipeline.state as u8),
        PipelineSort::Hits => pipelines.sort_by_key(|pipeline| pipeline.hits),
        PipelineSort::Launches => pipelines.sort_by_key(|pipeline| pipeline.launches),
        PipelineSort::Compile => pipelines.sort_by_key(|pipeline| pipeline.compile),
        PipelineSort::Idle => pipelines.sort_by_key(|pipeline| pipeline.idle),
    }
    if reverse {
        pipelines.reverse();
    }
}

fn state_label(ui: &mut egui::Ui, pipeline: &PipelineInfo) {
    let (text, colour) = match pipeline.state {
        PipelineState::Queued => ("queued", ui.visuals().weak_text_color()),
        PipelineState::Compiling => ("compiling", style::doubtful(ui)),
        PipelineState::Ready => ("ready", style::good(ui)),
        PipelineState::Failed => ("failed", style::bad(ui)),
    };
    ui.colored_label(colour, text);
}

fn table(ui: &mut egui::Ui, pipelines: &[&PipelineInfo], state: &mut PipelinesState) {
    let table = style::table(ui, "pipelines")
        .auto_shrink([false, false])
        .column(Column::remainder().at_least(150.0).clip(true))
        .column(Column::exact(76.0))
        .columns(Column::exact(78.0), 4);
    let sorts = [
        ("Kernel", PipelineSort::Kernel, false),
        ("State", PipelineSort::State, false),
        ("Hits", PipelineSort::Hits, true),
        ("Launches", PipelineSort::Launches, true),
        ("Compile", PipelineSort::Compile, true),
        ("Idle", PipelineSort::Idle, true),
    ];
    let header = table.header(style::ROW, |mut header| {
        style::sort_headers(&mut header, &sorts, &mut state.sort);
    });
    header.body(|body| {
        body.rows(style::ROW, pipelines.len(), |mut row| {
            let pipeline = pipelines[row.index()];
            let selected = state.selected == Some(pipeline.id);
            row.set_selected(selected);
            row.col(|ui| {
                style::swatch(ui, style::colour_of(&pipeline.kernel));
                let text = match &*pipeline.variant {
                    "" => pipeline.kernel.to_string(),
                    variant => format!("{} ({variant})", pipeline.kernel),
                };
                let button = egui::Button::selectable(selected, text.as_str()).truncate();
                if ui.add(button).on_hover_text(&text).clicked() {
                    state.selected = Some(pipeline.id);
                }
            });
            row.col(|ui| state_label(ui, pipeline));
            row.col(|ui| style::number(ui, format::count(pipeline.hits)));
            row.col(|ui| style::number(ui, format::count(pipeline.launches)));
            row.col(|ui| style::number(ui, format::known(pipeline.compile)));
            row.col(|ui| style::number(ui, format::known(pipeline.idle)));
        });
    });
}

fn detail(
    ui: &mut egui::Ui,
    pipeline: &PipelineInfo,
    snapshot: &InspectorSnapshot,
    state: &mut PipelinesState,
    actions: &mut Vec<InspectorAction>,
) {
    ui.horizontal(|ui| {
        ui.strong(&*pipeline.kernel);
        state_label(ui, pipeline);
        ui.weak(format!("compiled {} times", pipeline.builds));
        if pipeline.offered {
            ui.weak("· offered by the cache file");
        }
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            if style::icon_button(ui, "❌", "Close the pipeline").clicked() {
                state.selected = None;
            }
            if ui.button("Rebuild").on_hover_text("Compile it again; the old one works until then").clicked() {
                actions.push(InspectorAction::Rebuild(pipeline.id));
            }
            if let Some((_, text)) = snapshot.source.as_ref().filter(|source| source.0 == pipeline.id)
                && ui.button("Copy").on_hover_text("Copy the WGSL text").clicked()
            {
                ui.ctx().copy_text(text.to_string());
            }
        });
    });
    ui.label(why(pipeline, &snapshot.tuned));
    let trouble = [pipeline.error.as_deref(), Some(pipeline.log.as_str()).filter(|log| !log.is_empty())];
    for text in trouble.into_iter().flatten() {
        ui.add(egui::Label::new(egui::RichText::new(text).monospace().color(style::bad(ui))).wrap());
    }
    let Some((_, text)) = snapshot.source.as_ref().filter(|source| source.0 == pipeline.id) else {
        ui.weak("The text appears in a moment.");
        return;
    };
    let lines: Vec<&str> = text.lines().collect();
    let wrong = error_line(pipeline);
    let height = ui.text_style_height(&egui::TextStyle::Monospace);
    egui::ScrollArea::both().id_salt("wgsl").auto_shrink([false, false]).show_rows(
        ui,
        height,
        lines.len(),
        |ui, rows| {
            for i in rows {
                let text = egui::RichText::new(format!("{:4}  {}", i + 1, lines[i])).monospace();
                let text = if wrong == Some(i + 1) {
                    text.background_color(style::bad(ui).gamma_multiply(0.35))
                } else {
                    text
                };
                ui.add(egui::Label::new(text).extend());
            }
        },
    );
}

/// The line that a compiler's message names: naga writes `wgsl:12:5`.
fn error_line(pipeline: &PipelineInfo) -> Option<usize> {
    let text = pipeline.error.as_deref()?;
    let (_, rest) = text.split_once("wgsl:").or_else(|| text.split_once("line "))?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Why a kernel has the form it has.
fn why(pipeline: &PipelineInfo, tuned: &[TuneOutcome]) -> String {
    if pipeline.variant.is_empty() {
        return "This kernel has one form only.".to_owned();
    }
    let outcome = tuned.iter().rev().find(|outcome| {
        outcome.kernel == &*pipeline.kernel && outcome.forms.iter().any(|form| form.variant == *pipeline.variant)
    });
    let Some(outcome) = outcome else {
        return format!(
            "Form \"{}\": the default of this adapter for this size; it was not measured.",
            pipeline.variant
        );
    };
    let time = |variant: &str| {
        let form = outcome.forms.iter().find(|form| form.variant == variant);
        format::known(form.and_then(|form| form.time))
    };
    let (chosen, default) = (time(&outcome.chosen), time(&outcome.default));
    match (*outcome.chosen == *pipeline.variant, outcome.chosen == outcome.default) {
        (true, true) => format!(
            "Form \"{}\": the default, and the fastest of {} measured ({chosen}).",
            { &pipeline.variant },
            outcome.forms.len()
        ),
        (true, false) => {
            format!("Form \"{}\": measured {chosen}, where the default \"{}\" takes {default}.", pipeline.variant, {
                &outcome.default
            })
        }
        (false, _) => {
            let own = time(&pipeline.variant);
            format!("Form \"{}\": measured {own}; \"{}\" was chosen ({chosen}).", pipeline.variant, outcome.chosen)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_an_error_is_found() {
        let mut pipeline = PipelineInfo {
            id: 1,
            kernel: "k".into(),
            variant: "".into(),
            state: PipelineState::Failed,
            error: Some("error: unknown identifier\n  ┌─ wgsl:12:5\n".to_owned()),
            log: String::new(),
            hits: 0,
            launches: 0,
            compile: None,
            builds: 1,
            idle: None,
            offered: false,
            wgsl_bytes: 0,
        };
        assert_eq!(error_line(&pipeline), Some(12));
        pipeline.error = Some("no place".to_owned());
        assert_eq!(error_line(&pipeline), None);
    }
}
