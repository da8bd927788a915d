//! Ops that move elements, and ops on empty tensors.

use bevy_tensor_compute::prelude::*;

use super::host::{Array, View, indices};
use super::table::{Case, Input, agree, layouts};

fn range(dtype: DType) -> (f64, f64) {
    if dtype == DType::Bool { (0.0, 2.0) } else { (0.0, 100.0) }
}

/// Concatenates parts along an axis.
fn concat(parts: &[Array], axis: usize) -> Array {
    let mut shape = parts[0].shape.clone();
    shape[axis] = parts.iter().map(|part| part.shape[axis]).sum();
    Array::from_fn(&shape, |at| {
        let mut at = at.to_vec();
        let mut of = 0;
        while at[axis] >= parts[of].shape[axis] {
            at[axis] -= parts[of].shape[axis];
            of += 1;
        }
        parts[of].at(&at)
    })
}

#[test]
fn views_and_copies_agree() {
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        for (layout, x) in layouts(dtype, &[2, 3, 4, 1], range(dtype), 1) {
            let name = |op| format!("{op} {dtype} {layout}");
            let x = || [x.clone()];
            cases.extend([
                Case::new(name("copy"), x(), |o, x| o.copy(&x[0])).host(|x| x[0].clone()),
                Case::new(name("reshape"), x(), |o, x| o.reshape(&x[0], &[4, -1, 2]))
                    .host(|x| x[0].view(View::Reshape(vec![4, 3, 2]))),
                Case::new(name("flatten"), x(), |o, x| o.flatten(&x[0], 1, -2))
                    .host(|x| x[0].view(View::Reshape(vec![2, 12, 1]))),
                Case::new(name("transpose"), x(), |o, x| o.transpose(&x[0])).host(|x| x[0].transpose()),
                Case::new(name("permute"), x(), |o, x| o.permute(&x[0], &[2, 0, -1, 1]))
                    .host(|x| x[0].view(View::Permute(vec![2, 0, 3, 1]))),
                Case::new(name("squeeze"), x(), |o, x| o.squeeze(&x[0], -1))
                    .host(|x| x[0].view(View::Reshape(vec![2, 3, 4]))),
                Case::new(name("unsqueeze"), x(), |o, x| o.unsqueeze(&x[0], &[0, -1]))
                    .host(|x| x[0].view(View::Reshape(vec![1, 2, 3, 4, 1, 1]))),
                Case::new(name("expand"), x(), |o, x| o.broadcast_to(&x[0], [3, 2, 3, 4, 5]))
                    .host(|x| x[0].broadcast(&[3, 2, 3, 4, 5])),
                Case::new(name("slice"), x(), |o, x| o.slice(&x[0], 2, 1, 3))
                    .host(|x| x[0].view(View::Slice { axis: 2, start: 1, end: 3, step: 1 })),
                Case::new(name("slice_step"), x(), |o, x| o.slice_step(&x[0], 2, -1, -4, -2))
                    .host(|x| x[0].view(View::Slice { axis: 2, start: -1, end: -4, step: -2 })),
                Case::new(name("flip"), x(), |o, x| o.flip(&x[0], [0, 2]))
                    .host(|x| x[0].view(View::flip(0)).view(View::flip(2))),
                Case::many(name("split"), x(), |o, x| o.split(&x[0], 2, &[1, 0, 3]))
                    .host(|x| x[0].view(View::Slice { axis: 2, start: 0, end: 1, step: 1 })),
                Case::new(name("tile"), x(), |o, x| o.tile(&x[0], &[2, 1, 3, 2]))
                    .host(|x| Array::from_fn(&[4, 3, 12, 2], |at| x[0].at(&[at[0] % 2, at[1], at[2] % 4, 0]))),
                Case::new(name("repeat"), x(), |o, x| o.repeat(&x[0], 1, 3))
                    .host(|x| Array::from_fn(&[2, 9, 4, 1], |at| x[0].at(&[at[0], at[1] / 3, at[2], 0]))),
                Case::new(name("tril"), x(), |o, x| {
                    let square = o.reshape(&x[0], &[2, 3, 4])?;
                    o.tril(square, 1)
                }),
                Case::new(name("triu"), x(), |o, x| {
                    let square = o.reshape(&x[0], &[2, 3, 4])?;
                    o.triu(square, -1)
                }),
            ]);
        }
    }
    agree(cases);
}

