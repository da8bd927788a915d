//! Tensors are storage buffers of materials and other passes, without copies, and storage buffers are tensors.

#[path = "material_binding/picture.rs"]
mod picture;

use bevy::ecs::system::SystemState;
use bevy::prelude::*;
use bevy::render::RenderApp;
use bevy::render::render_asset::RenderAssets;
use bevy::render::renderer::{RenderDevice, RenderQueue};
use bevy::render::storage::{GpuShaderBuffer, ShaderBuffer};
use bevy_tensor_compute::binding::BindingState;
use bevy_tensor_compute::error::BindingError;
use bevy_tensor_compute::prelude::*;

use crate::common::Rig;

/// Calls `ask` with the bindings.
fn bindings<T>(rig: &mut Rig, ask: impl FnOnce(&mut TensorBindings) -> T) -> T {
    let world = rig.app.world_mut();
    let mut state = SystemState::<TensorBindings>::new(world);
    let answer = ask(&mut state.get_mut(world).expect("the plugin is there"));
    state.apply(world);
    answer
}

/// Settings for a compute pass of the test.
fn plain(name: &str) -> BindingSettings {
    BindingSettings { group: "0".to_owned(), ..BindingSettings::new(name) }
}

fn bind(rig: &mut Rig, entity: Entity, settings: BindingSettings) -> Handle<ShaderBuffer> {
    let buffer = bindings(rig, |bindings| bindings.bind(entity, settings)).unwrap();
    rig.app.update();
    buffer
}

/// The wgpu buffer of a storage buffer asset.
fn gpu_buffer(rig: &Rig, handle: &Handle<ShaderBuffer>) -> Option<wgpu::Buffer> {
    let assets = rig.app.sub_app(RenderApp).world().resource::<RenderAssets<GpuShaderBuffer>>();
    assets.get(handle).map(|buffer| (*buffer.buffer).clone())
}

/// Runs `body` for `count` numbers `n` in a compute pass that knows nothing of this crate, and returns the `f32` results.
fn pass(rig: &Rig, buffer: &wgpu::Buffer, accessor: &str, body: &str, count: usize) -> Vec<f32> {
    let world = rig.app.world();
    let (device, queue) = (world.resource::<RenderDevice>().wgpu_device(), world.resource::<RenderQueue>());
    let wgsl = format!(
        "{accessor}
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let n = id.x;
    if n < {count}u {{ out[n] = {body}; }}
}}"
    );
    let source = wgpu::ShaderSource::Wgsl(wgsl.into());
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: None,
        compilation_options: default(),
        cache: None,
    });
    let (size, usage) = (count as u64 * 4, wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC);
    let out = device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false });
    let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
    let staging = device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false });
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[
            wgpu::BindGroupEntry { binding: 0, resource: buffer.as_entire_binding() },
            wgpu::BindGroupEntry { binding: 1, resource: out.as_entire_binding() },
        ],
    });
    let mut encoder = device.create_command_encoder(&default());
    {
        let mut pass = encoder.begin_compute_pass(&default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(count.div_ceil(64) as u32, 1, 1);
    }
    encoder.copy_buffer_to_buffer(&out, 0, &staging, 0, size);
    queue.submit([encoder.finish()]);
    staging.slice(..).map_async(wgpu::MapMode::Read, |result| result.unwrap());
    device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
    bytemuck::cast_slice(&staging.slice(..).get_mapped_range()).to_vec()
}

/// The elements of a bound tensor, as another pass reads them.
fn seen(rig: &mut Rig, entity: Entity, buffer: &Handle<ShaderBuffer>) -> Vec<f32> {
    let accessor = bindings(rig, |bindings| bindings.wgsl(entity)).unwrap();
    let count = rig.app.world().get::<Tensor>(entity).unwrap().shape().elements();
    let boolean = rig.app.world().get::<Tensor>(entity).unwrap().dtype() == DType::Bool;
    let body = if boolean { "select(0.0, 1.0, x_element(n))" } else { "f32(x_element(n))" };
    let buffer = gpu_buffer(rig, buffer).expect("a buffer");
    pass(rig, &buffer, &accessor, body, count)
}

