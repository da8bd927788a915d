//! Building blocks of networks, with and without fusion.

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

use super::{kernels, report, rig};
use crate::common::{BACKENDS, Rig};
use crate::parity::host::Array;
use crate::parity::table::{Input, difference};

type Record = dyn for<'a> Fn(&'a TensorCommands, &[Entity]) -> OpResult<Vec<TensorValue<'a>>>;

/// Some work, and the kernels it must be lowered to.
struct Case {
    name: String,
    inputs: Vec<(DType, Vec<usize>)>,
    record: Box<Record>,
    kernels: Vec<&'static str>,
    bound: f32,
}

fn case(
    name: impl Into<String>,
    inputs: &[&[usize]],
    kernels: &[&'static str],
    record: impl for<'a> Fn(&'a TensorCommands, &[Entity]) -> OpResult<Vec<TensorValue<'a>>> + 'static,
) -> Case {
    let inputs = inputs.iter().map(|shape| (DType::F32, shape.to_vec())).collect();
    Case { name: name.into(), inputs, record: Box::new(record), kernels: kernels.to_vec(), bound: 1e-4 }
}

impl Case {
    /// Uses inputs of these types instead.
    fn of(mut self, dtypes: &[DType]) -> Self {
        for (input, dtype) in self.inputs.iter_mut().zip(dtypes) {
            input.0 = *dtype;
        }
        self
    }

    /// Sets the tolerance for work without products. f16 values are rounded when they are stored, and where this
    /// happens depends on fusion.
    fn elementwise(mut self) -> Self {
        self.bound = if self.inputs[0].0 == DType::F16 { 2.5e-3 } else { 1e-5 };
        self
    }

    fn run(&self, rig: &mut Rig) -> Vec<Array> {
        let noise = |(i, (dtype, shape)): (usize, &(DType, Vec<usize>))| {
            Input::noise(*dtype, shape, (-2.0, 2.0), i as u32 + 1).tensor()
        };
        let entities: Vec<Entity> =
            self.inputs.iter().enumerate().map(noise).collect::<Vec<_>>().into_iter().map(|t| rig.spawn(t)).collect();
        let mut receivers = Vec::new();
        rig.with_ops(|ops| {
            let values = (self.record)(ops, &entities).unwrap_or_else(|error| panic!("{}: {error}", self.name));
            receivers.extend(values.into_iter().map(|value| ops.read(value).expect("a value")));
        });
        let answers = receivers.iter().map(|receiver| Array::from_data(&rig.wait(receiver).expect("values arrive")));
        let answers = answers.collect();
        for entity in entities {
            rig.app.world_mut().despawn(entity);
        }
        answers
    }
}

/// Runs every case with and without fusion on both backends.
#[track_caller]
fn agree(cases: &[Case]) {
    for backend in BACKENDS {
        let (mut joined, mut apart) = (rig(backend, true), rig(backend, false));
        for case in cases {
            let (a, b) = (case.run(&mut joined), case.run(&mut apart));
            let name = format!("{} on the {backend}", case.name);
            assert_eq!(kernels(&joined), case.kernels, "{name}: {:?}", report(&joined).unfused);
            assert!(kernels(&apart).len() > case.kernels.len(), "{name}: nothing was joined");
            for (a, b) in a.iter().zip(&b) {
                let differs = difference(a, b, (case.bound, case.bound), "joined", "apart");
                assert_eq!(differs, None, "{name}");
            }
        }
        assert_eq!((joined.faults(), apart.faults()), (vec![], vec![]));
    }
}

#[test]
fn products_with_bias_activation_and_residual() {
    let mut cases = Vec::new();
    for (m, k, n) in [(1, 7, 65), (2, 33, 5), (9, 1, 1), (33, 20, 3), (17, 64, 66), (70, 31, 129)] {
        for name in ["relu", "gelu", "silu"] {
            cases.push(case(
                format!("{name} of {m}×{k}×{n}"),
                &[&[m, k], &[k, n], &[n], &[m, n]],
                &["matmul"],
                move |ops, x| {
                    let y = ops.matmul(x[0], x[1])?;
                    let y = ops.add(y, x[2])?;
                    let y = match name {
                        "relu" => ops.relu(y)?,
                        "gelu" => ops.gelu(y)?,
                        _ => ops.silu(y)?,
                    };
                    Ok(vec![ops.add(y, x[3])?])
                },
            ));
        }
    }
    agree(&cases);
}

