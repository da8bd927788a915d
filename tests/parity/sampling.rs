//! Sampling at positions that are data.

use bevy_tensor_compute::ops::{SampleFilter, SamplePadding};
use bevy_tensor_compute::prelude::*;
use safetensors::SafeTensors;
use serde_json::Value;

use super::table::{Case, Input, agree};
use crate::common::{BACKENDS, Rig, assert_close};

const FILTERS: [SampleFilter; 3] = [SampleFilter::Nearest, SampleFilter::Linear, SampleFilter::Cubic];
const PADDINGS: [SamplePadding; 3] = [SamplePadding::Zeros, SamplePadding::Border, SamplePadding::Reflection];

#[test]
fn grids_agree() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for filter in FILTERS {
            for padding in PADDINGS {
                for align_corners in [false, true] {
                    for (x, grid) in [
                        (&[1, 1, 1, 1][..], &[1, 3, 2][..]),
                        (&[2, 3, 5, 7], &[2, 9, 13, 2]),
                        (&[1, 65, 3, 2], &[1, 63, 2]),
                        (&[2, 2, 3, 4, 5], &[2, 3, 5, 7, 3]),
                    ] {
                        let inputs =
                            [Input::noise(dtype, x, (-1.0, 1.0), 1), Input::noise(DType::F32, grid, (-2.5, 2.5), 2)];
                        let settings = SampleSettings { filter, padding, align_corners };
                        let name = format!("{settings:?} {dtype} {x:?} {grid:?}");
                        cases.push(Case::new(name, inputs, move |o, x| o.grid_sample(&x[0], &x[1], settings)));
                    }
                    let far = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -3e38, 1e9, 0.0, 0.5, -1.0, 1.0];
                    let far = Input::new(TensorData::new(&far, [1, 5, 2]).expect("as many"));
                    let settings = SampleSettings { filter, padding, align_corners };
                    let x = Input::noise(dtype, &[1, 2, 4, 4], (-1.0, 1.0), 3);
                    let case = Case::new(format!("far {settings:?} {dtype}"), [x, far], move |o, x| {
                        o.grid_sample(&x[0], &x[1], settings)
                    });
                    cases.push(case.shaped(&[1, 2, 5]));
                }
            }
        }
    }
    agree(cases);
}

#[test]
fn an_affine_grid_is_the_map_of_its_positions() {
    let mut cases = Vec::new();
    for (theta, size) in [(&[2, 2, 3][..], &[3, 5][..]), (&[1, 2, 3], &[1, 1]), (&[2, 3, 4], &[2, 7, 3])] {
        for align_corners in [false, true] {
            let theta = Input::noise(DType::F32, theta, (-1.0, 1.0), 1);
            let name = format!("affine grid {size:?} {align_corners}");
            let case = Case::new(name, [theta], move |o, x| o.affine_grid(&x[0], size, align_corners));
            cases.push(case.host(move |x| {
                let position = |i: usize, n: usize| match align_corners {
                    true if n > 1 => -1.0 + 2.0 * i as f64 / (n - 1) as f64,
                    true => -1.0,
                    false => (2.0 * i as f64 + 1.0) / n as f64 - 1.0,
                };
                let axes = size.len();
                let shape: Vec<usize> = [x[0].shape[0]].into_iter().chain(size.iter().copied()).chain([axes]).collect();
                super::host::Array::from_fn(&shape, |at| {
                    let row = at[axes + 1];
                    let sum: f64 = (0..axes)
                        .map(|i| {
                            let axis = axes - 1 - i;
                            x[0].at(&[at[0], row, i]) * position(at[axis + 1], size[axis])
                        })
                        .sum();
                    sum + x[0].at(&[at[0], row, axes])
                })
            }));
        }
    }
    agree(cases);
}

#[test]
fn regions_and_deformed_convolutions_agree() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let x = || Input::noise(dtype, &[2, 5, 9, 13], (-1.0, 1.0), 1);
        let regions = || Input::noise(DType::F32, &[7, 4], (-5.0, 25.0), 2);
        let pictures = || Input::noise(DType::I32, &[7], (0.0, 2.0), 3);
        for (max, half_pixel, samples) in [(false, true, 0), (false, false, 3), (true, true, 0), (true, false, 2)] {
            let settings = RoiAlignSettings { size: [3, 5], scale: 0.5, samples, half_pixel, max };
            let name = format!("{settings:?} {dtype}");
            cases.push(Case::new(name, [x(), regions(), pictures()], move |o, x| {
                o.roi_align(&x[0], &x[1], &x[2], settings)
            }));
        }
        let regions = Input::noise(DType::F32, &[7, 5], (0.0, 2.0), 4);
        cases.push(Case::new(format!("max_roi_pool {dtype}"), [x(), regions], |o, x| {
            o.max_roi_pool(&x[0], &x[1], [3, 2], 6.5)
        }));
        let inputs = [
            Input::noise(dtype, &[2, 4, 7, 6], (-1.0, 1.0), 1),
            Input::noise(dtype, &[6, 2, 3, 2], (-1.0, 1.0), 2),
            Input::noise(dtype, &[2, 24, 7, 5], (-2.0, 2.0), 3),
        ];
        cases.push(Case::new(format!("deform_conv2d {dtype}"), inputs, |o, x| {
            let padding = Padding::Explicit([[1, 1], [0, 0]]);
            let settings = ConvSettings { padding, groups: 2, ..Default::default() };
            o.deform_conv2d(&x[0], &x[1], &x[2], None, None, settings)
        }));
    }
    agree(cases);
}

