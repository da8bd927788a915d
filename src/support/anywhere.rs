//! Starting on any machine. Bevy's renderer panics without a driver, so the adapters are checked first.

use core::time::Duration;

use bevy::app::{PluginGroupBuilder, ScheduleRunnerPlugin};
use bevy::log::{DEFAULT_FILTER, LogPlugin};
use bevy::prelude::*;
use bevy::render::RenderPlugin;
use bevy::render::settings::WgpuSettings;
use bevy::window::ExitCondition;

use super::AdapterFacts;

/// Time per frame without a window. Frames without a pause would take the cores that tensor work runs on.
const PACE: Duration = Duration::from_millis(8);

/// `DefaultPlugins`, adapted to the machine. Without an adapter it adds no renderer, and tensor work runs on the CPU.
/// Without a display it opens no window. Without a window the app runs at 125 frames per second; `set` a
/// `ScheduleRunnerPlugin` to change that.
///
/// ```
/// # use bevy::prelude::*;
/// # use bevy_tensor_compute::prelude::*;
/// App::new().add_plugins((AnywherePlugins::headless(), TensorComputePlugin::default()));
/// ```
#[derive(Clone, Debug, Default)]
pub struct AnywherePlugins {
    /// The window to open, if there is a display.
    pub window: Option<Window>,
}

impl AnywherePlugins {
    /// Plugins without a window.
    pub fn headless() -> Self {
        Self::default()
    }

    /// Plugins with a window, if there is a display.
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
            // Bevy's plugins would warn about the missing renderer.
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

/// Whether Bevy's renderer would find an adapter, hardware or software.
pub fn has_adapter() -> bool {
    let Some((instance, _)) = instance() else { return false };
    bevy::tasks::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default())).is_ok()
}

/// Lists the adapters of this machine that Bevy's renderer could use. Empty without a driver. Creates no device.
///
/// A GPU can be listed several times, once per graphics API.
///
/// ```
/// for adapter in bevy_tensor_compute::support::adapters() {
///     println!("{adapter}");
/// }
/// ```
pub fn adapters() -> Vec<AdapterFacts> {
    let Some((instance, backends)) = instance() else { return Vec::new() };
    let adapters = bevy::tasks::block_on(instance.enumerate_adapters(backends));
    let facts =
        |adapter: &wgpu::Adapter| AdapterFacts::from_info(&adapter.get_info(), adapter.features(), adapter.limits());
    adapters.iter().map(facts).collect()
}

/// An instance with the graphics APIs that Bevy uses by default. `None` if the environment disables them all.
fn instance() -> Option<(wgpu::Instance, wgpu::Backends)> {
    let backends = WgpuSettings::default().backends?;
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = backends;
    Some((wgpu::Instance::new(descriptor), backends))
}

/// Whether a window can be opened: on X11 and Wayland if a display server is reachable, on other systems always.
pub fn has_display() -> bool {
    #[cfg(all(unix, not(any(target_vendor = "apple", target_os = "android"))))]
    return display::answers();
    #[cfg(not(all(unix, not(any(target_vendor = "apple", target_os = "android")))))]
    return true;
}

/// Checks whether the displays named by the environment are reachable. A session can outlive its display server, and
/// opening a window would then end the app.
#[cfg(all(unix, not(any(target_vendor = "apple", target_os = "android"))))]
mod display {
    use core::time::Duration;
    use std::net::{TcpStream, ToSocketAddrs};
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;

    /// Time limit for connecting to a display on another machine.
    const TIMEOUT: Duration = Duration::from_millis(500);

    pub(super) fn answers() -> bool {
        let named = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let wayland = named("WAYLAND_DISPLAY").is_some_and(|name| {
            let folder = named("XDG_RUNTIME_DIR").map(PathBuf::from).unwrap_or_default();
            UnixStream::connect(folder.join(name)).is_ok()
        });
        wayland || named("DISPLAY").is_some_and(|name| x_answers(&name))
    }

    /// Parses `[host]:number[.screen]` into host and number.
    fn x_address(name: &str) -> Option<(&str, u16)> {
        let (host, rest) = name.rsplit_once(':')?;
        let number = rest.split_once('.').map_or(rest, |(number, _)| number);
        Some((if host == "unix" { "" } else { host }, number.parse().ok()?))
    }

    fn x_answers(name: &str) -> bool {
        let Some((host, number)) = x_address(name) else { return false };
        if host.is_empty() {
            let path = format!("/tmp/.X11-unix/X{number}");
            return UnixStream::connect(&path).is_ok() || has_abstract_socket(&path);
        }
        let Some(port) = number.checked_add(6000) else { return false };
        let mut addresses = (host, port).to_socket_addrs().into_iter().flatten();
        addresses.any(|address| TcpStream::connect_timeout(&address, TIMEOUT).is_ok())
    }

    /// Whether an abstract socket, which has no file, accepts connections. Linux only.
    fn has_abstract_socket(path: &str) -> bool {
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
        fn display_names_are_parsed_and_unreachable_displays_rejected() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_listed_where_the_renderer_finds_one() {
        let adapters = adapters();
        assert_eq!(!adapters.is_empty(), has_adapter());
        for adapter in &adapters {
            assert!(!adapter.name.is_empty() && !adapter.api.is_empty() && !adapter.kind.is_empty());
            assert_eq!(adapter.software, adapter.kind == "Cpu");
            assert!(adapter.to_string().contains(&adapter.name));
        }
    }
}