#[test]
fn products_with_other_followers() {
    let cases = [
        case("column bias, batched", &[&[3, 5, 4], &[3, 4, 6], &[3, 5, 1]], &["matmul"], |ops, x| {
            let y = ops.matmul(x[0], x[1])?;
            let y = ops.mul(y, 0.25)?;
            Ok(vec![ops.sub(x[2], y)?])
        }),
        case("turned and selected", &[&[9, 4], &[4, 6], &[6, 9]], &["matmul"], |ops, x| {
            let y = ops.matmul(x[0], x[1])?;
            let y = ops.transpose(y)?;
            let positive = ops.greater(x[2], 0.0)?;
            Ok(vec![ops.select(positive, y, x[2])?])
        }),
        case("kept and activated", &[&[9, 4], &[4, 6]], &["matmul"], |ops, x| {
            let y = ops.matmul(x[0], x[1])?;
            let z = ops.tanh(y)?;
            let w = ops.exp(z)?;
            Ok(vec![y, z, w])
        }),
        case("of whole numbers, scaled", &[&[9, 4], &[4, 6]], &["matmul"], |ops, x| {
            let y = ops.matmul(x[0], x[1])?;
            let y = ops.add(y, 3)?;
            let y = ops.cast(y, DType::F32)?;
            Ok(vec![ops.mul(y, 0.5)?])
        })
        .of(&[DType::I32, DType::I32]),
        case("halves, packed by a map", &[&[9, 4], &[4, 6]], &["matmul", "map"], |ops, x| {
            let y = ops.matmul(x[0], x[1])?;
            let y = ops.mul(y, 0.5)?;
            Ok(vec![ops.relu(y)?])
        })
        .of(&[DType::F16, DType::F16]),
        case("gate", &[&[7, 12], &[12, 20], &[12, 20]], &["matmul", "matmul"], |ops, x| {
            let gate = ops.matmul(x[0], x[1])?;
            let value = ops.matmul(x[0], x[2])?;
            let gate = ops.silu(gate)?;
            Ok(vec![ops.mul(gate, value)?])
        }),
        case("stored in two halves of one", &[&[7, 12], &[12, 20], &[12, 20]], &["matmul", "matmul"], |ops, x| {
            let (a, b) = (ops.matmul(x[0], x[1])?, ops.matmul(x[0], x[2])?);
            let (a, b) = (ops.relu(a)?, ops.sigmoid(b)?);
            Ok(vec![ops.concat([a, b], 1)?])
        }),
    ];
    agree(&cases);
}

#[test]
fn small_networks_are_one_launch() {
    let mut cases = Vec::new();
    for rows in [1, 100, 10_000] {
        let shapes: [&[usize]; 7] = [&[rows, 64], &[128, 64], &[128], &[128, 128], &[128], &[8, 128], &[8]];
        cases.push(case(format!("policy for {rows}"), &shapes, &["row_chain"], |ops, x| {
            let y = ops.relu(ops.linear(x[0], x[1], x[2])?)?;
            let y = ops.tanh(ops.linear(y, x[3], x[4])?)?;
            Ok(vec![ops.linear(y, x[5], x[6])?])
        }));
    }
    cases.push(case("norm, product, softmax", &[&[33, 24], &[24], &[24, 10]], &["row_chain"], |ops, x| {
        let y = ops.rms_norm(x[0], x[1], -1, 1e-5)?;
        let y = ops.matmul(y, x[2])?;
        Ok(vec![ops.softmax(ops.mul(y, 0.5)?, -1)?])
    }));
    // Rows of a view, and a value that is read back too.
    let kept = case("kept", &[&[2, 17, 12], &[12, 20], &[20, 6], &[6, 5]], &["row_chain"], |ops, x| {
        let rows = ops.reshape(ops.slice(x[0], 0, 1, 2)?, &[17, 12])?;
        let y = ops.gelu(ops.matmul(rows, x[1])?)?;
        let z = ops.matmul(ops.relu(ops.matmul(y, x[2])?)?, x[3])?;
        Ok(vec![y, z])
    });
    cases.push(kept);
    agree(&cases);
}

