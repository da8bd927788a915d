//! Softmax, layer norm and reductions of 1024 × 1024.

use burn_tensor::activation;
use candle_core::D;
use serde_json::json;

use bevy_tensor_compute::prelude::Axes;

use super::Compute;
use crate::array::Array;
use crate::burn::layer_norm;
use crate::ort::OnnxGraph;

const N: usize = 1024;

/// The epsilon of layer norms.
pub const EPSILON: f32 = 1e-5;

pub fn all() -> Vec<Compute> {
    vec![softmax(), layer_norm_rows(), sum("row sums 1024²", 1), sum("column sums 1024²", 0)]
}

fn square() -> Array {
    Array::uniform(5, 4.0, &[N, N])
}

fn softmax() -> Compute {
    Compute::new("softmax 1024²", vec![square()], |ops, x| ops.softmax(x[0], -1))
        .burn(|x| activation::softmax(x[0].two(), 1).into())
        .candle(|x| candle_softmax(&x[0]))
        .plain(|x| {
            let mut y = x[0].clone();
            for row in y.chunks_mut(N) {
                let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                row.iter_mut().for_each(|v| *v = (*v - largest).exp());
                let sum: f32 = row.iter().sum();
                row.iter_mut().for_each(|v| *v /= sum);
            }
            y
        })
        .onnx(OnnxGraph::of("Softmax", &["x0"]))
}

fn layer_norm_rows() -> Compute {
    let inputs = vec![square(), Array::weight(6, 1.0, &[N]), Array::weight(7, 1.0, &[N])];
    let mut graph = OnnxGraph::default();
    graph.node("LayerNormalization", &["x0", "x1", "x2"], "y", json!({ "epsilon": EPSILON }));
    Compute::new("layer_norm 1024²", inputs, |ops, x| ops.layer_norm(x[0], x[1], x[2], -1, EPSILON))
        .burn(|x| layer_norm(x[0].two(), x[1].one(), x[2].one(), f64::from(EPSILON)).into())
        .candle(|x| candle_layer_norm(&x[0], &x[1], &x[2]))
        .onnx(graph)
        .tolerance(2e-5, 2e-5)
}

fn sum(name: &str, axis: usize) -> Compute {
    let mut graph = OnnxGraph::default();
    graph.integers("axes", &[axis as i64]);
    graph.node("ReduceSum", &["x0", "axes"], "y", json!({ "keepdims": 1 }));
    Compute::new(name, vec![square()], move |ops, x| ops.sum(x[0], Axes::from(axis as isize).keep()))
        .burn(move |x| x[0].two().sum_dim(axis).into())
        .candle(move |x| x[0].sum_keepdim(axis))
        .onnx(graph)
        // A thousand numbers that nearly cancel, added in a different order.
        .tolerance(1e-3, 1e-4)
}

/// Over the last axis; candle-core has no op for it.
pub fn candle_softmax(x: &candle_core::Tensor) -> candle_core::Result<candle_core::Tensor> {
    let exp = x.broadcast_sub(&x.max_keepdim(D::Minus1)?)?.exp()?;
    exp.broadcast_div(&exp.sum_keepdim(D::Minus1)?)
}

/// Over the last axis; candle-core has no op for it.
pub fn candle_layer_norm(
    x: &candle_core::Tensor,
    weight: &candle_core::Tensor,
    bias: &candle_core::Tensor,
) -> candle_core::Result<candle_core::Tensor> {
    let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
    let normal = centred.broadcast_div(&(variance + f64::from(EPSILON))?.sqrt()?)?;
    normal.broadcast_mul(weight)?.broadcast_add(bias)
}
