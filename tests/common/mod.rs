//! A headless app per backend, and tolerances for comparing results.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bevy::ecs::system::{RunSystemOnce, SystemState};
use bevy::prelude::*;
use bevy::render::RenderPlugin;
use bevy::render::pipelined_rendering::PipelinedRenderingPlugin;
use bevy::render::renderer::{RenderDevice, RenderQueue};
use bevy::render::settings::WgpuSettings;
use bevy::window::ExitCondition;
use bevy::winit::WinitPlugin;
use bevy_tensor_compute::PipelineSettings;
use bevy_tensor_compute::error::ReadError;
use bevy_tensor_compute::figures::TensorFigures;
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::tensor::Residency;

/// Both backends.
pub const BACKENDS: [Backend; 2] = [Backend::Gpu, Backend::Cpu];

/// An app that tests update manually.
pub struct Rig {
    pub app: App,
    pub backend: Backend,
}

/// Faults seen so far.
#[derive(Resource, Default)]
pub struct Faults(pub Vec<TensorFault>);

impl Rig {
    /// An app whose tensors live on `backend`.
    pub fn new(backend: Backend) -> Self {
        let pipelines = PipelineSettings { synchronous: true, ..default() };
        Self::with(backend, TensorComputePlugin { pipelines, ..default() })
    }

    /// An app with a GPU and the given memory settings.
    pub fn with_memory(memory: MemorySettings) -> Self {
        let pipelines = PipelineSettings { synchronous: true, ..default() };
        Self::with(Backend::Gpu, TensorComputePlugin { pipelines, memory, ..default() })
    }

    /// An app on a device that can bind at most this many bytes of a buffer.
    pub fn with_binding_limit(bytes: u64) -> Self {
        let limits = wgpu::Limits { max_storage_buffer_binding_size: bytes, ..adapter_limits() };
        let settings = WgpuSettings { constrained_limits: Some(limits), ..default() };
        let pipelines = PipelineSettings { synchronous: true, ..default() };
        Self::with_renderer(Backend::Gpu, TensorComputePlugin { pipelines, ..default() }, settings)
    }

    /// An app with the given plugin settings, except for the backend.
    pub fn with(backend: Backend, plugin: TensorComputePlugin) -> Self {
        Self::with_renderer(backend, plugin, WgpuSettings::default())
    }

    /// An app with the given settings for the plugin and the renderer.
    pub fn with_renderer(backend: Backend, plugin: TensorComputePlugin, renderer: WgpuSettings) -> Self {
        Self::build(backend, plugin, renderer, |_| ())
    }

    /// An app with an additional plugin.
    pub fn with_plugin(backend: Backend, more: impl Plugin) -> Self {
        let pipelines = PipelineSettings { synchronous: true, ..default() };
        let plugin = TensorComputePlugin { pipelines, ..default() };
        Self::build(backend, plugin, WgpuSettings::default(), |app| {
            app.add_plugins(more);
        })
    }

    /// An app with the given plugin settings and more plugins.
    pub fn with_plugins(backend: Backend, plugin: TensorComputePlugin, more: impl FnOnce(&mut App)) -> Self {
        Self::build(backend, plugin, WgpuSettings::default(), more)
    }

    fn build(
        backend: Backend,
        plugin: TensorComputePlugin,
        renderer: WgpuSettings,
        more: impl FnOnce(&mut App),
    ) -> Self {
        let mut app = App::new();
        let choice = match backend {
            Backend::Gpu => BackendChoice::Gpu,
            Backend::Cpu => BackendChoice::Cpu,
        };
        let plugin = TensorComputePlugin { backend: choice, ..plugin };
        match backend {
            Backend::Cpu => app.add_plugins((MinimalPlugins, plugin)),
            Backend::Gpu => {
                assert!(
                    bevy_tensor_compute::support::has_adapter(),
                    "no Vulkan adapter: install one (apt-get install mesa-vulkan-drivers) or run scripts/test"
                );
                app.add_plugins((headless_renderer(renderer), plugin))
            }
        };
        more(&mut app);
        app.init_resource::<Faults>();
        app.add_observer(|fault: On<TensorFault>, mut faults: ResMut<Faults>| faults.0.push(fault.clone()));
        app.finish();
        app.cleanup();
        app.update();
        let support = app.world().resource::<TensorSupport>();
        assert_eq!(support.backend, backend, "{}", support.reason);
        Self { app, backend }
    }

    /// Spawns a tensor that belongs to no model.
    pub fn spawn(&mut self, tensor: Tensor) -> Entity {
        self.app.world_mut().spawn(tensor).id()
    }

