//! The plugin: resources, systems and the render world setup.

use core::time::Duration;
use std::path::PathBuf;

use bevy::prelude::*;
use bevy::render::renderer::RenderDevice;
use bevy::render::{ExtractSchedule, Render, RenderApp, RenderStartup, RenderSystems};
use bevy::shader::Shader;

use crate::cpu::{CpuExecutor, rest_cpu};
use crate::error::{FaultReceiver, FaultSender, TensorFault, catch, log_fault, trigger_faults};
use crate::extract::{
    Extracted, borrow_buffers, extract_recordings, hand_over_recordings, move_models, run_batches, share_buffers,
};
use crate::figures::TensorDiagnostics;
use crate::formats::{
    FileChannel, LoadWeights, SafetensorsLoader, TensorWeights, UploadSettings, begin_arrivals, deliver_files,
    place_weights,
};
use crate::gpu::{GpuSettings, SharedBuffers, create_executor};
use crate::ir::Backend;
use crate::kernel::custom::{TensorKernels, reload_kernels};
use crate::mailbox::{BindingNewsSender, Held, Outbox};
use crate::memory::{MemorySettings, NewsReceiver, NewsSender, trigger_news};
use crate::pipelines::{TensorPipelines, WarmUpStatus, trigger_warm_ups};
use crate::readback::{NotificationChannel, trigger_ready};
use crate::record::{FrameRecordings, TuneSettings};
use crate::reports::{WatchdogSettings, watch};
use crate::schedule::{BacklogSettings, TensorBacklog, TensorBacklogs};
use crate::support::{AdapterFacts, BackendChoice, TensorSupport};

/// Adds tensors, ops on them, and readback of the results to the app.
///
/// Add it after `DefaultPlugins` or another plugin group. If the app has a renderer, the plugin can use the GPU.
/// Otherwise it runs on the CPU.
#[derive(Clone, Debug, Default)]
pub struct TensorComputePlugin {
    /// Which backend to use.
    pub backend: BackendChoice,
    /// Initial value of the [`MemorySettings`] resource.
    pub memory: MemorySettings,
    /// Settings for compiling and fusing kernels.
    pub pipelines: PipelineSettings,
    /// If the renderer is stopped for longer than this, tensors and recorded work move to the CPU permanently. `None`
    /// disables the fallback.
    ///
    /// Bevy's renderer stops when its device is lost, unless the app's `RenderErrorHandler` returns
    /// `RenderErrorPolicy::Recover`. Apps that recover should choose a duration longer than the recovery takes.
    /// [`TensorLost`](crate::memory::TensorLost) lists which tensors cannot be moved.
    pub cpu_fallback: Option<Duration>,
    /// Initial value of the [`BacklogSettings`] resource: how far recording may run ahead.
    pub backlog: BacklogSettings,
    /// Initial value of the [`WatchdogSettings`] resource: when work that does not move on is reported.
    pub watchdog: WatchdogSettings,
    /// Measure the time of every launch. See [`TensorDiagnostics::set_timings`].
    pub timings: bool,
    /// Start in debug mode: log plans, add debug groups to launches, and report the op that first produced a NaN or an
    /// infinity. See [`TensorDiagnostics::set_debug`].
    pub debug: bool,
}

/// Settings for compiling and fusing kernels.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineSettings {
    /// Compile pipelines synchronously, which blocks the frame, instead of in the background. For tests and tools that
    /// need results in the same frame.
    pub synchronous: bool,
    /// Fuse elementwise ops with each other and with adjacent kernels. Disable it only for comparisons.
    pub fuse: bool,
    /// Maximum number of cached pipelines. Unused ones are evicted, least recently used first.
    pub capacity: usize,
    /// Folder for a cache file with compiled pipelines and tuning results. `None` disables it.
    ///
    /// The file is written 120 frames after the last change, and when the app exits. Invalid files are ignored.
    pub cache: Option<PathBuf>,
    /// Measure the variants of every kernel that the app uses, in the background, and use the fastest. `None` uses the
    /// default variants for the adapter. [`TensorCommands::tune`](crate::ops::TensorCommands::tune) measures on
    /// request.
    pub tune: Option<TuneSettings>,
}

impl Default for PipelineSettings {
    fn default() -> Self {
        Self { synchronous: false, fuse: true, capacity: 1024, cache: None, tune: None }
    }
}

impl PipelineSettings {
    /// A folder for this crate in the user's cache folder, as a value for [`PipelineSettings::cache`].
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

/// The system sets of the plugin in the main world.
#[derive(SystemSet, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorSystems {
    /// In [`First`]: triggers [`TensorReady`](crate::readback::TensorReady) for values that arrived and
    /// [`TensorFault`] for failures, and applies changes of kernel shader assets.
    Deliver,
    /// In [`Last`]: sends the recorded work to the backends. Record work before this set.
    Submit,
}

