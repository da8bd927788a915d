//! Ownership and freeing of memory: sharing, views and despawning, checked against the counters of the device.

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::tensor::{NameError, ShareError};

use crate::common::{BACKENDS, Rig};

fn model(rig: &mut Rig, name: &'static str) -> Entity {
    rig.app.world_mut().spawn((TensorModel, Name::new(name))).id()
}

fn own(rig: &mut Rig, model: Entity, name: &'static str, tensor: Tensor) -> Entity {
    rig.app.world_mut().spawn_tensor(model, name, tensor)
}

fn share(rig: &mut Rig, from: Entity, name: &'static str, to: Entity) -> Result<Entity, ShareError> {
    rig.app
        .world_mut()
        .run_system_cached_with(
            |In((from, name, to)): In<(Entity, &'static str, Entity)>, mut models: TensorModels| {
                models.share(from, name, to)
            },
            (from, name, to),
        )
        .expect("the plugin is there")
}

const BYTES: usize = 1 << 20;

/// Tolerance for Bevy's own buffers and the small buffers of plans.
const NOISE: usize = 64 << 10;

fn megabyte() -> Tensor {
    Tensor::full([BYTES / 4], 3.0, DType::F32).unwrap()
}

#[test]
fn sharing_and_views_add_no_bytes_and_see_each_others_writes() {
    let mut rig = Rig::new(Backend::Gpu);
    let (first, second) = (model(&mut rig, "first"), model(&mut rig, "second"));
    let original = own(&mut rig, first, "weights", megabyte());
    rig.read(original);
    rig.settle();
    let (bytes, ours) = (rig.device_bytes(), rig.figures().device_bytes);
    assert_eq!(ours, BYTES as u64);

    let shared = share(&mut rig, first, "weights", second).unwrap();
    let tensor = rig.app.world().get::<Tensor>(original).unwrap().clone();
    let view = tensor.reshape([512, 512]).unwrap().transpose().unwrap().slice(0, 1, 3).unwrap();
    let view = own(&mut rig, second, "view", view);
    rig.record(move |ops| ops.store(5.0, view)).unwrap();
    let seen = rig.read(shared).to_f32();
    assert_eq!((seen[0], seen[1], seen[2], seen[3]), (3.0, 5.0, 5.0, 3.0));
    rig.settle();
    assert_eq!(rig.figures().device_bytes, ours);
    // The read needed a staging buffer of the same size. Apart from small buffers of plans, nothing else was allocated.
    let grown = rig.device_bytes() - bytes;
    assert!(grown.unsigned_abs() < NOISE, "{grown} bytes more on the device");
}

#[test]
fn a_shared_storage_lives_until_its_last_owner_is_gone() {
    let mut rig = Rig::new(Backend::Gpu);
    let (first, second) = (model(&mut rig, "first"), model(&mut rig, "second"));
    let original = own(&mut rig, first, "weights", megabyte());
    rig.record(move |ops| ops.store(4.0, original)).unwrap();
    rig.settle();
    let full = rig.device_bytes();
    let shared = share(&mut rig, first, "weights", second).unwrap();

    rig.app.world_mut().despawn(first);
    rig.settle();
    assert!(rig.app.world().get_entity(original).is_err(), "despawning a model despawns its tensors");
    assert!((rig.device_bytes() - full).unsigned_abs() < NOISE);
    let sum = rig.compute(move |ops| ops.mean(shared, Axes::ALL)).unwrap();
    assert_eq!(sum.item::<f32>().unwrap(), 4.0);

    rig.settle();
    let (full, total) = (rig.device_bytes(), rig.figures().total_device_bytes);
    rig.app.world_mut().despawn(second);
    rig.settle();
    // The buffer stays in the pool for the next tensor.
    assert_eq!((rig.figures().device_bytes, rig.figures().total_device_bytes), (0, total));
    assert!(rig.figures().pool_idle_bytes >= BYTES as u64);
    let staging = rig.figures().staging_bytes;
    rig.memory(|memory| memory.trim());
    rig.settle();
    assert_eq!((rig.figures().pool_idle_bytes, rig.figures().staging_bytes), (0, 0));
    let freed = full - rig.device_bytes() - BYTES as isize - staging as isize;
    assert!(freed.unsigned_abs() < NOISE, "{freed}");
}

#[test]
fn the_cpu_backend_counts_and_frees_the_same_way() {
    let mut rig = Rig::new(Backend::Cpu);
    let (first, second) = (model(&mut rig, "first"), model(&mut rig, "second"));
    let original = own(&mut rig, first, "weights", megabyte());
    rig.read(original);
    share(&mut rig, first, "weights", second).unwrap();
    assert_eq!(rig.figures().host_bytes, BYTES as u64);
    rig.app.world_mut().despawn(first);
    assert_eq!(rig.figures().host_bytes, BYTES as u64);
    rig.app.world_mut().despawn(second);
    assert_eq!(rig.figures().host_bytes, 0);
}

