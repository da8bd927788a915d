//! Errors after recording: faults and failed reads, after which other work continues.

use bevy::prelude::*;
use bevy_tensor_compute::error::{ReadError, RunError};
use bevy_tensor_compute::prelude::*;

use super::goes_on;
use crate::common::{BACKENDS, Rig};

#[test]
fn nan_inputs_give_defined_results() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::full([65], f64::NAN, DType::F32).expect("small"));
        for dtype in DType::ALL {
            let cast = rig.compute(move |ops| ops.cast(x, dtype)).expect("it fits").to_f32();
            let expected = match dtype {
                DType::F32 | DType::F16 | DType::BF16 => f32::NAN,
                DType::Bool => 1.0,
                _ => 0.0,
            };
            assert!(cast.iter().all(|v| *v == expected || (v.is_nan() && expected.is_nan())), "{dtype}: {cast:?}");
        }
        // Positions computed from NaN are still valid positions.
        let gathered = rig
            .compute(move |ops| {
                let positions = ops.cast(x, DType::I32)?;
                ops.gather(x, positions, 0)
            })
            .expect("it fits");
        assert!(gathered.to_f32().iter().all(|v| v.is_nan()));
        for value in rig.compute(move |ops| ops.softmax(x, 0)).expect("it fits").to_f32() {
            assert!(value.is_nan());
        }
        let best = rig.compute(move |ops| ops.argmax(x, 0)).expect("it fits");
        assert!((0..65).contains(&best.item::<i32>().expect("one")));
        goes_on(&mut rig);
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn a_tensor_beyond_the_device_fails_alone() {
    let mut rig = Rig::new(Backend::Gpu);
    let support = rig.app.world().resource::<TensorSupport>().clone();
    let limits = support.adapter.expect("a device").limits;
    let most = limits.max_buffer_size;
    let elements = most / 4 + 1024;
    if elements > i32::MAX as u64 {
        // More elements than can be addressed are rejected before the device is asked.
        let too_large = Tensor::zeros([elements as usize], DType::F32);
        assert!(too_large.is_err(), "{elements} elements");
        return;
    }
    let huge = rig.spawn(Tensor::zeros([elements as usize], DType::F32).expect("addressable"));
    let receiver = rig
        .record(move |ops| {
            let sum = ops.sum(huge, Axes::ALL)?;
            ops.read(sum)
        })
        .expect("recording asks no device");
    let error = rig.wait(&receiver).expect_err("there is no room");
    assert!(matches!(error, ReadError::Failed(RunError::Limit { requested, .. }) if requested > most), "{error}");
    rig.step_until(|app| !app.world().resource::<crate::common::Faults>().0.is_empty());
    assert!(matches!(rig.faults()[..], [TensorFault::Run(RunError::Limit { .. })]), "{:?}", rig.faults());
    goes_on(&mut rig);
    rig.app.world_mut().despawn(huge);
    goes_on(&mut rig);
}

#[test]
fn a_value_beyond_the_device_fails_alone() {
    let mut rig = Rig::new(Backend::Gpu);
    let limits = rig.app.world().resource::<TensorSupport>().adapter.clone().expect("a device").limits;
    let side = ((limits.max_buffer_size / 4) as f64).sqrt() as usize + 64;
    if side * side > i32::MAX as usize {
        return;
    }
    let x = rig.spawn(Tensor::zeros([side, 1], DType::F32).expect("small"));
    let receiver = rig
        .record(move |ops| {
            let product = ops.matmul_nt(x, x)?;
            let rows = ops.softmax(product, -1)?;
            let sum = ops.sum(rows, Axes::ALL)?;
            ops.read(sum)
        })
        .expect("recording asks no device");
    let error = rig.wait(&receiver).expect_err("there is no room");
    assert!(matches!(error, ReadError::Failed(RunError::Limit { .. })), "{error}");
    goes_on(&mut rig);
    assert!(matches!(rig.faults()[..], [TensorFault::Run(RunError::Limit { .. })]), "{:?}", rig.faults());
}

