//! Our side: an app on one backend that is updated manually.

use std::rc::Rc;
use std::time::{Duration, Instant};

use bevy::ecs::system::SystemState;
use bevy::log::LogPlugin;
use bevy::prelude::*;
use bevy::render::RenderApp;
use bevy::render::pipelined_rendering::PipelinedRenderingPlugin;
use bevy::render::renderer::{RenderAdapter, RenderDevice, RenderInstance, RenderQueue};
use bevy_tensor_compute::PipelineSettings;
use bevy_tensor_compute::prelude::*;
use burn_wgpu::WgpuSetup;

use crate::array::Array;
use crate::measure::{Contestant, MOST};

/// Records the work once.
pub type Record = Rc<dyn for<'a> Fn(&'a TensorCommands, &[Entity]) -> OpResult<TensorValue<'a>>>;

/// Number of input sets that repetitions alternate between.
pub const SETS: usize = 4;

/// A headless app whose tensors are on one backend.
pub struct Rig {
    app: App,
    backend: Backend,
    commands: SystemState<TensorCommands<'static, 'static>>,
    device: Option<wgpu::Device>,
}

impl Rig {
    /// An app on a backend, with or without fusion.
    pub fn new(backend: Backend, fuse: bool) -> Self {
        let mut app = App::new();
        let choice = match backend {
            Backend::Gpu => BackendChoice::Gpu,
            Backend::Cpu => BackendChoice::Cpu,
        };
        let pipelines = PipelineSettings { synchronous: true, fuse, ..Default::default() };
        let plugin = TensorComputePlugin { backend: choice, pipelines, ..default() };
        match backend {
            Backend::Cpu => app.add_plugins((MinimalPlugins, plugin)),
            // The render world runs on this thread, so that one update is one frame.
            Backend::Gpu => {
                let plugins = AnywherePlugins::headless().build();
                app.add_plugins((plugins.disable::<PipelinedRenderingPlugin>().disable::<LogPlugin>(), plugin))
            }
        };
        app.add_observer(|fault: On<TensorFault>| {
            panic!("our side failed: {:?}", *fault);
        });
        app.finish();
        app.cleanup();
        app.update();
        let support = app.world().resource::<TensorSupport>();
        assert_eq!(support.backend, backend, "{}", support.reason);
        let device = app.world().get_resource::<RenderDevice>().map(|device| device.wgpu_device().clone());
        let commands = SystemState::new(app.world_mut());
        Self { app, backend, commands, device }
    }

    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// What another library needs to use the app's device.
    pub fn setup(&self) -> WgpuSetup {
        let world = self.app.sub_app(RenderApp).world();
        let adapter: wgpu::Adapter = (**world.resource::<RenderAdapter>().0).clone();
        WgpuSetup {
            instance: (**world.resource::<RenderInstance>().0).clone(),
            device: world.resource::<RenderDevice>().wgpu_device().clone(),
            queue: (**world.resource::<RenderQueue>().0).clone(),
            backend: adapter.get_info().backend,
            adapter,
        }
    }

    pub fn spawn(&mut self, tensor: impl Into<Tensor>) -> Entity {
        self.app.world_mut().spawn(tensor.into()).id()
    }

    pub fn despawn(&mut self, entities: impl IntoIterator<Item = Entity>) {
        for entity in entities {
            self.app.world_mut().despawn(entity);
        }
        // Memory is freed in the next frames.
        self.update();
        self.update();
    }

    /// Runs a frame that records something.
    pub fn frame<T>(&mut self, record: impl FnOnce(&TensorCommands) -> Result<T, OpError>) -> T {
        let recorded = {
            let mut commands = self.commands.get_mut(self.app.world_mut()).expect("the plugin is there");
            record(&mut commands).expect("the work records")
        };
        self.commands.apply(self.app.world_mut());
        self.update();
        recorded
    }

    /// Runs a frame that records nothing.
    pub fn update(&mut self) {
        self.app.update();
    }

    /// Waits until the device has finished all submitted work. Returns at once if there is no device.
    pub fn sync(&self) {
        if let Some(device) = &self.device {
            device.poll(wgpu::PollType::wait_indefinitely()).expect("the device works");
        }
    }