impl Plugin for TensorComputePlugin {
    fn build(&self, app: &mut App) {
        let (sender, receiver) = crossbeam_channel::unbounded();
        let (news_sender, news_receiver) = crossbeam_channel::unbounded();
        let diagnostics = TensorDiagnostics::new(self.debug, self.timings);
        app.add_plugins((crate::tensor::plugin, crate::memory::plugin, crate::image::plugin, crate::binding::plugin))
            .init_resource::<FrameRecordings>()
            .init_resource::<Outbox>()
            .init_resource::<Held>()
            .init_resource::<TensorBacklogs>()
            .insert_resource(self.backlog)
            .register_type::<TensorBacklog>()
            .register_type::<BacklogSettings>()
            .init_resource::<FileChannel>()
            .init_resource::<TensorKernels>()
            .add_message::<AssetEvent<Shader>>()
            .insert_resource(self.memory)
            .register_type::<WatchdogSettings>()
            .insert_resource(self.watchdog)
            .insert_resource(NewsReceiver(news_receiver))
            .insert_resource(NewsSender(news_sender))
            .init_resource::<NotificationChannel>()
            .init_resource::<TensorPipelines>()
            .register_type::<WarmUpStatus>()
            .init_resource::<WarmUpStatus>()
            .insert_resource(CpuExecutor::new(self.pipelines.fuse, diagnostics.clone(), sender.clone()))
            .insert_resource(FaultReceiver(receiver))
            .insert_resource(FaultSender(sender))
            .insert_resource(diagnostics)
            .add_observer(log_fault)
            .add_systems(
                First,
                (
                    poll_device,
                    watch,
                    (trigger_ready, trigger_faults, trigger_news, trigger_warm_ups, deliver_files, reload_kernels),
                )
                    .chain()
                    .in_set(TensorSystems::Deliver),
            )
            .register_type::<LoadWeights>()
            .register_type::<UploadSettings>()
            .init_resource::<UploadSettings>()
            .add_systems(PostUpdate, (begin_arrivals, place_weights).chain())
            .add_systems(Last, (hand_over_recordings, move_models, rest_cpu).chain().in_set(TensorSystems::Submit))
            .add_plugins((crate::reports::paths_plugin, crate::reports::plugin));
        #[cfg(feature = "onnx")]
        app.add_plugins(crate::onnx::plugin);
        #[cfg(feature = "text")]
        app.add_plugins(crate::text::plugin);
    }

    fn finish(&self, app: &mut App) {
        // Not in `build`: the asset server may be added after this plugin, or not at all.
        if app.world().contains_resource::<AssetServer>() {
            app.init_asset::<TensorWeights>().register_asset_loader(SafetensorsLoader);
            #[cfg(feature = "gguf")]
            app.init_asset::<crate::formats::gguf::GgufModel>()
                .register_asset_loader(crate::formats::GgufLoader)
                .register_asset_loader(crate::formats::GgufWeightsLoader);
            #[cfg(feature = "audio")]
            app.init_asset::<crate::audio::SoundClip>().register_asset_loader(crate::audio::SoundLoader);
            #[cfg(feature = "onnx")]
            app.init_asset::<crate::onnx::OnnxGraph>().register_asset_loader(crate::onnx::OnnxLoader);
        }
        if app.world().contains_resource::<RenderDevice>() {
            self.join_renderer(app);
        }
    }

    fn cleanup(&self, app: &mut App) {
        // Plugins finish in the order in which they were added. A renderer that was added after this plugin is only
        // available now.
        if !app.world().contains_resource::<TensorSupport>() {
            self.join_renderer(app);
        }
    }
}

impl TensorComputePlugin {
    /// Chooses the backend and, if there is a device, sets up the render world.
    fn join_renderer(&self, app: &mut App) {
        let adapter = adapter_facts(app.world());
        let support =
            TensorSupport::decide(self.backend, adapter.clone().filter(|_| app.get_sub_app(RenderApp).is_some()));
        let message = format!("tensor work runs on the {}: {}", support.backend, support.reason);
        match (self.backend, support.backend) {
            // The GPU was requested but is not available.
            (BackendChoice::Gpu, Backend::Cpu) => warn!("{message}"),
            _ => info!("{message}"),
        }
        app.insert_resource(support);
        if let Some(facts) = &adapter {
            let errors =
                app.world_mut().resource_mut::<TensorKernels>().set_device(facts.features, facts.limits.clone());
            for error in errors {
                // The receiver is in the same world, so this cannot fail.
                let _ = app.world().resource::<FaultSender>().0.send(TensorFault::Kernel(error));
            }
        }
        let (faults, news) =
            (app.world().resource::<FaultSender>().clone(), app.world().resource::<NewsSender>().clone());
        let shared = SharedBuffers::new(app.world().resource::<BindingNewsSender>().clone());
        let diagnostics = app.world().resource::<TensorDiagnostics>().clone();
        let pipelines = app.world().resource::<TensorPipelines>().clone();
        // Without a renderer or a device, all work runs on the CPU.
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
            .insert_resource(shared)
            .add_systems(RenderStartup, create_executor)
            .add_systems(ExtractSchedule, extract_recordings)
            .add_systems(
                Render,
                (
                    // Bind groups of materials are made with the assets.
                    share_buffers.after(RenderSystems::ExtractCommands).before(RenderSystems::PrepareAssets),
                    (borrow_buffers, run_batches).chain().in_set(RenderSystems::PrepareResources),
                ),
            );
    }
}

/// The adapter of the renderer, if there is one.
fn adapter_facts(world: &World) -> Option<AdapterFacts> {
    Some(AdapterFacts::new(world.get_resource()?, world.get_resource()?))
}

/// Polls the device without waiting. The callbacks of finished readbacks run now, so that they are delivered in this
/// frame. Polling also detects a lost device.
fn poll_device(device: Option<Res<RenderDevice>>) {
    if let Some(device) = device {
        // Callbacks of the renderer run here too. Some of Bevy's panic if the device is lost.
        match catch(|| device.poll(wgpu::PollType::Poll)) {
            // Fails only if the device is lost, which Bevy reports.
            Ok(_) => {}
            Err(panic) => error!("a callback of the device panicked: {panic}"),
        }
    }
}
