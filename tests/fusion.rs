//! Fused launches give the same results as separate ones on both backends, and the plan reports what was fused and why
//! the rest was not.

mod cases;
mod graphs;

use bevy_tensor_compute::PipelineSettings;
use bevy_tensor_compute::plan::{PlanReport, UnfusedReason};
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig, assert_close};

/// An app with or without fusion.
fn rig(backend: Backend, fuse: bool) -> Rig {
    let pipelines = PipelineSettings { synchronous: true, fuse, ..Default::default() };
    Rig::with(backend, TensorComputePlugin { pipelines, ..Default::default() })
}

/// The plan of the last recording.
fn report(rig: &Rig) -> PlanReport {
    rig.app.world().resource::<TensorDiagnostics>().last_plan(rig.backend).expect("something ran")
}

/// The kernels of the last recording.
fn kernels(rig: &Rig) -> Vec<&'static str> {
    report(rig).steps.iter().map(|step| step.kernel).collect()
}

#[test]
fn a_layer_of_a_network_is_one_launch() {
    for backend in BACKENDS {
        let mut rig = rig(backend, true);
        let x = rig.spawn(Tensor::random_normal([5, 8], 0.0, 1.0, 1, DType::F32).unwrap());
        let weight = rig.spawn(Tensor::random_normal([16, 8], 0.0, 1.0, 2, DType::F32).unwrap());
        let bias = rig.spawn(Tensor::random_normal([16], 0.0, 1.0, 3, DType::F32).unwrap());
        let residual = rig.spawn(Tensor::random_normal([5, 16], 0.0, 1.0, 4, DType::F32).unwrap());
        rig.compute(move |ops| {
            let y = ops.linear(x, weight, bias)?;
            let y = ops.gelu(y)?;
            ops.add(y, residual)
        })
        .unwrap();
        assert_eq!(kernels(&rig), ["matmul"], "{backend}");
        let report = report(&rig);
        assert_eq!((report.steps[0].op, &report.steps[0].ops[1..]), ("linear", &["gelu", "add", "read"][..]));
        assert_eq!(report.unfused, []);
    }
}

#[test]
fn switched_off_nothing_is_joined_and_the_report_says_so() {
    for backend in BACKENDS {
        let mut rig = rig(backend, false);
        let x = rig.spawn(Tensor::from_slice(&[1.0f32, -2.0, 3.0, -4.0], [2, 2]).unwrap());
        let data = rig
            .compute(move |ops| {
                let y = ops.matmul(x, x)?;
                let y = ops.relu(y)?;
                let y = ops.mul(y, 0.5)?;
                ops.softmax(y, -1)
            })
            .unwrap();
        assert_eq!(kernels(&rig), ["matmul", "map", "map", "softmax"], "{backend}");
        let report = report(&rig);
        assert!(report.unfused.iter().all(|edge| edge.reason == UnfusedReason::Off));
        assert_eq!(report.unfused[0].to_string(), "matmul to relu: fusion is off");
        // [[1, -2], [3, -4]]² is [[-5, 6], [-9, 10]].
        let rows = [[0.0f32, 3.0], [0.0, 5.0]].map(|row| {
            let sum: f32 = row.iter().map(|v| v.exp()).sum();
            row.map(|v| v.exp() / sum)
        });
        assert_close(data.as_slice::<f32>().unwrap(), rows.as_flattened(), 1e-6, 1e-5, "softmax");
    }
}

#[test]
fn an_index_out_of_range_is_still_the_gathers_fault() {
    for backend in BACKENDS {
        let mut rig = rig(backend, true);
        let table = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]).unwrap());
        let at = rig.spawn(Tensor::from_slice(&[0i32, 7], [2]).unwrap());
        let data = rig
            .compute(move |ops| {
                let y = ops.gather(table, at, 0)?;
                let y = ops.mul(y, 10.0)?;
                ops.sigmoid(y)
            })
            .unwrap();
        assert_eq!(kernels(&rig), ["gather"], "{backend}");
        assert_close(data.as_slice::<f32>().unwrap(), &[1.0, 1.0], 1e-4, 0.0, "clamped");
        rig.step_until(|app| !app.world().resource::<crate::common::Faults>().0.is_empty());
        assert!(rig.faults()[0].to_string().contains("gather"), "{}", rig.faults()[0]);
    }
}

#[test]
fn a_tensor_that_is_updated_in_place_by_a_product_ends_up_right() {
    for backend in BACKENDS {
        for fuse in [true, false] {
            let mut rig = rig(backend, fuse);
            let ones = || Tensor::from_slice(&[1.0f32; 16], [4, 4]).unwrap();
            let (x, w) = (rig.spawn(ones()), rig.spawn(ones()));
            for _ in 0..2 {
                rig.record(move |ops| {
                    // x += x · w cannot run in place, x += w · w can.
                    let y = ops.matmul(x, w)?;
                    let y = ops.add(x, y)?;
                    ops.store(y, x)?;
                    let y = ops.matmul(w, w)?;
                    let y = ops.add(x, y)?;
                    ops.store(y, x)
                })
                .unwrap();
            }
            let data = rig.read(x);
            assert_close(data.as_slice::<f32>().unwrap(), &[49.0; 16], 0.0, 0.0, &format!("{backend}, fuse {fuse}"));
        }
    }
}
