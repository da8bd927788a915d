//! Quantised tensors that are written, read, stored and shared.

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

use super::{block, floats, noise};
use crate::common::{BACKENDS, Rig};

/// A tensor with `rows` rows of three blocks, and its numbers.
fn weights(rig: &mut Rig, dtype: DType, rows: usize, seed: u32) -> (Entity, Tensor, Vec<f32>) {
    let k = 3 * block(dtype);
    let tensor = Tensor::quantized(dtype, [rows, k], &noise(rows * k, seed)).expect("whole blocks");
    let entity = rig.spawn(tensor.clone());
    let numbers = rig.read(entity).to_f32();
    (entity, tensor, numbers)
}

#[test]
fn values_are_stored_whole_and_into_rows() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for dtype in DType::QUANTIZED {
            let k = 3 * block(dtype);
            let (tensor, whole, before) = weights(&mut rig, dtype, 5, 1);
            let values = noise(2 * k, 2);
            let new = TensorData::quantized(dtype, [2, k], &values).expect("whole blocks");
            let x = floats(&mut rig, &[2, k], &values);
            let mut expected = before.clone();
            // Rows that begin and end inside groups, at groups, and at the end.
            for (from, to) in [(1, 3), (0, 2), (2, 4), (3, 5)] {
                let rows = rig.spawn(whole.slice(0, from, to).expect("rows"));
                rig.record(move |ops| {
                    let blocks = ops.quantize(x, dtype)?;
                    ops.store(blocks, rows)
                })
                .expect("it fits");
                expected[from as usize * k..to as usize * k].copy_from_slice(&new.to_f32());
                assert_eq!(rig.read(tensor).to_f32(), expected, "{dtype} rows {from}..{to} on the {backend}");
            }
            // Host data to some rows and to the whole tensor, and rows of one tensor to those of another.
            let (other, source, numbers) = weights(&mut rig, dtype, 5, 3);
            let rows = rig.spawn(source.slice(0, 1, 3).expect("rows"));
            let data = new.clone();
            rig.record(move |ops| ops.write_data(rows, &data)).expect("it fits");
            let mut other_now = numbers.clone();
            other_now[k..3 * k].copy_from_slice(&new.to_f32());
            assert_eq!(rig.read(other).to_f32(), other_now, "{dtype} on the {backend}");
            let to = rig.spawn(whole.slice(0, 0, 2).expect("rows"));
            let from = rig.spawn(source.slice(0, 3, 5).expect("rows"));
            rig.record(move |ops| ops.store(from, to)).expect("it fits");
            expected[..2 * k].copy_from_slice(&other_now[3 * k..]);
            assert_eq!(rig.read(tensor).to_f32(), expected);
            // Within one tensor, also if the rows overlap.
            let (to, from) = (whole.slice(0, 1, 4).expect("rows"), whole.slice(0, 0, 3).expect("rows"));
            let (to, from) = (rig.spawn(to), rig.spawn(from));
            rig.record(move |ops| ops.store(from, to)).expect("it fits");
            expected.copy_within(..3 * k, k);
            assert_eq!(rig.read(tensor).to_f32(), expected, "{dtype} on the {backend}");
            let all = TensorData::quantized(dtype, [5, k], &noise(5 * k, 9)).expect("whole blocks");
            let data = all.clone();
            rig.record(move |ops| ops.write_data(tensor, &data)).expect("it fits");
            assert_eq!(rig.read(tensor).to_f32(), all.to_f32());
        }
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn a_value_is_what_it_was_before_a_later_store() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for dtype in DType::QUANTIZED {
            let k = 3 * block(dtype);
            let (tensor, whole, before) = weights(&mut rig, dtype, 3, 1);
            let (_, fresh, after) = weights(&mut rig, dtype, 3, 2);
            let rows = rig.spawn(whole.slice(0, 1, 2).expect("a row"));
            let (fresh, x) = (rig.spawn(fresh), floats(&mut rig, &[1, k], &noise(k, 5)));
            let reads = rig.record(move |ops| {
                let (old, row) = (ops.slice(tensor, 0, 0, 3)?, ops.slice(rows, 0, 0, 1)?);
                ops.store(fresh, tensor)?;
                let product = ops.matmul_nt(x, old)?;
                let now = ops.matmul_nt(x, tensor)?;
                Ok([ops.read(old)?, ops.read(row)?, ops.read(tensor)?, ops.read(product)?, ops.read(now)?])
            });
            let reads = reads.expect("it fits").map(|receiver| rig.wait(&receiver).expect("values").to_f32());
            assert_eq!(
                (&reads[0], &reads[1][..], &reads[2]),
                (&before, &before[k..2 * k], &after),
                "{dtype} on the {backend}"
            );
            assert_ne!(reads[3], reads[4]);
        }
    }
}