#[test]
fn a_name_given_twice_is_a_fault_and_then_an_error() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let world = rig.app.world_mut();
        let model = world.spawn(TensorModel).id();
        let mut tensor = |name: &'static str| {
            world.spawn((Name::new(name), Tensor::ones([2], DType::F32).expect("small"), TensorOf(model))).id()
        };
        let (first, second, other) = (tensor("weight"), tensor("weight"), tensor("bias"));
        rig.app.update();
        let fault = TensorFault::DuplicateName { model, name: "weight".to_owned(), tensor: second };
        assert_eq!(rig.faults(), [fault]);
        let error = rig.compute(move |ops| ops.add(second, other)).expect_err("its name is taken");
        assert_eq!(error, OpError::DuplicateName { op: "add", model, name: "weight".to_owned() });
        assert_eq!(error.to_string(), format!("add: model {model} has two tensors named \"weight\""));
        // The first tensor and others still work. A new name resolves the conflict.
        assert_eq!(rig.compute(move |ops| ops.add(first, other)).expect("it fits").to_f32(), [2.0, 2.0]);
        rig.app.world_mut().entity_mut(second).insert(Name::new("another"));
        assert_eq!(rig.compute(move |ops| ops.add(second, other)).expect("it fits").to_f32(), [2.0, 2.0]);
        goes_on(&mut rig);
    }
}

#[test]
fn positions_out_of_range_are_clamped_and_counted() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::from_slice(&[10.0f32, 11.0, 12.0, 13.0], [4]).expect("four"));
        let positions = rig.spawn(Tensor::from_slice(&[0i32, 4, -4, -5, 3, i32::MAX], [6]).expect("six"));
        let tuples = rig.spawn(Tensor::from_slice(&[1i32, 9], [2, 1]).expect("two"));
        let table = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]).expect("four"));
        let ids = rig.spawn(Tensor::from_slice(&[7u32, 0], [2]).expect("two"));
        let counted = |rig: &mut Rig, op: &'static str, count: u32| {
            rig.step_until(|app| !app.world().resource::<crate::common::Faults>().0.is_empty());
            let faults = std::mem::take(&mut rig.app.world_mut().resource_mut::<crate::common::Faults>().0);
            assert_eq!(faults, [TensorFault::Run(RunError::IndexOutOfRange { op, count })], "on the {backend}");
        };
        let clamped = [10.0, 13.0, 10.0, 10.0, 13.0, 13.0];
        let gathered = rig.compute(move |ops| ops.gather(x, positions, 0)).expect("it fits");
        assert_eq!(gathered.to_f32(), clamped, "gather on the {backend}");
        counted(&mut rig, "gather", 3);
        let gathered = rig.compute(move |ops| ops.gather_elements(x, positions, 0)).expect("it fits");
        assert_eq!(gathered.to_f32(), clamped, "gather_elements on the {backend}");
        counted(&mut rig, "gather_elements", 3);
        let gathered = rig.compute(move |ops| ops.gather_nd(x, tuples, 0)).expect("it fits");
        assert_eq!(gathered.to_f32(), [11.0, 13.0], "gather_nd on the {backend}");
        counted(&mut rig, "gather_nd", 1);
        let rows = rig.compute(move |ops| ops.embedding(table, ids)).expect("it fits");
        assert_eq!(rows.to_f32(), [3.0, 4.0, 1.0, 2.0], "embedding on the {backend}");
        counted(&mut rig, "embedding", 1);
        let scattered =
            rig.compute(move |ops| ops.scatter_elements(x, positions, 1.0, 0, ScatterMode::Add)).expect("it fits");
        assert_eq!(scattered.to_f32(), [13.0, 11.0, 12.0, 16.0], "scatter_elements on the {backend}");
        counted(&mut rig, "scatter_elements", 3);
        let scattered = rig.compute(move |ops| ops.scatter_nd(x, tuples, 0.0, ScatterMode::Replace)).expect("it fits");
        assert_eq!(scattered.to_f32(), [10.0, 0.0, 12.0, 0.0], "scatter_nd on the {backend}");
        counted(&mut rig, "scatter_nd", 1);
        goes_on(&mut rig);
    }
}
