//! Runs single steps on a real device, for tests of kernels against plain host loops.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use bevy::tasks::block_on;
use wgpu::util::DeviceExt;

use super::super::lower;
use crate::ir::{DType, Layout, Operand, Source};
use crate::kernel::{Access, Caps, Kernel, Launch, Step};

/// The device that all tests share.
struct Gpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
    caps: Caps,
    /// By text and checks. Many tests run one text with many shapes, and compiling dominates their time.
    pipelines: Mutex<HashMap<(String, bool), (wgpu::ComputePipeline, wgpu::BindGroupLayout)>>,
}

fn gpu() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::VULKAN;
        let instance = wgpu::Instance::new(descriptor);
        let adapter = block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default()))
            .expect("no Vulkan adapter: install mesa-vulkan-drivers for a software one");
        let info = adapter.get_info();
        let wanted = wgpu::Features::SUBGROUP | wgpu::Features::SHADER_INT64 | wgpu::Features::SHADER_F16;
        let features = adapter.features() & wanted;
        let (device, queue) = block_on(adapter.request_device(&wgpu::DeviceDescriptor {
            required_features: features,
            required_limits: adapter.limits(),
            ..Default::default()
        }))
        .expect("the adapter gives a device");
        let limits = device.limits();
        let fixed = info.subgroup_min_size == info.subgroup_max_size;
        let caps = Caps {
            subgroup: (features.contains(wgpu::Features::SUBGROUP) && fixed).then_some(info.subgroup_min_size),
            software: info.device_type == wgpu::DeviceType::Cpu,
            wide: features.contains(wgpu::Features::SHADER_INT64),
            halves: features.contains(wgpu::Features::SHADER_F16),
            invocations: limits.max_compute_invocations_per_workgroup,
            workgroup_memory: limits.max_compute_workgroup_storage_size,
            workgroups: limits.max_compute_workgroups_per_dimension,
            variant: None,
        };
        Gpu { device, queue, caps, pipelines: Mutex::default() }
    })
}

/// The capabilities of the test device.
pub(super) fn caps() -> Caps {
    gpu().caps
}

/// Capabilities that the test device supports and for which `step` has different launches.
pub(super) fn variants(step: &Step) -> Vec<Caps> {
    let mut variants: Vec<Caps> = Vec::new();
    for (software, wide) in [(true, caps().wide), (true, false), (false, false)] {
        for subgroup in [caps().subgroup, None] {
            let caps = Caps { software, wide, subgroup, ..caps() };
            if variants.iter().all(|other| lower(step, other) != lower(step, &caps)) {
                variants.push(caps);
            }
        }
    }
    variants
}

/// Runs `step` on these buffers with the capabilities of the test device and returns all buffers. `scalars` are those
/// of the batch.
pub(super) fn run_step(step: &Step, buffers: &[(Source, Vec<u32>)], scalars: &[u32]) -> Vec<(Source, Vec<u32>)> {
    run_step_with(step, buffers, scalars, &caps()).0
}

/// Like [`run_step`], with the given capabilities. Also returns the number of faults.
pub(super) fn run_step_with(
    step: &Step,
    buffers: &[(Source, Vec<u32>)],
    scalars: &[u32],
    caps: &Caps,
) -> (Vec<(Source, Vec<u32>)>, u32) {
    let Some(launch) = lower(step, caps) else { return (buffers.to_vec(), 0) };
    super::texts::check(&launch);
    let trusted = run(&launch, buffers, scalars, wgpu::ShaderRuntimeChecks::unchecked());
    // Runtime checks must not change results. This justifies running the crate's own kernels without them.
    let checked = run(&launch, buffers, scalars, wgpu::ShaderRuntimeChecks::checked());
    // The sign of a NaN is up to the compiler.
    let same = |a: u32, b: u32| a == b || ((a ^ b) == 0x8000_0000 && f32::from_bits(a).is_nan());
    let words = |result: &(Vec<(Source, Vec<u32>)>, u32)| -> Vec<u32> {
        result.0.iter().flat_map(|buffer| buffer.1.clone()).chain([result.1]).collect()
    };
    let equal = words(&trusted).into_iter().zip(words(&checked)).all(|(a, b)| same(a, b));
    assert!(equal, "{} gives different bits with runtime checks:\n{}", launch.name, launch.wgsl);
    trusted
}

