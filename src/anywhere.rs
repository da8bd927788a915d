//! Starting on any machine: Bevy's renderer ends the app where there is no driver, so look first.

use core::time::Duration;

use bevy::app::{PluginGroupBuilder, ScheduleRunnerPlugin};
use bevy::log::{DEFAULT_FILTER, LogPlugin};
use bevy::prelude::*;
use bevy::render::RenderPlugin;
use bevy::render::settings::WgpuSettings;
use bevy::window::ExitCondition;

/// From frame to frame without a window: a fast game's pace. Empty frames one after the other would take the cores that tensor work runs on.
const PACE: Duration = Duration::from_millis(8);

/// `DefaultPlugins`, fitted to the machine: no renderer where there is no adapter (tensor work then runs on the CPU), and no window where there
/// is no display or none is wanted. Without a window frames come at 125 a second; `set` a `ScheduleRunnerPlugin` for another pace.
///
/// ```
/// # use bevy::prelude::*;
/// # use bevy_tensor_compute::prelude::*;
/// App::new().add_plugins((AnywherePlugins::headless(), TensorComputePlugin::default()));
/// ```
#[derive(Clone, Debug, Default)]
pub struct AnywherePlugins {
    /// The window to open if there is a display.
    pub window: Option<Window>,
}

impl AnywherePlugins {
    /// Without a window.
    pub fn headless() -> Self {
        Self::default()
    }

    /// With a window if there is a display.
    pub fn windowed(window: Window) -> Self {
        Self { window: Some(window) }
    }
}

impl PluginGroup for AnywherePlugins {
    fn build(self) -> PluginGroupBuilder {
        let adapter = has_adapter();
        let window = self.window.filter(|_| adapter && has_display());
        let windowed = window.is_some();
        let mut plugins = DefaultPlugins.build().set(WindowPlugin {
            exit_condition: if windowed { ExitCondition::OnAllClosed } else { ExitCondition::DontExit },
            primary_window: window,
            ..default()
        });
        if !adapter {
            let settings = WgpuSettings { backends: None, ..default() };
            plugins = plugins.set(RenderPlugin { render_creation: settings.into(), ..default() });
            // Bevy's plugins complain about the renderer that is left out on purpose.
            plugins = plugins.set(LogPlugin { filter: format!("{DEFAULT_FILTER},bevy_render=off"), ..default() });
        }
        #[cfg(feature = "inspector")]
        if !windowed {
            plugins = plugins.disable::<bevy::winit::WinitPlugin>();
        }
        if !windowed {
            plugins = plugins.add(ScheduleRunnerPlugin::run_loop(PACE));
        }
        plugins
    }
}

/// Whether Bevy would find an adapter to render with, hardware or software.
pub fn has_adapter() -> bool {
    let settings = WgpuSettings::default();
    let Some(backends) = settings.backends else { return false };
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = backends;
    let instance = wgpu::Instance::new(descriptor);
    bevy::tasks::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default())).is_ok()
}

/// Whether there is somewhere to open a window.
pub fn has_display() -> bool {
    if cfg!(all(unix, not(target_os = "macos"))) {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        set("DISPLAY") || set("WAYLAND_DISPLAY")
    } else {
        true
    }
}
