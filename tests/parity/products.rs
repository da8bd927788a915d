//! Matrix products, similarities, attention and rotary embeddings.

use bevy_tensor_compute::prelude::*;

use super::SIZES;
use super::host::Array;
use super::table::{Case, Input, agree, layouts};

const UNIT: (f64, f64) = (-1.0, 1.0);

fn f32(shape: &[usize], seed: u32) -> Input {
    Input::noise(DType::F32, shape, UNIT, seed)
}

#[test]
fn products_of_all_sizes_agree() {
    let mut cases = Vec::new();
    let mut sizes: Vec<[usize; 3]> = SIZES.iter().flat_map(|&n| [[n, 5, 3], [3, n, 5], [5, 3, n]]).collect();
    sizes.extend([[64, 64, 64], [65, 63, 66], [1, 257, 65], [63, 1, 63], [2, 1757, 7], [128, 40, 130], [17, 300, 33]]);
    for [m, k, n] in sizes {
        let inputs = [f32(&[m, k], 1), f32(&[k, n], 2)];
        cases.push(
            Case::new(format!("matmul {m} {k} {n}"), inputs, |o, x| o.matmul(&x[0], &x[1]))
                .host(|x| x[0].matmul(&x[1])),
        );
        let inputs = [f32(&[m, k], 1), f32(&[n, k], 2)];
        cases.push(
            Case::new(format!("matmul_nt {m} {k} {n}"), inputs, |o, x| o.matmul_nt(&x[0], &x[1]))
                .host(|x| x[0].matmul(&x[1].transpose())),
        );
        let inputs = [f32(&[k, m], 1), f32(&[k, n], 2)];
        cases.push(
            Case::new(format!("matmul_tn {m} {k} {n}"), inputs, |o, x| o.matmul_tn(&x[0], &x[1]))
                .host(|x| x[0].transpose().matmul(&x[1])),
        );
        let inputs = [f32(&[k, m], 1), f32(&[n, k], 2)];
        cases.push(
            Case::new(format!("matmul_tt {m} {k} {n}"), inputs, |o, x| o.matmul_tt(&x[0], &x[1]))
                .host(|x| x[0].transpose().matmul(&x[1].transpose())),
        );
    }
    agree(cases);
}

