//! A fixed budget of device memory is never exceeded, and no data is lost because of it.

use std::sync::{Arc, Mutex};

use bevy::prelude::*;
use bevy_tensor_compute::error::{ReadError, RunError};
use bevy_tensor_compute::memory::{HostCopies, MemoryPressure, PressureLevel};
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::tensor::Residency;

use crate::common::Rig;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn limited(budget: u64) -> Rig {
    Rig::with_memory(MemorySettings { budget: Some(budget), ..default() })
}

/// `n` different numbers that depend on `seed`.
fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + seed * 101) % 1009) as f32 / 1009.0 - 0.5).collect()
}

/// 256 KiB.
fn quarter(seed: usize) -> Tensor {
    Tensor::from_slice(&numbers(1 << 16, seed), [256, 256]).unwrap()
}

/// Runs two passes through twelve layers of 256 KiB, one layer per frame. Returns the last activations.
fn layer_by_layer(rig: &mut Rig, mut watch: impl FnMut(&Rig)) -> Vec<f32> {
    let layers: Vec<Entity> = (0..12).map(|i| rig.spawn(quarter(i))).collect();
    let x = rig.spawn(Tensor::from_slice(&numbers(1024, 99), [4, 256]).unwrap());
    for _ in 0..2 {
        for &layer in &layers {
            rig.record(move |ops| {
                let y = ops.matmul(x, layer)?;
                let y = ops.tanh(y)?;
                ops.store(y, x)?;
                // The weights of the layer change too, so that they cannot be restored from their source.
                let w = ops.mul(layer, 0.99)?;
                ops.store(w, layer)
            })
            .unwrap();
            rig.app.update();
            watch(rig);
        }
    }
    rig.step_until(|app| app.world().resource::<TensorDiagnostics>().figures().batches_waiting_now == 0);
    rig.read(x).to_f32()
}

#[test]
fn a_model_of_three_times_the_budget_runs_layer_by_layer_within_it() {
    let expected = layer_by_layer(&mut Rig::new(Backend::Gpu), |_| {});
    for host_copies in [HostCopies::Drop, HostCopies::Keep] {
        let mut rig = Rig::with_memory(MemorySettings { budget: Some(MIB), host_copies, ..default() });
        rig.settle();
        let start = rig.device_bytes();
        let mut highest = 0;
        let actual = layer_by_layer(&mut rig, |rig| {
            let staging = rig.figures().staging_bytes as isize;
            highest = highest.max(rig.device_bytes() - start - staging);
        });
        assert_eq!(actual, expected, "{host_copies:?}: not a bit differs");
        assert_eq!(rig.faults(), []);
        let figures = rig.figures();
        assert!(figures.peak_device_bytes <= MIB, "{figures:?}");
        assert!(figures.evictions >= 16, "{figures:?}");
        assert!(figures.host_copy_bytes >= 2 * MIB, "{figures:?}");
        // As counted by the device. It includes upload buffers of the size of a layer and Bevy's own buffers.
        assert!(highest <= 2 * MIB as isize, "{highest} bytes on the device");
    }
}

#[test]
fn recordings_that_do_not_fit_together_run_one_after_the_other() {
    let mut rig = limited(MIB);
    let tensors: Vec<Entity> = (0..6).map(|i| rig.spawn(quarter(i))).collect();
    let total = rig.spawn(Tensor::zeros([256, 256], DType::F32).unwrap());
    for &tensor in &tensors {
        rig.record(move |ops| {
            let sum = ops.add(total, tensor)?;
            ops.store(sum, total)
        })
        .unwrap();
    }
    let sum = rig.read(total).to_f32();
    let mut expected = vec![0.0f32; 1 << 16];
    for i in 0..6 {
        numbers(1 << 16, i).iter().zip(&mut expected).for_each(|(n, e)| *e += n);
    }
    assert_eq!(sum, expected);
    assert!(rig.figures().peak_device_bytes <= MIB);
    assert_eq!(rig.faults(), []);
}

#[test]
fn work_that_cannot_fit_is_a_typed_error_and_the_rest_goes_on() {
    let mut rig = limited(MIB);
    let small = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap());
    rig.read(small);
    let world = rig.app.world_mut();
    let a = world.spawn((Name::new("a"), quarter(0), Pinned)).id();
    rig.read(a);
    let big = rig.spawn(Tensor::full([900 << 8], 1.0, DType::F32).unwrap());
    let receiver = rig.record(move |ops| ops.read(big)).unwrap();
    let Err(ReadError::Failed(error)) = rig.wait(&receiver) else { panic!("it cannot fit beside what is pinned") };
    let RunError::Budget { requested, available, budget, largest } = &error else { panic!("{error}") };
    assert_eq!(*budget, MIB);
    assert!(*requested >= 900 * KIB && *available <= 768 * KIB && *available > 700 * KIB, "{error}");
    assert_eq!((largest[0].name.as_str(), largest[0].pinned), ("\"a\"", true));
    assert!(error.to_string().contains("\"a\" 262144 (pinned)"), "{error}");
    assert_eq!(rig.read(small).to_f32(), [1.0, 2.0]);
    // Without the pin there is enough room.
    rig.memory(|memory| memory.unpin(a)).unwrap();
    assert_eq!(rig.read(big).to_f32()[7], 1.0);
    assert_eq!(rig.residency(a), Residency::Host);
    assert_eq!(rig.read(a).to_f32(), numbers(1 << 16, 0));
}