#[test]
fn another_pass_reads_every_type_and_view() {
    let mut rig = Rig::new(Backend::Gpu);
    let numbers: Vec<f32> = (0..512).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
    for dtype in DType::ALL.into_iter().chain(DType::QUANTIZED) {
        let tensor = match dtype.is_quantized() {
            true => Tensor::quantized(dtype, [4, 128], &numbers).unwrap(),
            false => Tensor::zeros([4, 128], dtype).unwrap(),
        };
        let mut views = vec![tensor.clone(), tensor.slice(0, 1, 3).unwrap()];
        if !dtype.is_quantized() {
            views.push(tensor.transpose().unwrap());
            views.push(tensor.slice_step(1, 127, -200, -3).unwrap());
        }
        let whole = rig.spawn(tensor);
        if !dtype.is_quantized() {
            let values = rig.spawn(Tensor::from_slice(&numbers, [4, 128]).unwrap());
            rig.record(move |ops| ops.store(ops.cast(values, dtype)?, whole)).unwrap();
        }
        for view in views {
            let entity = rig.spawn(view);
            let buffer = bind(&mut rig, entity, plain("x"));
            let expected = rig.read(entity).to_f32();
            assert_eq!(seen(&mut rig, entity, &buffer), expected, "{dtype}");
            assert_eq!(bindings(&mut rig, |bindings| bindings.state(entity)), Ok(BindingState::Shared));
        }
    }
    assert!(rig.faults().is_empty(), "{:?}", rig.faults());
}

#[test]
fn indices_beyond_an_axis_are_clamped_and_passes_may_write() {
    let mut rig = Rig::new(Backend::Gpu);
    let entity = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]).unwrap());
    let buffer = bind(&mut rig, entity, BindingSettings { writable: true, ..plain("x") });
    let accessor = bindings(&mut rig, |bindings| bindings.wgsl(entity)).unwrap();
    let raw = gpu_buffer(&rig, &buffer).unwrap();
    assert_eq!(pass(&rig, &raw, &accessor, "x_at(n, 7u)", 4), [3.0, 6.0, 6.0, 6.0]);
    // The pass writes one element, and ops see it.
    pass(&rig, &raw, &accessor, "x_at(0u, 0u); x_put(1u, 1u, 50.0)", 1);
    assert_eq!(rig.read(entity).to_f32(), [1.0, 2.0, 3.0, 4.0, 50.0, 6.0]);
}

#[test]
fn work_of_a_frame_is_seen_in_that_frame_without_a_byte_copied() {
    let mut rig = Rig::new(Backend::Gpu);
    let entity = rig.spawn(Tensor::zeros([64], DType::F32).unwrap());
    let buffer = bind(&mut rig, entity, plain("x"));
    for _ in 0..5 {
        rig.record(move |ops| ops.store(ops.add(entity, 1.0)?, entity)).unwrap();
        rig.app.update();
    }
    let before = rig.figures();
    for frame in 0..300 {
        rig.record(move |ops| ops.store(ops.add(entity, 1.0)?, entity)).unwrap();
        rig.app.update();
        if frame % 100 == 0 {
            assert_eq!(seen(&mut rig, entity, &buffer), [frame as f32 + 6.0; 64]);
        }
    }
    let after = rig.figures();
    assert_eq!(after.uploaded_bytes, before.uploaded_bytes);
    assert_eq!(after.downloaded_bytes, before.downloaded_bytes);
    assert_eq!(after.readbacks, before.readbacks);
    assert_eq!(after.buffers_allocated, before.buffers_allocated);
    assert_eq!(after.bind_groups_made, before.bind_groups_made);
    assert_eq!(after.submits, before.submits + 300);
}

