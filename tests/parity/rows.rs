//! Reductions, cumulative sums, softmax and normalisation.

use bevy_tensor_compute::prelude::*;

use super::SIZES;
use super::host::Array;
use super::table::{Case, Input, agree, layouts};

type Reduce = for<'a> fn(&'a TensorCommands, &TensorOperand<'a>, Axes) -> OpResult<TensorValue<'a>>;
type Row = (&'static str, Reduce, fn(&[f64]) -> f64);

fn mean(row: &[f64]) -> f64 {
    row.iter().sum::<f64>() / row.len() as f64
}

fn variance(row: &[f64], less: usize) -> f64 {
    let mean = mean(row);
    row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / row.len().saturating_sub(less) as f64
}

fn norm(row: &[f64]) -> f64 {
    row.iter().map(|v| v * v).sum::<f64>().sqrt()
}

const FLOAT: [Row; 11] = [
    ("sum", |o, x, a| o.sum(x, a), |row| row.iter().sum()),
    ("mean", |o, x, a| o.mean(x, a), mean),
    ("max_of", |o, x, a| o.max_of(x, a), |row| row.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
    ("min_of", |o, x, a| o.min_of(x, a), |row| row.iter().copied().fold(f64::INFINITY, f64::min)),
    ("prod", |o, x, a| o.prod(x, a), |row| row.iter().product()),
    ("sum_squares", |o, x, a| o.sum_squares(x, a), |row| row.iter().map(|v| v * v).sum()),
    ("l1_norm", |o, x, a| o.l1_norm(x, a), |row| row.iter().map(|v| v.abs()).sum()),
    ("l2_norm", |o, x, a| o.l2_norm(x, a), norm),
    ("log_sum_exp", |o, x, a| o.log_sum_exp(x, a), |row| row.iter().map(|v| v.exp()).sum::<f64>().ln()),
    ("var", |o, x, a| o.var(x, a, 0), |row| variance(row, 0)),
    ("std", |o, x, a| o.std(x, a, 1), |row| variance(row, 1).sqrt()),
];

/// Values whose products stay near 1.
const NEAR_ONE: (f64, f64) = (0.9, 1.1);

fn range(name: &str) -> (f64, f64) {
    if name == "prod" { NEAR_ONE } else { (-2.0, 3.0) }
}

#[test]
fn reductions_of_floats_agree() {
    let mut cases = Vec::new();
    for (name, op, host) in FLOAT {
        for n in SIZES {
            for (shape, axis) in [(vec![n], 0), (vec![3, n], 1), (vec![n, 3], 0), (vec![2, n, 5], 1)] {
                let x = Input::noise(DType::F32, &shape, range(name), n as u32);
                let case = Case::new(format!("{name} {shape:?} axis {axis}"), [x], move |o, x| {
                    op(o, &x[0], Axes::from(axis as isize).keep())
                });
                // A single element has no standard deviation.
                let spread = n == 1 && name == "std";
                cases.push(if spread { case } else { case.host(|x| x[0].reduce(&[axis], host)) });
            }
        }
        for (axes, list) in [
            (Axes::ALL, vec![0, 1, 2, 3, 4]),
            (Axes::from([0, 4]), vec![0, 4]),
            (Axes::from([-4, 2]), vec![1, 2]),
            (Axes::from([0, 2, 4]), vec![0, 2, 4]),
        ] {
            let x = Input::noise(DType::F32, &[2, 3, 4, 5, 2], range(name), 9);
            let of = format!("{name} {axes:?}");
            cases.push(
                Case::new(of, [x], move |o, x| op(o, &x[0], axes.clone().keep())).host(|x| x[0].reduce(&list, host)),
            );
        }
        for (layout, x) in layouts(DType::F32, &[4, 6, 7], range(name), 2) {
            for axis in 0..3 {
                let case = Case::new(format!("{name} {layout} axis {axis}"), [x.clone()], move |o, x| {
                    op(o, &x[0], Axes::from(axis as isize).keep())
                });
                cases.push(case.host(|x| x[0].reduce(&[axis], host)));
            }
        }
        for n in [2, 65, 257] {
            let x = Input::noise(DType::F16, &[3, n], range(name), n as u32);
            let case = Case::new(format!("{name} f16 {n}"), [x], move |o, x| op(o, &x[0], TensorAxis(1).keep()));
            cases.push(case.host(|x| x[0].reduce(&[1], host)));
        }
        let scalar = Input::noise(DType::F32, &[], range(name), 1);
        cases.push(Case::new(format!("{name} of rank 0"), [scalar], move |o, x| op(o, &x[0], Axes::ALL)));
        let x = Input::noise(DType::F32, &[3, 5], range(name), 1);
        cases.push(Case::new(format!("{name} of no axes"), [x], move |o, x| op(o, &x[0], Axes::from([]))));
    }
    agree(cases);
}

#[test]
fn reductions_of_integers_and_truth_values_agree() {
    let mut cases = Vec::new();
    for dtype in [DType::I32, DType::U32, DType::I8, DType::U8] {
        for (name, op, host) in FLOAT {
            if !matches!(name, "sum" | "max_of" | "min_of" | "prod" | "sum_squares" | "l1_norm") {
                continue;
            }
            let range = match (name, dtype) {
                ("prod", _) => (1.0, 3.0),
                (_, DType::I32 | DType::I8) => (-100.0, 100.0),
                _ => (0.0, 200.0),
            };
            for n in [1, 7, 65, 257] {
                let x = Input::noise(dtype, &[3, n], range, n as u32);
                let case =
                    Case::new(format!("{name} {dtype} {n}"), [x], move |o, x| op(o, &x[0], TensorAxis(1).keep()));
                // Long products wrap, which the host reference does not.
                cases.push(if name == "prod" && n > 7 { case } else { case.host(|x| x[0].reduce(&[1], host)) });
            }
        }
    }
    for n in SIZES {
        let x = || [Input::noise(DType::Bool, &[5, n], (0.0, 2.0 - 1.0 / n as f64), n as u32)];
        cases.push(
            Case::new(format!("any {n}"), x(), |o, x| o.any(&x[0], TensorAxis(-1).keep()))
                .host(|x| x[0].reduce(&[1], |row| row.iter().copied().fold(0.0, f64::max))),
        );
        cases.push(
            Case::new(format!("all {n}"), x(), |o, x| o.all(&x[0], TensorAxis(-1).keep()))
                .host(|x| x[0].reduce(&[1], |row| row.iter().copied().fold(1.0, f64::min))),
        );
        cases.push(Case::new(format!("max_of bool {n}"), x(), |o, x| o.max_of(&x[0], 0)));
        cases.push(Case::new(format!("min_of bool {n}"), x(), |o, x| o.min_of(&x[0], 0)));
    }
    agree(cases);
}

/// The position of the best element, the first or the last among equals.
fn best(row: &[f64], better: impl Fn(f64, f64) -> bool, last: bool) -> f64 {
    let mut at = 0;
    for (i, &v) in row.iter().enumerate() {
        if better(v, row[at]) || (last && v == row[at]) {
            at = i;
        }
    }
    at as f64
}

#[test]
fn positions_of_extremes_agree() {
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        for n in [1, 7, 64, 65, 257, 1757] {
            for (shape, axis) in [(vec![3, n], 1), (vec![n, 3], 0)] {
                // Few distinct values, so that some are equal.
                let whole =
                    Input::noise(DType::I32, &shape, (0.0, if dtype == DType::Bool { 2.0 } else { 9.0 }), n as u32);
                let x = || [Input::new(Array::from_data(&whole.base).to_data(dtype))];
                let name = |op| format!("{op} {dtype} {shape:?}");
                let host = |better: fn(f64, f64) -> bool, last| {
                    move |x: &[Array]| x[0].reduce(&[axis], |row| best(row, better, last))
                };
                cases.extend([
                    Case::new(name("argmax"), x(), move |o, x| o.argmax(&x[0], Axes::from(axis).keep()))
                        .host(host(|a, b| a > b, false)),
                    Case::new(name("argmin"), x(), move |o, x| o.argmin(&x[0], Axes::from(axis).keep()))
                        .host(host(|a, b| a < b, false)),
                    Case::new(name("argmax_last"), x(), move |o, x| o.argmax_last(&x[0], Axes::from(axis).keep()))
                        .host(host(|a, b| a > b, true)),
                    Case::new(name("argmin_last"), x(), move |o, x| o.argmin_last(&x[0], Axes::from(axis).keep()))
                        .host(host(|a, b| a < b, true)),
                ]);
                for largest in [true, false] {
                    let k = n.min(9);
                    cases.push(Case::many(format!("{} largest: {largest}", name("top_k")), x(), move |o, x| {
                        let (values, positions) =
                            if largest { o.top_k(&x[0], k, axis)? } else { o.bottom_k(&x[0], k, axis)? };
                        Ok(vec![values, positions])
                    }));
                }
            }
        }
    }
    for (layout, x) in layouts(DType::F32, &[4, 5, 9], (-1.0, 1.0), 2) {
        cases.push(Case::new(format!("argmax {layout}"), [x.clone()], |o, x| o.argmax(&x[0], 1)));
        cases.push(Case::many(format!("top_k {layout}"), [x], |o, x| {
            let (values, positions) = o.top_k(&x[0], 3, 1)?;
            Ok(vec![values, positions])
        }));
    }
    let whole = Input::noise(DType::F32, &[2, 1757], (-1.0, 1.0), 5);
    cases.push(Case::new("top_k sorts", [whole], |o, x| Ok(o.top_k(&x[0], 1757, -1)?.0)).host(|x| {
        x[0].along(1, |row| {
            let mut row = row.to_vec();
            row.sort_by(|a, b| b.total_cmp(a));
            row
        })
    }));
    agree(cases);
}

#[test]
fn running_sums_agree() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::I32, DType::U32, DType::I8, DType::U8] {
        for n in SIZES {
            // Long sums would exceed the range of f16.
            let range = if dtype == DType::F16 { (-0.05, 0.05) } else { (0.0, 3.0) };
            for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
                for (shape, axis) in [(vec![2, n], 1), (vec![n, 3], 0)] {
                    let x = Input::noise(dtype, &shape, range, n as u32);
                    let case = Case::new(
                        format!("cumsum {dtype} {shape:?} exclusive: {exclusive}, reverse: {reverse}"),
                        [x],
                        move |o, x| o.cumsum_with(&x[0], axis, CumsumSettings { exclusive, reverse }),
                    );
                    let narrow = matches!(dtype, DType::I8 | DType::U8) && n > 40;
                    cases.push(if narrow { case } else { case.host(|x| running(&x[0], axis, exclusive, reverse)) });
                }
            }
        }
    }
    for (layout, x) in layouts(DType::F32, &[4, 5, 9], (-1.0, 1.0), 2) {
        for axis in 0..3 {
            cases.push(
                Case::new(format!("cumsum {layout} {axis}"), [x.clone()], move |o, x| o.cumsum(&x[0], axis))
                    .host(|x| running(&x[0], axis, false, false)),
            );
        }
    }
    agree(cases);
}

