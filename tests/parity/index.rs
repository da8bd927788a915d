//! Gathers and scatters.

use bevy_tensor_compute::prelude::*;

use super::host::{Array, View, indices};
use super::table::{Case, Input, agree, layouts};

const INDEX: [DType; 4] = [DType::I32, DType::U32, DType::I8, DType::U8];
const MODES: [ScatterMode; 5] =
    [ScatterMode::Replace, ScatterMode::Add, ScatterMode::Mul, ScatterMode::Min, ScatterMode::Max];

/// Positions on an axis of `n`, also negative ones if the type allows them.
fn positions(dtype: DType, shape: &[usize], n: usize, seed: u32) -> Input {
    let low = if matches!(dtype, DType::I32 | DType::I8) { -(n as f64) } else { 0.0 };
    Input::noise(dtype, shape, (low, n as f64), seed)
}

fn resolve(index: f64, n: usize) -> usize {
    (if index < 0.0 { index + n as f64 } else { index }) as usize
}

fn combine(mode: ScatterMode, old: f64, update: f64) -> f64 {
    match mode {
        ScatterMode::Replace => update,
        ScatterMode::Add => old + update,
        ScatterMode::Mul => old * update,
        ScatterMode::Min => old.min(update),
        ScatterMode::Max => old.max(update),
    }
}

fn range(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::Bool => (0.0, 2.0),
        _ => (0.0, 4.0),
    }
}

#[test]
fn gathers_agree() {
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        for index in INDEX {
            for (axis, n) in [(0, 4), (1, 7), (2, 5)] {
                let inputs = [Input::noise(dtype, &[4, 7, 5], range(dtype), 1), positions(index, &[3, 2], n, 2)];
                cases.push(
                    Case::new(format!("gather {dtype} {index} {axis}"), inputs, move |o, x| {
                        o.gather(&x[0], &x[1], axis)
                    })
                    .host(|x| {
                        let mut shape = x[0].shape.clone();
                        shape.splice(axis..=axis, [3, 2]);
                        Array::from_fn(&shape, |at| {
                            let mut from = at.to_vec();
                            from.splice(axis..axis + 2, [resolve(x[1].at(&at[axis..axis + 2]), n)]);
                            x[0].at(&from)
                        })
                    }),
                );
                let mut shape = [3, 6, 4];
                shape[axis] = 9;
                let inputs = [Input::noise(dtype, &[4, 7, 5], range(dtype), 1), positions(index, &shape, n, 2)];
                cases.push(
                    Case::new(format!("gather_elements {dtype} {index} {axis}"), inputs, move |o, x| {
                        o.gather_elements(&x[0], &x[1], axis)
                    })
                    .host(|x| {
                        Array::from_fn(&shape, |at| {
                            let mut from = at.to_vec();
                            from[axis] = resolve(x[1].at(at), n);
                            x[0].at(&from)
                        })
                    }),
                );
            }
        }
        let table = [Input::noise(dtype, &[65, 33], range(dtype), 1), positions(DType::U8, &[2, 9], 65, 2)];
        cases.push(
            Case::new(format!("embedding {dtype}"), table, |o, x| o.embedding(&x[0], &x[1]))
                .host(|x| Array::from_fn(&[2, 9, 33], |at| x[0].at(&[x[1].at(&at[..2]) as usize, at[2]]))),
        );
        let tuples = [Input::noise(dtype, &[4, 4, 5], range(dtype), 1), positions(DType::I32, &[7, 2], 4, 2)];
        cases.push(Case::new(format!("gather_nd {dtype}"), tuples, |o, x| o.gather_nd(&x[0], &x[1], 0)).host(|x| {
            Array::from_fn(&[7, 5], |at| {
                let [i, j] = [0, 1].map(|k| resolve(x[1].at(&[at[0], k]), 4));
                x[0].at(&[i, j, at[1]])
            })
        }));
        let tuples = [Input::noise(dtype, &[4, 4, 5], range(dtype), 1), positions(DType::I8, &[4, 3, 1], 4, 2)];
        cases.push(
            Case::new(format!("gather_nd {dtype} in batches"), tuples, |o, x| o.gather_nd(&x[0], &x[1], 1)).host(|x| {
                Array::from_fn(&[4, 3, 5], |at| x[0].at(&[at[0], resolve(x[1].at(&[at[0], at[1], 0]), 4), at[2]]))
            }),
        );
    }
    for (layout, x) in layouts(DType::F16, &[4, 6, 5], (0.0, 1.0), 1) {
        for (of, index) in layouts(DType::I32, &[3, 2], (-4.0, 4.0), 2) {
            cases.push(Case::new(format!("gather {layout}, {of}"), [x.clone(), index], |o, x| {
                o.gather(&x[0], &x[1], 0)
            }));
        }
    }
    agree(cases);
}

