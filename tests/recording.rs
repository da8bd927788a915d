//! Recording: calls can be nested, entities are values without an op, and shape queries record nothing.

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig, assert_close};

fn tensor(rig: &mut Rig, values: &[f32], shape: &[usize]) -> Entity {
    rig.spawn(Tensor::from_slice(values, shape).expect("as many values as the shape has"))
}

/// Kernels launched by the last batch.
fn steps(rig: &Rig) -> usize {
    rig.app.world().resource::<TensorDiagnostics>().last_plan(rig.backend).map_or(0, |plan| plan.steps.len())
}

#[test]
fn calls_nest() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let a = tensor(&mut rig, &[1.0, 2.0, 3.0, 4.0], &[2, 2]);
        let b = tensor(&mut rig, &[0.1, 0.2, 0.3, -0.4, 0.5, 0.0], &[3, 2]);
        let nested = rig.compute(move |ops| ops.softmax(ops.matmul_nt(a, b)? * 5.0, LAST)).expect("fits");
        let chained = rig
            .compute(move |ops| {
                let scores = ops.matmul_nt(a, b)?;
                let scaled = ops.mul(scores, 5.0)?;
                ops.softmax(scaled, LAST)
            })
            .expect("fits");
        assert_eq!(nested, chained, "{backend}");
        let [x, y, z] = [2.5f32, -2.5, 2.5].map(f32::exp);
        let sum = x + y + z;
        assert_close(&nested.to_f32()[..3], &[x / sum, y / sum, z / sum], 1e-6, 1e-5, "softmax");
        let deep = rig.compute(move |ops| ops.sum(ops.relu(ops.sub(ops.neg(a)?, ops.value(a)? * -2.0)?)?, Axes::ALL));
        assert_eq!(deep.expect("fits").to_f32(), [10.0], "{backend}");
    }
}

#[test]
fn an_operand_may_record_ops_while_others_are_collected() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = tensor(&mut rig, &[1.0, -2.0], &[2]);
        let joined = rig.compute(move |ops| {
            let parts = [1.0f32, 2.0].map(|factor| ops.mul(x, factor));
            ops.concat(parts.into_iter().map(|part| ops.abs(part.expect("fits")).expect("fits")), 0)
        });
        assert_eq!(joined.expect("fits").to_f32(), [1.0, 2.0, 2.0, 4.0], "{backend}");
    }
}

#[test]
fn the_value_of_an_entity_launches_nothing() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = tensor(&mut rig, &[1.0, 2.0, 3.0], &[3]);
        let y = rig.compute(move |ops| ops.value(x)).expect("a tensor");
        assert_eq!(y.to_f32(), [1.0, 2.0, 3.0], "{backend}");
        assert_eq!(steps(&rig), 0, "{backend}: a readback of a tensor needs no kernel");
        // One kernel with the value, as with the entity.
        let y = rig.compute(move |ops| ops.relu(ops.value(x)? - 2.0)).expect("a tensor");
        assert_eq!((y.to_f32(), steps(&rig)), (vec![0.0, 0.0, 1.0], 1), "{backend}");
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn a_value_keeps_the_content_of_its_place_in_the_recording() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = tensor(&mut rig, &[1.0, 2.0], &[2]);
        let (before, after) = rig
            .record(move |ops| {
                let old = ops.value(x)?;
                ops.store(old * 10.0, x)?;
                Ok((ops.read(old + 0.5)?, ops.read(ops.value(x)?)?))
            })
            .expect("fits");
        assert_eq!(rig.wait(&before).expect("values").to_f32(), [1.5, 2.5], "{backend}");
        assert_eq!(rig.wait(&after).expect("values").to_f32(), [10.0, 20.0], "{backend}");
    }
}

#[test]
fn asking_for_shapes_runs_nothing() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = tensor(&mut rig, &[1.0, 2.0], &[2, 1]);
        let y = tensor(&mut rig, &[1.0, 2.0, 3.0], &[3]);
        let batches = rig.figures().batches_run;
        rig.record(move |ops| {
            assert_eq!(ops.shape(x)?, Shape::from([2, 1]));
            assert_eq!(ops.dtype(y)?, DType::F32);
            assert_eq!(ops.shape(2.0)?, Shape::default());
            Ok(())
        })
        .expect("tensors");
        rig.app.update();
        assert_eq!(rig.figures().batches_run, batches, "{backend}");
        let shape = rig.record(move |ops| ops.shape(ops.value(x)? * 2.0 + y)).expect("broadcasts");
        assert_eq!(shape, Shape::from([2, 3]), "{backend}");
    }
}

#[test]
fn the_shape_of_an_expression_has_the_errors_of_its_recording() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = tensor(&mut rig, &[1.0, 2.0], &[2]);
        let y = tensor(&mut rig, &[1.0, 2.0, 3.0], &[3]);
        let bytes = rig.spawn(Tensor::from_slice(&[1u8, 2], [2]).expect("two"));
        let missing = rig.app.world_mut().spawn_empty().id();
        rig.with_ops(|ops| {
            let value = ops.value(x).expect("a tensor");
            for right in [y, bytes, missing] {
                // The same message, except for the name of the op.
                let asked = ops.shape(value + right).expect_err("does not fit").to_string();
                let recorded = ops.relu(value + right).expect_err("does not fit").to_string();
                assert_eq!(asked.trim_start_matches("shape"), recorded.trim_start_matches("relu"));
            }
        });
    }
}