fn run(
    launch: &Launch,
    buffers: &[(Source, Vec<u32>)],
    scalars: &[u32],
    checks: wgpu::ShaderRuntimeChecks,
) -> (Vec<(Source, Vec<u32>)>, u32) {
    let Gpu { device, queue, .. } = gpu();
    let (pipeline, group_layout) = pipeline(launch, checks);
    let make = |words: &[u32], usage| {
        // Padded to 16 bytes, like the crate's own buffers.
        let words = [words, &vec![0; words.len().next_multiple_of(4) - words.len()]].concat();
        device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
            label: None,
            contents: bytemuck::cast_slice(&words),
            usage: usage | wgpu::BufferUsages::COPY_SRC,
        })
    };
    let mut params = launch.params.clone();
    for &(word, scalar) in &launch.patches {
        params[word as usize] = scalars[scalar as usize];
    }
    let params = make(&params, wgpu::BufferUsages::UNIFORM);
    let memory: Vec<_> = buffers.iter().map(|(_, words)| make(words, wgpu::BufferUsages::STORAGE)).collect();
    let faults = make(&[0], wgpu::BufferUsages::STORAGE);
    let mut bound = vec![&params];
    for binding in &launch.bindings {
        let at = buffers.iter().position(|b| b.0 == binding.source).expect("the test gives every source");
        bound.push(&memory[at]);
    }
    if launch.counts_faults {
        bound.push(&faults);
    }
    let entries: Vec<_> = bound
        .iter()
        .enumerate()
        .map(|(i, b)| wgpu::BindGroupEntry { binding: i as u32, resource: b.as_entire_binding() })
        .collect();
    let group =
        device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout: &group_layout, entries: &entries });
    let mut encoder = device.create_command_encoder(&Default::default());
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        let [x, y, z] = launch.workgroups;
        pass.dispatch_workgroups(x, y, z);
    }
    let staged: Vec<_> = memory
        .iter()
        .chain([&faults])
        .map(|from| {
            let to = device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: from.size(),
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            });
            encoder.copy_buffer_to_buffer(from, 0, &to, 0, from.size());
            to
        })
        .collect();
    queue.submit([encoder.finish()]);
    let read = |buffer: &wgpu::Buffer| -> Vec<u32> {
        buffer.slice(..).map_async(wgpu::MapMode::Read, |result| result.expect("the buffer maps"));
        device.poll(wgpu::PollType::wait_indefinitely()).expect("the device answers");
        bytemuck::cast_slice(&buffer.slice(..).get_mapped_range()).to_vec()
    };
    let mut words: Vec<_> = staged.iter().map(read).collect();
    let faults = words.pop().map_or(0, |w| w[0]);
    let padded = buffers.iter().zip(words);
    (
        padded
            .map(|((source, before), mut words)| {
                (*source, {
                    words.truncate(before.len());
                    words
                })
            })
            .collect(),
        faults,
    )
}

/// The pipeline of a launch and the layout of its bindings.
fn pipeline(launch: &Launch, checks: wgpu::ShaderRuntimeChecks) -> (wgpu::ComputePipeline, wgpu::BindGroupLayout) {
    let Gpu { device, pipelines, .. } = gpu();
    let mut pipelines = pipelines.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (launch.wgsl.clone(), checks.bounds_checks);
    if let Some(found) = pipelines.get(&key) {
        return found.clone();
    }
    // SAFETY: the texts are our own and guard their accesses. The crate runs them in the same way.
    let module = unsafe {
        device.create_shader_module_trusted(
            wgpu::ShaderModuleDescriptor {
                label: Some(launch.name),
                source: wgpu::ShaderSource::Wgsl(launch.wgsl.as_str().into()),
            },
            checks,
        )
    };
    let storage = |binding: usize, access: Access| wgpu::BindGroupLayoutEntry {
        binding: binding as u32,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Storage { read_only: access == Access::Read },
            has_dynamic_offset: false,
            min_binding_size: None,
        },
        count: None,
    };
    let mut entries = vec![wgpu::BindGroupLayoutEntry {
        binding: 0,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Uniform,
            has_dynamic_offset: false,
            min_binding_size: None,
        },
        count: None,
    }];
    entries.extend(launch.bindings.iter().enumerate().map(|(i, b)| storage(i + 1, b.access)));
    if launch.counts_faults {
        entries.push(storage(launch.bindings.len() + 1, Access::ReadWrite));
    }
    let group_layout =
        device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
    let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        bind_group_layouts: &[Some(&group_layout)],
        ..Default::default()
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(launch.name),
        layout: Some(&layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions {
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        },
        cache: None,
    });
    pipelines.entry(key).or_insert((pipeline, group_layout)).clone()
}

/// A step of `kernel`.
pub(super) fn step(kernel: Kernel, inputs: Vec<Operand>, outputs: Vec<Operand>, scalars: &[u32]) -> Step {
    let mut outputs = outputs.into_iter();
    let first = outputs.next().expect("a step has an output");
    let mut step = Step { scalars: scalars.into(), ..Step::new(kernel, inputs, first) };
    step.outputs.extend(outputs);
    step
}

/// A contiguous operand that begins at element `offset` of slot `slot`.
pub(super) fn operand(slot: u32, dtype: DType, shape: &[usize], offset: usize) -> Operand {
    Operand { source: Source::Slot(slot), dtype, layout: Layout { offset, ..Layout::contiguous(shape) } }
}

/// Deterministic pseudo-random numbers between -1 and 1.
pub(super) fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b1) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

/// The words of floats.
pub(super) fn words(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The floats of words.
pub(super) fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|w| f32::from_bits(*w)).collect()
}

/// Fails if numbers differ by more than `tolerance`, absolute or relative to the larger one.
pub(super) fn assert_close(got: &[f32], want: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let equal = g == w || g.is_nan() && w.is_nan();
        let near = (g - w).abs() <= tolerance * w.abs().max(1.0);
        assert!(equal || near, "{what}: element {i} is {g}, not {w}");
    }
}
