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

/// Whether there is somewhere to open a window: on X11 and Wayland a display that answers, elsewhere always.
pub fn has_display() -> bool {
    #[cfg(all(unix, not(any(target_vendor = "apple", target_os = "android"))))]
    return display::answers();
    #[cfg(not(all(unix, not(any(target_vendor = "apple", target_os = "android")))))]
    return true;
}

/// Displays that the environment names. It may name one that is gone, as in a session that outlived its server, where opening a window would end the app.
#[cfg(all(unix, not(any(target_vendor = "apple", target_os = "android"))))]
mod display {
    use core::time::Duration;
    use std::net::{TcpStream, ToSocketAddrs};
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;

    /// How long a display on another machine may take.
    const PATIENCE: Duration = Duration::from_millis(500);

    pub(super) fn answers() -> bool {
        let named = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let wayland = named("WAYLAND_DISPLAY").is_some_and(|name| {
            let folder = named("XDG_RUNTIME_DIR").map(PathBuf::from).unwrap_or_default();
            UnixStream::connect(folder.join(name)).is_ok()
        });
        wayland || named("DISPLAY").is_some_and(|name| x_answers(&name))
    }

    /// `[host]:number[.screen]` as host and number.
    fn x_address(name: &str) -> Option<(&str, u16)> {
        let (host, rest) = name.rsplit_once(':')?;
        let number = rest.split_once('.').map_or(rest, |(number, _)| number);
        Some((if host == "unix" { "" } else { host }, number.parse().ok()?))
    }

    fn x_answers(name: &str) -> bool {
        let Some((host, number)) = x_address(name) else { return false };
        if host.is_empty() {
            let path = format!("/tmp/.X11-unix/X{number}");
            return UnixStream::connect(&path).is_ok() || in_memory(&path);
        }
        let Some(port) = number.checked_add(6000) else { return false };
        let mut addresses = (host, port).to_socket_addrs().into_iter().flatten();
        addresses.any(|address| TcpStream::connect_timeout(&address, PATIENCE).is_ok())
    }

    /// Linux has sockets that no file stands for.
    fn in_memory(path: &str) -> bool {
        #[cfg(target_os = "linux")]
        {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(path);
            address.is_ok_and(|address| UnixStream::connect_addr(&address).is_ok())
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = path;
            false
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn names_of_displays_are_read_and_those_that_do_not_answer_are_none() {
            assert_eq!(x_address(":0"), Some(("", 0)));
            assert_eq!(x_address("unix:12.3"), Some(("", 12)));
            assert_eq!(x_address("some.host:1.0"), Some(("some.host", 1)));
            assert_eq!(x_address("nonsense"), None);
            assert_eq!(x_address(":x"), None);
            let free = (40_000..).find(|n| !PathBuf::from(format!("/tmp/.X11-unix/X{n}")).exists()).unwrap();
            assert!(!x_answers(&format!(":{free}")) && !x_answers("nonsense"));
        }
    }
}
