//! Known results.

use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig, assert_close, tolerance};

fn f32s(values: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape).expect("as many")
}

#[test]
fn the_product_of_one_to_six_is_known() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let six = f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
        let (a, b) = (rig.spawn(six.clone()), rig.spawn(six.reshape([3, 2]).expect("six")));
        let product = rig.compute(move |ops| ops.matmul(a, b)).expect("they fit");
        assert_eq!(product.as_slice::<f32>(), Ok(&[22.0, 28.0, 49.0, 64.0][..]));
    }
}

#[test]
fn shapes_broadcast_or_are_named() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let tall = rig.spawn(f32s(&[1.0; 12], &[3, 1, 4]));
        let flat = rig.spawn(f32s(&[2.0; 8], &[2, 4]));
        let wide = rig.spawn(f32s(&[3.0; 12], &[3, 4]));
        let sum = rig.compute(move |ops| ops.add(tall, flat)).expect("they broadcast");
        assert_eq!((&sum.shape()[..], sum.to_f32()), (&[3, 2, 4][..], vec![3.0; 24]));
        let error = rig.compute(move |ops| ops.add(wide, flat)).expect_err("they do not").to_string();
        assert!(error.starts_with("add: ") && error.contains("[3, 4]") && error.contains("[2, 4]"), "{error}");
        assert!(error.contains(&wide.to_string()) && error.contains(&flat.to_string()), "{error}");
    }
}

#[test]
fn dividing_by_zero_is_infinite_or_no_number() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let (a, b) = (rig.spawn(f32s(&[1.0, -1.0, 0.0], &[3])), rig.spawn(f32s(&[0.0], &[1])));
        let quotients = rig.compute(move |ops| ops.div(a, b)).expect("they fit").to_f32();
        assert_eq!(quotients[..2], [f32::INFINITY, f32::NEG_INFINITY]);
        assert!(quotients[2].is_nan());
    }
}

#[test]
fn rows_of_a_softmax_sum_to_one() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for n in super::SIZES {
            let x = rig.spawn(Tensor::random_normal([5, n], 0.0, 20.0, n as u32, DType::F32).expect("small"));
            let sums = rig
                .compute(move |ops| {
                    let rows = ops.softmax(x, -1)?;
                    ops.sum(rows, -1)
                })
                .expect("it fits");
            assert_close(&sums.to_f32(), &[1.0; 5], 1e-5, 0.0, "softmax");
        }
    }
}

#[test]
fn more_rows_than_workgroups_are_reduced() {
    const ROWS: usize = 70_000;
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        // Rows of 3 are reduced by one thread each, rows of 300 by a workgroup.
        for (rows, n) in [(ROWS, 3usize), (ROWS, 300)] {
            let x = rig.spawn(Tensor::arange(0.0, 1.0, rows, DType::F32).expect("small"));
            let sums = rig
                .compute(move |ops| {
                    let column = ops.reshape(x, &[rows as isize, 1])?;
                    let wide = ops.broadcast_to(column, [rows, n])?;
                    ops.sum(wide, -1)
                })
                .expect("it fits")
                .to_f32();
            let expected: Vec<f32> = (0..rows).map(|row| (row * n) as f32).collect();
            assert_close(&sums, &expected, 0.0, 1e-6, "sums of rows");
        }
    }
}

/// One tensor for each constructor and type. Created for each backend, because a storage belongs to one backend.
fn constructed() -> Vec<Tensor> {
    let numbers = DType::ALL.into_iter().filter(|&dtype| dtype != DType::Bool);
    let of_any = DType::ALL.into_iter().flat_map(|dtype| {
        [
            Tensor::zeros([3, 7], dtype),
            Tensor::ones([65], dtype),
            Tensor::full([2, 3], 3.7, dtype),
            Tensor::full([5], -2.5, dtype),
            Tensor::eye(5, 7, dtype),
            Tensor::eye(7, 5, dtype),
        ]
    });
    let of_numbers = numbers.flat_map(|dtype| {
        [Tensor::arange(2.0, 3.0, 41, dtype), Tensor::arange(0.0, 1.0, 1, dtype), Tensor::arange(1.0, 1.0, 0, dtype)]
    });
    let of_floats = [DType::F32, DType::F16].into_iter().flat_map(|dtype| {
        [
            Tensor::arange(0.5, -0.25, 65, dtype),
            Tensor::random_uniform([1757], -2.0, 3.0, 42, dtype),
            Tensor::random_normal([1757], 1.0, 0.5, 42, dtype),
        ]
    });
    of_any.chain(of_numbers).chain(of_floats).collect::<Result<_, _>>().expect("small")
}

#[test]
fn constructors_make_the_same_everywhere() {
    let [gpu, cpu] = BACKENDS.map(|backend| -> Vec<TensorData> {
        let mut rig = Rig::new(backend);
        let entities: Vec<_> = constructed().into_iter().map(|tensor| rig.spawn(tensor)).collect();
        let receivers = rig
            .record(move |ops| entities.iter().map(|&entity| ops.read(entity)).collect::<Result<Vec<_>, _>>())
            .expect("tensors");
        receivers.iter().map(|receiver| rig.wait(receiver).expect("values")).collect()
    });
    for (gpu, cpu) in gpu.iter().zip(&cpu) {
        let (absolute, relative) = tolerance(cpu.dtype());
        assert_eq!((gpu.dtype(), gpu.shape()), (cpu.dtype(), cpu.shape()));
        assert_close(&gpu.to_f32(), &cpu.to_f32(), absolute, relative, &format!("{} {}", cpu.dtype(), cpu.shape()));
    }
    let uniform = cpu[cpu.len() - 2].to_f32();
    assert!(uniform.iter().all(|v| (-2.0..=3.0).contains(v)));
    assert_eq!(cpu[4].to_f32()[..9], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
}