    /// Records in a separate system. The work runs in the next update.
    pub fn record<T: 'static>(
        &mut self,
        record: impl FnOnce(&TensorCommands) -> Result<T, OpError> + Send + Sync + 'static,
    ) -> Result<T, OpError> {
        let mut record = Some(record);
        self.app
            .world_mut()
            .run_system_once(move |ops: TensorCommands| record.take().map(|record| record(&ops)))
            .expect("the plugin is there")
            .expect("runs once")
    }

    /// Records with a closure that may borrow. The work runs in the next update.
    pub fn with_ops(&mut self, record: impl FnOnce(&TensorCommands)) {
        let mut state = SystemState::<TensorCommands>::new(self.app.world_mut());
        record(&state.get_mut(self.app.world_mut()).expect("the plugin is there"));
        state.apply(self.app.world_mut());
    }

    /// Calls `ask` with the tensors' memory.
    pub fn memory<T>(&mut self, ask: impl FnOnce(&mut TensorMemory) -> T) -> T {
        let mut state = SystemState::<TensorMemory>::new(self.app.world_mut());
        let answer = ask(&mut state.get_mut(self.app.world_mut()).expect("the plugin is there"));
        state.apply(self.app.world_mut());
        answer
    }

    /// Where the content of a tensor is.
    pub fn residency(&self, tensor: Entity) -> Residency {
        self.app.world().get::<Tensor>(tensor).expect("a tensor").residency()
    }

    /// Bytes of all buffers of the device, as counted by the device.
    pub fn device_bytes(&self) -> isize {
        self.app.world().resource::<RenderDevice>().wgpu_device().get_internal_counters().hal.buffer_memory.read()
    }

    /// Records a value and updates the app until its content arrives.
    pub fn compute(
        &mut self,
        record: impl for<'a> FnOnce(&'a TensorCommands) -> OpResult<TensorValue<'a>> + Send + Sync + 'static,
    ) -> Result<TensorData, OpError> {
        let receiver = self.record(move |ops| {
            let value = record(ops)?;
            ops.read(value)
        })?;
        Ok(self.wait(&receiver).expect("values arrive"))
    }

    /// The content of a tensor.
    pub fn read(&mut self, tensor: Entity) -> TensorData {
        let receiver = self.record(move |ops| ops.read(tensor)).expect("a tensor");
        self.wait(&receiver).expect("values arrive")
    }

    /// Updates the app until a receiver has its answer.
    pub fn wait(&mut self, receiver: &TensorReceiver) -> Result<TensorData, ReadError> {
        let mut answer = None;
        self.step_until(|_| {
            answer = answer.take().or_else(|| receiver.try_recv());
            answer.is_some()
        });
        answer.expect("step_until ends when it is here")
    }

    /// Updates the app until `done` returns true. Fails after a minute.
    pub fn step_until(&mut self, mut done: impl FnMut(&mut App) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !done(&mut self.app) {
            assert!(Instant::now() < end, "nothing happened for a minute; faults: {:?}", self.faults());
            self.app.update();
        }
    }

    /// Updates the app until the device has finished everything submitted so far, so that freed memory is released.
    pub fn settle(&mut self) {
        let done = Arc::new(AtomicBool::new(false));
        if let Some(queue) = self.app.world().get_resource::<RenderQueue>() {
            let done = done.clone();
            queue.on_submitted_work_done(move || done.store(true, Ordering::Relaxed));
        } else {
            done.store(true, Ordering::Relaxed);
        }
        self.step_until(|_| done.load(Ordering::Relaxed));
        self.app.update();
        self.app.update();
    }

    pub fn figures(&self) -> TensorFigures {
        self.app.world().resource::<TensorDiagnostics>().figures()
    }

    pub fn faults(&self) -> Vec<TensorFault> {
        self.app.world().resource::<Faults>().0.clone()
    }
}

/// The limits of a device on this machine.
fn adapter_limits() -> wgpu::Limits {
    let rig = Rig::new(Backend::Gpu);
    rig.app.world().resource::<TensorSupport>().adapter.as_ref().expect("a GPU").limits.clone()
}

/// Bevy's plugins without a window, with the render world on this thread so that one update is one frame.
fn headless_renderer(settings: WgpuSettings) -> bevy::app::PluginGroupBuilder {
    DefaultPlugins
        .build()
        .set(WindowPlugin { primary_window: None, exit_condition: ExitCondition::DontExit, ..default() })
        .set(RenderPlugin { synchronous_pipeline_compilation: true, render_creation: settings.into(), ..default() })
        .disable::<WinitPlugin>()
        .disable::<PipelinedRenderingPlugin>()
        .disable::<bevy::log::LogPlugin>()
}

/// Fails unless every element of `actual` is within `absolute + relative · |expected|` of `expected`. NaN and
/// infinities must match.
#[track_caller]
pub fn assert_close(actual: &[f32], expected: &[f32], absolute: f32, relative: f32, what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}: lengths differ");
    for (i, (&a, &e)) in actual.iter().zip(expected).enumerate() {
        let same = (a.is_nan() && e.is_nan()) || a == e;
        assert!(same || (a - e).abs() <= absolute + relative * e.abs(), "{what}: element {i} is {a}, expected {e}");
    }
}

/// Absolute and relative tolerance for two ways of computing the same result, by element type.
pub fn tolerance(dtype: DType) -> (f32, f32) {
    match dtype {
        DType::F32 => (1e-5, 1e-4),
        DType::F16 => (2.5e-3, 2.5e-3),
        DType::BF16 => (1e-2, 1e-2),
        _ => (0.0, 0.0),
    }
}
