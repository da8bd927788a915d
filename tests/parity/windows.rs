//! Convolution, pooling, resizing and padding.

use bevy_tensor_compute::ops::{ResizeCoordinates, ResizeRounding};
use bevy_tensor_compute::prelude::*;

use super::host::Array;
use super::table::{Case, Input, agree, layouts};

const UNIT: (f64, f64) = (-1.0, 1.0);
const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn noise(dtype: DType, shape: &[usize], seed: u32) -> Input {
    Input::noise(dtype, shape, UNIT, seed)
}

#[test]
fn convolutions_of_one_axis_agree() {
    let mut cases = Vec::new();
    for dtype in FLOATS {
        for n in [1, 7, 63, 65, 257] {
            let inputs = [noise(dtype, &[2, 4, n], 1), noise(dtype, &[6, 2, 3], 2), noise(dtype, &[6], 3)];
            for padding in [Padding::Explicit([[2, 1]]), Padding::Same, Padding::SameLower] {
                let settings = ConvSettings { padding, stride: [2], groups: 2, ..Default::default() };
                cases.push(Case::new(format!("conv1d {dtype} {n} {padding:?}"), inputs.clone(), move |o, x| {
                    o.conv1d(&x[0], &x[1], Some(x[2].clone()), settings)
                }));
            }
            let inputs = [noise(dtype, &[2, 4, n], 1), noise(dtype, &[4, 3, 5], 2), noise(dtype, &[6], 3)];
            let settings = ConvTransposeSettings {
                stride: [3],
                padding: Padding::Explicit([[1, 0]]),
                groups: 2,
                output_padding: [1],
                ..Default::default()
            };
            cases.push(Case::new(format!("conv_transpose1d {dtype} {n}"), inputs, move |o, x| {
                o.conv_transpose1d(&x[0], &x[1], Some(x[2].clone()), settings)
            }));
        }
    }
    agree(cases);
}

#[test]
fn convolutions_of_two_axes_agree() {
    let mut cases = Vec::new();
    for dtype in FLOATS {
        for (x, w, groups) in [
            ([1, 1, 1, 1], [1, 1, 1, 1], 1),
            ([2, 3, 9, 11], [5, 3, 3, 3], 1),
            ([1, 16, 13, 13], [33, 16, 1, 1], 1),
            ([2, 6, 8, 9], [6, 1, 3, 2], 6),
            ([1, 4, 17, 5], [8, 2, 5, 4], 2),
            ([3, 8, 7, 7], [64, 8, 3, 3], 1),
        ] {
            let inputs = [noise(dtype, &x, 1), noise(dtype, &w, 2)];
            let padding = Padding::Explicit([[w[2] / 2; 2], [w[3] / 2; 2]]);
            for (name, stride, dilation) in [("plain", 1, 1), ("strided", 2, 1), ("dilated", 1, 2)] {
                let settings = ConvSettings { stride: [stride; 2], dilation: [dilation; 2], padding, groups };
                let fits = (0..2).all(|i| x[2 + i] + 2 * (w[2 + i] / 2) > (w[2 + i] - 1) * dilation);
                if !fits {
                    continue;
                }
                let case = Case::new(format!("conv2d {dtype} {x:?} {w:?} {name}"), inputs.clone(), move |o, x| {
                    o.conv2d(&x[0], &x[1], None, settings)
                });
                let direct = name == "plain" && groups == 1;
                cases.push(if direct { case.host(|x| x[0].conv2d(&x[1], [w[2] / 2, w[3] / 2])) } else { case });
            }
        }
        for (stride, groups, output_shape) in [(1, 1, None), (2, 2, None), (3, 1, Some([19, 17])), (2, 1, None)] {
            let inputs =
                [noise(dtype, &[2, 4, 6, 5], 1), noise(dtype, &[4, 3, 3, 4], 2), noise(dtype, &[3 * groups], 3)];
            for padding in [Padding::Explicit([[1, 0], [0, 2]]), Padding::Same, Padding::SameLower, Padding::Valid] {
                let settings =
                    ConvTransposeSettings { stride: [stride; 2], padding, groups, output_shape, ..Default::default() };
                let name = format!("conv_transpose2d {dtype} {stride} {groups} {output_shape:?} {padding:?}");
                cases.push(Case::new(name, inputs.clone(), move |o, x| {
                    o.conv_transpose2d(&x[0], &x[1], Some(x[2].clone()), settings)
                }));
            }
        }
    }
    for ((layout, x), (_, w)) in layouts(DType::F32, &[2, 3, 9, 8], UNIT, 1)
        .into_iter()
        .zip(layouts(DType::F32, &[4, 3, 3, 3], UNIT, 2).into_iter().rev())
    {
        cases.push(
            Case::new(format!("conv2d {layout}"), [x.clone(), w.clone()], |o, x| {
                let settings = ConvSettings { padding: Padding::Same, ..Default::default() };
                o.conv2d(&x[0], &x[1], None, settings)
            })
            .host(|x| x[0].conv2d(&x[1], [1, 1])),
        );
        let w = Input { late: [w.late, vec![super::host::View::Permute(vec![1, 0, 2, 3])]].concat(), ..w };
        cases.push(Case::new(format!("conv_transpose2d {layout}"), [x, w], |o, x| {
            o.conv_transpose2d(&x[0], &x[1], None, ConvTransposeSettings { stride: [2; 2], ..Default::default() })
        }));
    }
    agree(cases);
}

