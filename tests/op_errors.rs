//! Every invalid call returns a typed error that names the op and the operands, and the app keeps running.

mod every_op;
mod run;
mod wrong;

use bevy::ecs::system::SystemState;
use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig};
use every_op::{EFFECTS, OPS, Row};

/// A named tensor.
fn named(rig: &mut Rig, name: impl Into<String>, shape: &[usize], dtype: DType) -> Entity {
    let tensor = Tensor::zeros(shape, dtype).expect("small");
    rig.app.world_mut().spawn((Name::new(name.into()), tensor)).id()
}

/// Valid operands for a row.
fn good(rig: &mut Rig, row: &Row) -> Vec<TensorOperand<'static>> {
    let operands = row.operands.iter().enumerate();
    operands.map(|(i, (takes, shape))| named(rig, format!("operand {i}"), shape, takes.good()).into()).collect()
}

/// Fails unless a simple op still works.
#[track_caller]
fn goes_on(rig: &mut Rig) {
    let x = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0], [2]).expect("two"));
    assert_eq!(rig.compute(move |ops| ops.add(x, 1.0)).expect("it fits").to_f32(), [2.0, 3.0]);
}

/// Names in the first column of the tables in `docs/ops.md`.
fn documented() -> Vec<String> {
    let page = include_str!("../docs/ops.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next()).map(str::to_owned).collect()
}

#[test]
fn the_table_has_every_documented_op() {
    for op in documented() {
        let known = OPS.iter().any(|row| row.name == op) || EFFECTS.contains(&&*op);
        assert!(known, "{op} is in docs/ops.md but not in this table");
    }
}

#[test]
fn every_op_takes_what_fits() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for row in OPS {
            let operands = good(&mut rig, row);
            rig.with_ops(|ops| {
                let result = (row.run)(ops, &operands);
                assert_eq!(result, Ok(()), "{}", row.name);
            });
        }
        rig.app.update();
        goes_on(&mut rig);
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn every_op_names_a_missing_tensor() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let missing = rig.spawn(Tensor::zeros([1], DType::F32).expect("small"));
        rig.app.world_mut().despawn(missing);
        for row in OPS {
            let operands = good(&mut rig, row);
            for at in 0..operands.len() {
                let mut operands = operands.clone();
                operands[at] = missing.into();
                rig.with_ops(|ops| {
                    let expected = OpError::MissingTensor { op: row.name, entity: missing };
                    assert_eq!((row.run)(ops, &operands), Err(expected), "{} operand {at}", row.name);
                });
            }
        }
        goes_on(&mut rig);
    }
}

#[test]
fn every_op_refuses_a_value_of_another_recording() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for row in OPS {
            let operands = good(&mut rig, row);
            for at in 0..operands.len() {
                let mut operands: Vec<TensorOperand<'_>> = operands.clone();
                let TensorOperand::Tensor(entity) = operands[at] else { continue };
                // Values can only be mixed between two recordings of one system. The compiler prevents all other cases.
                let world = rig.app.world_mut();
                let mut state = SystemState::<(TensorCommands, TensorCommands)>::new(world);
                let (ops, other) = state.get_mut(world).expect("the plugin is there");
                operands[at] = other.reshape(entity, &[-1]).expect("a value").into();
                let expected = OpError::ForeignValue { op: row.name };
                assert_eq!((row.run)(&ops, &operands), Err(expected), "{} operand {at}", row.name);
            }
        }
        goes_on(&mut rig);
    }
}

#[test]
fn every_op_refuses_operands_of_two_backends() {
    let mut rig = Rig::new(Backend::Gpu);
    let model = rig.app.world_mut().spawn((TensorModel, ModelBackend(Backend::Cpu))).id();
    for row in OPS.iter().filter(|row| row.operands.len() > 1) {
        let operands = good(&mut rig, row);
        for at in 0..operands.len() {
            let (takes, shape) = row.operands[at];
            let elsewhere = Tensor::zeros(shape, takes.good()).expect("small");
            let name = Name::new(format!("elsewhere {at} of {}", row.name));
            let mut operands = operands.clone();
            operands[at] = rig.app.world_mut().spawn((name.clone(), elsewhere, TensorOf(model))).id().into();
            rig.with_ops(|ops| match (row.run)(ops, &operands) {
                Err(error @ OpError::MixedBackends { .. }) => {
                    let text = error.to_string();
                    let names = [row.name, name.as_str(), "operand", "GPU", "CPU"];
                    assert!(names.iter().all(|name| text.contains(name)), "{}: {text}", row.name);
                }
                other => panic!("{} operand {at}: {other:?}", row.name),
            });
        }
    }
    goes_on(&mut rig);
}

#[test]
fn every_op_names_an_operand_of_the_wrong_type() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for row in OPS {
            let operands = good(&mut rig, row);
            for (at, (takes, shape)) in row.operands.iter().enumerate() {
                let Some(bad) = takes.bad() else { continue };
                let mut operands = operands.clone();
                operands[at] = named(&mut rig, "misfit", shape, bad).into();
                rig.with_ops(|ops| match (row.run)(ops, &operands) {
                    Err(error @ OpError::Type { .. }) => {
                        let text = error.to_string();
                        let begins = text.starts_with(&format!("{}: ", row.name));
                        let names = text.contains(&format!("\"misfit\" is {bad}"));
                        assert!(begins && names, "{}: {text}", row.name);
                    }
                    other => panic!("{} operand {at}: {other:?}", row.name),
                });
            }
        }
        goes_on(&mut rig);
    }
}

/// Ops that read quantised tensors, with the index of the operand.
const READ_BLOCKS: [(&str, usize); 13] = [
    ("value", 0),
    ("to_backend", 0),
    ("shape", 0),
    ("dtype", 0),
    ("cast", 0),
    ("matmul_nt", 1),
    ("linear", 1),
    ("reshape", 0),
    ("slice", 0),
    ("slice_step", 0),
    ("gather", 0),
    ("embedding", 0),
    ("read", 0),
];

#[test]
fn every_other_op_refuses_quantised_operands_by_name() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for dtype in DType::QUANTIZED {
            let blocks = named(&mut rig, "blocks", &[2, 128], dtype);
            for row in OPS {
                let operands = good(&mut rig, row);
                let at = (0..operands.len())
                    .filter(|&at| row.operands[at].0 != every_op::Takes::Quantized)
                    .filter(|&at| !READ_BLOCKS.contains(&(row.name, at)));
                for at in at {
                    let mut operands = operands.clone();
                    operands[at] = blocks.into();
                    rig.with_ops(|ops| match (row.run)(ops, &operands) {
                        Err(error @ OpError::Type { .. }) => {
                            let text = error.to_string();
                            let parts = [&format!("{}: ", row.name), "\"blocks\" is", dtype.name(), "dequantize"];
                            assert!(parts.iter().all(|part| text.contains(*part)), "{}: {text}", row.name);
                        }
                        other => panic!("{} operand {at}: {other:?}", row.name),
                    });
                }
            }
        }
        goes_on(&mut rig);
    }
}
