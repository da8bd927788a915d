//! Where content is, what moves it, and that each byte is counted once.

use core::time::Duration;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use bevy::prelude::*;
use bevy::time::TimeUpdateStrategy;
use bevy_tensor_compute::memory::{
    AdviceSettings, AdvisedTensor, HostCopies, MemoryAdvice, MemoryAdvisor, MemoryPolicy, PriorityMode, SyncDirection,
};
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::tensor::Residency;

use crate::common::Rig;

const MIB: u64 = 1 << 20;

fn is(tensor: Entity, residency: Residency) -> impl FnMut(&mut App) -> bool {
    move |app| app.world().get::<Tensor>(tensor).unwrap().residency() == residency
}

#[test]
fn host_copies_stay_or_go_as_set() {
    let data = || Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]).unwrap();
    for (host_copies, after) in [(HostCopies::Drop, Residency::Device), (HostCopies::Keep, Residency::Both)] {
        let mut rig = Rig::with_memory(MemorySettings { host_copies, ..default() });
        let (x, y) = (rig.spawn(data()), rig.spawn(data()));
        assert_eq!(rig.residency(x), Residency::Host, "not used yet");
        rig.compute(move |ops| ops.add(x, y)).unwrap();
        assert_eq!(rig.residency(x), after);
        assert_eq!(rig.figures().host_copy_bytes, if after == Residency::Both { 24 } else { 0 });
        // Host data that is written as a whole is known on both sides. The result of a kernel is not.
        rig.record(move |ops| ops.write(x, &[4.0f32, 5.0, 6.0])).unwrap();
        rig.app.update();
        assert_eq!(rig.residency(x), after);
        rig.record(move |ops| ops.store(y, x)).unwrap();
        rig.app.update();
        assert_eq!(rig.residency(x), Residency::Device);
        assert_eq!(rig.read(x).to_f32(), [1.0, 2.0, 3.0]);
    }
}

#[test]
fn synchronizing_moves_only_what_is_stale() {
    let mut rig = Rig::with_memory(MemorySettings { host_copies: HostCopies::Keep, ..default() });
    let moved = |rig: &Rig| (rig.figures().uploaded_bytes, rig.figures().downloaded_bytes);
    let x = rig.spawn(Tensor::from_slice(&[1.0f32; 256], [256]).unwrap());
    rig.memory(|memory| memory.synchronize(x, SyncDirection::ToDevice)).unwrap();
    rig.step_until(is(x, Residency::Both));
    assert_eq!(moved(&rig), (1024, 0));
    for direction in [SyncDirection::ToDevice, SyncDirection::ToHost, SyncDirection::Both] {
        rig.memory(|memory| memory.synchronize(x, direction)).unwrap();
        rig.settle();
    }
    assert_eq!(moved(&rig), (1024, 0), "nothing was stale");

    rig.record(move |ops| ops.store(2.0, x)).unwrap();
    rig.memory(|memory| memory.synchronize(x, SyncDirection::ToDevice)).unwrap();
    rig.settle();
    assert_eq!((rig.residency(x), moved(&rig)), (Residency::Device, (1024, 0)), "the device is the newer side");
    rig.memory(|memory| memory.synchronize(x, SyncDirection::ToHost)).unwrap();
    rig.step_until(is(x, Residency::Both));
    assert_eq!(moved(&rig), (1024, 1024));

    // With a host copy it is evicted without another copy, and restored later.
    rig.memory(|memory| memory.evict(x)).unwrap();
    rig.step_until(is(x, Residency::Host));
    assert_eq!(moved(&rig), (1024, 1024));
    rig.memory(|memory| memory.synchronize(x, SyncDirection::Both)).unwrap();
    rig.step_until(is(x, Residency::Both));
    assert_eq!(moved(&rig), (2048, 1024));
    assert_eq!(rig.read(x).to_f32(), vec![2.0; 256]);
}

#[test]
fn contents_made_on_the_device_leave_and_are_made_again() {
    let mut rig = Rig::new(Backend::Gpu);
    let random = rig.spawn(Tensor::random_normal([1000], 0.0, 1.0, 7, DType::F32).unwrap());
    let zeros = rig.spawn(Tensor::zeros([1000], DType::F32).unwrap());
    // Puts other content in the buffer that the zeros will get.
    let other = rig.spawn(Tensor::full([1000], 9.0, DType::F32).unwrap());
    let before = rig.read(random);
    assert_eq!(rig.residency(random), Residency::Both);
    for tensor in [random, zeros] {
        rig.memory(|memory| memory.evict(tensor)).unwrap();
    }
    rig.step_until(is(random, Residency::Host));
    rig.read(other);
    rig.app.world_mut().despawn(other);
    assert_eq!(rig.figures().downloaded_bytes, 0, "there was nothing to copy");
    assert_eq!(rig.read(zeros).to_f32(), vec![0.0; 1000]);
    assert_eq!(rig.read(random), before);
}