#[test]
fn joined_parts_agree() {
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        let views = || {
            layouts(dtype, &[2, 3, 5], range(dtype), 1)
                .into_iter()
                .zip(layouts(dtype, &[2, 3, 5], range(dtype), 2).into_iter().rev())
        };
        for ((layout, a), (_, b)) in views() {
            for axis in 0..3 {
                let inputs = [a.clone(), b.clone(), a.clone()];
                cases.push(
                    Case::new(format!("concat {dtype} {layout} {axis}"), inputs.clone(), move |o, x| o.concat(x, axis))
                        .host(|x| concat(x, axis)),
                );
                cases.push(
                    Case::new(format!("stack {dtype} {layout} {axis}"), inputs, move |o, x| o.stack(x, axis)).host(
                        |x| {
                            let mut shape = x[0].shape.clone();
                            shape.insert(axis, 1);
                            let parts: Vec<Array> = x.iter().map(|x| x.view(View::Reshape(shape.clone()))).collect();
                            concat(&parts, axis)
                        },
                    ),
                );
            }
        }
        // Parts that start in the middle of a word.
        let odd: Vec<Input> =
            [1, 2, 7, 63, 65].iter().map(|&n| Input::noise(dtype, &[n], range(dtype), n as u32)).collect();
        cases
            .push(Case::new(format!("concat {dtype} of odd sizes"), odd, |o, x| o.concat(x, 0)).host(|x| concat(x, 0)));
        let x = || [Input::noise(dtype, &[2, 8, 4, 6], range(dtype), 1)];
        for order in [DepthOrder::DepthColumnRow, DepthOrder::ColumnRowDepth] {
            cases.push(
                Case::new(format!("depth_to_space {dtype} {order:?}"), x(), move |o, x| {
                    o.depth_to_space(&x[0], 2, order)
                })
                .host(|x| {
                    Array::from_fn(&[2, 2, 8, 12], |at| {
                        let block = (at[2] % 2) * 2 + at[3] % 2;
                        let channel = match order {
                            DepthOrder::DepthColumnRow => block * 2 + at[1],
                            DepthOrder::ColumnRowDepth => at[1] * 4 + block,
                        };
                        x[0].at(&[at[0], channel, at[2] / 2, at[3] / 2])
                    })
                }),
            );
        }
        cases.push(Case::new(format!("space_to_depth {dtype}"), x(), |o, x| o.space_to_depth(&x[0], 2)).host(|x| {
            Array::from_fn(&[2, 32, 2, 3], |at| {
                let (block, channel) = (at[1] / 8, at[1] % 8);
                x[0].at(&[at[0], channel, at[2] * 2 + block / 2, at[3] * 2 + block % 2])
            })
        }));
    }
    agree(cases);
}