fn running(x: &Array, axis: usize, exclusive: bool, reverse: bool) -> Array {
    x.along(axis, |row| {
        let mut row = row.to_vec();
        if reverse {
            row.reverse();
        }
        let mut sum = 0.0;
        for v in &mut row {
            let before = sum;
            sum += *v;
            *v = if exclusive { before } else { sum };
        }
        if reverse {
            row.reverse();
        }
        row
    })
}

#[test]
fn softmax_agrees() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for n in SIZES {
            for (shape, axis) in [(vec![n], 0), (vec![3, n], 1), (vec![n, 3], 0), (vec![2, n, 3], 1)] {
                let x = || [Input::noise(dtype, &shape, (-8.0, 8.0), n as u32)];
                cases.push(
                    Case::new(format!("softmax {dtype} {shape:?} {axis}"), x(), move |o, x| o.softmax(&x[0], axis))
                        .host(|x| x[0].softmax(axis)),
                );
                cases.push(
                    Case::new(format!("log_softmax {dtype} {shape:?} {axis}"), x(), move |o, x| {
                        o.log_softmax(&x[0], axis)
                    })
                    .host(|x| x[0].softmax(axis).map(f64::ln)),
                );
            }
        }
    }
    for (layout, x) in layouts(DType::F32, &[4, 5, 9], (-3.0, 3.0), 2) {
        for axis in 0..3 {
            cases.push(
                Case::new(format!("softmax {layout} {axis}"), [x.clone()], move |o, x| o.softmax(&x[0], axis))
                    .host(|x| x[0].softmax(axis)),
            );
        }
    }
    let odd = [
        1.0,
        f32::NEG_INFINITY,
        2.0,
        f32::NEG_INFINITY,
        f32::NEG_INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1.0,
        2.0,
        500.0,
        -500.0,
        0.0,
    ];
    let odd = Input::new(TensorData::new(&odd, [4, 3]).expect("twelve"));
    cases.push(Case::new("softmax of odd numbers", [odd.clone()], |o, x| o.softmax(&x[0], -1)));
    cases.push(Case::new("log_softmax of odd numbers", [odd], |o, x| o.log_softmax(&x[0], -1)));
    agree(cases);
}

