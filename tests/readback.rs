//! Every request is answered exactly once, with the values at its position in the order of work.

use std::sync::{Arc, Mutex};

use bevy::prelude::*;
use bevy_tensor_compute::PipelineSettings;
use bevy_tensor_compute::error::ReadError;
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig};

#[test]
fn a_read_sees_the_values_of_its_place_in_the_order() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap());
        let receivers = rig
            .record(move |ops| {
                let first = ops.read(x)?;
                ops.write(x, &[10.0f32, 20.0])?;
                let second = ops.read(x)?;
                let doubled = ops.mul(x, 2.0)?;
                ops.store(doubled, x)?;
                let third = ops.read(x)?;
                ops.store(0.0, x)?;
                Ok([first, second, third, ops.read(x)?])
            })
            .unwrap();
        let values: Vec<Vec<f32>> =
            receivers.iter().map(|r| rig.wait(r).unwrap().as_slice::<f32>().unwrap().to_vec()).collect();
        assert_eq!(values, [[1.0, 2.0], [10.0, 20.0], [20.0, 40.0], [0.0, 0.0]], "{backend}");
    }
}

/// Who observed an event, of which tensor, with which value.
type Seen = Arc<Mutex<Vec<(&'static str, Entity, f32)>>>;

#[test]
fn a_notification_reaches_the_tensor_and_bubbles_to_its_model() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let seen = Seen::default();
        let log = |who: &'static str, seen: &Seen| {
            let seen = seen.clone();
            move |ready: On<TensorReady>| {
                let value: f32 = ready.result.as_ref().unwrap().item().unwrap();
                seen.lock().unwrap().push((who, ready.tensor, value));
            }
        };
        let world = rig.app.world_mut();
        let model = world.spawn(TensorModel).observe(log("model", &seen)).id();
        let tensor = Tensor::full([1], 7.0, DType::F32).unwrap();
        let tensor = world.spawn((tensor, TensorOf(model))).observe(log("tensor", &seen)).id();
        rig.record(move |ops| ops.notify(tensor)).unwrap();
        rig.step_until(|_| seen.lock().unwrap().len() >= 2);
        assert_eq!(*seen.lock().unwrap(), [("tensor", tensor, 7.0), ("model", tensor, 7.0)], "{backend}");
    }
}

#[test]
fn a_global_observer_sees_each_answer_once() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let seen = Seen::default();
        let log = seen.clone();
        rig.app.add_observer(move |ready: On<TensorReady>| {
            assert_eq!(ready.entity, ready.tensor);
            log.lock().unwrap().push(("global", ready.tensor, ready.result.as_ref().unwrap().item().unwrap()));
        });
        let world = rig.app.world_mut();
        let model = world.spawn(TensorModel).id();
        let first = world.spawn_tensor(model, "first", Tensor::full([1], 1.0, DType::F32).unwrap());
        let second = world.spawn_tensor(model, "second", Tensor::full([1], 2.0, DType::F32).unwrap());
        rig.record(move |ops| {
            ops.notify(first)?;
            ops.notify(second)
        })
        .unwrap();
        rig.step_until(|_| seen.lock().unwrap().len() >= 2);
        rig.settle();
        assert_eq!(*seen.lock().unwrap(), [("global", first, 1.0), ("global", second, 2.0)], "{backend}");
    }
}

#[test]
fn large_answers_come_in_the_order_they_were_asked_for() {
    // More than the GPU backend copies per frame on its own.
    const COUNT: usize = 1 << 20;
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let seen = Seen::default();
        let log = seen.clone();
        let tensor = rig.spawn(Tensor::zeros([COUNT], DType::F32).unwrap());
        rig.app.world_mut().entity_mut(tensor).observe(move |ready: On<TensorReady>| {
            let data = ready.result.as_ref().unwrap();
            let values = data.as_slice::<f32>().unwrap();
            assert!(values.len() == COUNT && values.iter().all(|value| *value == values[0]));
            log.lock().unwrap().push(("tensor", ready.tensor, values[0]));
        });
        let cancelled = (0..8).map(|i| {
            rig.record(move |ops| {
                ops.store(i as f32, tensor)?;
                ops.notify(tensor)?;
                ops.read(tensor)
            })
            .unwrap()
        });
        // These are cancelled, which must not delay the others.
        cancelled.for_each(drop);
        rig.step_until(|_| seen.lock().unwrap().len() >= 8);
        let order: Vec<f32> = seen.lock().unwrap().iter().map(|(_, _, value)| *value).collect();
        assert_eq!(order, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], "{backend}");
        rig.step_until(|app| app.world().resource::<TensorDiagnostics>().figures().readbacks_now == 0);
    }
}