#[test]
fn convolutions_of_three_axes_agree() {
    let mut cases = Vec::new();
    for dtype in FLOATS {
        let inputs = [noise(dtype, &[2, 4, 5, 6, 7], 1), noise(dtype, &[6, 2, 3, 2, 3], 2), noise(dtype, &[6], 3)];
        for (stride, padding) in
            [(1, Padding::Same), (2, Padding::Explicit([[1, 1], [0, 2], [1, 0]])), (1, Padding::Valid)]
        {
            let settings = ConvSettings { stride: [stride; 3], padding, groups: 2, ..Default::default() };
            cases.push(Case::new(format!("conv3d {dtype} {stride}"), inputs.clone(), move |o, x| {
                o.conv3d(&x[0], &x[1], Some(x[2].clone()), settings)
            }));
        }
        let inputs = [noise(dtype, &[2, 4, 3, 4, 5], 1), noise(dtype, &[4, 3, 3, 2, 3], 2)];
        for stride in [1, 2] {
            let settings =
                ConvTransposeSettings { stride: [stride; 3], groups: 2, dilation: [1, 2, 1], ..Default::default() };
            cases.push(Case::new(format!("conv_transpose3d {dtype} {stride}"), inputs.clone(), move |o, x| {
                o.conv_transpose3d(&x[0], &x[1], None, settings)
            }));
        }
    }
    agree(cases);
}

macro_rules! pools {
    ($cases:ident, $x:ident, $settings:ident, $name:expr, $($op:ident),*) => {
        $($cases.push(Case::new(format!("{} {}", stringify!($op), $name), [$x.clone()], move |o, x| {
            o.$op(&x[0], $settings)
        }));)*
    };
}

#[test]
fn pools_agree() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::I32, DType::U8] {
        for n in [3, 7, 65, 257] {
            let x = Input::noise(dtype, &[2, 3, n], (0.0, 50.0), n as u32);
            for (ceil_mode, include_pad) in [(false, false), (true, true), (true, false)] {
                let padding = Padding::Explicit([[1, 1]]);
                let settings = PoolSettings {
                    size: [3],
                    stride: Some([2]),
                    padding,
                    ceil_mode,
                    include_pad,
                    ..Default::default()
                };
                let name = format!("{dtype} {n} {ceil_mode} {include_pad}");
                pools!(cases, x, settings, name, max_pool1d, max_pool1d_indices);
                if dtype.is_float() {
                    pools!(cases, x, settings, name, avg_pool1d);
                }
            }
        }
        let x = Input::noise(dtype, &[2, 3, 13, 9], (0.0, 50.0), 4);
        for (padding, dilation) in [
            (Padding::Explicit([[1, 0], [0, 1]]), [1, 1]),
            (Padding::Same, [1, 1]),
            (Padding::SameLower, [2, 1]),
            (Padding::Valid, [2, 2]),
        ] {
            let settings = PoolSettings { size: [3, 2], stride: Some([2, 3]), padding, dilation, ..Default::default() };
            let name = format!("{dtype} {padding:?} {dilation:?}");
            pools!(cases, x, settings, name, max_pool2d, max_pool2d_indices);
            if dtype.is_float() {
                pools!(cases, x, settings, name, avg_pool2d);
            }
        }
        let x = Input::noise(dtype, &[2, 3, 4, 5, 6], (0.0, 50.0), 5);
        let settings = PoolSettings { ceil_mode: true, ..Default::default() };
        pools!(cases, x, settings, dtype, max_pool3d, max_pool3d_indices);
        cases.push(
            Case::new(format!("global_max_pool {dtype}"), [x.clone()], |o, x| o.global_max_pool(&x[0]))
                .host(|x| x[0].reduce(&[2, 3, 4], |of| of.iter().copied().fold(f64::NEG_INFINITY, f64::max))),
        );
        if dtype.is_float() {
            pools!(cases, x, settings, dtype, avg_pool3d);
            // A mean of numbers up to 50, rounded once.
            cases.push(
                Case::new(format!("global_avg_pool {dtype}"), [x], |o, x| o.global_avg_pool(&x[0]))
                    .host(|x| x[0].reduce(&[2, 3, 4], |of| of.iter().sum::<f64>() / of.len() as f64)),
            );
            for size in [[1, 1], [3, 4], [13, 9], [5, 20]] {
                let x = Input::noise(dtype, &[2, 3, 13, 9], UNIT, 4);
                cases.push(Case::new(format!("adaptive {dtype} {size:?}"), [x], move |o, x| {
                    o.adaptive_avg_pool2d(&x[0], size)
                }));
            }
        }
    }
    for (layout, x) in layouts(DType::F32, &[2, 3, 8, 7], UNIT, 1) {
        let settings = PoolSettings::default();
        pools!(cases, x, settings, layout, max_pool2d, max_pool2d_indices, avg_pool2d);
        cases.push(Case::new(format!("adaptive {layout}"), [x], |o, x| o.adaptive_avg_pool2d(&x[0], [3, 2])));
    }
    agree(cases);
}