#[test]
fn a_bound_tensor_is_never_evicted() {
    let mut rig = Rig::with_memory(MemorySettings { budget: Some(3 << 20), ..default() });
    let bytes = 1 << 20;
    let bound = rig.app.world_mut().spawn((Name::new("bound"), Tensor::zeros([bytes / 4], DType::F32).unwrap())).id();
    let buffer = bind(&mut rig, bound, plain("x"));
    let error = rig.memory(|memory| memory.evict(bound)).unwrap_err();
    assert_eq!(error, OpError::Bound { op: "evict", tensor: "\"bound\"".to_owned() });
    assert!(error.to_string().contains("remove its TensorBinding"), "{error}");
    // Others make room, and it stays.
    for value in 0..6 {
        let other = rig.spawn(Tensor::full([bytes / 4], f64::from(value), DType::F32).unwrap());
        rig.record(move |ops| ops.store(ops.add(other, 1.0)?, other)).unwrap();
        rig.settle();
    }
    assert!(rig.figures().evictions > 0);
    assert_eq!(rig.residency(bound), bevy_tensor_compute::tensor::Residency::Both);
    assert_eq!(seen(&mut rig, bound, &buffer)[..4], [0.0; 4]);
    // Unbound, it can go.
    rig.app.world_mut().entity_mut(bound).remove::<TensorBinding>();
    drop(buffer);
    for _ in 0..6 {
        rig.app.update();
    }
    rig.memory(|memory| memory.evict(bound)).unwrap();
    assert!(rig.faults().is_empty(), "{:?}", rig.faults());
}

#[test]
fn a_resized_tensor_has_a_new_buffer_and_a_wrong_one_is_refused() {
    let mut rig = Rig::new(Backend::Gpu);
    let entity = rig.spawn(Tensor::ones([100], DType::F32).unwrap());
    let settings = BindingSettings { dtype: Some(DType::F32), elements: 50, ..plain("x") };
    let buffer = bind(&mut rig, entity, settings.clone());
    assert_eq!(seen(&mut rig, entity, &buffer), [1.0; 100]);
    rig.app.world_mut().entity_mut(entity).insert(Tensor::full([50, 200], 2.0, DType::F32).unwrap());
    rig.app.update();
    assert_eq!(seen(&mut rig, entity, &buffer), [2.0; 10_000]);
    // The old content stays for shaders if the new tensor is wrong.
    rig.app.world_mut().entity_mut(entity).insert(Tensor::zeros([100], DType::F16).unwrap());
    rig.app.update();
    let error =
        BindingError::Type { name: "x".to_owned(), expected: DType::F32, found: DType::F16, shape: Shape::from([100]) };
    assert_eq!(rig.faults(), [TensorFault::Binding { entity: Some(entity), error: error.clone() }]);
    assert_eq!(bindings(&mut rig, |bindings| bindings.state(entity)), Ok(BindingState::Failed(error)));
    assert!(gpu_buffer(&rig, &buffer).is_some());
}