    /// Waits for an answer without running frames in the meantime.
    pub fn wait(&mut self, receiver: &TensorReceiver) -> TensorData {
        let answer = match &self.device {
            None => bevy::tasks::block_on(receiver.recv()),
            Some(device) => loop {
                device.poll(wgpu::PollType::wait_indefinitely()).expect("the device works");
                match receiver.try_recv() {
                    Some(answer) => break answer,
                    // A pipeline is still being compiled.
                    None => self.app.update(),
                }
            },
        };
        answer.expect("values arrive")
    }

    /// The content of a tensor.
    pub fn read(&mut self, tensor: Entity) -> Vec<f32> {
        let receiver = self.frame(|ops| ops.read(tensor));
        self.wait(&receiver).to_f32()
    }

    /// Kernels launched so far.
    fn launches(&self) -> u64 {
        let figures = self.app.world().resource::<TensorDiagnostics>().figures();
        figures.dispatches + figures.cpu_steps
    }
}

/// How a turn of ours ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With one number, read after all repetitions.
    Corner,
    /// With the whole result. Each frame has one repetition.
    Result,
}

/// Recorded work on our side.
pub struct Ours<'a> {
    name: &'static str,
    rig: &'a mut Rig,
    record: Record,
    sets: Vec<Set>,
    corner: Entity,
    spawned: Vec<Entity>,
    end: End,
    launches: u64,
}

struct Set {
    inputs: Vec<Entity>,
    output: Entity,
}

impl<'a> Ours<'a> {
    pub fn new(rig: &'a mut Rig, inputs: &[Array], record: Record, end: End) -> Self {
        let mut spawned = Vec::new();
        let mut spawn = |rig: &mut Rig, tensor: Tensor| {
            spawned.push(rig.spawn(tensor));
            spawned[spawned.len() - 1]
        };
        let data: Vec<TensorData> = inputs.iter().map(Array::data).collect();
        let shared: Vec<Option<Entity>> = inputs
            .iter()
            .zip(&data)
            .map(|(array, data)| array.shared.then(|| spawn(rig, Tensor::from(data.clone()))))
            .collect();
        let mut sets: Vec<Set> = Vec::new();
        let mut made: Option<TensorData> = None;
        for _ in 0..SETS {
            let inputs: Vec<Entity> = shared
                .iter()
                .zip(&data)
                .map(|(shared, data)| shared.unwrap_or_else(|| spawn(rig, Tensor::from(data.clone()))))
                .collect();
            let made = made.get_or_insert_with(|| {
                let receiver = rig.frame(|ops| {
                    let value = record(ops, &inputs)?;
                    ops.read(value)
                });
                rig.wait(&receiver)
            });
            let output = spawn(rig, Tensor::zeros(made.shape().clone(), made.dtype()).expect("it was made before"));
            sets.push(Set { inputs, output });
        }
        let corner = spawn(rig, Tensor::zeros([1], DType::F32).expect("small"));
        let mut ours = Self { name: "ours", rig, record, sets, corner, spawned, end, launches: 0 };
        ours.launches = ours.count_launches(1);
        if end == End::Corner && ours.count_launches(2 * SETS) != 2 * SETS as u64 * ours.launches {
            eprintln!("the plan shares work between repetitions, so the following time is not that of one repetition");
        }
        ours
    }

    /// Sets another name, to compare ours with itself.
    pub fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    fn count_launches(&mut self, repetitions: usize) -> u64 {
        let before = self.rig.launches();
        self.run(repetitions);
        self.rig.launches() - before
    }
}

impl Contestant for Ours<'_> {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn run(&mut self, repetitions: usize) -> Duration {
        let Self { rig, record, sets, corner, end, .. } = self;
        let start = Instant::now();
        let receiver = rig.frame(|ops| {
            for set in sets.iter().cycle().take(repetitions) {
                let value = record(ops, &set.inputs)?;
                ops.store(value, set.output)?;
            }
            ops.read(if *end == End::Corner { *corner } else { sets[0].output })
        });
        rig.wait(&receiver);
        start.elapsed()
    }

    fn result(&mut self) -> Vec<f32> {
        self.rig.read(self.sets[0].output)
    }

    fn most(&self) -> usize {
        if self.end == End::Corner { MOST } else { 1 }
    }

    fn launches(&self) -> Option<u64> {
        Some(self.launches)
    }
}

impl Drop for Ours<'_> {
    fn drop(&mut self) {
        let spawned = std::mem::take(&mut self.spawned);
        self.rig.despawn(spawned);
    }
}
