//! The plugin: the whole schedule, in the order data flows.

use core::time::Duration;
use std::path::PathBuf;

use bevy::prelude::*;
use bevy::render::renderer::RenderDevice;
use bevy::render::{ExtractSchedule, Render, RenderApp, RenderStartup, RenderSystems};
use bevy::shader::Shader;

use crate::cpu::CpuExecutor;
use crate::error::{FaultReceiver, FaultSender, TensorFault, log_fault, trigger_faults};
use crate::extract::{Extracted, extract_recordings, hand_over_recordings, run_batches};
use crate::figures::TensorDiagnostics;
use crate::formats::{
    FileChannel, SafetensorsLoader, TensorWeights, UploadSettings, begin_arrivals, deliver_files, place_weights,
};
use crate::gpu::{GpuSettings, create_executor};
use crate::ir::Backend;
use crate::kernel::custom::{TensorKernels, reload_kernels};
use crate::mailbox::Outbox;
use crate::memory::{MemorySettings, NewsReceiver, NewsSender, trigger_news};
use crate::pipelines::{TensorPipelines, TensorReadyState, trigger_warm_ups};
use crate::readback::{NotificationChannel, trigger_ready};
use crate::record::{FrameRecordings, TuneSettings};
use crate::support::{AdapterFacts, BackendChoice, TensorSupport};

/// Tensors as components, recorded ops, results over channels.
///
/// Add it after `DefaultPlugins` (or any other set): with a renderer it can use the GPU, without one it runs on the CPU.
#[derive(Clone, Debug, Default)]
pub struct TensorComputePlugin {
    /// Where work runs.
    pub backend: BackendChoice,
    /// How much device memory tensors may take; a resource of the app from then on.
    pub memory: MemorySettings,
    /// How kernels are compiled and put together.
    pub pipelines: PipelineSettings,
    /// How long the renderer may stand still before tensors and work move to the CPU for good; `None` for as long as it takes.
    ///
    /// Bevy's renderer stops when its device is lost, unless the app's `RenderErrorHandler` answers with `RenderErrorPolicy::Recover`: then a new
    /// device takes over, and this must be longer than that takes. See [`TensorLost`](crate::TensorLost) for what cannot be moved.
    pub cpu_fallback: Option<Duration>,
    /// Time every launch from the start; see [`TensorDiagnostics::set_timings`].
    pub timings: bool,
    /// Start in debug mode: plans are logged, launches have debug groups, and numbers that are not finite are traced to the op that made them; see
    /// [`TensorDiagnostics::set_debug`].
    pub debug: bool,
}

/// How kernels are compiled and put together.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineSettings {
    /// Compile on the spot, holding the frame up, instead of in the background. For tests and tools that want results in the same frame.
    pub synchronous: bool,
    /// Join elementwise ops into one kernel, and into the kernels before and after them. Off only to compare.
    pub fuse: bool,
    /// Pipelines kept. Beyond, those go that no plan uses, the least recently used first.
    pub capacity: usize,
    /// The folder of a file that keeps pipelines and tuning for the next start; `None` for no file. Whatever is wrong with a file, it is ignored.
    pub cache: Option<PathBuf>,
    /// Measure the forms of every kernel that the app uses, in the background, and use the fastest; `None` for the defaults of the adapter.
    /// [`TensorCommands::tune`](crate::TensorCommands::tune) does it on request.
    pub tune: Option<TuneSettings>,
}

impl Default for PipelineSettings {
    fn default() -> Self {
        Self { synchronous: false, fuse: true, capacity: 1024, cache: None, tune: None }
    }
}

impl PipelineSettings {
    /// The user's folder for caches, as the system has it, with one of this crate in it: for [`PipelineSettings::cache`].
    pub fn user_cache() -> Option<PathBuf> {
        let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = if cfg!(target_os = "windows") {
            from("LOCALAPPDATA")
        } else if cfg!(target_os = "macos") {
            from("HOME").map(|home| home.join("Library/Caches"))
        } else {
            from("XDG_CACHE_HOME").or_else(|| from("HOME").map(|home| home.join(".cache")))
        };
        folder.map(|folder| folder.join("bevy_tensor_compute"))
    }
}

/// What the plugin does in a frame, in the main world.
#[derive(SystemSet, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorSystems {
    /// In [`First`]: values that have arrived become [`TensorReady`](crate::TensorReady) events, failures become
    /// [`TensorFault`](crate::TensorFault)s, and kernels take in what became of their shader assets.
    Deliver,
    /// In [`Last`]: what the frame recorded is handed to the backends. Record before this.
    Submit,
}