#[test]
fn every_mistake_has_its_error() {
    let mut rig = Rig::new(Backend::Gpu);
    let entity = rig.spawn(Tensor::zeros([10], DType::F16).unwrap());
    let empty = rig.app.world_mut().spawn_empty().id();
    let settings = plain("x");
    let mut ask = |entity, settings| bindings(&mut rig, |bindings| bindings.bind(entity, settings)).unwrap_err();
    assert_eq!(ask(empty, settings.clone()), BindingError::UnknownTensor { entity: empty });
    let (name, shape) = ("x".to_owned(), Shape::from([10]));
    let wrong = BindingSettings { dtype: Some(DType::F32), ..settings.clone() };
    let (expected, found) = (DType::F32, DType::F16);
    assert_eq!(ask(entity, wrong), BindingError::Type { name: name.clone(), expected, found, shape: shape.clone() });
    let small = BindingSettings { elements: 11, ..settings.clone() };
    assert_eq!(ask(entity, small), BindingError::TooFewElements { name, expected: 11, found: 10, shape });
    for name in ["", "2x", "a b", "fn", "a::b", "x-y"] {
        assert_eq!(ask(entity, plain(name)), BindingError::Name { name: name.to_owned() });
    }
    assert_eq!(bindings(&mut rig, |bindings| bindings.wgsl(entity)).unwrap_err(), BindingError::NotBound { entity });
    // A binding of the device.
    let mut rig = Rig::with_binding_limit(1 << 20);
    let entity = rig.spawn(Tensor::zeros([1 << 20], DType::F32).unwrap());
    bind(&mut rig, entity, settings.clone());
    rig.app.update();
    let [TensorFault::Binding { error: BindingError::TooLarge { available, .. }, .. }] = rig.faults()[..] else {
        panic!("{:?}", rig.faults());
    };
    assert_eq!(available, 1 << 20);
    // Without a renderer.
    let mut rig = Rig::new(Backend::Cpu);
    let entity = rig.spawn(Tensor::zeros([10], DType::F16).unwrap());
    let error = bindings(&mut rig, |bindings| bindings.bind(entity, settings)).unwrap_err();
    assert_eq!(error, BindingError::NoRenderer);
}

#[test]
fn a_tensor_that_is_despawned_while_bound_is_reported_and_its_content_stays() {
    let mut rig = Rig::new(Backend::Gpu);
    let entity = rig.spawn(Tensor::full([64], 3.0, DType::F32).unwrap());
    let buffer = bind(&mut rig, entity, plain("x"));
    let accessor = bindings(&mut rig, |bindings| bindings.wgsl(entity)).unwrap();
    rig.app.world_mut().despawn(entity);
    for _ in 0..8 {
        rig.app.update();
        // Its buffer must not be reused.
        let other = rig.spawn(Tensor::full([64], 9.0, DType::F32).unwrap());
        rig.record(move |ops| ops.store(ops.add(other, 1.0)?, other)).unwrap();
    }
    let error = BindingError::Removed { name: "x".to_owned(), entity };
    assert_eq!(rig.faults(), [TensorFault::Binding { entity: Some(entity), error }]);
    let raw = gpu_buffer(&rig, &buffer).unwrap();
    assert_eq!(pass(&rig, &raw, &accessor, "x_element(n)", 64), [3.0; 64]);
    // With the last handle it is gone, without another word.
    rig.app.update();
    let before = rig.figures().device_bytes;
    drop(buffer);
    for _ in 0..6 {
        rig.app.update();
    }
    assert!(rig.figures().device_bytes < before);
    assert_eq!(rig.faults().len(), 1);
}

#[test]
fn a_tensor_of_the_cpu_backend_is_uploaded_when_it_changed() {
    let mut rig = Rig::new(Backend::Gpu);
    let model = rig.app.world_mut().spawn((TensorModel, ModelBackend(Backend::Cpu))).id();
    let tensor = Tensor::full([64], 3.0, DType::F32).unwrap();
    let entity = rig.app.world_mut().spawn((tensor, TensorOf(model))).id();
    let buffer = bind(&mut rig, entity, plain("x"));
    let until = |rig: &mut Rig, value: f32| {
        for _ in 0..500 {
            rig.app.update();
            if gpu_buffer(rig, &buffer).is_some() && seen(rig, entity, &buffer) == [value; 64] {
                return;
            }
        }
        panic!("{value} was not uploaded; faults: {:?}", rig.faults());
    };
    until(&mut rig, 3.0);
    assert_eq!(bindings(&mut rig, |bindings| bindings.state(entity)), Ok(BindingState::Uploaded));
    rig.record(move |ops| ops.store(ops.mul(entity, 2.0)?, entity)).unwrap();
    until(&mut rig, 6.0);
    // Nothing is uploaded while nothing changes.
    let before = rig.figures().uploaded_bytes;
    for _ in 0..20 {
        rig.app.update();
    }
    assert_eq!(rig.figures().uploaded_bytes, before);
    // It moves to the GPU, and its own buffer is bound.
    rig.app.world_mut().entity_mut(model).insert(ModelBackend(Backend::Gpu));
    rig.step_until(|app| {
        let mut state = SystemState::<TensorBindings>::new(app.world_mut());
        state.get_mut(app.world_mut()).unwrap().state(entity) == Ok(BindingState::Shared)
    });
    rig.record(move |ops| ops.store(ops.mul(entity, 2.0)?, entity)).unwrap();
    until(&mut rig, 12.0);
    // And back.
    rig.app.world_mut().entity_mut(model).insert(ModelBackend(Backend::Cpu));
    rig.app.update();
    rig.record(move |ops| ops.store(ops.mul(entity, 2.0)?, entity)).unwrap();
    until(&mut rig, 24.0);
    assert!(rig.faults().is_empty(), "{:?}", rig.faults());
}