#[test]
fn optional_operands_are_entities_values_or_none() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = tensor(&mut rig, &[1.0, 2.0], &[1, 2]);
        let weight = tensor(&mut rig, &[3.0, 4.0], &[1, 2]);
        let bias = tensor(&mut rig, &[0.5], &[1]);
        let optional: Option<Entity> = Some(bias);
        let results = rig
            .record(move |ops| {
                Ok([
                    ops.read(ops.linear(x, weight, None)?)?,
                    ops.read(ops.linear(x, weight, bias)?)?,
                    ops.read(ops.linear(x, weight, ops.value(bias)?)?)?,
                    ops.read(ops.linear(x, weight, ops.value(bias)? * 2.0)?)?,
                    ops.read(ops.linear(x, weight, optional.map(Into::into))?)?,
                ])
            })
            .expect("fits");
        let results = results.map(|receiver| rig.wait(&receiver).expect("values").to_f32()[0]);
        assert_eq!(results, [11.0, 11.5, 11.5, 12.0, 11.5], "{backend}");
    }
}

#[test]
fn axes_say_whether_they_stay() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = tensor(&mut rig, &[1.0, 5.0, 2.0, 7.0, 3.0, 7.0], &[2, 3]);
        let mut shape_of = |axes: Axes| {
            let sum = rig.compute(move |ops| ops.sum(x, axes)).expect("fits");
            (sum.shape().to_vec(), sum.to_f32())
        };
        assert_eq!(shape_of(LAST.into()), (vec![2], vec![8.0, 17.0]));
        assert_eq!(shape_of(LAST.keep()), (vec![2, 1], vec![8.0, 17.0]));
        assert_eq!(shape_of(Axes::ALL), (vec![], vec![25.0]));
        assert_eq!(shape_of(Axes::ALL.keep()), (vec![1, 1], vec![25.0]));
        assert_eq!(shape_of(Axes::of([0, 1]).keep()), (vec![1, 1], vec![25.0]));
    }
}

#[test]
fn positions_are_along_one_axis_or_in_the_flattened_operand() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = tensor(&mut rig, &[1.0, 5.0, 2.0, 7.0, 3.0, 7.0], &[2, 3]);
        let number = tensor(&mut rig, &[4.0], &[]);
        let mut positions = |record: for<'a> fn(&'a TensorCommands, Entity, Entity) -> OpResult<TensorValue<'a>>| {
            let data = rig.compute(move |ops| record(ops, x, number)).expect("fits");
            (data.shape().to_vec(), data.as_slice::<i32>().expect("positions are i32").to_vec())
        };
        assert_eq!(positions(|ops, x, _| ops.argmax(x, LAST)), (vec![2], vec![1, 0]));
        assert_eq!(positions(|ops, x, _| ops.argmax(x, Axes::ALL)), (vec![], vec![3]));
        assert_eq!(positions(|ops, x, _| ops.argmax_last(x, Axes::ALL.keep())), (vec![1, 1], vec![5]));
        assert_eq!(positions(|ops, x, _| ops.argmin(x, Axes::ALL)), (vec![], vec![0]));
        assert_eq!(positions(|ops, _, number| ops.argmin(number, Axes::ALL)), (vec![], vec![0]));
        let error = rig.compute(move |ops| ops.argmax(x, [0, 1])).expect_err("two axes");
        assert!(matches!(error, OpError::Shape { op: "argmax", .. }), "{error}");
        let error = error.to_string();
        assert!(error.ends_with("the op takes one axis or all axes, not 2"), "{error}");
    }
}

#[test]
fn bottom_k_gives_the_smallest() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = tensor(&mut rig, &[4.0, 1.0, 3.0, 1.0], &[4]);
        let receivers = rig.record(move |ops| {
            let (values, positions) = ops.bottom_k(x, 3, LAST)?;
            Ok((ops.read(values)?, ops.read(positions)?))
        });
        let (values, positions) = receivers.expect("fits");
        assert_eq!(rig.wait(&values).expect("values").to_f32(), [1.0, 1.0, 3.0], "{backend}");
        let positions = rig.wait(&positions).expect("values");
        assert_eq!(positions.as_slice::<i32>().expect("i32"), [1, 3, 2], "{backend}");
    }
}

#[test]
fn an_error_names_the_tensor_behind_a_value() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let tensor = Tensor::zeros([2, 3], DType::F32).expect("small");
        let x = rig.app.world_mut().spawn((Name::new("image"), tensor)).id();
        let error = rig.compute(move |ops| ops.transpose(ops.value(ops.sum(ops.value(x)?, 5)?)?));
        assert_eq!(error.expect_err("no axis 5").to_string(), "sum: \"image\" is [2, 3]; axis 5 does not exist");
    }
}