#[test]
fn a_shared_weight_is_one_storage_of_both_models() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let [first, second] = [(); 2].map(|()| rig.app.world_mut().spawn(TensorModel).id());
        let values = noise(64 * 64, 1);
        let tensor = Tensor::quantized(DType::Q4_0, [64, 64], &values).expect("whole blocks");
        let bytes = tensor.storage_bytes() as u64;
        let original = rig.app.world_mut().spawn((Name::new("weight"), tensor, TensorOf(first))).id();
        let shared = rig
            .app
            .world_mut()
            .run_system_cached_with(
                |In((from, to)): In<(Entity, Entity)>, mut models: TensorModels| models.share(from, "weight", to),
                (first, second),
            )
            .expect("the plugin is there")
            .expect("it is free");
        let x = floats(&mut rig, &[2, 64], &noise(128, 2));
        let one = rig.compute(move |ops| ops.matmul_nt(x, original)).expect("it fits");
        let two = rig.compute(move |ops| ops.matmul_nt(x, shared)).expect("it fits");
        assert_eq!(one, two);
        let figures = rig.figures();
        let held = figures.device_bytes + figures.host_bytes;
        assert!((bytes..bytes + 1024).contains(&held), "{held} bytes for {bytes} and a small operand");
    }
}

#[test]
fn mistakes_are_typed_errors() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let blocks = rig.spawn(Tensor::zeros([4, 64], DType::Q8_0).expect("small"));
        let row = rig.spawn(Tensor::zeros([1, 64], DType::Q8_0).expect("small"));
        let other = rig.spawn(Tensor::zeros([4, 64], DType::Q4_0).expect("small"));
        let plain = floats(&mut rig, &[4, 64], &[0.0; 256]);
        for (value, what) in [(plain, "f32"), (other, "q4_0")] {
            let error = rig.record(move |ops| ops.store(value, blocks)).expect_err("another type");
            assert!(matches!(error, OpError::Type { op: "store", .. }) && error.to_string().contains(what), "{error}");
        }
        let error = rig.record(move |ops| ops.store(blocks, plain)).expect_err("another type");
        assert!(matches!(error, OpError::Type { op: "store", .. }), "{error}");
        let error = rig.record(move |ops| ops.store(1.0, blocks)).expect_err("a number");
        assert!(matches!(error, OpError::Type { op: "store", .. }), "{error}");
        let error = rig.record(move |ops| ops.store(row, blocks)).expect_err("another shape");
        assert!(matches!(error, OpError::Shape { op: "store", .. }), "{error}");
        for value in [row, plain] {
            let error = rig.record(move |ops| ops.append(blocks, value, 0, 0)).expect_err("no cache");
            assert!(matches!(error, OpError::Type { op: "append", .. }), "{error}");
        }
        let error = rig.record(move |ops| ops.append(blocks, 1.0, 0, 0)).expect_err("no cache");
        assert!(matches!(error, OpError::Type { op: "append", .. }), "{error}");
        let error = rig.record(move |ops| ops.write(blocks, &[0i8; 256])).expect_err("another type");
        assert!(matches!(error, OpError::Data { op: "write", .. }), "{error}");
        let data = TensorData::quantized(DType::Q8_0, [2, 128], &[0.0; 256]).expect("whole blocks");
        let error = rig.record(move |ops| ops.write_data(blocks, &data)).expect_err("another shape");
        assert!(matches!(error, OpError::Data { op: "write_data", .. }), "{error}");
        rig.app.update();
        assert_eq!(rig.faults(), []);
    }
}