#[test]
fn every_storage_is_counted_once_wherever_it_is() {
    let mut rig = Rig::new(Backend::Gpu);
    rig.settle();
    let (device, figures) = (rig.device_bytes(), rig.figures());
    let model = |rig: &mut Rig| rig.app.world_mut().spawn(TensorModel).id();
    let (a, b) = (model(&mut rig), model(&mut rig));
    let own = |rig: &mut Rig, model, tensor: Tensor| rig.app.world_mut().spawn((tensor, TensorOf(model))).id();
    let weights = Tensor::from_slice(&vec![1.0f32; 1 << 18], [512, 512]).unwrap();
    let whole = own(&mut rig, a, weights.clone());
    own(&mut rig, a, weights.slice(0, 0, 5).unwrap());
    own(&mut rig, b, weights.transpose().unwrap());
    drop(weights);
    let second = own(&mut rig, b, Tensor::from_slice(&vec![2.0f32; 1 << 19], [1 << 19]).unwrap());
    rig.compute(move |ops| ops.sum(whole, Axes::ALL)).unwrap();
    rig.compute(move |ops| ops.sum(second, Axes::ALL)).unwrap();
    rig.settle();

    let (of_a, of_b, total) = rig.memory(|memory| (memory.model(a), memory.model(b), memory.total()));
    assert_eq!((of_a.tensors, of_a.storages, of_a.device_bytes, of_a.host_bytes), (2, 1, MIB, 0));
    assert_eq!((of_b.tensors, of_b.storages, of_b.device_bytes), (2, 2, 3 * MIB));
    assert_eq!((total.tensors, total.storages, total.device_bytes), (4, 2, 3 * MIB));
    let now = rig.figures();
    assert_eq!(now.device_bytes, 3 * MIB);
    assert_eq!(
        now.total_device_bytes,
        now.device_bytes + now.scratch_bytes + now.plan_bytes + now.pool_idle_bytes,
        "{now:?}"
    );
    // The counters of the device agree. Its allocator rounds up, and Bevy may create and free buffers.
    let ours = now.total_device_bytes + now.staging_bytes - figures.total_device_bytes - figures.staging_bytes;
    let apart = rig.device_bytes() - device - ours as isize;
    assert!(apart.unsigned_abs() < 96 << 10, "{apart} bytes apart");

    rig.memory(|memory| memory.evict(second)).unwrap();
    rig.step_until(is(second, Residency::Host));
    let usage = rig.memory(|memory| memory.tensor(second)).unwrap();
    assert_eq!((usage.device_bytes, usage.host_bytes), (0, 2 * MIB));
    assert_eq!((rig.figures().device_bytes, rig.figures().host_copy_bytes), (MIB, 2 * MIB));
    assert!(rig.figures().peak_device_bytes >= 3 * MIB);

    rig.memory(|memory| memory.release(b));
    rig.settle();
    assert_eq!((rig.figures().device_bytes, rig.figures().host_copy_bytes), (MIB, 0), "shared with the other model");
    rig.app.world_mut().despawn(a);
    rig.settle();
    rig.memory(|memory| memory.trim());
    rig.settle();
    let end = rig.figures();
    assert_eq!((end.device_bytes, end.scratch_bytes, end.staging_bytes, end.pool_idle_bytes), (0, 0, 0, 0));
    assert_eq!(end.total_device_bytes, end.plan_bytes);
    let left = rig.device_bytes() - device - end.plan_bytes as isize;
    assert!(left.unsigned_abs() < 96 << 10, "{left} bytes left");
}

/// An app whose clock advances by one second per update.
fn clockwork(policy: MemoryPolicy) -> Rig {
    let mut rig = Rig::with_memory(MemorySettings { policy, ..default() });
    rig.app.insert_resource(TimeUpdateStrategy::ManualDuration(Duration::from_secs(1)));
    rig
}

/// Uses a tensor without creating a host copy.
fn touch(rig: &mut Rig, tensor: Entity) {
    rig.record(move |ops| ops.store(1.0, tensor)).unwrap();
    rig.app.update();
}