impl Plugin for TensorComputePlugin {
    fn build(&self, app: &mut App) {
        let (sender, receiver) = crossbeam_channel::unbounded();
        let (news_sender, news_receiver) = crossbeam_channel::unbounded();
        let diagnostics = TensorDiagnostics::new(self.debug, self.timings);
        app.add_plugins((crate::tensor::plugin, crate::memory::plugin, crate::image::plugin))
            .init_resource::<FrameRecordings>()
            .init_resource::<Outbox>()
            .init_resource::<FileChannel>()
            .init_resource::<TensorKernels>()
            .add_message::<AssetEvent<Shader>>()
            .insert_resource(self.memory)
            .insert_resource(NewsReceiver(news_receiver))
            .insert_resource(NewsSender(news_sender))
            .init_resource::<NotificationChannel>()
            .init_resource::<TensorPipelines>()
            .init_resource::<TensorReadyState>()
            .insert_resource(CpuExecutor::new(self.pipelines.fuse, diagnostics.clone(), sender.clone()))
            .insert_resource(FaultReceiver(receiver))
            .insert_resource(FaultSender(sender))
            .insert_resource(diagnostics)
            .add_observer(log_fault)
            .add_systems(
                First,
                (
                    poll_device,
                    (trigger_ready, trigger_faults, trigger_news, trigger_warm_ups, deliver_files, reload_kernels),
                )
                    .chain()
                    .in_set(TensorSystems::Deliver),
            )
            .init_resource::<UploadSettings>()
            .add_systems(PostUpdate, (begin_arrivals, place_weights).chain())
            .add_systems(Last, hand_over_recordings.in_set(TensorSystems::Submit))
            .add_plugins((crate::reports::paths_plugin, crate::reports::plugin));
    }

    fn finish(&self, app: &mut App) {
        // Only here: the asset server may be added after this plugin, or not at all.
        if app.world().contains_resource::<AssetServer>() {
            app.init_asset::<TensorWeights>().register_asset_loader(SafetensorsLoader);
        }
        if app.world().contains_resource::<RenderDevice>() {
            self.join_renderer(app);
        }
    }

    fn cleanup(&self, app: &mut App) {
        // Plugins finish in the order they were added, so a renderer added after this one is here only now.
        if !app.world().contains_resource::<TensorSupport>() {
            self.join_renderer(app);
        }
    }
}

impl TensorComputePlugin {
    /// Decides on the backend and, if there is a device, sets up the render world.
    fn join_renderer(&self, app: &mut App) {
        let adapter = adapter_facts(app.world());
        let support =
            TensorSupport::decide(self.backend, adapter.clone().filter(|_| app.get_sub_app(RenderApp).is_some()));
        let message = format!("tensor work runs on the {}: {}", support.backend, support.reason);
        match (self.backend, support.backend) {
            // Asked for and not to be had.
            (BackendChoice::Gpu, Backend::Cpu) => warn!("{message}"),
            _ => info!("{message}"),
        }
        app.insert_resource(support);
        if let Some(facts) = &adapter {
            let errors =
                app.world_mut().resource_mut::<TensorKernels>().set_device(facts.features, facts.limits.clone());
            for error in errors {
                // Its other end is in the same world.
                let _ = app.world().resource::<FaultSender>().0.send(TensorFault::Kernel(error));
            }
        }
        let (faults, news) =
            (app.world().resource::<FaultSender>().clone(), app.world().resource::<NewsSender>().clone());
        let diagnostics = app.world().resource::<TensorDiagnostics>().clone();
        let pipelines = app.world().resource::<TensorPipelines>().clone();
        // No renderer, no device: everything stays on the CPU.
        let (Some(render_app), Some(_)) = (app.get_sub_app_mut(RenderApp), adapter) else { return };
        render_app
            .insert_resource(Extracted::new(self.memory))
            .insert_resource(GpuSettings {
                synchronous_pipelines: self.pipelines.synchronous,
                fuse: self.pipelines.fuse,
                capacity: self.pipelines.capacity,
                cache: self.pipelines.cache.clone(),
                tune: self.pipelines.tune,
                cpu_fallback: self.cpu_fallback,
                memory: self.memory,
            })
            .insert_resource(faults)
            .insert_resource(news)
            .insert_resource(diagnostics)
            .insert_resource(pipelines)
            .add_systems(RenderStartup, create_executor)
            .add_systems(ExtractSchedule, extract_recordings)
            .add_systems(Render, run_batches.in_set(RenderSystems::PrepareResources));
    }
}

/// What the renderer's adapter is, if the app renders.
fn adapter_facts(world: &World) -> Option<AdapterFacts> {
    Some(AdapterFacts::new(world.get_resource()?, world.get_resource()?))
}

/// Lets the device run the callbacks of finished copies to the host, so that they are delivered this frame, and notice that it is gone; never waits.
fn poll_device(device: Option<Res<RenderDevice>>) {
    if let Some(device) = device {
        // Fails only on a lost device, which Bevy reports itself.
        let _ = device.poll(wgpu::PollType::Poll);
    }
}