#[test]
fn products_of_all_types_ranks_and_views_agree() {
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::BF16, DType::I32, DType::U32, DType::I8, DType::U8] {
        let signed = matches!(dtype, DType::F16 | DType::BF16 | DType::I32 | DType::I8);
        let range = if signed { (-4.0, 4.0) } else { (0.0, 8.0) };
        let scale = if dtype.is_float() { 0.25 } else { 1.0 };
        for [m, k, n] in [[1, 7, 1], [5, 64, 3], [33, 65, 34], [2, 257, 64]] {
            let range = (range.0 * scale, range.1 * scale);
            let inputs = [Input::noise(dtype, &[m, k], range, 1), Input::noise(dtype, &[k, n], range, 2)];
            let case = Case::new(format!("{dtype} {m} {k} {n}"), inputs, |o, x| o.matmul(&x[0], &x[1]));
            cases.push(case.host(|x| x[0].matmul(&x[1])));
        }
    }
    let mixed = [Input::noise(DType::F16, &[9, 65], UNIT, 1), f32(&[65, 10], 2)];
    cases.push(Case::new("f16 · f32", mixed, |o, x| o.matmul(&x[0], &x[1])).host(|x| x[0].matmul(&x[1])));
    for (a, b) in [
        (&[2, 1, 3, 4][..], &[5, 4, 6][..]),
        (&[3, 7, 9], &[9, 2]),
        (&[7, 9], &[4, 9, 2]),
        (&[2, 3, 1, 4, 5], &[3, 2, 5, 3]),
        (&[2, 1, 2, 1, 3, 4], &[1, 2, 1, 2, 4, 5]),
        (&[16, 1, 64], &[16, 64, 33]),
    ] {
        let inputs = [f32(a, 1), f32(b, 2)];
        cases.push(
            Case::new(format!("{a:?} · {b:?}"), inputs, |o, x| o.matmul(&x[0], &x[1])).host(|x| x[0].matmul(&x[1])),
        );
    }
    for (a, b) in [(&[7][..], &[7][..]), (&[7], &[7, 3]), (&[3, 7], &[7]), (&[65], &[2, 65, 5])] {
        let inputs = [f32(a, 1), f32(b, 2)];
        cases.push(Case::new(format!("vector {a:?} · {b:?}"), inputs, |o, x| o.matmul(&x[0], &x[1])));
    }
    for ((layout, a), (_, b)) in layouts(DType::F32, &[2, 9, 33], UNIT, 1)
        .into_iter()
        .zip(layouts(DType::F32, &[2, 33, 10], UNIT, 2).into_iter().rev())
    {
        cases.push(
            Case::new(format!("matmul {layout}"), [a, b], |o, x| o.matmul(&x[0], &x[1])).host(|x| x[0].matmul(&x[1])),
        );
    }
    for ((layout, a), (_, b)) in
        layouts(DType::F16, &[9, 34], UNIT, 1).into_iter().zip(layouts(DType::F16, &[34, 10], UNIT, 2))
    {
        cases.push(
            Case::new(format!("matmul f16 {layout}"), [a, b], |o, x| o.matmul(&x[0], &x[1]))
                .host(|x| x[0].matmul(&x[1])),
        );
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let [x, w, b] =
            [&[2, 5, 33][..], &[7, 33], &[7]].map(|shape| Input::noise(dtype, shape, UNIT, shape.len() as u32));
        cases.push(
            Case::new(format!("linear {dtype}"), [x.clone(), w.clone(), b], |o, x| {
                o.linear(&x[0], &x[1], Some(x[2].clone()))
            })
            .host(|x| x[0].matmul(&x[1].transpose()).zip(&x[2], |v, b| v + b)),
        );
        cases.push(
            Case::new(format!("linear {dtype} without bias"), [x, w], |o, x| o.linear(&x[0], &x[1], None))
                .host(|x| x[0].matmul(&x[1].transpose())),
        );
    }
    agree(cases);
}

#[test]
fn similarities_agree() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for n in SIZES {
            let make = |shape: &[usize], seed| Input::noise(dtype, shape, UNIT, seed);
            // Sums of many squares depend on the order of their terms.
            let [a, b] = [make(&[3, n], 1), make(&[3, n], 2)];
            let both = || [a.clone(), b.clone()];
            cases.push(Case::new(format!("dot {dtype} {n}"), both(), |o, x| o.dot(&x[0], &x[1])).host(|x| {
                let product = x[0].zip(&x[1], |a, b| a * b).reduce(&[1], |row| row.iter().sum());
                Array { shape: vec![3], ..product }
            }));
            cases.push(Case::new(format!("cosine {dtype} {n}"), both(), |o, x| {
                o.cosine_similarity(&x[0], &x[1], -1, 1e-8)
            }));
            cases.push(Case::new(format!("cosine {dtype} {n} axis 0"), both(), |o, x| {
                o.cosine_similarity(&x[0], &x[1], 0, 1e-8)
            }));
            cases.push(Case::new(format!("l2 {dtype} {n}"), both(), |o, x| o.l2_distance(&x[0], &x[1], -1)));
            let pair = [make(&[5, n], 1), make(&[9, n], 2)];
            cases.push(Case::new(format!("pairwise cosine {dtype} {n}"), pair.clone(), |o, x| {
                o.pairwise_cosine(&x[0], &x[1])
            }));
            let distance = |x: &[Array]| {
                Array::from_fn(&[5, 9], |at| {
                    let squares = (0..n).map(|i| (x[0].at(&[at[0], i]) - x[1].at(&[at[1], i])).powi(2));
                    squares.sum::<f64>().sqrt()
                })
            };
            cases.push(
                Case::new(format!("pairwise l2 {dtype} {n}"), pair, |o, x| o.pairwise_l2(&x[0], &x[1])).host(distance),
            );
        }
    }
    for dtype in [DType::I32, DType::I8, DType::U8] {
        let pair = [Input::noise(dtype, &[65], (0.0, 100.0), 1), Input::noise(dtype, &[4, 65], (0.0, 100.0), 2)];
        cases.push(Case::new(format!("dot {dtype}"), pair, |o, x| o.dot(&x[0], &x[1])));
    }
    agree(cases);
}

