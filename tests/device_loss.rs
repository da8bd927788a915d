//! When a device is lost, only content without a copy elsewhere is lost, and the loss is reported.

use std::sync::{Arc, Mutex};

use bevy::prelude::*;
use bevy::render::error_handler::{ErrorType, RenderErrorHandler, RenderErrorPolicy};
use bevy::render::renderer::RenderDevice;
use bevy::render::settings::RenderCreation;
use bevy_tensor_compute::PipelineSettings;
use bevy_tensor_compute::error::{ReadError, RunError};
use bevy_tensor_compute::memory::HostCopies;
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::tensor::Residency;

use crate::common::Rig;

/// Tensors reported lost, with name and bytes.
type Lost = Arc<Mutex<Vec<(Entity, Option<String>, usize)>>>;

/// How often a new device was requested.
#[derive(Resource, Default)]
struct Recoveries(usize);

/// An app that creates a new device when it loses one.
fn recovering(host_copies: HostCopies) -> (Rig, Lost) {
    let mut rig = Rig::with_memory(MemorySettings { host_copies, ..default() });
    rig.app.init_resource::<Recoveries>().insert_resource(RenderErrorHandler(|error, main_world, _| match error.ty {
        ErrorType::DeviceLost => {
            main_world.resource_mut::<Recoveries>().0 += 1;
            RenderErrorPolicy::Recover(RenderCreation::default())
        }
        _ => RenderErrorPolicy::Ignore,
    }));
    let lost = watch_lost(&mut rig);
    (rig, lost)
}

fn watch_lost(rig: &mut Rig) -> Lost {
    let lost = Lost::default();
    let seen = lost.clone();
    rig.app.add_observer(move |event: On<TensorLost>| {
        let name = event.name.as_ref().map(|name| name.to_string());
        seen.lock().unwrap().push((event.tensor, name, event.bytes));
    });
    lost
}

fn destroy(rig: &Rig) {
    rig.app.world().resource::<RenderDevice>().wgpu_device().destroy();
}

/// Destroys the device and updates until there is a new one: one frame to notice, one to request it, one to start using
/// it, one to report.
fn lose_device(rig: &mut Rig) {
    let before = rig.app.world().resource::<Recoveries>().0;
    destroy(rig);
    rig.step_until(|app| app.world().resource::<Recoveries>().0 > before);
    for _ in 0..4 {
        rig.app.update();
    }
}

#[test]
fn tensors_with_a_host_copy_come_back_and_the_others_are_reported() {
    let (mut rig, lost) = recovering(HostCopies::Keep);
    let weights = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]).unwrap());
    let random = rig.spawn(Tensor::random_uniform([100], 0.0, 1.0, 3, DType::F32).unwrap());
    let state = rig.app.world_mut().spawn((Name::new("state"), Tensor::zeros([3], DType::F32).unwrap())).id();
    let moved = rig.spawn(Tensor::zeros([3], DType::F32).unwrap());
    rig.record(move |ops| {
        let doubled = ops.mul(weights, 2.0)?;
        ops.store(doubled, state)?;
        ops.store(doubled, moved)
    })
    .unwrap();
    let numbers = rig.read(random);
    rig.memory(|memory| memory.evict(moved)).unwrap();
    rig.step_until(|app| app.world().get::<Tensor>(moved).unwrap().residency() == Residency::Host);

    lose_device(&mut rig);
    assert_eq!(*lost.lock().unwrap(), [(state, Some("state".to_owned()), 12)]);
    assert_eq!(rig.residency(state), Residency::Lost);
    assert_eq!(rig.read(weights).to_f32(), [1.0, 2.0, 3.0]);
    assert_eq!(rig.read(moved).to_f32(), [2.0, 4.0, 6.0]);
    assert_eq!(rig.read(random), numbers);

    // Reading lost content is an error until it is written again.
    let receiver = rig.record(move |ops| ops.read(state)).unwrap();
    let error = rig.wait(&receiver).unwrap_err();
    assert_eq!(error, ReadError::Failed(RunError::Lost { tensor: "\"state\"".to_owned() }));
    rig.record(move |ops| ops.write(state, &[7.0f32, 8.0, 9.0])).unwrap();
    assert_eq!(rig.read(state).to_f32(), [7.0, 8.0, 9.0]);
    assert_eq!(lost.lock().unwrap().len(), 1);
}

#[test]
fn a_lost_tensor_is_made_good_by_a_kernel_that_writes_all_of_it() {
    let (mut rig, lost) = recovering(HostCopies::Drop);
    let x = rig.spawn(Tensor::from_slice(&[1.0f32; 6], [2, 3]).unwrap());
    rig.read(x);
    lose_device(&mut rig);
    assert_eq!(lost.lock().unwrap().len(), 1, "its copy was dropped");
    let part = rig.app.world().get::<Tensor>(x).unwrap().slice(0, 0, 1).unwrap();
    let part = rig.spawn(part);
    // Writing a part of it is not enough.
    rig.record(move |ops| ops.store(1.0, part)).unwrap();
    rig.settle();
    assert!(matches!(rig.faults()[..], [TensorFault::Run(RunError::Lost { .. })]), "{:?}", rig.faults());
    rig.record(move |ops| ops.store(5.0, x)).unwrap();
    assert_eq!(rig.read(x).to_f32(), [5.0; 6]);
    assert_eq!(rig.read(part).to_f32(), [5.0; 3]);
}