#[test]
fn windows_with_followers() {
    let same = ConvSettings { padding: Padding::Same, ..Default::default() };
    let cases = [
        case("conv, norm, relu", &[&[2, 3, 9, 11], &[5, 3, 3, 3], &[5, 1, 1], &[5, 1, 1]], &["conv"], move |ops, x| {
            let y = ops.conv2d(x[0], x[1], None, same)?;
            let y = ops.mul(y, x[2])?;
            let y = ops.add(y, x[3])?;
            Ok(vec![ops.relu(y)?])
        }),
        case("depthwise, residual", &[&[2, 6, 8, 9], &[6, 1, 3, 3], &[6]], &["conv"], |ops, x| {
            let settings = ConvSettings { padding: Padding::Same, groups: 6, ..Default::default() };
            let y = ops.conv2d(x[0], x[1], x[2], settings)?;
            let y = ops.hard_swish(y)?;
            Ok(vec![ops.add(y, x[0])?])
        }),
        case("transposed", &[&[1, 4, 5, 5], &[4, 2, 3, 3]], &["conv_transpose"], |ops, x| {
            let y = ops.conv_transpose2d(x[0], x[1], None, ConvTransposeSettings::default())?;
            Ok(vec![ops.gelu(y)?])
        }),
        case("pool of a scaled picture, clamped", &[&[40, 2, 8, 8]], &["pool"], |ops, x| {
            let y = ops.mul(x[0], -3.0)?;
            let y = ops.max_pool2d(y, PoolSettings::default())?;
            Ok(vec![ops.clamp(y, -1.0, 1.0)?])
        }),
    ];
    agree(&cases);
}

#[test]
fn rows_with_work_before_and_after() {
    let mut cases = Vec::new();
    for (rows, n) in [(1, 1), (3, 7), (65, 64), (5, 257), (40, 1030)] {
        let name = |what: &str| format!("{what} {rows}×{n}");
        cases.push(case(name("scale, mask, softmax"), &[&[3, rows, n], &[rows, n]], &["softmax"], |ops, x| {
            let y = ops.mul(x[0], 0.3)?;
            let y = ops.add(y, x[1])?;
            Ok(vec![ops.softmax(y, -1)?])
        }));
        cases.push(case(name("norm, affine, silu"), &[&[rows, n], &[n]], &["row_norm"], |ops, x| {
            let y = ops.layer_norm(x[0], x[1], x[1], -1, 1e-5)?;
            Ok(vec![ops.silu(y)?])
        }));
        cases.push(case(name("residual, rms norm, scale"), &[&[rows, n], &[n]], &["row_norm"], |ops, x| {
            let y = ops.add(x[0], x[1])?;
            let y = ops.rms_norm(y, None, -1, 1e-5)?;
            Ok(vec![ops.mul(y, 2.0)?])
        }));
        cases.push(case(name("root mean square difference"), &[&[64, rows, n], &[rows, n]], &["reduce"], |ops, x| {
            let d = ops.sub(x[0], x[1])?;
            let d = ops.mul(d, d)?;
            let d = ops.mean(d, TensorAxis(1).keep())?;
            Ok(vec![ops.sqrt(d)?])
        }));
        cases.push(case(name("largest magnitude of a turned sum"), &[&[n, 64], &[64, n]], &["reduce"], |ops, x| {
            let turned = ops.transpose(x[0])?;
            let sum = ops.add(turned, x[1])?;
            let sum = ops.abs(sum)?;
            let top = ops.max_of(sum, -1)?;
            Ok(vec![ops.mul(top, 2.0)?])
        }));
        cases.push(case(name("running sum of squares"), &[&[40, n]], &["cumsum"], |ops, x| {
            let y = ops.mul(x[0], x[0])?;
            let y = ops.cumsum(y, 1)?;
            Ok(vec![ops.mul(y, 0.01)?])
        }));
    }
    cases.push(case("where, softmax", &[&[2, 4, 8, 8], &[2, 1, 1, 8]], &["softmax"], |ops, x| {
        let hidden = ops.less(x[1], 0.0)?;
        let y = ops.select(hidden, -10000.0, x[0])?;
        Ok(vec![ops.softmax(y, -1)?])
    }));
    cases.push(case("count above", &[&[40, 33]], &["reduce"], |ops, x| {
        let above = ops.greater(x[0], 0.5)?;
        let above = ops.cast(above, DType::I32)?;
        let count = ops.sum(above, -1)?;
        Ok(vec![ops.add(count, 1)?])
    }));
    agree(&cases);
}

