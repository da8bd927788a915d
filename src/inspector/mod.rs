//! The egui overlay: a window of panels that shows what tensors cost and where time goes.
//!
//! Panels are plain functions over an [`InspectorSnapshot`]: they read it, keep what the user picked in a state of their own, and return what the
//! user asked for as [`InspectorAction`]s. To put them into windows of your own, add the plugin with `window: false`, set
//! [`TensorInspector::open`], and call them in a system of bevy_egui:
//!
//! ```
//! # use bevy::prelude::*;
//! # use bevy_egui::{EguiContexts, egui};
//! use bevy_tensor_compute::inspector::{InspectorActions, InspectorSnapshot, InspectorState, memory_panel};
//!
//! fn my_window(
//!     mut contexts: EguiContexts,
//!     snapshot: Res<InspectorSnapshot>,
//!     mut state: ResMut<InspectorState>,
//!     mut actions: ResMut<InspectorActions>,
//! ) -> Result {
//!     egui::Window::new("Memory").show(contexts.ctx_mut()?, |ui| {
//!         actions.0.extend(memory_panel(ui, &snapshot, &mut state.memory));
//!     });
//!     Ok(())
//! }
//! ```

mod actions;
mod chart;
mod format;
mod gather;
mod kernels;
mod log;
mod log_panel;
mod memory;
mod overview;
mod pipelines;
mod plan;
mod snapshot;
mod style;
mod tensor_view;
mod tensors;
mod timeline;
mod values;

use core::time::Duration;

use bevy::prelude::*;
use bevy_egui::{EguiContexts, EguiPlugin, EguiPrimaryContextPass, egui};

pub use actions::{InspectorAction, InspectorActions, Picture};
pub use kernels::{KernelSort, KernelsState, kernels_panel};
pub use log::{InspectorLog, LogEntry, LogKind};
pub use log_panel::{LogState, log_panel};
pub use memory::{MemoryState, memory_panel};
pub use overview::overview_panel;
pub use pipelines::{PipelineSort, PipelinesState, pipelines_panel};
pub use plan::{PlanState, plan_panel};
pub use snapshot::{FrameCost, InspectorSnapshot, KernelKey, MemorySample, ModelRow, TensorRow};
pub use style::InspectorTheme;
pub use tensors::{TensorSort, TensorsState, tensors_panel};
pub use values::{Plane, TensorValues, ValueStatistics};

use crate::figures::TensorDiagnostics;
use crate::plugin::TensorSystems;

/// Shows what tensor work costs, over the running app; one key opens and closes it. Needs a camera to draw with, as all of egui does.
///
/// Adds `EguiPlugin` unless the app has it. While it is open, launches are timed ([`TensorDiagnostics::set_timings`]); closed, no system of it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorInspectorPlugin {
    /// The key that opens and closes it.
    pub key: KeyCode,
    /// Whether it is open from the start.
    pub open: bool,
    /// Whether it has a window of its own. Without, the app shows the panels where it likes.
    pub window: bool,
    /// How often figures are looked at. Drawing happens every frame.
    pub refresh: Duration,
    /// Frames that take longer, and twice as long as is usual, are noted in the log.
    pub slow_frame: Duration,
    /// Light or dark.
    pub theme: InspectorTheme,
}

impl Default for TensorInspectorPlugin {
    fn default() -> Self {
        Self {
            key: KeyCode::F12,
            open: false,
            window: true,
            refresh: Duration::from_millis(200),
            slow_frame: Duration::from_millis(100),
            theme: InspectorTheme::App,
        }
    }
}

/// Whether the inspector is open, and on which panel.
#[derive(Resource, Clone, Copy, Debug, PartialEq)]
pub struct TensorInspector {
    /// Whether it is shown. Closed, no system of it runs.
    pub open: bool,
    /// The panel in front.
    pub panel: InspectorPanel,
    /// Light or dark.
    pub theme: InspectorTheme,
    /// How often figures are looked at.
    pub refresh: Duration,
    /// Frames that take longer, and twice as long as is usual, are noted in the log.
    pub slow_frame: Duration,
    window: bool,
    key: KeyCode,
}