#[test]
fn despawning_with_work_and_readback_in_flight_neither_panics_nor_leaks() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let keep = rig.spawn(Tensor::zeros([1], DType::F32).unwrap());
        rig.read(keep);
        let start = rig.figures();
        for _ in 0..20 {
            let owner = model(&mut rig, "short");
            let tensor = own(&mut rig, owner, "values", megabyte());
            let receiver = rig
                .record(move |ops| {
                    let doubled = ops.mul(tensor, 2.0)?;
                    ops.store(doubled, tensor)?;
                    ops.notify(tensor)?;
                    ops.read(tensor)
                })
                .unwrap();
            rig.app.world_mut().despawn(owner);
            // The work was recorded, so it still runs and the receiver gets its values.
            assert_eq!(rig.wait(&receiver).unwrap().to_f32()[0], 6.0);
        }
        rig.step_until(|app| app.world().resource::<crate::common::Faults>().0.len() >= 20);
        assert!(rig.faults().iter().all(|fault| matches!(fault, TensorFault::Undelivered { .. })));
        rig.settle();
        let end = rig.figures();
        assert_eq!((end.device_bytes, end.host_bytes), (start.device_bytes, start.host_bytes), "{backend}");
        assert_eq!(end.readbacks_now, 0);
    }
}

#[test]
fn a_name_is_unique_in_its_model() {
    let mut rig = Rig::new(Backend::Cpu);
    let (a, b) = (model(&mut rig, "a"), model(&mut rig, "b"));
    let tensor = || Tensor::zeros([2], DType::F32).unwrap();
    let first = own(&mut rig, a, "weights", tensor());
    own(&mut rig, b, "weights", tensor());
    let second = own(&mut rig, a, "weights", tensor());
    rig.app.update();
    assert_eq!(rig.faults(), [TensorFault::DuplicateName { model: a, name: "weights".to_owned(), tensor: second }]);
    let error = rig.record(move |ops| ops.read(second).map(drop)).unwrap_err();
    assert_eq!(error, OpError::DuplicateName { op: "read", model: a, name: "weights".to_owned() });
    let error = share(&mut rig, a, "weights", b).unwrap_err();
    let duplicate = NameError::Duplicate { model: a, name: "weights".to_owned(), count: 2 };
    assert_eq!(error, ShareError::NotFound(duplicate));

    // When the first is gone, the name of the second is unique again.
    rig.app.world_mut().despawn(first);
    rig.record(move |ops| ops.read(second).map(drop)).unwrap();
}

#[test]
fn sharing_says_why_not() {
    let mut rig = Rig::new(Backend::Cpu);
    let (a, b) = (model(&mut rig, "a"), model(&mut rig, "b"));
    own(&mut rig, a, "weights", Tensor::zeros([2], DType::F32).unwrap());
    assert!(matches!(share(&mut rig, a, "missing", b), Err(ShareError::NotFound(_))));
    share(&mut rig, a, "weights", b).unwrap();
    let again = share(&mut rig, a, "weights", b);
    assert!(matches!(again, Err(ShareError::Incompatible { .. })), "{again:?}");
    rig.app.world_mut().despawn(b);
    assert!(matches!(share(&mut rig, a, "weights", b), Err(ShareError::Incompatible { .. })));
}

#[test]
fn a_model_can_choose_the_cpu_beside_a_gpu_app() {
    let mut rig = Rig::new(Backend::Gpu);
    let (on_gpu, on_cpu) = (model(&mut rig, "gpu"), model(&mut rig, "cpu"));
    rig.app.world_mut().entity_mut(on_cpu).insert(ModelBackend(Backend::Cpu));
    let x = own(&mut rig, on_gpu, "x", Tensor::full([4], 2.0, DType::F32).unwrap());
    let y = own(&mut rig, on_cpu, "y", Tensor::full([4], 3.0, DType::F32).unwrap());
    let squares = rig.compute(move |ops| ops.mul(y, y)).unwrap();
    assert_eq!(squares.to_f32(), [9.0; 4]);
    assert!(rig.figures().host_bytes > 0);
    let squares = rig.compute(move |ops| ops.mul(x, x)).unwrap();
    assert_eq!(squares.to_f32(), [4.0; 4]);
    let error = rig.compute(move |ops| ops.add(x, y)).unwrap_err();
    assert!(matches!(error, OpError::MixedBackends { .. }), "{error}");
    assert_eq!(error.to_string(), "add: \"x\" is on the GPU but \"y\" is on the CPU");
}

#[test]
fn the_backend_and_its_reason_are_visible() {
    let rig = Rig::new(Backend::Gpu);
    let support = rig.app.world().resource::<TensorSupport>();
    let adapter = support.adapter.as_ref().expect("the app renders");
    assert!(support.reason.contains(&adapter.name), "{}", support.reason);
    assert!(adapter.limits.max_storage_buffers_per_shader_stage >= 8);
    let rig = Rig::new(Backend::Cpu);
    let support = rig.app.world().resource::<TensorSupport>();
    assert!(support.adapter.is_none());
}
