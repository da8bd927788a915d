//! Elementwise kernels are fused into the kernels around them.

use bevy_tensor_compute::plan::UnfusedReason;
use bevy_tensor_compute::prelude::*;

use super::{kernels, numbers, register, report};
use crate::common::{BACKENDS, Rig, assert_close};

/// A function with helpers and with names that generated texts also use.
const BEND: &str = "
    #import tensor::math
    // No conflict: these names belong to this kernel.
    const params = 0.5;
    struct element { v0: f32, r1: f32 }
    fn main_(x: f32) -> f32 { return tanh_f32(x) * params; }
    fn bend(x: f32, strength: f32) -> f32 {
        let parts = element(main_(x), strength);
        return x + parts.v0 * parts.r1;
    }";

fn bend(name: &'static str) -> CustomKernel {
    CustomKernel::elementwise(name, BEND)
        .entry("bend")
        .cpu_element(|x: f32, strength: f32| x + x.tanh() * 0.5 * strength)
}

fn expected(x: f32, strength: f32) -> f32 {
    x + x.tanh() * 0.5 * strength
}

#[test]
fn a_function_joins_the_elementwise_ops_around_it() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let kernel = register(&mut rig, bend("bend"));
        let x = rig.spawn(Tensor::from_slice(&numbers(35), [5, 7]).unwrap());
        let row = rig.spawn(Tensor::from_slice(&[0.1f32, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], [7]).unwrap());
        let data = rig
            .compute(move |ops| {
                let y = ops.mul(x, 0.1)?;
                let y = ops.custom(&kernel, (y, row), &())?;
                let y = ops.custom(&kernel, (y, 2.0), &())?;
                ops.sub(y, row)
            })
            .unwrap();
        let wanted: Vec<f32> = numbers(35)
            .iter()
            .enumerate()
            .map(|(i, v)| {
                let row = (i % 7 + 1) as f32 * 0.1;
                expected(expected(v * 0.1, row), 2.0) - row
            })
            .collect();
        assert_close(data.as_slice::<f32>().unwrap(), &wanted, 1e-5, 1e-5, &format!("{backend}"));
        assert_eq!(kernels(&rig), ["map"], "{backend}");
        let report = report(&rig);
        assert_eq!(report.steps[0].ops, ["mul", "bend", "sub", "read"], "{backend}");
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn a_function_is_part_of_products_and_reductions() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let kernel = register(&mut rig, bend("bend"));
        let half = register(
            &mut rig,
            CustomKernel::elementwise("half", "fn half(x: f32) -> f32 { return 0.5 * x; }")
                .cpu_element(|x: f32| 0.5 * x),
        );
        let x = rig.spawn(Tensor::from_slice(&[0.1f32, 0.2, 0.3, 0.4], [2, 2]).unwrap());
        let (used, other) = (kernel.clone(), half.clone());
        let data = rig
            .compute(move |ops| {
                let y = ops.matmul(x, x)?;
                let y = ops.custom(&used, (y, 1.0), &())?;
                ops.custom(&other, [y], &())
            })
            .unwrap();
        assert_eq!(kernels(&rig), ["matmul"], "{backend}");
        let wanted = [0.07f32, 0.1, 0.15, 0.22].map(|v| 0.5 * expected(v, 1.0));
        assert_close(data.as_slice::<f32>().unwrap(), &wanted, 1e-5, 1e-5, &format!("{backend}: epilogue"));
        let many = rig.spawn(Tensor::full([64, 50], 0.5, DType::F32).unwrap());
        let data = rig
            .compute(move |ops| {
                let y = ops.custom(&half, [many], &())?;
                ops.sum(y, -1)
            })
            .unwrap();
        assert_eq!(kernels(&rig), ["reduce"], "{backend}");
        assert_close(data.as_slice::<f32>().unwrap(), &[12.5; 64], 1e-4, 1e-5, &format!("{backend}: prologue"));
    }
}

#[test]
fn narrow_types_and_integers_are_computed_in_32_bits() {
    const TEXT: &str = "fn mix(x: f32, i: i32, u: u32) -> i32 { return i32(x) + i * 10 + i32(u) * 100; }";
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let kernel = CustomKernel::elementwise("mix", TEXT)
            .cpu_element(|x: f32, i: i32, u: u32| x as i32 + i * 10 + u as i32 * 100);
        let kernel = register(&mut rig, kernel);
        let x = rig.spawn(Tensor::full([3, 1], 4.0, DType::F16).unwrap());
        let i = rig.spawn(Tensor::from_slice(&[-1i8, 2, 3, -4, 5], [5]).unwrap());
        let u = rig.spawn(Tensor::from_slice(&[1u8, 2, 255], [3, 1]).unwrap());
        let used = kernel.clone();
        let data = rig.compute(move |ops| ops.custom(&used, (x, i, u), &())).unwrap();
        let wanted: Vec<i32> =
            [1, 2, 255].iter().flat_map(|u| [-1, 2, 3, -4, 5].map(|i| 4 + i * 10 + u * 100)).collect();
        assert_eq!((data.dtype(), data.as_slice::<i32>().unwrap()), (DType::I32, &wanted[..]), "{backend}");
        let error = rig.compute(move |ops| ops.custom(&kernel, (i, i, u), &())).unwrap_err();
        assert!(matches!(&error, OpError::Type { reason, .. } if reason.contains("takes f32")), "{error}");
    }
}

#[test]
fn what_is_not_joined_says_why() {
    let mut rig = Rig::new(Backend::Gpu);
    let function = register(&mut rig, bend("bend"));
    let full = register(&mut rig, super::double("double"));
    let x = rig.spawn(Tensor::from_slice(&numbers(4), [4]).unwrap());
    rig.compute(move |ops| {
        let y = ops.custom(&function, (x, 1.0), &())?;
        let y = ops.custom(&full, [y], &())?;
        ops.custom(&function, (y, 1.0), &())
    })
    .unwrap();
    assert_eq!(kernels(&rig), ["map", "double", "map"]);
    let reasons: Vec<_> = report(&rig).unfused.iter().map(|edge| (edge.producer, edge.consumer, edge.reason)).collect();
    assert_eq!(
        reasons,
        [("bend", "double", UnfusedReason::NotElementwise), ("double", "read", UnfusedReason::Producer)]
    );
}

#[test]
fn without_a_cpu_function_the_cpu_backend_says_so() {
    let mut rig = Rig::new(Backend::Cpu);
    let kernel = register(&mut rig, CustomKernel::elementwise("half", "fn half(x: f32) -> f32 { return 0.5 * x; }"));
    let x = rig.spawn(Tensor::zeros([3], DType::F32).unwrap());
    let error = rig.compute(move |ops| ops.custom(&kernel, [x], &())).unwrap_err();
    assert_eq!(error, OpError::NoCpuFunction { op: "half" });
}
