//! Chains of elementwise ops over a million elements.

use burn_tensor::activation;
use serde_json::json;

use super::Compute;
use crate::array::Array;
use crate::ort::OnnxGraph;

const ELEMENTS: usize = 1 << 20;

pub fn all() -> Vec<Compute> {
    vec![chain_of_1(), chain_of_3(), chain_of_12()]
}

fn pair() -> Vec<Array> {
    vec![Array::uniform(3, 1.0, &[ELEMENTS]), Array::uniform(4, 1.0, &[ELEMENTS])]
}

/// `a + b`.
fn chain_of_1() -> Compute {
    Compute::new("elementwise ×1 at 1 M", pair(), |ops, x| ops.add(x[0], x[1]))
        .burn(|x| (x[0].one() + x[1].one()).into())
        .candle(|x| &x[0] + &x[1])
        .plain(|x| both(&x[0], &x[1], |a, b| a + b))
        .onnx(OnnxGraph::of("Add", &["x0", "x1"]))
}

/// `sigmoid(a · b + b)`.
fn chain_of_3() -> Compute {
    let mut graph = OnnxGraph::default();
    graph.node("Mul", &["x0", "x1"], "t1", json!({}));
    graph.node("Add", &["t1", "x1"], "t2", json!({}));
    graph.node("Sigmoid", &["t2"], "y", json!({}));
    Compute::new("elementwise ×3 at 1 M", pair(), |ops, x| {
        let t = ops.mul(x[0], x[1])?;
        let t = ops.add(t, x[1])?;
        ops.sigmoid(t)
    })
    .burn(|x| activation::sigmoid(x[0].one() * x[1].one() + x[1].one()).into())
    .candle(|x| candle_sigmoid(&((&x[0] * &x[1])? + &x[1])?))
    .plain(|x| {
        let t = both(&x[0], &x[1], |a, b| a * b);
        let t = both(&t, &x[1], |a, b| a + b);
        each(&t, sigmoid)
    })
    .onnx(graph)
}

/// Twelve ops of several kinds, with values that stay small.
fn chain_of_12() -> Compute {
    Compute::new("elementwise ×12 at 1 M", pair(), |ops, x| {
        let (a, b) = (x[0], x[1]);
        let t = ops.mul(a, b)?;
        let t = ops.add(t, a)?;
        let t = ops.relu(t)?;
        let t = ops.mul(t, 0.5)?;
        let t = ops.add(t, b)?;
        let t = ops.tanh(t)?;
        let t = ops.mul(t, a)?;
        let t = ops.sub(t, b)?;
        let t = ops.sigmoid(t)?;
        let t = ops.add(t, 1.0)?;
        let t = ops.sqrt(t)?;
        ops.mul(t, b)
    })
    .burn(|x| {
        let (a, b) = (x[0].one(), x[1].one());
        let t = activation::relu(a.clone() * b.clone() + a.clone()) * 0.5 + b.clone();
        let t = activation::sigmoid(t.tanh() * a - b.clone()) + 1.0;
        (t.sqrt() * b).into()
    })
    .candle(|x| {
        let (a, b) = (&x[0], &x[1]);
        let t = (((a * b)? + a)?.relu()? * 0.5)?;
        let t = (((t + b)?.tanh()? * a)? - b)?;
        (candle_sigmoid(&t)? + 1.0)?.sqrt()? * b
    })
    .plain(|x| {
        let (a, b) = (&x[0], &x[1]);
        let t = both(a, b, |a, b| a * b);
        let t = both(&t, a, |t, a| t + a);
        let t = each(&t, |t| t.max(0.0));
        let t = each(&t, |t| t * 0.5);
        let t = both(&t, b, |t, b| t + b);
        let t = each(&t, f32::tanh);
        let t = both(&t, a, |t, a| t * a);
        let t = both(&t, b, |t, b| t - b);
        let t = each(&t, sigmoid);
        let t = each(&t, |t| t + 1.0);
        let t = each(&t, f32::sqrt);
        both(&t, b, |t, b| t * b)
    })
}

fn each(x: &[f32], op: impl Fn(f32) -> f32) -> Vec<f32> {
    x.iter().map(|&x| op(x)).collect()
}

fn both(a: &[f32], b: &[f32], op: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    a.iter().zip(b).map(|(&a, &b)| op(a, b)).collect()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// candle-core has no op for it.
fn candle_sigmoid(x: &candle_core::Tensor) -> candle_core::Result<candle_core::Tensor> {
    (x.neg()?.exp()? + 1.0)?.recip()
}
