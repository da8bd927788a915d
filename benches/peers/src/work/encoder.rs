//! A transformer encoder like MiniLM: attention, feed-forward with GELU, and a layer norm after each.

use bevy::prelude::Entity;
use bevy_tensor_compute::error::OpResult;
use bevy_tensor_compute::ops::{AttentionSettings, LAST, TensorCommands, TensorValue};
use burn_tensor::{Tensor, activation, module};
use serde_json::json;

use super::Compute;
use super::attention::{candle_attention, options};
use super::lines::{EPSILON, candle_layer_norm};
use crate::array::Array;
use crate::burn::{B, Held, layer_norm};
use crate::ort::OnnxGraph;

/// Sizes of an encoder and of its input.
#[derive(Clone, Copy)]
pub struct Encoder {
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    pub hidden: usize,
    pub tokens: usize,
    pub batch: usize,
}

/// Parameters of one layer, in order. Weights are `[in, out]`.
const PARAMETERS: [&str; 16] =
    ["wq", "bq", "wk", "bk", "wv", "bv", "wo", "bo", "norm1", "shift1", "w1", "b1", "w2", "b2", "norm2", "shift2"];

/// The shape of all-MiniLM-L6.
pub fn mini_lm(tokens: usize) -> Compute {
    let encoder = Encoder { layers: 6, width: 384, heads: 12, hidden: 1536, tokens, batch: 1 };
    encoder.work(format!("encoder 6×384, {tokens} tokens"))
}

impl Encoder {
    pub fn work(self, name: impl Into<String>) -> Compute {
        Compute::new(name, self.inputs(), move |ops, x| self.record(ops, x))
            .burn(move |x| self.burn(x).into())
            .candle(move |x| self.candle(x))
            .onnx(self.onnx())
            .tolerance(1e-3, 1e-3)
            .flops(self.flops())
    }

    /// Operations of one repetition: products and attention.
    fn flops(self) -> usize {
        let Self { layers, width, hidden, tokens, batch, .. } = self;
        layers * batch * tokens * (8 * width * width + 4 * width * hidden + 4 * tokens * width)
    }

    /// The tokens, then the parameters layer by layer.
    fn inputs(self) -> Vec<Array> {
        let Self { layers, width, hidden, tokens, batch, .. } = self;
        let mut inputs = vec![Array::uniform(100, 1.0, &[batch, tokens, width])];
        for layer in 0..layers {
            for (i, name) in PARAMETERS.iter().enumerate() {
                let seed = 101 + (layer * PARAMETERS.len() + i) as u64;
                let matrix =
                    |rows: usize, columns: usize| Array::weight(seed, (3.0 / rows as f32).sqrt(), &[rows, columns]);
                inputs.push(match *name {
                    "w1" => matrix(width, hidden),
                    "w2" => matrix(hidden, width),
                    "b1" => Array::weight(seed, 0.1, &[hidden]),
                    name if name.starts_with('w') => matrix(width, width),
                    _ => Array::weight(seed, 0.5, &[width]),
                });
            }
        }
        inputs
    }