#[test]
fn values_arrive_within_two_updates_once_the_device_is_done() {
    let mut rig = Rig::new(Backend::Gpu);
    let x = rig.spawn(Tensor::full([4], 1.0, DType::F32).unwrap());
    rig.read(x);
    let submits = rig.figures().submits;
    let receiver = rig.record(move |ops| ops.read(x)).unwrap();
    rig.app.update();
    assert_eq!(rig.figures().submits, submits + 1, "recorded work is submitted with the next update");
    // Updates until the device is done, then two more times.
    rig.settle();
    assert!(receiver.try_recv().is_some());
}

#[test]
fn a_dropped_receiver_cancels_without_a_copy() {
    let mut rig = Rig::new(Backend::Gpu);
    let x = rig.spawn(Tensor::full([4], 1.0, DType::F32).unwrap());
    rig.read(x);
    let readbacks = rig.figures().readbacks;
    drop(rig.record(move |ops| ops.read(x)).unwrap());
    rig.app.update();
    assert_eq!(rig.figures().readbacks, readbacks);
}

#[test]
fn a_receiver_can_be_awaited_in_a_task() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::arange(0.0, 1.0, 5, DType::F32).unwrap());
        let receiver = rig.record(move |ops| ops.read(x)).unwrap();
        let task = bevy::tasks::AsyncComputeTaskPool::get().spawn(async move { receiver.recv().await });
        rig.step_until(|_| task.is_finished());
        let data = bevy::tasks::block_on(task).unwrap();
        assert_eq!(data.as_slice::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0]);
    }
}

#[test]
fn work_waits_for_its_pipelines_in_order_and_none_is_lost() {
    let pipelines = PipelineSettings { synchronous: false, ..default() };
    let mut rig = Rig::with(Backend::Gpu, TensorComputePlugin { pipelines, ..default() });
    let x = rig.spawn(Tensor::full([3], 1.0, DType::F32).unwrap());
    // Each frame adds to the result of the previous one with a new kernel, so a lost or reordered frame is detected.
    let mut receivers = Vec::new();
    for frame in 0..6 {
        let receiver = rig.record(move |ops| {
            let mut value = ops.add(x, 1.0)?;
            for _ in 0..frame {
                value = ops.sqrt(value)?;
                value = ops.mul(value, value)?;
            }
            ops.store(value, x)?;
            ops.read(x)
        });
        receivers.push(receiver.unwrap());
        rig.app.update();
    }
    for (frame, receiver) in receivers.iter().enumerate() {
        let values = rig.wait(receiver).unwrap().to_f32();
        assert!((values[0] - (frame as f32 + 2.0)).abs() < 1e-3, "frame {frame}: {values:?}");
    }
}

#[test]
fn requests_of_an_app_that_ends_are_answered() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::full([4], 1.0, DType::F32).unwrap());
        let receiver = rig.record(move |ops| ops.read(x)).unwrap();
        drop(rig);
        assert_eq!(receiver.try_recv(), Some(Err(ReadError::Disabled)), "{backend}");
    }
}

#[test]
fn staging_buffers_are_used_again() {
    let mut rig = Rig::new(Backend::Gpu);
    let x = rig.spawn(Tensor::full([1000], 1.0, DType::F32).unwrap());
    for _ in 0..5 {
        rig.read(x);
    }
    let buffers = rig.figures().buffers_allocated;
    for _ in 0..50 {
        rig.read(x);
    }
    assert_eq!(rig.figures().buffers_allocated, buffers);
}

#[test]
fn large_answers_keep_their_values_and_lend_their_staging_buffer() {
    // Large enough not to be copied out of the staging buffer.
    const N: usize = 1 << 18;
    let mut rig = Rig::new(Backend::Gpu);
    let x = rig.spawn(Tensor::full([N], 0.0, DType::F32).unwrap());
    let mut kept: Vec<TensorData> = Vec::new();
    for round in 0..3 {
        let receiver = rig
            .record(move |ops| {
                let next = ops.add(x, 1.0)?;
                ops.store(next, x)?;
                ops.read(x)
            })
            .unwrap();
        kept.push(rig.wait(&receiver).unwrap());
        assert_eq!(rig.figures().staging_bytes, (round + 1) * N as u64 * 4, "one buffer for each answer");
    }
    for (round, data) in kept.iter().enumerate() {
        let expected = round as f32 + 1.0;
        assert!(data.as_slice::<f32>().unwrap().iter().all(|&v| v == expected), "round {round}");
        assert_eq!(*data, data.clone());
    }
    // An answer can be the content of a tensor.
    let back = rig.spawn(Tensor::from(kept[1].clone()));
    assert_eq!(rig.read(back).as_slice::<f32>().unwrap()[N - 1], 2.0);
    // Dropped answers return their buffers, and an answer outlives its app.
    let last = kept.pop().unwrap();
    kept.clear();
    let allocated = rig.figures().buffers_allocated;
    drop(rig.read(x));
    assert_eq!(rig.figures().buffers_allocated, allocated);
    drop(rig);
    assert_eq!(last.as_slice::<f32>().unwrap()[7], 3.0);
}