impl From<TensorInspectorPlugin> for TensorInspector {
    fn from(plugin: TensorInspectorPlugin) -> Self {
        let TensorInspectorPlugin { key, open, window, refresh, slow_frame, theme } = plugin;
        Self { open, panel: InspectorPanel::default(), theme, refresh, slow_frame, window, key }
    }
}

impl TensorInspector {
    /// Whether a panel is being looked at. An app that shows panels itself may look at any.
    fn wants(&self, panel: InspectorPanel) -> bool {
        !self.window || self.panel == panel
    }
}

/// The inspector's panels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InspectorPanel {
    /// Backend, frame cost, budget and warnings.
    #[default]
    Overview,
    /// Memory by model, by kind and over time.
    Memory,
    /// Every tensor, and the values of one.
    Tensors,
    /// How long kernels take.
    Kernels,
    /// Compiled kernels.
    Pipelines,
    /// The last plan: what was recorded, what it became.
    Plan,
    /// What happened.
    Log,
}

impl InspectorPanel {
    /// All of them.
    pub const ALL: [InspectorPanel; 7] =
        [Self::Overview, Self::Memory, Self::Tensors, Self::Kernels, Self::Pipelines, Self::Plan, Self::Log];

    /// What its tab says.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Memory => "Memory",
            Self::Tensors => "Tensors",
            Self::Kernels => "Kernels",
            Self::Pipelines => "Pipelines",
            Self::Plan => "Plan",
            Self::Log => "Log",
        }
    }
}

/// What the user picked in each panel.
#[derive(Resource, Clone, Debug, Default)]
pub struct InspectorState {
    /// In the memory panel.
    pub memory: MemoryState,
    /// In the tensors panel.
    pub tensors: TensorsState,
    /// In the kernels panel.
    pub kernels: KernelsState,
    /// In the pipelines panel.
    pub pipelines: PipelinesState,
    /// In the plan panel.
    pub plan: PlanState,
    /// In the log panel.
    pub log: LogState,
}

impl Plugin for TensorInspectorPlugin {
    fn build(&self, app: &mut App) {
        // Without a window, whoever shows the panels has egui set up.
        if self.window && !app.is_plugin_added::<EguiPlugin>() {
            app.add_plugins(EguiPlugin::default());
        }
        app.add_plugins(log::plugin)
            .insert_resource(TensorInspector::from(*self))
            .init_resource::<InspectorState>()
            .init_resource::<InspectorSnapshot>()
            .init_resource::<InspectorActions>()
            .init_resource::<actions::SaveChannel>()
            .add_systems(First, gather::gather.after(TensorSystems::Deliver).run_if(is_open))
            .add_systems(
                PreUpdate,
                (toggle.run_if(key_pressed), switch_timings.run_if(resource_changed::<TensorInspector>)).chain(),
            )
            .add_systems(EguiPrimaryContextPass, show.run_if(has_window))
            .add_systems(
                Last,
                (actions::apply_actions.run_if(actions::any_actions), gather::read_values.run_if(is_open))
                    .chain()
                    .before(TensorSystems::Submit),
            );
    }
}

fn is_open(inspector: Res<TensorInspector>) -> bool {
    inspector.open
}

fn has_window(inspector: Res<TensorInspector>) -> bool {
    inspector.open && inspector.window
}

fn key_pressed(keys: Option<Res<ButtonInput<KeyCode>>>, inspector: Res<TensorInspector>) -> bool {
    keys.is_some_and(|keys| keys.just_pressed(inspector.key))
}

fn toggle(mut inspector: ResMut<TensorInspector>) {
    inspector.open = !inspector.open;
}