#[test]
fn made_values_agree() {
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        for n in super::SIZES {
            cases.push(
                Case::new(format!("fill {dtype} {n}"), [], move |o, _| o.full([n], 3.0, dtype))
                    .host(|_| Array::new(&[n], vec![if dtype == DType::Bool { 1.0 } else { 3.0 }; n])),
            );
        }
        for (rows, columns, k) in [(1, 1, 0), (5, 7, 0), (7, 5, -2), (3, 65, 4), (3, 3, 9)] {
            cases.push(
                Case::new(format!("eye {dtype} {rows} {columns} {k}"), [], move |o, _| o.eye(rows, columns, k, dtype))
                    .host(|_| Array::from_fn(&[rows, columns], |at| f64::from(at[1] as i32 == at[0] as i32 + k))),
            );
        }
        if dtype != DType::Bool {
            for n in [1, 65, 257] {
                let case = Case::new(format!("arange {dtype} {n}"), [], move |o, _| o.arange(3.0, 2.0, n, dtype));
                let wraps = dtype.bytes(1) == 1 && n > 60;
                cases.push(if wraps {
                    case
                } else {
                    case.host(|_| Array::from_fn(&[n], |at| 3.0 + 2.0 * at[0] as f64))
                });
            }
        }
        for of in [DType::I32, DType::U8, DType::I8] {
            let low = if of == DType::U8 { 0.0 } else { -9.0 };
            let x = Input::noise(of, &[3, 5], (low, 9.0), 1);
            cases.push(Case::new(format!("one_hot {of} {dtype}"), [x], move |o, x| o.one_hot(&x[0], 7, dtype)).host(
                |x| {
                    Array::from_fn(&[3, 5, 7], |at| {
                        let index = x[0].at(&at[..2]);
                        f64::from((if index < 0.0 { index + 7.0 } else { index }) == at[2] as f64)
                    })
                },
            ));
        }
    }
    for (layout, x) in layouts(DType::F32, &[2, 5, 6], (-1.0, 1.0), 1) {
        for k in [-3, 0, 2] {
            let shift = |x: &Array, up: bool| {
                let values = indices(&x.shape).zip(&x.values).map(|(at, &v)| {
                    let beyond = at[2] as i32 - at[1] as i32 - k;
                    if (up && beyond >= 0) || (!up && beyond <= 0) { v } else { 0.0 }
                });
                Array::new(&x.shape, values.collect())
            };
            cases.push(
                Case::new(format!("tril {layout} {k}"), [x.clone()], move |o, x| o.tril(&x[0], k))
                    .host(|x| shift(&x[0], false)),
            );
            cases.push(
                Case::new(format!("triu {layout} {k}"), [x.clone()], move |o, x| o.triu(&x[0], k))
                    .host(|x| shift(&x[0], true)),
            );
        }
    }
    agree(cases);
}