#[test]
fn pinned_tensors_stay_on_the_device() {
    let mut rig = limited(MIB);
    let pinned = rig.spawn(quarter(0));
    rig.memory(|memory| memory.pin(pinned)).unwrap();
    rig.record(move |ops| ops.store(2.0, pinned)).unwrap();
    let others: Vec<Entity> = (1..8).map(|i| rig.spawn(quarter(i))).collect();
    for &other in &others {
        rig.record(move |ops| ops.store(3.0, other)).unwrap();
        rig.settle();
        assert_eq!(rig.residency(pinned), Residency::Device);
    }
    assert_eq!(rig.residency(others[0]), Residency::Host, "the least recently used left");
    rig.memory(|memory| memory.evict(pinned)).unwrap();
    rig.settle();
    assert_eq!(rig.residency(pinned), Residency::Device);
    // Removing the component removes the pin.
    rig.app.world_mut().entity_mut(pinned).remove::<Pinned>();
    rig.memory(|memory| memory.evict(pinned)).unwrap();
    rig.step_until(|app| app.world().get::<Tensor>(pinned).unwrap().residency() == Residency::Host);
    assert_eq!(rig.read(pinned).to_f32(), vec![2.0; 1 << 16]);
}

#[test]
fn every_bit_survives_the_way_to_the_host_and_back() {
    let mut rig = Rig::new(Backend::Gpu);
    // NaNs with payloads, infinities, denormals, negative zero, and packed types with padding.
    let bits: Vec<f32> =
        [0x7fc0_1234u32, 0xff80_0001, 0x7f80_0000, 0x0000_0001, 0x8000_0000].map(f32::from_bits).to_vec();
    let floats = rig.spawn(Tensor::from_slice(&bits, [5]).unwrap());
    let bytes = rig.spawn(Tensor::from_slice(&[1u8, 2, 3, 250, 255], [5]).unwrap());
    let empty = rig.spawn(Tensor::zeros([0, 3], DType::F32).unwrap());
    let all = [floats, bytes, empty];
    let before = all.map(|tensor| rig.read(tensor));
    for round in 0..3 {
        for tensor in all {
            rig.memory(|memory| memory.evict(tensor)).unwrap();
        }
        rig.step_until(|app| all.iter().all(|&t| app.world().get::<Tensor>(t).unwrap().residency() == Residency::Host));
        assert_eq!(rig.figures().device_bytes, 0, "round {round}");
        let after = all.map(|tensor| rig.read(tensor));
        for (before, after) in before.iter().zip(&after) {
            assert_eq!((before.bytes(), before.shape()), (after.bytes(), after.shape()));
        }
    }
}

#[test]
fn a_tensor_used_while_it_leaves_stays_and_keeps_what_was_written() {
    let mut rig = Rig::new(Backend::Gpu);
    let x = rig.spawn(Tensor::from_slice(&[1.0f32; 1000], [1000]).unwrap());
    rig.record(move |ops| ops.store(2.0, x)).unwrap();
    rig.app.update();
    for value in [3.0, 4.0, 5.0] {
        rig.memory(|memory| memory.evict(x)).unwrap();
        rig.app.update();
        rig.record(move |ops| ops.store(value, x)).unwrap();
        rig.settle();
        assert_eq!(rig.read(x).to_f32(), vec![value; 1000]);
    }
}

#[test]
fn lowering_the_budget_moves_tensors_out() {
    let mut rig = Rig::new(Backend::Gpu);
    let tensors: Vec<Entity> = (0..8).map(|i| rig.spawn(quarter(i))).collect();
    for &tensor in &tensors {
        rig.record(move |ops| ops.store(tensor, tensor)).unwrap();
    }
    rig.settle();
    assert_eq!(rig.figures().device_bytes, 2 * MIB);
    rig.app.world_mut().resource_mut::<MemorySettings>().budget = Some(MIB);
    rig.step_until(|app| app.world().resource::<TensorDiagnostics>().figures().total_device_bytes <= MIB);
    rig.app.world_mut().resource_mut::<MemorySettings>().budget = None;
    for (i, &tensor) in tensors.iter().enumerate() {
        assert_eq!(rig.read(tensor).to_f32(), numbers(1 << 16, i));
    }
}

#[test]
fn pressure_is_told_at_the_marks() {
    let mut rig = limited(MIB);
    let levels = Arc::new(Mutex::new(Vec::new()));
    let seen = levels.clone();
    rig.app.add_observer(move |pressure: On<MemoryPressure>| {
        assert_eq!(pressure.budget, MIB);
        seen.lock().unwrap().push(pressure.level);
    });
    let mut tensors = Vec::new();
    for kib in [700, 128, 100] {
        let tensor = rig.spawn(Tensor::zeros([kib * 256], DType::F32).unwrap());
        rig.record(move |ops| ops.store(1.0, tensor)).unwrap();
        rig.settle();
        tensors.push(tensor);
    }
    assert_eq!(*levels.lock().unwrap(), [PressureLevel::High, PressureLevel::Critical]);
    // It is reported again after usage has fallen.
    rig.app.world_mut().despawn(tensors.pop().unwrap());
    rig.settle();
    let tensor = rig.spawn(Tensor::zeros([100 * 256], DType::F32).unwrap());
    rig.record(move |ops| ops.store(1.0, tensor)).unwrap();
    rig.settle();
    assert_eq!(levels.lock().unwrap().len(), 3);
}