#[test]
fn normalisations_agree() {
    let mut cases = Vec::new();
    let scaled = |row: &[f64], by: f64| row.iter().map(|v| v / by).collect::<Vec<_>>();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for n in SIZES {
            let make = |shape: &[usize], seed| Input::noise(dtype, shape, (-2.0, 3.0), seed);
            let name = |op| format!("{op} {dtype} {n}");
            let with = [make(&[3, n], 1), make(&[n], 2), make(&[n], 3)];
            let plain = || [make(&[3, n], 1)];
            cases.extend([
                Case::new(name("layer_norm"), with.clone(), |o, x| {
                    o.layer_norm(&x[0], Some(x[1].clone()), Some(x[2].clone()), -1, 1e-5)
                }),
                Case::new(name("layer_norm plain"), plain(), |o, x| o.layer_norm(&x[0], None, None, -1, 1e-5)).host(
                    |x| {
                        x[0].along(1, |row| {
                            let (mean, by) = (mean(row), (variance(row, 0) + 1e-5).sqrt());
                            row.iter().map(|v| (v - mean) / by).collect()
                        })
                    },
                ),
                Case::new(name("rms_norm"), with, |o, x| o.rms_norm(&x[0], Some(x[1].clone()), -1, 1e-5)),
                Case::new(name("rms_norm plain"), plain(), |o, x| o.rms_norm(&x[0], None, -1, 1e-5))
                    .host(|x| x[0].along(1, |row| scaled(row, (norm(row).powi(2) / n as f64 + 1e-5).sqrt()))),
                Case::new(name("l2_normalize"), plain(), |o, x| o.l2_normalize(&x[0], -1))
                    .host(|x| x[0].along(1, |row| scaled(row, norm(row)))),
                Case::new(name("l2_normalize axis 0"), plain(), |o, x| o.l2_normalize(&x[0], 0))
                    .host(|x| x[0].along(0, |row| scaled(row, norm(row)))),
                Case::new(name("lp_normalize 1"), plain(), |o, x| o.lp_normalize(&x[0], -1, 1))
                    .host(|x| x[0].along(1, |row| scaled(row, row.iter().map(|v| v.abs()).sum()))),
                Case::new(name("lp_normalize 2"), plain(), |o, x| o.lp_normalize(&x[0], 0, 2)),
            ]);
        }
        let make = |shape: &[usize], seed| Input::noise(dtype, shape, (0.1, 2.0), seed);
        for spatial in [&[][..], &[7], &[5, 13], &[2, 3, 4]] {
            let shape: Vec<usize> = [2, 6].iter().chain(spatial).copied().collect();
            let inputs = || vec![make(&shape, 1), make(&[6], 2), make(&[6], 3), make(&[6], 4), make(&[6], 5)];
            let name = |op| format!("{op} {dtype} {shape:?}");
            cases.extend([
                Case::new(name("batch_norm"), inputs(), |o, x| {
                    o.batch_norm(&x[0], &x[1], &x[2], Some(x[3].clone()), Some(x[4].clone()), 1e-5)
                }),
                Case::new(name("batch_norm plain"), inputs(), |o, x| {
                    o.batch_norm(&x[0], &x[1], &x[2], None, None, 1e-5)
                }),
                Case::new(name("group_norm"), inputs(), |o, x| {
                    o.group_norm(&x[0], 3, Some(x[1].clone()), Some(x[2].clone()), 1e-5)
                }),
                Case::new(name("group_norm plain"), inputs(), |o, x| o.group_norm(&x[0], 2, None, None, 1e-5)),
                Case::new(name("instance_norm"), inputs(), |o, x| {
                    o.instance_norm(&x[0], Some(x[1].clone()), Some(x[2].clone()), 1e-5)
                }),
            ]);
        }
    }
    for (layout, x) in layouts(DType::F32, &[2, 4, 9], (-1.0, 1.0), 2) {
        let weight = Input::noise(DType::F32, &[4, 9], (0.5, 1.5), 3);
        cases.extend([
            Case::new(format!("layer_norm {layout}"), [x.clone(), weight.clone()], |o, x| {
                o.layer_norm(&x[0], Some(x[1].clone()), None, 1, 1e-5)
            }),
            Case::new(format!("rms_norm {layout}"), [x.clone(), weight], |o, x| {
                o.rms_norm(&x[0], Some(x[1].clone()), 1, 1e-5)
            }),
            Case::new(format!("l2_normalize {layout}"), [x.clone()], |o, x| o.l2_normalize(&x[0], 1)),
            Case::new(format!("group_norm {layout}"), [x], |o, x| o.group_norm(&x[0], 2, None, None, 1e-5)),
        ]);
    }
    agree(cases);
}
