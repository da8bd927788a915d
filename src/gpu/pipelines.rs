//! Pipelines by their text: compiled once, off the frame.

use std::sync::Arc;

use bevy::platform::collections::HashMap;
use bevy::tasks::AsyncComputeTaskPool;
use crossbeam_channel::{Receiver, Sender};
use smallvec::SmallVec;

use super::buffers::{ErrorScope, Gpu};
use crate::diagnostics::Count;
use crate::error::RunError;
use crate::kernel::{Access, Launch};

/// A compiled kernel and the layout its bind groups follow.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    pub pipeline: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

/// What binds where: whether the parameters are storage, the accesses in order, and whether a fault counter follows.
type Signature = (bool, SmallVec<[Access; 8]>, bool);

#[derive(Debug)]
enum State {
    Compiling,
    Ready(Pipeline),
    Failed(RunError),
}

/// All pipelines of a device.
pub(crate) struct Pipelines {
    gpu: Gpu,
    /// Compile on the spot instead of in the background.
    synchronous: bool,
    states: HashMap<Arc<str>, State>,
    layouts: HashMap<Signature, (wgpu::BindGroupLayout, wgpu::PipelineLayout)>,
    sender: Sender<(Arc<str>, Result<Pipeline, RunError>)>,
    receiver: Receiver<(Arc<str>, Result<Pipeline, RunError>)>,
}

impl Pipelines {
    pub(crate) fn new(gpu: Gpu, synchronous: bool) -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded();
        Self { gpu, synchronous, states: HashMap::default(), layouts: HashMap::default(), sender, receiver }
    }

    /// Takes in what has been compiled since.
    pub(crate) fn collect(&mut self) {
        for (wgsl, result) in self.receiver.try_iter() {
            self.gpu.counters.pipelines_compiling_now.sub(1);
            let state = match result {
                Ok(pipeline) => State::Ready(pipeline),
                Err(error) => State::Failed(error),
            };
            self.states.insert(wgsl, state);
        }
    }

    /// Starts compiling a launch's kernel unless that has been done.
    pub(crate) fn request(&mut self, launch: &Launch) {
        if self.states.contains_key(launch.wgsl.as_str()) {
            return;
        }
        let (layout, pipeline_layout) = self.layout(launch);
        let wgsl: Arc<str> = launch.wgsl.as_str().into();
        self.states.insert(wgsl.clone(), State::Compiling);
        self.gpu.counters.pipelines_built.add(1);
        self.gpu.counters.pipelines_compiling_now.add(1);
        let (device, sender) = (self.gpu.device.clone(), self.sender.clone());
        let (name, entry, checked) = (launch.name, launch.entry, launch.checked);
        let compile = move || {
            let result = compile(&device, name, &wgsl, entry, checked, &pipeline_layout);
            // Nobody listens once the device is gone.
            let _ = sender.send((wgsl, result.map(|pipeline| Pipeline { pipeline, layout })));
        };
        if self.synchronous {
            compile();
            self.collect();
        } else {
            AsyncComputeTaskPool::get().spawn(async move { compile() }).detach();
        }
    }

    /// The pipeline of a launch: `None` while it compiles.
    pub(crate) fn get(&self, launch: &Launch) -> Option<Result<&Pipeline, RunError>> {
        match self.states.get(launch.wgsl.as_str())? {
            State::Compiling => None,
            State::Ready(pipeline) => Some(Ok(pipeline)),
            State::Failed(error) => Some(Err(error.clone())),
        }
    }

    fn layout(&mut self, launch: &Launch) -> (wgpu::BindGroupLayout, wgpu::PipelineLayout) {
        let accesses = launch.bindings.iter().map(|b| b.access).collect();
        let signature: Signature = (launch.params_in_storage, accesses, launch.counts_faults);
        let device = &self.gpu.device;
        self.layouts
            .entry(signature)
            .or_insert_with_key(|(params_in_storage, accesses, faults)| {
                let entry = |binding: usize, ty| wgpu::BindGroupLayoutEntry {
                    binding: binding as u32,
                    visibility: wgpu::ShaderStages::COMPUTE,
                    ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
                    count: None,
                };
                let storage = |access| wgpu::BufferBindingType::Storage { read_only: access == Access::Read };
                let params = match params_in_storage {
                    true => storage(Access::Read),
                    false => wgpu::BufferBindingType::Uniform,
                };
                let all = accesses.iter().copied().chain(faults.then_some(Access::ReadWrite));
                let entries: Vec<_> = core::iter::once(entry(0, params))
                    .chain(all.enumerate().map(|(i, access)| entry(i + 1, storage(access))))
                    .collect();
                let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                    label: Some("tensor:bindings"),
                    entries: &entries,
                });
                let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                    label: Some("tensor:kernel"),
                    bind_group_layouts: &[Some(&layout)],
                    immediate_size: 0,
                });
                (layout, pipeline_layout)
            })
            .clone()
    }
}

/// Validates and compiles one kernel, with runtime checks if it is to be `checked`; every complaint comes back as an error.
fn compile(
    device: &wgpu::Device,
    name: &str,
    wgsl: &str,
    entry: &str,
    checked: bool,
    layout: &wgpu::PipelineLayout,
) -> Result<wgpu::ComputePipeline, RunError> {
    let label = format!("tensor:{name}");
    let scope = ErrorScope::new(device);
    let descriptor =
        wgpu::ShaderModuleDescriptor { label: Some(&label), source: wgpu::ShaderSource::Wgsl(wgsl.into()) };
    let module = if checked {
        device.create_shader_module(descriptor)
    } else {
        // SAFETY: the text is generated from our own kernels, which guard every access and bound every loop; the unit tests of the kernels
        // run each launch with checks and without, and compare the bits. A user's text gets here if its author has promised the same, by
        // `CustomKernel::trusted`.
        unsafe { device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) }
    };
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(&label),
        layout: Some(layout),
        module: &module,
        entry_point: Some(entry),
        compilation_options: wgpu::PipelineCompilationOptions {
            zero_initialize_workgroup_memory: checked,
            ..Default::default()
        },
        cache: None,
    });
    match scope.pop() {
        None => Ok(pipeline),
        Some(error) => Err(RunError::Kernel { kernel: name.to_owned(), message: error.to_string() }),
    }
}