    fn record<'a>(self, ops: &'a TensorCommands, inputs: &[Entity]) -> OpResult<TensorValue<'a>> {
        let Self { width, heads, tokens, batch, .. } = self;
        let sizes = [batch, tokens, heads, width / heads].map(|size| size as isize);
        let linear = |x: TensorValue<'a>, weight: Entity, bias: Entity| ops.add(ops.matmul(x, weight)?, bias);
        let mut x = ops.value(inputs[0])?;
        for layer in inputs[1..].chunks(PARAMETERS.len()) {
            let &[wq, bq, wk, bk, wv, bv, wo, bo, norm1, shift1, w1, b1, w2, b2, norm2, shift2] = layer else {
                unreachable!("layers are whole")
            };
            let project = |weight, bias| ops.permute(ops.reshape(linear(x, weight, bias)?, &sizes)?, &[0, 2, 1, 3]);
            let (q, k, v) = (project(wq, bq)?, project(wk, bk)?, project(wv, bv)?);
            let mixed = ops.attention(q, k, v, AttentionSettings::default())?;
            let mixed = ops.permute(mixed, &[0, 2, 1, 3])?;
            let mixed = ops.reshape(mixed, &[batch as isize, tokens as isize, width as isize])?;
            let middle = ops.layer_norm(linear(mixed, wo, bo)? + x, norm1, shift1, LAST, EPSILON)?;
            let out = linear(ops.gelu(linear(middle, w1, b1)?)?, w2, b2)?;
            x = ops.layer_norm(out + middle, norm2, shift2, LAST, EPSILON)?;
        }
        Ok(x)
    }

    fn burn(self, inputs: &[Held]) -> Tensor<B, 3> {
        let Self { width, heads, tokens, batch, .. } = self;
        let mut x = inputs[0].three();
        for layer in inputs[1..].chunks(PARAMETERS.len()) {
            let [wq, bq, wk, bk, wv, bv, wo, bo, norm1, shift1, w1, b1, w2, b2, norm2, shift2] = layer else {
                unreachable!("layers are whole")
            };
            let linear =
                |x: Tensor<B, 3>, weight: &Held, bias: &Held| module::linear(x, weight.two(), Some(bias.one()));
            let project = |weight: &Held, bias: &Held| {
                linear(x.clone(), weight, bias).reshape([batch, tokens, heads, width / heads]).swap_dims(1, 2)
            };
            let mixed = module::attention(project(wq, bq), project(wk, bk), project(wv, bv), None, None, options());
            let mixed = linear(mixed.swap_dims(1, 2).reshape([batch, tokens, width]), wo, bo);
            let middle = layer_norm(mixed + x.clone(), norm1.one(), shift1.one(), f64::from(EPSILON));
            let hidden = activation::gelu(linear(middle.clone(), w1, b1));
            let out = linear(hidden, w2, b2);
            x = layer_norm(out + middle, norm2.one(), shift2.one(), f64::from(EPSILON));
        }
        x
    }

    fn candle(self, inputs: &[candle_core::Tensor]) -> candle_core::Result<candle_core::Tensor> {
        let Self { width, heads, tokens, batch, .. } = self;
        let mut x = inputs[0].reshape((batch * tokens, width))?;
        for layer in inputs[1..].chunks(PARAMETERS.len()) {
            let [wq, bq, wk, bk, wv, bv, wo, bo, norm1, shift1, w1, b1, w2, b2, norm2, shift2] = layer else {
                unreachable!("layers are whole")
            };
            let linear = |x: &candle_core::Tensor, weight: &candle_core::Tensor, bias: &candle_core::Tensor| {
                x.matmul(weight)?.broadcast_add(bias)
            };
            let project = |weight: &candle_core::Tensor, bias: &candle_core::Tensor| {
                linear(&x, weight, bias)?.reshape((batch, tokens, heads, width / heads))?.transpose(1, 2)
            };
            let mixed = candle_attention(&project(wq, bq)?, &project(wk, bk)?, &project(wv, bv)?)?;
            let mixed = mixed.transpose(1, 2)?.reshape((batch * tokens, width))?;
            let middle = candle_layer_norm(&(linear(&mixed, wo, bo)? + &x)?, norm1, shift1)?;
            let out = linear(&linear(&middle, w1, b1)?.gelu_erf()?, w2, b2)?;
            x = candle_layer_norm(&(out + &middle)?, norm2, shift2)?;
        }
        Ok(x)
    }

    fn onnx(self) -> OnnxGraph {
        let Self { layers, width, heads, tokens, batch, .. } = self;
        let mut graph = OnnxGraph::default();
        let [batch, tokens, width, heads] = [batch, tokens, width, heads].map(|size| size as i64);
        graph.integers("apart", &[batch, tokens, heads, width / heads]);
        graph.integers("together", &[batch, tokens, width]);
        graph.node("Constant", &[], "scale", json!({ "value_float": 1.0 / ((width / heads) as f32).sqrt() }));
        let mut x = "x0".to_owned();
        for layer in 0..layers {
            // A name in this layer, and the input that holds a parameter.
            let own = |name: &str| format!("{name}_{layer}");
            let held = |name: &str| {
                let at = PARAMETERS.iter().position(|parameter| *parameter == name).expect("it is one of them");
                format!("x{}", 1 + layer * PARAMETERS.len() + at)
            };
            let linear = |graph: &mut OnnxGraph, x: &str, weight: &str, bias: &str| {
                let product = graph.node("MatMul", &[x, &held(weight)], &own(&format!("{weight}_x")), json!({}));
                graph.node("Add", &[&product, &held(bias)], &own(&format!("{weight}_x_b")), json!({}))
            };
            let norm = |graph: &mut OnnxGraph, x: &str, weight: &str, bias: &str, out: &str| {
                let attributes = json!({ "epsilon": EPSILON });
                graph.node("LayerNormalization", &[x, &held(weight), &held(bias)], out, attributes)
            };
            let project = |graph: &mut OnnxGraph, weight: &str, bias: &str, order: [usize; 4]| {
                let value = linear(graph, &x, weight, bias);
                let value = graph.node("Reshape", &[&value, "apart"], &own(&format!("{weight}_4")), json!({}));
                graph.node("Transpose", &[&value], &own(&format!("{weight}_t")), json!({ "perm": order }))
            };
            let q = project(&mut graph, "wq", "bq", [0, 2, 1, 3]);
            let k = project(&mut graph, "wk", "bk", [0, 2, 3, 1]);
            let v = project(&mut graph, "wv", "bv", [0, 2, 1, 3]);
            let scores = graph.node("MatMul", &[&q, &k], &own("raw"), json!({}));
            let scores = graph.node("Mul", &[&scores, "scale"], &own("scores"), json!({}));
            let weights = graph.node("Softmax", &[&scores], &own("weights"), json!({}));
            let mixed = graph.node("MatMul", &[&weights, &v], &own("mixed"), json!({}));
            let mixed = graph.node("Transpose", &[&mixed], &own("mixed_t"), json!({ "perm": [0, 2, 1, 3] }));
            let mixed = graph.node("Reshape", &[&mixed, "together"], &own("mixed_3"), json!({}));
            let mixed = linear(&mut graph, &mixed, "wo", "bo");
            let sum = graph.node("Add", &[&mixed, &x], &own("sum1"), json!({}));
            let middle = norm(&mut graph, &sum, "norm1", "shift1", &own("middle"));
            let hidden = linear(&mut graph, &middle, "w1", "b1");
            let hidden = graph.node("Gelu", &[&hidden], &own("gelu"), json!({}));
            let out = linear(&mut graph, &hidden, "w2", "b2");
            let sum = graph.node("Add", &[&out, &middle], &own("sum2"), json!({}));
            let out = if layer + 1 == layers { "y".to_owned() } else { own("out") };
            x = norm(&mut graph, &sum, "norm2", "shift2", &out);
        }
        graph
    }
}