/// Attention with these settings, and the fourth operand as the mask.
fn attend(
    settings: AttentionSettings<'static>,
) -> impl for<'a> Fn(&'a TensorCommands, &[TensorOperand<'a>]) -> OpResult<TensorValue<'a>> + Send + Sync + 'static {
    move |o, x| {
        let mask = x.get(3).cloned();
        o.attention(&x[0], &x[1], &x[2], AttentionSettings { mask, ..settings.clone() })
    }
}

#[test]
fn attention_agrees() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (b, h, g, s, t, d, e) in [
            (1, 1, 1, 1, 1, 1, 1),
            (2, 3, 1, 7, 7, 5, 6),
            (1, 4, 2, 65, 65, 16, 16),
            (1, 2, 2, 1, 257, 64, 64),
            (1, 1, 1, 63, 64, 33, 1),
            (2, 2, 1, 2, 65, 256, 256),
            (1, 12, 4, 33, 40, 32, 32),
        ] {
            let make = |shape: &[usize], seed| Input::noise(dtype, shape, (-2.0, 2.0), seed);
            let qkv = || vec![make(&[b, h, s, d], 1), make(&[b, g, t, d], 2), make(&[b, g, t, e], 3)];
            let name = format!("attention {dtype} {b} {h}/{g} {s} {t} {d} {e}");
            cases.push(Case::new(&*name, qkv(), attend(AttentionSettings::default())));
            let causal = AttentionSettings { causal: true, position: Some(t.saturating_sub(s)), ..Default::default() };
            cases.push(Case::new(format!("{name} causal"), qkv(), attend(causal)));
            let capped = AttentionSettings {
                softcap: 2.0,
                scale: Some(0.7),
                valid_keys: Some(t.div_ceil(2)),
                ..Default::default()
            };
            cases.push(Case::new(format!("{name} softcap, half the keys"), qkv(), attend(capped)));
            let mut masked = qkv();
            masked.push(Input::noise(DType::F32, &[s, t], (-2.0, 2.0), 4));
            cases.push(Case::new(format!("{name} added mask"), masked, attend(AttentionSettings::default())));
            let mut masked = qkv();
            masked.push(Input::noise(DType::Bool, &[b, 1, s, t], (0.0, 2.0), 5));
            cases.push(Case::new(format!("{name} truth mask"), masked, attend(AttentionSettings::default())));
        }
    }
    for ((layout, q), ((_, k), (_, v))) in layouts(DType::F32, &[2, 4, 9, 8], UNIT, 1).into_iter().zip(
        layouts(DType::F32, &[2, 2, 11, 8], UNIT, 2).into_iter().rev().zip(layouts(
            DType::F32,
            &[2, 2, 11, 7],
            UNIT,
            3,
        )),
    ) {
        cases.push(Case::new(format!("attention {layout}"), [q, k, v], |o, x| {
            o.attention(&x[0], &x[1], &x[2], AttentionSettings::default())
        }));
    }
    agree(cases);
}

