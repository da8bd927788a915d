//! Attention with 12 heads of size 64.

use bevy_tensor_compute::ops::AttentionSettings;
use burn_tensor::module;
use burn_tensor::ops::AttentionModuleOptions;
use serde_json::json;

use super::Compute;
use super::lines::candle_softmax;
use crate::array::Array;
use crate::ort::OnnxGraph;

const HEADS: usize = 12;
const SIZE: usize = 64;

pub fn all() -> Vec<Compute> {
    vec![attention(128), attention(1024)]
}

fn attention(length: usize) -> Compute {
    let inputs = (10..13).map(|seed| Array::uniform(seed, 1.0, &[1, HEADS, length, SIZE])).collect();
    Compute::new(format!("attention {HEADS}×{length}×{SIZE}"), inputs, |ops, x| {
        ops.attention(x[0], x[1], x[2], AttentionSettings::default())
    })
    .burn(|x| module::attention(x[0].four(), x[1].four(), x[2].four(), None, None, options()).into())
    .candle(|x| candle_attention(&x[0], &x[1], &x[2]))
    .onnx(graph())
    .tolerance(1e-5, 1e-4)
    .flops(4 * HEADS * length * length * SIZE)
}

/// burn's defaults: no mask, scaled by 1 / √(head size).
pub fn options() -> AttentionModuleOptions {
    AttentionModuleOptions::default()
}

/// Composed of basic ops, as in candle's models.
pub fn candle_attention(
    q: &candle_core::Tensor,
    k: &candle_core::Tensor,
    v: &candle_core::Tensor,
) -> candle_core::Result<candle_core::Tensor> {
    let scale = 1.0 / (q.dim(3)? as f64).sqrt();
    let scores = (q.contiguous()?.matmul(&k.transpose(2, 3)?.contiguous()?)? * scale)?;
    candle_softmax(&scores)?.matmul(&v.contiguous()?)
}

/// Composed of basic ONNX ops, because opset 20 has no attention op.
fn graph() -> OnnxGraph {
    let mut graph = OnnxGraph::default();
    graph.node("Transpose", &["x1"], "k", json!({ "perm": [0, 1, 3, 2] }));
    graph.node("MatMul", &["x0", "k"], "raw", json!({}));
    graph.node("Constant", &[], "scale", json!({ "value_float": 1.0 / (SIZE as f32).sqrt() }));
    graph.node("Mul", &["raw", "scale"], "scores", json!({}));
    graph.node("Softmax", &["scores"], "weights", json!({}));
    graph.node("MatMul", &["weights", "x2"], "y", json!({}));
    graph
}
