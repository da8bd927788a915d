//! The inspector: an egui window that shows the cost of tensor work.
//!
//! Panels are plain functions. They read an [`InspectorSnapshot`], keep the user's choices in a state of their own, and
//! return requests as [`InspectorAction`]s. To show panels in your own windows, add the plugin with `window: false`,
//! set [`TensorInspector::open`], and call the panels in a bevy_egui system:
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
mod graph_panel;
mod kernels_panel;
mod log;
mod log_panel;
mod memory_panel;
mod overview_panel;
mod pipelines_panel;
mod plan_panel;
mod snapshot;
mod style;
mod tensor_view;
mod tensors_panel;
mod timeline;
mod values;

use core::time::Duration;

use bevy::prelude::*;
use bevy_egui::{EguiContexts, EguiPlugin, EguiPrimaryContextPass, egui};

pub use actions::{InspectorAction, InspectorActions, Picture};
pub use graph_panel::{GraphState, graph_panel};
pub use kernels_panel::{KernelSort, KernelsState, kernels_panel};
pub use log::{InspectorLog, LogEntry, LogKind};
pub use log_panel::{LogState, log_panel};
pub use memory_panel::{MemoryState, memory_panel};
pub use overview_panel::overview_panel;
pub use pipelines_panel::{PipelineSort, PipelinesState, pipelines_panel};
pub use plan_panel::{PlanState, plan_panel};
pub use snapshot::{
    FrameCost, GraphNodeRow, GraphRow, InspectorSnapshot, KernelKey, MemorySample, ModelRow, TensorRow,
};
pub use style::InspectorTheme;
pub use tensors_panel::{TensorSort, TensorsState, tensors_panel};
pub use values::{Plane, TensorValues, ValueStatistics};

use crate::figures::TensorDiagnostics;
use crate::plugin::TensorSystems;

/// Shows the cost of tensor work in an egui window over the running app. A key opens and closes it. As for all egui
/// windows, the app needs a camera.
///
/// Adds `EguiPlugin` if the app does not have it. While the inspector is open, launches are timed
/// ([`TensorDiagnostics::set_timings`]). Closing it restores the timing setting and stops its systems. Failures are
/// still recorded in its log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorInspectorPlugin {
    /// The key that opens and closes the inspector.
    pub key: KeyCode,
    /// Whether the inspector is open at startup.
    pub open: bool,
    /// Whether the inspector has its own window. Without it, the app calls the panels itself.
    pub window: bool,
    /// Interval between two updates of the figures. The window is drawn every frame.
    pub refresh: Duration,
    /// Frames that take longer than this, and at least twice the usual time, are added to the log.
    pub slow_frame: Duration,
    /// The colour theme.
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

/// The state of the inspector: whether it is open, and which panel it shows.
#[derive(Resource, Clone, Copy, Debug, PartialEq, Reflect)]
#[reflect(Resource, Debug, PartialEq, Clone)]
pub struct TensorInspector {
    /// Whether the inspector is open. Its systems do not run while it is closed.
    pub open: bool,
    /// The selected panel.
    pub panel: InspectorPanel,
    /// The colour theme.
    pub theme: InspectorTheme,
    /// Interval between two updates of the figures.
    pub refresh: Duration,
    /// Frames that take longer than this, and at least twice the usual time, are added to the log.
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
    /// Whether a panel may be visible. Always true if the app shows the panels itself.
    fn wants(&self, panel: InspectorPanel) -> bool {
        !self.window || self.panel == panel
    }
}

/// The panels of the inspector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Reflect)]
pub enum InspectorPanel {
    /// Backend, frame cost, budget and warnings.
    #[default]
    Overview,
    /// Memory by model, by kind and over time.
    Memory,
    /// All tensors, and the values of the selected one.
    Tensors,
    /// Kernel timings.
    Kernels,
    /// Compiled pipelines.
    Pipelines,
    /// The last plan: recorded ops and the resulting launches.
    Plan,
    /// The nodes of ONNX models.
    Graph,
    /// Failures, evictions, device changes and slow frames.
    Log,
}

impl InspectorPanel {
    /// All panels, in tab order.
    pub const ALL: [InspectorPanel; 8] = [
        Self::Overview,
        Self::Memory,
        Self::Tensors,
        Self::Kernels,
        Self::Pipelines,
        Self::Plan,
        Self::Graph,
        Self::Log,
    ];

    /// The title of its tab.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Memory => "Memory",
            Self::Tensors => "Tensors",
            Self::Kernels => "Kernels",
            Self::Pipelines => "Pipelines",
            Self::Plan => "Plan",
            Self::Graph => "Graph",
            Self::Log => "Log",
        }
    }
}

/// The user's choices in each panel.
#[derive(Resource, Clone, Debug, Default)]
pub struct InspectorState {
    /// State of the memory panel.
    pub memory: MemoryState,
    /// State of the tensors panel.
    pub tensors: TensorsState,
    /// State of the kernels panel.
    pub kernels: KernelsState,
    /// State of the pipelines panel.
    pub pipelines: PipelinesState,
    /// State of the plan panel.
    pub plan: PlanState,
    /// State of the graph panel.
    pub graph: GraphState,
    /// State of the log panel.
    pub log: LogState,
}

impl Plugin for TensorInspectorPlugin {
    fn build(&self, app: &mut App) {
        // If the app shows the panels itself, it also sets up egui.
        if self.window && !app.is_plugin_added::<EguiPlugin>() {
            app.add_plugins(EguiPlugin::default());
        }
        app.add_plugins(log::plugin)
            .register_type::<TensorInspector>()
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
        #[cfg(feature = "onnx")]
        app.add_systems(First, gather::gather_graphs.after(gather::gather).run_if(is_open));
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

/// Switches timings on while the inspector is open, and restores the previous setting afterwards.
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
    // Write only on a change, so that change detection does not trigger every frame.
    inspector.set_if_neq(shown);
    Ok(())
}

/// The whole window: the tabs and the selected panel.
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
            // Without this, the window would shrink to its content.
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

/// One panel, with its state.
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
        InspectorPanel::Graph => graph_panel(ui, snapshot, &mut state.graph),
        InspectorPanel::Log => log_panel(ui, snapshot, &mut state.log),
    }
}