#[test]
fn gathers_and_attention_with_followers() {
    let cases = [
        // Indices from −2 to 1: two of them count from the end.
        case("embedding, position, scale", &[&[10, 6], &[4], &[4, 6]], &["gather"], |ops, x| {
            let y = ops.embedding(x[0], x[1])?;
            let y = ops.add(y, x[2])?;
            Ok(vec![ops.mul(y, 3.0)?])
        })
        .of(&[DType::F32, DType::I32]),
        case("attention, heads joined, gelu", &[&[2, 3, 9, 8], &[2, 3, 17, 8]], &["attention"], |ops, x| {
            let y = ops.attention(x[0], x[1], x[1], AttentionSettings::default())?;
            let y = ops.permute(y, &[0, 2, 1, 3])?;
            let y = ops.reshape(y, &[2, 9, 24])?;
            Ok(vec![ops.gelu(y)?])
        }),
        case("attention, gelu, heads joined", &[&[2, 3, 9, 8], &[2, 3, 17, 8]], &["attention"], |ops, x| {
            let y = ops.attention(x[0], x[1], x[1], AttentionSettings::default())?;
            let y = ops.gelu(y)?;
            let y = ops.permute(y, &[0, 2, 1, 3])?;
            Ok(vec![ops.reshape(y, &[2, 9, 24])?])
        }),
    ];
    agree(&cases);
}

#[test]
fn maps_with_several_results() {
    let mut cases = Vec::new();
    for shape in [[1usize, 1], [3, 5], [4, 64], [33, 65], [64, 100]] {
        let [_, n] = shape;
        for dtype in [DType::F32, DType::F16, DType::I32, DType::I8, DType::U8] {
            cases.push(
                case(format!("{dtype} {shape:?}"), &[&shape, &[n], &shape], &["map"], move |ops, x| {
                    let sum = ops.add(x[0], x[1])?;
                    let product = ops.mul(sum, x[2])?;
                    let larger = ops.max(sum, x[2])?;
                    // Compares values that rounding does not affect.
                    let above = ops.greater(x[0], x[2])?;
                    Ok(vec![sum, product, larger, above])
                })
                .of(&[dtype; 3])
                .elementwise(),
            );
        }
    }
    cases.push(
        case("siblings", &[&[6, 8], &[8], &[6, 1]], &["map"], |ops, x| {
            Ok(vec![ops.add(x[0], x[1])?, ops.mul(x[0], x[2])?, ops.tanh(x[0])?])
        })
        .elementwise(),
    );
    agree(&cases);
}

#[test]
fn quantising_and_back_is_one_launch_and_wraps_as_if_stored() {
    let cases = [
        case("int8 and back", &[&[65, 33], &[33]], &["map"], |ops, x| {
            let y = ops.mul(x[0], 100.0)?;
            let y = ops.round(y)?;
            let y = ops.clamp(y, -127.0, 127.0)?;
            let q = ops.cast(y, DType::I8)?;
            let y = ops.cast(q, DType::F32)?;
            Ok(vec![ops.mul(y, x[1])?])
        })
        .elementwise(),
        case("bytes that wrap", &[&[65, 33], &[65, 33]], &["map"], |ops, x| {
            let y = ops.mul(x[0], 77)?;
            let y = ops.mul(y, x[1])?;
            let y = ops.cast(y, DType::F32)?;
            Ok(vec![ops.mul(y, 0.5)?])
        })
        .of(&[DType::I8, DType::I8])
        .elementwise(),
    ];
    agree(&cases);
}
