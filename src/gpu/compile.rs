//! Compiles one pipeline, and caches the layouts that pipelines share.

use std::borrow::Cow;

use bevy::platform::collections::HashMap;
use bevy::platform::time::Instant;
use bevy::tasks::futures::now_or_never;
use smallvec::SmallVec;

use super::compiler::PipelineEntry;
use super::device::ErrorScope;
use crate::error::{RunError, catch};
use crate::figures::Count;
use crate::kernel::Access;
use crate::kernel::custom::bounded_module;
use crate::mailbox::ListedKernel;
use crate::pipelines::TensorPipelines;

/// A compiled kernel and the layout of its bind groups.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    pub pipeline: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

/// Determines a layout: whether the parameters are in a storage buffer, the accesses in order, and whether a fault
/// counter follows.
type Signature = (bool, SmallVec<[Access; 8]>, bool);

pub(super) type Layouts = (wgpu::BindGroupLayout, wgpu::PipelineLayout);

/// The layouts of kernels, created once per signature.
#[derive(Default)]
pub(super) struct LayoutCache(HashMap<Signature, Layouts>);

impl LayoutCache {
    pub(super) fn get(&mut self, device: &wgpu::Device, kernel: &ListedKernel) -> Layouts {
        let signature = (kernel.params_in_storage, kernel.accesses.iter().copied().collect(), kernel.counts_faults);
        self.0.entry(signature).or_insert_with_key(|signature| create_layouts(device, signature)).clone()
    }
}

fn create_layouts(device: &wgpu::Device, (params_in_storage, accesses, faults): &Signature) -> Layouts {
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
}

/// Compiles the kernel of an entry and records the result, the time and the compiler's log.
pub(super) fn compile_entry(
    entry: &PipelineEntry,
    device: &wgpu::Device,
    (layout, pipeline_layout): Layouts,
    driver: Option<&wgpu::PipelineCache>,
    shared: &TensorPipelines,
    short_loops: bool,
) {
    let record = &entry.record;
    record.begin();
    let start = Instant::now();
    // naga's backends panic on some valid shaders. Only the work that needs this pipeline fails.
    let compiled = catch(|| compile(device, &record.kernel, &pipeline_layout, driver, short_loops));
    let (result, log) = compiled.unwrap_or_else(|panic| {
        let message = format!("the shader compiler panicked: {panic}");
        (Err(RunError::Kernel { kernel: record.kernel.kernel.to_string(), message }), String::new())
    });
    let took = start.elapsed();
    shared.totals().compile_nanos.add(took.as_nanos() as u64);
    record.end(took, log, result.as_ref().err().map(ToString::to_string));
    // Never set already: each entry is compiled once.
    let _ = entry.result.set(result.map(|pipeline| Pipeline { pipeline, layout }));
}

/// Validates and compiles one kernel. Returns the pipeline or the error, and the compiler's log.
fn compile(
    device: &wgpu::Device,
    kernel: &ListedKernel,
    layout: &wgpu::PipelineLayout,
    driver: Option<&wgpu::PipelineCache>,
    short_loops: bool,
) -> (Result<wgpu::ComputePipeline, RunError>, String) {
    let label = format!("tensor:{}", kernel.kernel);
    let source = match source(kernel, short_loops) {
        Ok(source) => source,
        Err(message) => return (Err(RunError::Kernel { kernel: kernel.kernel.to_string(), message }), String::new()),
    };
    let scope = ErrorScope::new(device);
    let module = create_module(device, kernel, source, &label);
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(&label),
        layout: Some(layout),
        module: &module,
        entry_point: Some(&kernel.entry),
        compilation_options: wgpu::PipelineCompilationOptions {
            zero_initialize_workgroup_memory: kernel.checked,
            ..Default::default()
        },
        cache: driver,
    });
    let log = compilation_log(&module);
    match scope.pop() {
        None => (Ok(pipeline), log),
        Some(error) => (Err(RunError::Kernel { kernel: kernel.kernel.to_string(), message: error.to_string() }), log),
    }
}

/// The source of a kernel: its text, or the module of its text with bounded loops.
fn source(kernel: &ListedKernel, short_loops: bool) -> Result<wgpu::ShaderSource<'_>, String> {
    let Some(bound) = kernel.loops.filter(|_| kernel.checked && kernel.counts_faults) else {
        return Ok(wgpu::ShaderSource::Wgsl((&*kernel.wgsl).into()));
    };
    let binding = kernel.accesses.len() as u32 + 1;
    Ok(wgpu::ShaderSource::Naga(Cow::Owned(bounded_module(&kernel.wgsl, bound, binding, short_loops)?)))
}

fn create_module(
    device: &wgpu::Device,
    kernel: &ListedKernel,
    source: wgpu::ShaderSource<'_>,
    label: &str,
) -> wgpu::ShaderModule {
    let descriptor = wgpu::ShaderModuleDescriptor { label: Some(label), source };
    if kernel.checked {
        return device.create_shader_module(descriptor);
    }
    // SAFETY: the text is generated from our own kernels, which guard every access and bound every loop. Their unit
    // tests run each launch with checks and without, and compare the bits. A user's kernel is unchecked only if its
    // author promises the same with `CustomKernel::trusted`. Texts from a saved list are compiled here, but run only if
    // the app also requests them in one of these two ways.
    unsafe { device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) }
}

/// The compiler's messages, one per line. Empty where they are not available at once.
fn compilation_log(module: &wgpu::ShaderModule) -> String {
    now_or_never(module.get_compilation_info()).map_or_else(String::new, |info| {
        let message = |m: &wgpu::CompilationMessage| {
            let place = m.location.map_or_else(String::new, |at| format!("{}:{}: ", at.line_number, at.line_position));
            format!("{place}{:?}: {}", m.message_type, m.message)
        };
        info.messages.iter().map(message).collect::<Vec<_>>().join("\n")
    })
}
