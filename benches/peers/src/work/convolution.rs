//! Convolutions of `[1, 64, 56, 56]` with 3 × 3 windows, padded to keep the size.

use bevy_tensor_compute::ops::{ConvSettings, Padding};
use burn_tensor::module;
use burn_tensor::ops::ConvOptions;
use serde_json::json;

use super::Compute;
use crate::array::Array;
use crate::ort::OnnxGraph;

const CHANNELS: usize = 64;
const SIZE: usize = 56;

pub fn all() -> Vec<Compute> {
    vec![conv("conv 64→64 3×3 at 56²", 1), conv("depthwise conv 64 3×3 at 56²", CHANNELS)]
}

fn conv(name: &str, groups: usize) -> Compute {
    let depth = CHANNELS / groups;
    let inputs = vec![
        Array::uniform(8, 1.0, &[1, CHANNELS, SIZE, SIZE]),
        Array::weight(9, 1.0 / ((9 * depth) as f32).sqrt(), &[CHANNELS, depth, 3, 3]),
    ];
    let settings = ConvSettings { padding: Padding::Same, groups, ..ConvSettings::default() };
    let mut graph = OnnxGraph::default();
    graph.node("Conv", &["x0", "x1"], "y", json!({ "group": groups, "pads": [1, 1, 1, 1] }));
    Compute::new(name, inputs, move |ops, x| ops.conv2d(x[0], x[1], None, settings))
        .burn(move |x| {
            let options = ConvOptions::new([1, 1], [1, 1], [1, 1], groups);
            module::conv2d(x[0].four(), x[1].four(), None, options).into()
        })
        .candle(move |x| x[0].conv2d(&x[1], 1, 1, 1, groups))
        .onnx(graph)
        .tolerance(1e-4, 1e-4)
        .flops(2 * CHANNELS * depth * 9 * SIZE * SIZE)
}