/// A region far larger than its picture is sampled coarsely and gives finite numbers.
#[test]
fn hostile_regions_end() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::ones([1, 1, 4, 4], DType::F32).expect("small"));
        let bounds = [-1e30f32, -1e30, 1e30, 1e30, f32::NAN, 0.0, 1.0, 1.0, 3.0, 3.0, -3.0, -3.0];
        let regions = rig.spawn(Tensor::from_slice(&bounds, [3, 4]).expect("twelve"));
        let pictures = rig.spawn(Tensor::zeros([3], DType::I32).expect("small"));
        let settings = RoiAlignSettings { size: [2, 2], ..Default::default() };
        let pooled = rig.compute(move |ops| ops.roi_align(x, regions, pictures, settings)).expect("it fits");
        assert_eq!(pooled.shape()[..], [3, 1, 2, 2]);
        assert!(pooled.to_f32()[..4].iter().all(|v| v.is_finite()), "{pooled}");
    }
}

fn numbers<const N: usize>(case: &Value, name: &str) -> [usize; N] {
    let list = case[name].as_array().unwrap_or_else(|| panic!("{name} of {case}"));
    core::array::from_fn(|i| list[i].as_u64().expect("a number") as usize)
}

/// `tools/sampling.py` made the numbers.
#[test]
fn samples_are_those_of_onnxruntime() {
    let bytes =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/sampling.safetensors")).expect("the numbers");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("a header");
    let cases = header.metadata().as_ref().and_then(|m| m.get("cases")).expect("cases");
    let cases: Vec<Value> = serde_json::from_str(cases).expect("a list");
    let tensors = SafeTensors::deserialize(&bytes).expect("tensors");
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for (i, case) in cases.iter().enumerate() {
            let read = |name: &str| {
                let view = tensors.tensor(&format!("{i}/{name}")).unwrap_or_else(|_| panic!("{name} of {case}"));
                let words = view.data().chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                (words.collect::<Vec<_>>(), view.shape().to_vec())
            };
            let floats = |name: &str| {
                let (words, shape) = read(name);
                (words.into_iter().map(f32::from_bits).collect::<Vec<_>>(), shape)
            };
            let mut spawn = |name: &str| {
                let (values, shape) = floats(name);
                rig.spawn(Tensor::from_slice(&values, shape).expect("as many"))
            };
            let text = |name: &str| case[name].as_str().unwrap_or_default().to_owned();
            let x = spawn("x");
            let got = match case["op"].as_str() {
                Some("GridSample") => {
                    let grid = spawn("grid");
                    let filter = match text("mode").as_str() {
                        "nearest" => SampleFilter::Nearest,
                        "linear" => SampleFilter::Linear,
                        _ => SampleFilter::Cubic,
                    };
                    let padding = match text("padding_mode").as_str() {
                        "zeros" => SamplePadding::Zeros,
                        "border" => SamplePadding::Border,
                        _ => SamplePadding::Reflection,
                    };
                    let align_corners = case["align_corners"] == 1;
                    let settings = SampleSettings { filter, padding, align_corners };
                    rig.compute(move |ops| ops.grid_sample(x, grid, settings))
                }
                Some("RoiAlign") => {
                    let regions = spawn("regions");
                    let (pictures, shape) = read("pictures");
                    let pictures = rig.spawn(Tensor::from_slice(&pictures, shape).expect("as many"));
                    let settings = RoiAlignSettings {
                        size: [3, 4],
                        scale: 0.5,
                        samples: case["sampling_ratio"].as_u64().expect("a number") as u32,
                        half_pixel: text("coordinate_transformation_mode") == "half_pixel",
                        max: text("mode") == "max",
                    };
                    rig.compute(move |ops| ops.roi_align(x, regions, pictures, settings))
                }
                Some("MaxRoiPool") => {
                    let regions = spawn("regions");
                    rig.compute(move |ops| ops.max_roi_pool(x, regions, [2, 3], 0.7))
                }
                _ => {
                    let [weight, offset, bias, mask] = ["weight", "offset", "bias", "mask"].map(spawn);
                    let [top, left, bottom, right] = numbers(case, "pads");
                    let settings = ConvSettings {
                        padding: Padding::Explicit([[top, bottom], [left, right]]),
                        stride: numbers(case, "strides"),
                        dilation: numbers(case, "dilations"),
                        groups: case["group"].as_u64().expect("a number") as usize,
                    };
                    rig.compute(move |ops| ops.deform_conv2d(x, weight, offset, bias, mask, settings))
                }
            };
            let got = got.expect("it fits");
            let (expected, shape) = floats("y");
            assert_eq!(got.shape()[..], shape, "{case}");
            assert_close(&got.to_f32(), &expected, 1e-5, 1e-4, &format!("case {i}, {case}, on the {backend}"));
        }
    }
}
