//! Values and models that move to the other backend and back, in order with the work around them.

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig};

fn other(backend: Backend) -> Backend {
    match backend {
        Backend::Gpu => Backend::Cpu,
        Backend::Cpu => Backend::Gpu,
    }
}

/// A model with one tensor on the given backend.
fn model(rig: &mut Rig, home: Backend, tensor: Tensor) -> (Entity, Entity) {
    let model = rig.app.world_mut().spawn((TensorModel, ModelBackend(home))).id();
    let tensor = rig.app.world_mut().spawn((tensor, TensorOf(model))).id();
    (model, tensor)
}

/// Changes the backend of a model.
fn set_home(rig: &mut Rig, model: Entity, home: Backend) {
    rig.app.world_mut().entity_mut(model).insert(ModelBackend(home));
}

fn launches(rig: &Rig) -> (u64, u64) {
    let figures = rig.figures();
    (figures.dispatches, figures.cpu_steps)
}

#[test]
fn a_value_crosses_to_the_other_backend_and_back_in_one_recording() {
    for home in BACKENDS {
        let mut rig = Rig::new(Backend::Gpu);
        let (_, x) = model(&mut rig, home, Tensor::from_slice(&[1.0f32, -2.0, 3.5], [3]).expect("fits"));
        let away = other(home);
        let (there, back) = rig
            .record(move |ops| {
                let doubled = ops.value(ops.value(x)? * 2.0)?;
                let there = ops.value(ops.to_backend(doubled, away)? + 1.0)?;
                let back = ops.to_backend(ops.abs(there)?, home)?;
                // A value from before the move is used after it.
                Ok((ops.read(there)?, ops.read(back + doubled)?))
            })
            .expect("fits");
        assert_eq!(rig.wait(&there).expect("values").to_f32(), [3.0, -3.0, 8.0], "{home}");
        assert_eq!(rig.wait(&back).expect("values").to_f32(), [5.0, -1.0, 15.0], "{home}");
        let (gpu, cpu) = launches(&rig);
        assert!(gpu > 0 && cpu > 0, "both backends ran: {gpu} {cpu}");
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn every_type_crosses_bit_for_bit() {
    for home in BACKENDS {
        let mut rig = Rig::new(Backend::Gpu);
        let floats: Vec<f32> = (0..128).map(|i| (i as f32 - 64.0) * 0.37).collect();
        let odd = [f32::NAN, f32::INFINITY, -0.0, f32::MIN_POSITIVE / 4.0, 1e30];
        let tensors = [
            Tensor::from_slice(&odd, [5]).expect("fits"),
            Tensor::from_slice(&floats.iter().map(|&x| half::f16::from_f32(x)).collect::<Vec<_>>()[..7], [7])
                .expect("fits"),
            Tensor::from_slice(&[i32::MIN, -1, 7], [3]).expect("fits"),
            Tensor::from_slice(&[u32::MAX, 0], [2, 1]).expect("fits"),
            Tensor::from_slice(&[-128i8, 127, 3, 4, 5], [5]).expect("fits"),
            Tensor::from_slice(&[255u8, 0, 1], [3]).expect("fits"),
            Tensor::quantized(DType::Q8_0, [4, 32], &floats).expect("fits"),
            Tensor::quantized(DType::Q4_0, [4, 32], &floats).expect("fits"),
            Tensor::zeros([0, 3], DType::F32).expect("fits"),
        ];
        for tensor in tensors {
            let (_, x) = model(&mut rig, home, tensor);
            let before = rig.read(x);
            let there = rig.compute(move |ops| ops.to_backend(x, other(home))).expect("crosses");
            let back = rig.compute(move |ops| ops.to_backend(ops.to_backend(x, other(home))?, home)).expect("crosses");
            assert_eq!(there.bytes(), before.bytes(), "{home} {}", before.dtype());
            assert_eq!(back.bytes(), before.bytes(), "{home} {}", before.dtype());
            assert_eq!((there.dtype(), there.shape()), (before.dtype(), before.shape()));
        }
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn a_number_and_a_value_that_is_there_need_no_crossing() {
    let mut rig = Rig::new(Backend::Gpu);
    let (_, x) = model(&mut rig, Backend::Cpu, Tensor::from_slice(&[1.0f32, 2.0], [2]).expect("fits"));
    let y = rig
        .compute(move |ops| {
            let five = ops.to_backend(5.0, Backend::Cpu)?;
            ops.add(ops.to_backend(x, Backend::Cpu)?, five)
        })
        .expect("fits");
    assert_eq!(y.to_f32(), [6.0, 7.0]);
    assert_eq!(launches(&rig).0, 0, "nothing ran on the device");
}

#[test]
fn a_model_moves_while_work_on_it_goes_on() {
    for first in BACKENDS {
        let mut rig = Rig::new(Backend::Gpu);
        let (model, x) = model(&mut rig, first, Tensor::zeros([1000], DType::F32).expect("fits"));
        let mut receivers = Vec::new();
        // Each frame adds 1 and reads. The model moves in every third frame. No frame waits.
        for frame in 0..30 {
            if frame % 3 == 1 {
                let home = if (frame / 3) % 2 == 0 { other(first) } else { first };
                set_home(&mut rig, model, home);
            }
            receivers.push(
                rig.record(move |ops| {
                    ops.store(ops.value(x)? + 1.0, x)?;
                    ops.read(x)
                })
                .expect("fits"),
            );
            rig.app.update();
        }
        for (frame, receiver) in receivers.iter().enumerate() {
            let values = rig.wait(receiver).expect("values").to_f32();
            assert!(values.iter().all(|&v| v == frame as f32 + 1.0), "{first}, frame {frame}: {}", values[0]);
        }
        assert_eq!(rig.faults(), []);
        let (gpu, cpu) = launches(&rig);
        assert!(gpu >= 10 && cpu >= 10, "both backends took part: {gpu} {cpu}");
    }
}

#[test]
fn moving_a_model_frees_its_memory_on_the_old_backend() {
    let mut rig = Rig::new(Backend::Gpu);
    let (model, x) = model(&mut rig, Backend::Gpu, Tensor::ones([1 << 16], DType::F32).expect("fits"));
    assert_eq!(rig.read(x).to_f32()[7], 1.0);
    assert!(rig.figures().device_bytes >= 1 << 18);
    set_home(&mut rig, model, Backend::Cpu);
    rig.app.update();
    assert_eq!(rig.read(x).to_f32()[7], 1.0);
    rig.settle();
    assert_eq!(rig.figures().device_bytes, 0);
    assert!(rig.figures().host_bytes >= 1 << 18);
    set_home(&mut rig, model, Backend::Gpu);
    rig.app.update();
    assert_eq!(rig.read(x).to_f32()[7], 1.0);
    rig.settle();
    assert_eq!(rig.figures().host_bytes, 0);
    assert!(rig.figures().device_bytes >= 1 << 18);
}

#[test]
fn removing_the_choice_moves_a_model_to_the_apps_backend() {
    let mut rig = Rig::new(Backend::Gpu);
    let (model, x) = model(&mut rig, Backend::Cpu, Tensor::ones([4], DType::F32).expect("fits"));
    rig.read(x);
    rig.app.world_mut().entity_mut(model).remove::<ModelBackend>();
    rig.app.update();
    let before = rig.figures().dispatches;
    assert_eq!(rig.compute(move |ops| ops.add(x, 1.0)).expect("fits").to_f32(), [2.0; 4]);
    assert!(rig.figures().dispatches > before);
}

#[test]
fn a_model_that_is_despawned_while_it_moves_loses_no_answer() {
    let mut rig = Rig::new(Backend::Gpu);
    let (model, x) = model(&mut rig, Backend::Gpu, Tensor::ones([256], DType::F32).expect("fits"));
    rig.read(x);
    set_home(&mut rig, model, Backend::Cpu);
    rig.app.update();
    let receiver = rig.record(move |ops| ops.read(ops.value(x)? + 1.0)).expect("fits");
    rig.app.world_mut().entity_mut(model).despawn();
    assert_eq!(rig.wait(&receiver).expect("values").to_f32(), [2.0; 256]);
}

#[test]
fn without_a_device_there_is_a_clear_error() {
    let mut rig = Rig::new(Backend::Cpu);
    let model = rig.app.world_mut().spawn(TensorModel).id();
    let x = rig.app.world_mut().spawn((Tensor::ones([2], DType::F32).expect("fits"), TensorOf(model))).id();
    let error = rig.record(move |ops| ops.to_backend(x, Backend::Gpu).map(drop)).expect_err("no device");
    assert_eq!(error, OpError::NoDevice { op: "to_backend" });
    set_home(&mut rig, model, Backend::Gpu);
    rig.app.update();
    assert_eq!(rig.faults(), [TensorFault::NoDevice { model }]);
    assert_eq!(rig.read(x).to_f32(), [1.0, 1.0]);
}

#[test]
fn a_warm_up_may_cross() {
    let mut rig = Rig::new(Backend::Gpu);
    let (_, x) = model(&mut rig, Backend::Gpu, Tensor::ones([8], DType::F32).expect("fits"));
    let id = rig
        .record(move |ops| {
            ops.warm_up("crossing", 0, |ops| {
                let there = ops.to_backend(ops.exp(x)?, Backend::Cpu)?;
                let back = ops.to_backend(ops.neg(there)?, Backend::Gpu)?;
                ops.read(ops.sum(back, LAST)?).map(drop)
            })
        })
        .expect("fits");
    rig.step_until(|app| {
        let pipelines = app.world().resource::<bevy_tensor_compute::pipelines::TensorPipelines>();
        pipelines.warm_ups().iter().any(|warm_up| warm_up.id == id && warm_up.is_finished())
    });
    assert_eq!(rig.faults(), []);
}