#[test]
fn every_readback_is_answered_whenever_the_device_goes() {
    let (mut rig, _) = recovering(HostCopies::Keep);
    let x = rig.spawn(Tensor::from_slice(&[3.0f32; 1000], [1000]).unwrap());
    rig.read(x);
    for moment in 0..4 {
        // Recorded but not submitted, submitted but not answered, between frames, and with nothing in flight.
        let receiver = rig.record(move |ops| ops.read(x)).unwrap();
        match moment {
            0 => {}
            1 => rig.app.update(),
            2 => {
                rig.app.update();
                rig.app.update();
            }
            _ => rig.settle(),
        }
        lose_device(&mut rig);
        match rig.wait(&receiver) {
            Ok(data) => assert_eq!(data.to_f32(), vec![3.0; 1000], "moment {moment}"),
            Err(error) => assert_eq!(error, ReadError::DeviceLost, "moment {moment}"),
        }
        assert_eq!(rig.read(x).to_f32(), vec![3.0; 1000], "moment {moment}");
        assert_eq!((rig.figures().readbacks_now, rig.figures().downloads_now), (0, 0));
    }
}

#[test]
fn a_device_lost_during_uploads_and_spills_loses_nothing_that_had_a_copy() {
    let (mut rig, lost) = recovering(HostCopies::Keep);
    let values = |seed: usize| -> Vec<f32> { (0..1 << 16).map(|i| ((i + seed) % 97) as f32).collect() };
    let tensors: Vec<Entity> =
        (0..4).map(|seed| rig.spawn(Tensor::from_slice(&values(seed), [1 << 16]).unwrap())).collect();
    let (a, b, c, d) = (tensors[0], tensors[1], tensors[2], tensors[3]);
    rig.record(move |ops| {
        let same = ops.mul(b, 1.0)?;
        ops.store(same, b)
    })
    .unwrap();
    rig.app.update();
    // The device is lost during an upload, a spill and a kernel's writes.
    rig.record(move |ops| ops.write(a, &vec![1.0f32; 1 << 16])).unwrap();
    rig.record(move |ops| ops.store(0.5, c)).unwrap();
    rig.memory(|memory| memory.evict(b)).unwrap();
    rig.app.update();
    lose_device(&mut rig);
    assert_eq!(rig.read(a).to_f32(), vec![1.0; 1 << 16]);
    assert_eq!(rig.read(d).to_f32(), values(3));
    let lost: Vec<Entity> = lost.lock().unwrap().iter().map(|(tensor, ..)| *tensor).collect();
    assert!(lost.contains(&c), "only the device had what the kernel wrote");
    // Either the spill finished in time or the content is lost.
    match lost.contains(&b) {
        true => assert_eq!(rig.residency(b), Residency::Lost),
        false => assert_eq!(rig.read(b).to_f32(), values(1)),
    }
    assert!(!lost.contains(&a) && !lost.contains(&d));
    let figures = rig.figures();
    assert_eq!(figures.downloads_now, 0);
}

#[test]
fn without_recovery_work_moves_to_the_cpu_if_allowed() {
    let pipelines = PipelineSettings { synchronous: true, ..default() };
    let memory = MemorySettings { host_copies: HostCopies::Keep, ..default() };
    let cpu_fallback = Some(core::time::Duration::from_millis(50));
    let mut rig = Rig::with(Backend::Gpu, TensorComputePlugin { pipelines, memory, cpu_fallback, ..default() });
    rig.app.insert_resource(RenderErrorHandler(|_, _, _| RenderErrorPolicy::StopRendering));
    let lost = watch_lost(&mut rig);
    let weights = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]).unwrap());
    let state = rig.spawn(Tensor::zeros([3], DType::F32).unwrap());
    rig.record(move |ops| ops.store(weights, state)).unwrap();
    assert_eq!(rig.read(state).to_f32(), [1.0, 2.0, 3.0]);

    destroy(&rig);
    // Recorded before the loss is noticed and while the renderer is paused. All of it runs, in order.
    let receivers: Vec<TensorReceiver> = (0..5)
        .map(|_| {
            let receiver = rig.record(move |ops| {
                let more = ops.add(weights, 1.0)?;
                ops.read(more)
            });
            rig.app.update();
            receiver.unwrap()
        })
        .collect();
    rig.step_until(|app| app.world().resource::<TensorSupport>().backend == Backend::Cpu);
    for receiver in &receivers {
        match rig.wait(receiver) {
            Ok(data) => assert_eq!(data.to_f32(), [2.0, 3.0, 4.0]),
            // The device rejects work after its loss, or never answers earlier work.
            Err(error) => {
                assert!(matches!(error, ReadError::DeviceLost | ReadError::Failed(RunError::Device(_))), "{error}");
            }
        }
    }
    assert!(rig.app.world().resource::<TensorSupport>().reason.contains("lost"));
    assert_eq!(rig.read(weights).to_f32(), [1.0, 2.0, 3.0]);
    assert_eq!(lost.lock().unwrap().iter().map(|(tensor, ..)| *tensor).collect::<Vec<_>>(), [state]);
    let receiver = rig.record(move |ops| ops.read(state)).unwrap();
    assert!(matches!(rig.wait(&receiver), Err(ReadError::Failed(RunError::Lost { .. }))));
    rig.record(move |ops| ops.store(weights, state)).unwrap();
    assert_eq!(rig.read(state).to_f32(), [1.0, 2.0, 3.0]);
}