type Record = for<'a> fn(&'a TensorCommands, &[TensorOperand<'a>]) -> OpResult<TensorValue<'a>>;

/// A name, the input shapes, the op, and the expected output shape.
type EmptyCase = (&'static str, &'static [&'static [usize]], Record, &'static [usize]);

/// Ops on empty tensors: shapes of the inputs and of the result.
const EMPTY: [EmptyCase; 34] = [
    ("neg", &[&[0]], |o, x| o.neg(&x[0]), &[0]),
    ("gelu", &[&[3, 0, 2]], |o, x| o.gelu(&x[0]), &[3, 0, 2]),
    ("add", &[&[3, 0], &[1]], |o, x| o.add(&x[0], &x[1]), &[3, 0]),
    ("add to one", &[&[0, 1], &[1, 5]], |o, x| o.add(&x[0], &x[1]), &[0, 5]),
    ("cast", &[&[0]], |o, x| o.cast(&x[0], DType::U8), &[0]),
    ("matmul of no rows", &[&[0, 3], &[3, 4]], |o, x| o.matmul(&x[0], &x[1]), &[0, 4]),
    ("matmul over nothing", &[&[2, 0], &[0, 4]], |o, x| o.matmul(&x[0], &x[1]), &[2, 4]),
    ("matmul of no batches", &[&[0, 2, 3], &[3, 4]], |o, x| o.matmul(&x[0], &x[1]), &[0, 2, 4]),
    ("linear", &[&[0, 3], &[4, 3]], |o, x| o.linear(&x[0], &x[1], None), &[0, 4]),
    ("pairwise_l2", &[&[2, 0], &[3, 0]], |o, x| o.pairwise_l2(&x[0], &x[1]), &[2, 3]),
    ("sum", &[&[2, 0]], |o, x| o.sum(&x[0], 1), &[2]),
    ("sum of no rows", &[&[0, 2]], |o, x| o.sum(&x[0], 1), &[0]),
    ("mean", &[&[2, 0]], |o, x| o.mean(&x[0], 1), &[2]),
    ("max_of", &[&[2, 0]], |o, x| o.max_of(&x[0], 1), &[2]),
    ("prod", &[&[0]], |o, x| o.prod(&x[0], Axes::ALL), &[]),
    ("log_sum_exp", &[&[2, 0]], |o, x| o.log_sum_exp(&x[0], 1), &[2]),
    ("argmax of no rows", &[&[0, 2]], |o, x| o.argmax(&x[0], 1), &[0]),
    ("cumsum", &[&[2, 0]], |o, x| o.cumsum(&x[0], 1), &[2, 0]),
    ("top_k", &[&[2, 0]], |o, x| Ok(o.top_k(&x[0], 0, 1)?.0), &[2, 0]),
    ("softmax", &[&[2, 0]], |o, x| o.softmax(&x[0], 1), &[2, 0]),
    ("layer_norm", &[&[0, 4]], |o, x| o.layer_norm(&x[0], None, None, -1, 1e-5), &[0, 4]),
    ("group_norm", &[&[0, 4, 2]], |o, x| o.group_norm(&x[0], 2, None, None, 1e-5), &[0, 4, 2]),
    (
        "conv2d",
        &[&[0, 3, 5, 5], &[4, 3, 3, 3]],
        |o, x| o.conv2d(&x[0], &x[1], None, ConvSettings::default()),
        &[0, 4, 3, 3],
    ),
    (
        "conv_transpose2d",
        &[&[0, 3, 5, 5], &[3, 4, 3, 3]],
        |o, x| o.conv_transpose2d(&x[0], &x[1], None, ConvTransposeSettings::default()),
        &[0, 4, 7, 7],
    ),
    ("max_pool2d", &[&[0, 3, 4, 4]], |o, x| o.max_pool2d(&x[0], PoolSettings::default()), &[0, 3, 2, 2]),
    ("resize", &[&[0, 3, 4, 4]], |o, x| o.resize2d_bilinear(&x[0], [8, 8]), &[0, 3, 8, 8]),
    ("pad to something", &[&[0, 3]], |o, x| o.pad(&x[0], &[(1, 1), (0, 0)], PadMode::Constant(2.0)), &[2, 3]),
    ("concat", &[&[0, 3], &[2, 3]], |o, x| o.concat(x, 0), &[2, 3]),
    ("tile", &[&[0, 3]], |o, x| o.tile(&x[0], &[2, 2]), &[0, 6]),
    ("reshape", &[&[0, 3]], |o, x| o.reshape(&x[0], &[5, 0]), &[5, 0]),
    ("flip", &[&[0, 3]], |o, x| o.flip(&x[0], [0, 1]), &[0, 3]),
    (
        "scatter",
        &[&[3, 4], &[0, 4]],
        |o, x| {
            let index = o.cast(&x[1], DType::I32)?;
            o.scatter_elements(&x[0], index, &x[1], 0, ScatterMode::Add)
        },
        &[3, 4],
    ),
    (
        "attention to nothing",
        &[&[1, 2, 3, 4], &[1, 2, 0, 4]],
        |o, x| o.attention(&x[0], &x[1], &x[1], AttentionSettings::default()),
        &[1, 2, 3, 4],
    ),
    ("rope", &[&[2, 0, 4]], |o, x| o.rope(&x[0], RopeSettings::default()), &[2, 0, 4]),
];

#[test]
fn empty_tensors_work_with_every_family_of_ops() {
    let mut cases = Vec::new();
    for (name, shapes, record, shape) in EMPTY {
        let inputs: Vec<Input> = shapes.iter().map(|shape| Input::noise(DType::F32, shape, (0.0, 1.0), 1)).collect();
        cases.push(Case::new(name, inputs, record).shaped(shape));
    }
    agree(cases);
}