#[test]
fn resizes_agree() {
    let mut cases = Vec::new();
    let modes = [
        ResizeMode::Nearest(ResizeRounding::HalfDown),
        ResizeMode::Nearest(ResizeRounding::HalfUp),
        ResizeMode::Nearest(ResizeRounding::Floor),
        ResizeMode::Nearest(ResizeRounding::Ceil),
        ResizeMode::Linear,
        ResizeMode::Cubic { a: -0.75 },
    ];
    let all = [
        ResizeCoordinates::HalfPixel,
        ResizeCoordinates::PytorchHalfPixel,
        ResizeCoordinates::AlignCorners,
        ResizeCoordinates::Asymmetric,
        ResizeCoordinates::HalfPixelSymmetric,
    ];
    for mode in modes {
        for coordinates in all {
            for sizes in [[14, 18], [3, 4], [1, 1], [7, 20]] {
                let settings = ResizeSettings { mode, coordinates, ..Default::default() };
                cases.push(Case::new(
                    format!("resize {mode:?} {coordinates:?} {sizes:?}"),
                    [noise(DType::F32, &[2, 3, 7, 9], 1)],
                    move |o, x| o.resize(&x[0], &[2, 3], ResizeTo::Sizes(&sizes), settings),
                ));
            }
        }
        for (antialias, exclude_outside) in [(true, false), (false, true), (true, true)] {
            if matches!(mode, ResizeMode::Nearest(_)) {
                continue;
            }
            let settings = ResizeSettings { mode, antialias, exclude_outside, ..Default::default() };
            cases.push(Case::new(
                format!("resize {mode:?} {antialias} {exclude_outside}"),
                [noise(DType::F32, &[2, 13, 9], 1)],
                move |o, x| o.resize(&x[0], &[-2, -1], ResizeTo::Scales(&[0.45, 1.7]), settings),
            ));
        }
    }
    for dtype in DType::ALL {
        let x = Input::noise(dtype, &[1, 2, 5, 6], (0.0, 2.0), 1);
        cases
            .push(Case::new(format!("nearest {dtype}"), [x.clone()], |o, x| o.resize2d_nearest(&x[0], [11, 4])).host(
                |x| Array::from_fn(&[1, 2, 11, 4], |at| x[0].at(&[at[0], at[1], at[2] * 5 / 11, at[3] * 6 / 4])),
            ));
        if dtype.is_float() {
            cases.push(Case::new(format!("bilinear {dtype}"), [x], |o, x| o.resize2d_bilinear(&x[0], [11, 4])));
        }
    }
    for (layout, x) in layouts(DType::F32, &[2, 3, 5, 6], UNIT, 1) {
        cases.push(Case::new(format!("bilinear {layout}"), [x.clone()], |o, x| o.resize2d_bilinear(&x[0], [7, 3])));
        cases.push(Case::new(format!("nearest {layout}"), [x], |o, x| o.resize2d_nearest(&x[0], [7, 3])));
    }
    agree(cases);
}

#[test]
fn pads_agree() {
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        for (mode, host) in [
            (PadMode::Constant(1.0), None),
            (PadMode::Reflect, Some([2, 1, 0, 1, 2, 3, 4, 3, 2, 1])),
            (PadMode::Edge, Some([0, 0, 0, 1, 2, 3, 4, 4, 4, 4])),
            (PadMode::Wrap, Some([3, 4, 0, 1, 2, 3, 4, 0, 1, 2])),
        ] {
            let x = Input::noise(dtype, &[3, 5], (0.0, 2.0), 1);
            let case =
                Case::new(format!("pad {dtype} {mode:?}"), [x], move |o, x| o.pad(&x[0], &[(0, 0), (2, 3)], mode));
            cases.push(case.host(|x| {
                Array::from_fn(&[3, 10], |at| match host {
                    Some(positions) => x[0].at(&[at[0], positions[at[1]]]),
                    None if (2..7).contains(&at[1]) => x[0].at(&[at[0], at[1] - 2]),
                    None => 1.0,
                })
            }));
        }
    }
    for (layout, x) in layouts(DType::F32, &[4, 5, 6], UNIT, 1) {
        for mode in [PadMode::Constant(-0.5), PadMode::Reflect, PadMode::Edge, PadMode::Wrap] {
            cases.push(Case::new(format!("pad {layout} {mode:?}"), [x.clone()], move |o, x| {
                o.pad(&x[0], &[(2, 1), (-1, 3), (0, -2)], mode)
            }));
        }
    }
    agree(cases);
}