/// Launches are timed while the inspector is open; afterwards it is as before.
fn switch_timings(
    inspector: Res<TensorInspector>,
    diagnostics: Option<Res<TensorDiagnostics>>,
    mut before: Local<Option<bool>>,
) {
    let Some(diagnostics) = diagnostics else { return };
    match (inspector.open, *before) {
        (true, None) => {
            *before = Some(diagnostics.timings_on());
            diagnostics.set_timings(true);
        }
        (false, Some(on)) => {
            *before = None;
            diagnostics.set_timings(on);
        }
        _ => {}
    }
}

fn show(
    mut contexts: EguiContexts,
    mut inspector: ResMut<TensorInspector>,
    snapshot: Res<InspectorSnapshot>,
    mut state: ResMut<InspectorState>,
    mut actions: ResMut<InspectorActions>,
) -> Result {
    let mut shown = *inspector;
    let asked = inspector_window(contexts.ctx_mut()?, &mut shown, &snapshot, &mut state);
    if !asked.is_empty() {
        actions.0.extend(asked);
    }
    // Only a change is a change, so that nothing that watches the resource wakes up every frame.
    inspector.set_if_neq(shown);
    Ok(())
}

/// The whole window: tabs, and the panel in front.
pub fn inspector_window(
    ctx: &egui::Context,
    inspector: &mut TensorInspector,
    snapshot: &InspectorSnapshot,
    state: &mut InspectorState,
) -> Vec<InspectorAction> {
    let style = style::window_style(ctx, inspector.theme);
    let room = ctx.content_rect().size();
    let size = egui::vec2((room.x * 0.62).clamp(420.0, 980.0), (room.y * 0.8).clamp(280.0, 820.0));
    let mut actions = Vec::new();
    egui::Window::new("Tensors")
        .id(egui::Id::new("tensor inspector"))
        .title_bar(false)
        .frame(egui::Frame::window(&style))
        .default_pos([12.0, 12.0])
        .default_size(size)
        .min_size([420.0, 240.0])
        .resizable(true)
        .show(ctx, |ui| {
            ui.set_style(style);
            tabs(ui, inspector);
            ui.separator();
            actions = panel(ui, inspector.panel, snapshot, state);
            // A window grows to what is in it; the rest of it belongs to it, too.
            ui.take_available_space();
        });
    actions
}

fn tabs(ui: &mut egui::Ui, inspector: &mut TensorInspector) {
    ui.horizontal(|ui| {
        for panel in InspectorPanel::ALL {
            ui.selectable_value(&mut inspector.panel, panel, panel.name());
        }
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            if style::icon_button(ui, "❌", "Close the inspector").clicked() {
                inspector.open = false;
            }
            let dark = ui.visuals().dark_mode;
            let (icon, label) = if dark { ("☀", "Light theme") } else { ("🌙", "Dark theme") };
            if style::icon_button(ui, icon, label).clicked() {
                inspector.theme = if dark { InspectorTheme::Light } else { InspectorTheme::Dark };
            }
        });
    });
}

/// One of the panels, with its state.
pub fn panel(
    ui: &mut egui::Ui,
    panel: InspectorPanel,
    snapshot: &InspectorSnapshot,
    state: &mut InspectorState,
) -> Vec<InspectorAction> {
    match panel {
        InspectorPanel::Overview => overview_panel(ui, snapshot),
        InspectorPanel::Memory => memory_panel(ui, snapshot, &mut state.memory),
        InspectorPanel::Tensors => tensors_panel(ui, snapshot, &mut state.tensors),
        InspectorPanel::Kernels => kernels_panel(ui, snapshot, &mut state.kernels),
        InspectorPanel::Pipelines => pipelines_panel(ui, snapshot, &mut state.pipelines),
        InspectorPanel::Plan => plan_panel(ui, snapshot, &mut state.plan),
        InspectorPanel::Log => log_panel(ui, snapshot, &mut state.log),
    }
}
