//! The egui overlay: a window of panels over the diagnostics. Panels are plain functions, so that users can put them into windows of
//! their own; they read and never count.

mod overview;
mod plan;

use bevy::prelude::*;
use bevy_egui::{EguiContexts, EguiPlugin, EguiPrimaryContextPass, egui};

pub use overview::overview_panel;
pub use plan::plan_panel;

use crate::diagnostics::TensorDiagnostics;
use crate::support::{Backend, TensorSupport};

/// Shows what tensor work costs, over the running app; one key opens and closes it. Needs a camera to draw with, as all of egui does.
#[derive(Clone, Copy, Debug)]
pub struct TensorInspectorPlugin {
    /// The key that opens and closes it.
    pub key: KeyCode,
    /// Whether it is open from the start.
    pub open: bool,
}

impl Default for TensorInspectorPlugin {
    fn default() -> Self {
        Self { key: KeyCode::F12, open: false }
    }
}

/// Whether the inspector is open, and on which panel.
#[derive(Resource, Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorInspector {
    /// Whether it is shown. Closed, none of its drawing runs.
    pub open: bool,
    /// The panel in front.
    pub panel: InspectorPanel,
    key: KeyCode,
}

/// The inspector's panels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InspectorPanel {
    /// Backend, memory and counts.
    #[default]
    Overview,
    /// The last plan: what was recorded, what it became.
    Plan,
}

impl Plugin for TensorInspectorPlugin {
    fn build(&self, app: &mut App) {
        if !app.is_plugin_added::<EguiPlugin>() {
            app.add_plugins(EguiPlugin::default());
        }
        app.insert_resource(TensorInspector { open: self.open, panel: InspectorPanel::default(), key: self.key })
            .add_systems(PreUpdate, toggle)
            .add_systems(EguiPrimaryContextPass, show.run_if(|inspector: Res<TensorInspector>| inspector.open));
    }
}

fn toggle(keys: Res<ButtonInput<KeyCode>>, mut inspector: ResMut<TensorInspector>) {
    if keys.just_pressed(inspector.key) {
        inspector.open = !inspector.open;
    }
}

fn show(
    mut contexts: EguiContexts,
    mut inspector: ResMut<TensorInspector>,
    support: Res<TensorSupport>,
    diagnostics: Res<TensorDiagnostics>,
) -> Result {
    let mut open = inspector.open;
    let mut panel = inspector.panel;
    egui::Window::new("Tensors").default_width(420.0).open(&mut open).show(contexts.ctx_mut()?, |ui| {
        ui.horizontal(|ui| {
            ui.selectable_value(&mut panel, InspectorPanel::Overview, "Overview");
            ui.selectable_value(&mut panel, InspectorPanel::Plan, "Plan");
        });
        ui.separator();
        match panel {
            InspectorPanel::Overview => overview_panel(ui, &support, &diagnostics.figures()),
            InspectorPanel::Plan => {
                for backend in [Backend::Gpu, Backend::Cpu] {
                    if let Some(report) = diagnostics.last_plan(backend) {
                        plan_panel(ui, backend, &report);
                    }
                }
            }
        }
    });
    // Only a change is a change, so that nothing that watches the resource wakes up every frame.
    inspector.set_if_neq(TensorInspector { open, panel, ..*inspector });
    Ok(())
}