#[test]
fn a_storage_buffer_of_the_app_is_a_tensor() {
    let mut rig = Rig::new(Backend::Gpu);
    let values: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let handle = rig.app.world_mut().resource_mut::<Assets<ShaderBuffer>>().add(ShaderBuffer::from(values.clone()));
    let tensor = bindings(&mut rig, |bindings| bindings.tensor_from_buffer(&handle, DType::F32, [8, 8])).unwrap();
    let entity = rig.spawn(tensor);
    let before = rig.figures();
    // Work of the first frame waits for the buffer.
    rig.record(move |ops| ops.store(ops.mul(entity, 10.0)?, entity)).unwrap();
    let expected: Vec<f32> = values.iter().map(|value| value * 10.0).collect();
    assert_eq!(rig.read(entity).to_f32(), expected);
    assert_eq!(rig.figures().uploaded_bytes, before.uploaded_bytes);
    assert_eq!(rig.figures().device_bytes, before.device_bytes, "it belongs to the app");
    // The app's own passes see what ops wrote, and the other way round.
    let buffer = gpu_buffer(&rig, &handle).unwrap();
    let app = "@group(0) @binding(0) var<storage, read_write> a: array<f32>;";
    assert_eq!(pass(&rig, &buffer, app, "a[n]", 64), expected);
    pass(&rig, &buffer, app, "a[n]; a[n] = -1.0", 64);
    assert_eq!(rig.read(entity).to_f32(), [-1.0; 64]);
    // The app replaces the buffer.
    let larger = ShaderBuffer::from(vec![7.0f32; 100]);
    *rig.app.world_mut().resource_mut::<Assets<ShaderBuffer>>().get_mut(&handle).unwrap().into_inner() = larger;
    rig.app.update();
    assert_eq!(rig.read(entity).to_f32(), [7.0; 64]);
    rig.app.world_mut().despawn(entity);
    rig.app.update();
    assert!(rig.faults().is_empty(), "{:?}", rig.faults());

    let small = rig.app.world_mut().resource_mut::<Assets<ShaderBuffer>>().add(ShaderBuffer::from(vec![0.0f32; 3]));
    let mut ask = |handle, shape: [usize; 1]| {
        bindings(&mut rig, |bindings| bindings.tensor_from_buffer(handle, DType::F32, shape)).unwrap_err()
    };
    let (dtype, shape) = (DType::F32, Shape::from([3]));
    assert_eq!(ask(&small, [3]), BindingError::BufferTooSmall { dtype, shape, expected: 16, found: 12 });
    assert_eq!(ask(&Handle::default(), [3]), BindingError::UnknownBuffer);
    let mut rig = Rig::new(Backend::Cpu);
    let error = bindings(&mut rig, |bindings| bindings.tensor_from_buffer(&small, DType::F32, [1])).unwrap_err();
    assert_eq!(error, BindingError::NoRenderer);
}