#[test]
fn rotary_positions_agree() {
    let mut cases = Vec::new();
    for layout in [RopeLayout::Half, RopeLayout::Interleaved] {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for (s, d, rotary) in [(1, 2, None), (7, 8, None), (65, 64, None), (257, 6, Some(4)), (5, 8, Some(0))] {
                for position in [0, 1000] {
                    for shape in [vec![s, d], vec![2, 3, s, d]] {
                        let x = Input::noise(dtype, &shape, UNIT, 1);
                        cases.push(Case::new(
                            format!("rope {layout:?} {dtype} {shape:?} at {position}, {rotary:?}"),
                            [x],
                            move |o, x| o.rope(&x[0], RopeSettings { position, layout, rotary, ..Default::default() }),
                        ));
                    }
                }
            }
        }
        for (of, x) in layouts(DType::F32, &[2, 5, 6], UNIT, 1) {
            let angles = [Input::noise(DType::F32, &[5, 2], UNIT, 2), Input::noise(DType::F32, &[1, 1, 2], UNIT, 3)];
            let [cos, sin] = angles;
            cases.push(Case::new(format!("rope {layout:?} {of}"), [x.clone()], move |o, x| {
                o.rope(&x[0], RopeSettings { position: 3, base: 100.0, layout, ..Default::default() })
            }));
            cases.push(Case::new(format!("rope_with {layout:?} {of}"), [x, cos, sin], move |o, x| {
                o.rope_with(&x[0], &x[1], &x[2], layout)
            }));
        }
    }
    agree(cases);
}

#[test]
fn products_of_bytes_are_exact() {
    let mut cases = Vec::new();
    let range = |dtype| if dtype == DType::I8 { (-128.0, 128.0) } else { (0.0, 256.0) };
    for (a, b) in [(DType::U8, DType::I8), (DType::I8, DType::I8), (DType::U8, DType::U8), (DType::I8, DType::U8)] {
        // Whole sums, split sums, and sums that are also cut.
        for (m, k, n) in [(1, 1, 1), (3, 258, 5), (7, 259, 65), (2, 1757, 63), (3, 5000, 4)] {
            let inputs = [
                Input::noise(a, &[2, m, k], range(a), 1),
                Input::noise(b, &[k, n], range(b), 2),
                Input::noise(a, &[m, 1], range(a), 3),
                Input::noise(b, &[n], range(b), 4),
            ];
            let case = Case::new(format!("{a} {b} {m} {k} {n}"), inputs, |o, x| {
                o.matmul_integer(&x[0], &x[1], Some(x[2].clone()), Some(x[3].clone()))
            });
            cases.push(case.host(|x| {
                Array::from_fn(&[2, m, n], |at| {
                    let term = |i: usize| {
                        let (left, right) = (x[0].at(&[at[0], at[1], i]), x[1].at(&[i, at[2]]));
                        (left - x[2].at(&[at[1], 0])) * (right - x[3].at(&[at[2]]))
                    };
                    (0..k).map(term).sum()
                })
            }));
        }
        for (channels, groups) in [(4, 2), (32, 1), (64, 2), (500, 1), (2 * 500, 2)] {
            let inputs = [
                Input::noise(a, &[1, channels, 4, 5], range(a), 1),
                Input::noise(b, &[4, channels / groups, 3, 3], range(b), 2),
                Input::noise(a, &[], range(a), 3),
                Input::noise(b, &[4], range(b), 4),
            ];
            let case = Case::new(format!("conv {a} {b} {channels} in {groups}"), inputs, move |o, x| {
                let padding = Padding::Explicit([[1, 1], [1, 0]]);
                let settings = ConvSettings { padding, groups, ..Default::default() };
                o.conv_integer2d(&x[0], &x[1], Some(x[2].clone()), Some(x[3].clone()), settings)
            });
            cases.push(case.host(move |x| {
                Array::from_fn(&[1, 4, 4, 4], |at| {
                    let group = at[1] / (4 / groups);
                    let mut sum = 0.0;
                    for c in 0..channels / groups {
                        for (i, j) in (0..9).map(|tap| (tap / 3, tap % 3)) {
                            let (row, column) = ((at[2] + i).wrapping_sub(1), (at[3] + j).wrapping_sub(1));
                            if row < 4 && column < 5 {
                                let value =
                                    x[0].at(&[0, group * (channels / groups) + c, row, column]) - x[2].values[0];
                                sum += value * (x[1].at(&[at[1], c, i, j]) - x[3].at(&[at[1]]));
                            }
                        }
                    }
                    sum
                })
            }));
        }
    }
    agree(cases);
}