#[test]
fn scatters_agree() {
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        for mode in MODES {
            if dtype == DType::Bool && !matches!(mode, ScatterMode::Replace) {
                continue;
            }
            for axis in 0..2 {
                let inputs = [
                    Input::noise(dtype, &[6, 7], range(dtype), 1),
                    positions(DType::I32, &[5, 6], [6, 7][axis], 2),
                    Input::noise(dtype, &[5, 6], range(dtype), 3),
                ];
                cases.push(
                    Case::new(format!("scatter_elements {dtype} {mode:?} {axis}"), inputs, move |o, x| {
                        o.scatter_elements(&x[0], &x[1], &x[2], axis, mode)
                    })
                    .host(|x| {
                        let mut out = x[0].clone();
                        for at in indices(&[5, 6]) {
                            let mut to = at.clone();
                            to[axis] = resolve(x[1].at(&at), [6, 7][axis]);
                            let place = out.position(&to);
                            out.values[place] = combine(mode, out.values[place], x[2].at(&at));
                        }
                        out
                    }),
                );
            }
            let inputs = [
                Input::noise(dtype, &[4, 4, 5], range(dtype), 1),
                positions(DType::I32, &[9, 2], 4, 2),
                Input::noise(dtype, &[9, 5], range(dtype), 3),
            ];
            cases.push(
                Case::new(format!("scatter_nd {dtype} {mode:?}"), inputs, move |o, x| {
                    o.scatter_nd(&x[0], &x[1], &x[2], mode)
                })
                .host(|x| {
                    let mut out = x[0].clone();
                    for at in indices(&[9, 5]) {
                        let [i, j] = [0, 1].map(|k| resolve(x[1].at(&[at[0], k]), 4));
                        let place = out.position(&[i, j, at[1]]);
                        out.values[place] = combine(mode, out.values[place], x[2].at(&at));
                    }
                    out
                }),
            );
        }
    }
    // Many updates of a few positions, and a scalar update.
    for n in super::SIZES {
        let inputs = || {
            [
                Input::noise(DType::I32, &[3], (0.0, 9.0), 1),
                positions(DType::U32, &[n], 3, 2),
                Input::noise(DType::I32, &[n], (0.0, 9.0), 3),
            ]
        };
        for mode in MODES {
            cases.push(Case::new(format!("scatter {n} into 3, {mode:?}"), inputs(), move |o, x| {
                o.scatter_elements(&x[0], &x[1], &x[2], 0, mode)
            }));
        }
        cases.push(Case::new(format!("count {n}"), inputs(), |o, x| {
            o.scatter_elements(&x[0], &x[1], 1, 0, ScatterMode::Add)
        }));
        cases.push(Case::new(format!("mark {n}"), inputs(), |o, x| {
            let tuples = o.unsqueeze(&x[1], &[-1])?;
            o.scatter_nd(&x[0], tuples, 7, ScatterMode::Replace)
        }));
    }
    for (layout, x) in layouts(DType::F32, &[4, 6], (0.0, 1.0), 1) {
        let index = positions(DType::I32, &[6, 3], 4, 2).early(View::Permute(vec![1, 0]));
        let updates = Input::noise(DType::F32, &[3, 6], (0.0, 1.0), 3).early(View::flip(0));
        cases.push(Case::new(format!("scatter {layout}"), [x, index, updates], |o, x| {
            o.scatter_elements(&x[0], &x[1], &x[2], 0, ScatterMode::Add)
        }));
    }
    agree(cases);
}