#[test]
fn idle_tensors_leave_by_the_policy() {
    let base = MemoryPolicy { idle: Duration::from_secs(60), interval: Duration::from_secs(10), ..default() };
    let cases = [
        (PriorityMode::Speed, 0, [Residency::Device; 3]),
        (PriorityMode::Balanced, 16 * MIB, [Residency::Device; 3]),
        // Evicting the larger of the two idle tensors is enough.
        (PriorityMode::Balanced, 7 * MIB, [Residency::Device, Residency::Host, Residency::Device]),
        (PriorityMode::Memory, 0, [Residency::Host, Residency::Host, Residency::Device]),
    ];
    for (mode, threshold, expected) in cases {
        let mut rig = clockwork(MemoryPolicy { mode, threshold, ..base });
        let spawn = |rig: &mut Rig, mib: usize| rig.spawn(Tensor::zeros([mib << 18], DType::F32).unwrap());
        // Two that become idle, one in use, one pinned, and one too small to matter.
        let tensors = [spawn(&mut rig, 2), spawn(&mut rig, 3), spawn(&mut rig, 2)];
        let pinned = spawn(&mut rig, 2);
        rig.app.world_mut().entity_mut(pinned).insert(Pinned);
        let small = rig.spawn(Tensor::zeros([1000], DType::F32).unwrap());
        for tensor in [pinned, small].into_iter().chain(tensors) {
            touch(&mut rig, tensor);
        }
        for _ in 0..40 {
            touch(&mut rig, tensors[2]);
        }
        assert_eq!(tensors.map(|tensor| rig.residency(tensor)), [Residency::Device; 3], "{mode:?}: not idle yet");
        for _ in 0..60 {
            touch(&mut rig, tensors[2]);
        }
        assert_eq!(tensors.map(|tensor| rig.residency(tensor)), expected, "{mode:?} {threshold}");
        assert_eq!([pinned, small].map(|tensor| rig.residency(tensor)), [Residency::Device; 2]);
        for tensor in tensors {
            assert_eq!(rig.read(tensor).to_f32()[0], 1.0);
        }
    }
}

#[test]
fn optimizing_on_demand_does_not_wait_for_the_timer() {
    let policy = MemoryPolicy {
        mode: PriorityMode::Memory,
        idle: Duration::from_secs(5),
        min_bytes: 0,
        interval: Duration::from_secs(1_000_000),
        ..default()
    };
    let mut rig = clockwork(policy);
    let x = rig.spawn(Tensor::zeros([100], DType::F32).unwrap());
    touch(&mut rig, x);
    rig.memory(|memory| memory.optimize());
    rig.settle();
    assert_eq!(rig.residency(x), Residency::Device, "not idle");
    for _ in 0..20 {
        rig.app.update();
    }
    assert_eq!(rig.residency(x), Residency::Device, "not asked");
    rig.memory(|memory| memory.optimize());
    rig.step_until(is(x, Residency::Host));
}

#[test]
fn advice_names_the_largest_the_idle_and_what_exists_twice() {
    for backend in crate::common::BACKENDS {
        let pipelines = bevy_tensor_compute::PipelineSettings { synchronous: true, ..default() };
        let mut rig = Rig::with(backend, TensorComputePlugin { pipelines, ..default() });
        rig.app.insert_resource(TimeUpdateStrategy::ManualDuration(Duration::from_secs(1)));
        let seen = Arc::new(Mutex::new(None));
        let advice = seen.clone();
        rig.app.add_observer(move |event: On<MemoryAdvice>| *advice.lock().unwrap() = Some(event.clone()));
        let numbers = |seed: usize| -> Vec<f32> { (0..1000).map(|i| (i * seed % 13) as f32).collect() };
        let tensor = |seed: usize| Tensor::from_slice(&numbers(seed), [1000]).unwrap();
        let a = rig.spawn(tensor(1));
        let b = rig.spawn(tensor(2));
        // A different storage than `a`, generated on the backend.
        let c = rig.spawn(Tensor::zeros([1000], DType::F32).unwrap());
        let large = rig.spawn(Tensor::from_slice(&[0.5f32; 2000], [2000]).unwrap());
        // A share is not a duplicate.
        let share = rig.app.world().get::<Tensor>(a).unwrap().clone();
        rig.spawn(share);
        rig.record(move |ops| {
            ops.store(a, c)?;
            let same = ops.mul(b, 1.0)?;
            ops.store(same, b)
        })
        .unwrap();
        rig.read(large);
        for _ in 0..30 {
            rig.app.update();
        }
        rig.read(large);
        let settings = AdviceSettings { largest: 1, idle: Duration::from_secs(20), min_bytes: 100, contents: true };
        let ask = move |mut advisor: MemoryAdvisor| advisor.advise(settings).unwrap();
        let id = rig.app.world_mut().register_system(ask);
        rig.app.world_mut().run_system(id).unwrap();
        rig.step_until(|_| seen.lock().unwrap().is_some());
        let advice: MemoryAdvice = seen.lock().unwrap().take().unwrap();
        let entities = |list: &[AdvisedTensor]| -> HashSet<Entity> { list.iter().map(|a| a.tensor).collect() };
        assert_eq!(entities(&advice.largest), HashSet::from([large]), "{backend}");
        if backend == Backend::Gpu {
            assert_eq!(entities(&advice.idle), HashSet::from([a, b, c]));
        }
        assert_eq!(advice.duplicates.len(), 1, "{backend}: {advice:?}");
        assert_eq!(entities(&advice.duplicates[0].tensors), HashSet::from([a, c]), "{backend}");
        assert_eq!(advice.duplicates[0].bytes, 4000);
    }
}
