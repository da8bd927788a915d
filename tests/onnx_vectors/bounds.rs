//! How close a result must be: what the case itself asks for, or else a bound by the kind of its operator.

use core::fmt;

use bevy_tensor_compute::prelude::*;
use serde_json::Value;

use super::case::{Case, Host};

/// A result is accepted if one of the measures accepts it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bound {
    /// Units in the last place of the output's type; the difference itself for integers.
    pub ulps: f64,
    /// `|actual − expected|`.
    pub absolute: f64,
    /// `|actual − expected| / |expected|`.
    pub relative: f64,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ulp", self.ulps)?;
        if self.absolute != 0.0 {
            write!(f, " or {:e}", self.absolute)?;
        }
        if self.relative != 0.0 {
            write!(f, " or {:e} of the expected value", self.relative)?;
        }
        Ok(())
    }
}

impl Bound {
    const EXACT: Self = Self { ulps: 0.0, absolute: 0.0, relative: 0.0 };

    /// A case's own `{metricType, value}`, with the metrics of the WebNN conformance tests.
    pub fn read(tolerance: &Value) -> Result<Self, String> {
        let value = tolerance["value"].as_f64().filter(|value| *value >= 0.0);
        let value = value.ok_or_else(|| format!("{tolerance} has no value"))?;
        match tolerance["metricType"].as_str() {
            Some("ULP") => Ok(Self { ulps: value, ..Self::EXACT }),
            Some("ATOL") => Ok(Self { absolute: value, ..Self::EXACT }),
            Some("RTOL") => Ok(Self { relative: value, ..Self::EXACT }),
            _ => Err(format!("{tolerance} has no known metric")),
        }
    }

    fn ulps(ulps: f64) -> Self {
        Self { ulps, ..Self::EXACT }
    }

    /// A sum of `terms` numbers of at most `largest`, in the type of `output`. Errors of the partial sums grow with the
    /// root of their number. Where terms
    /// cancel, the result has few digits left, so that the error is measured in units of the terms.
    fn sum(terms: f64, largest: f64, output: &Host) -> Self {
        Self { ulps: 2.0 + terms.sqrt(), absolute: 0.5 * terms * largest * unit(output), relative: 0.0 }
    }

    /// So many units of results that are at most `largest`: for functions that subtract numbers of this size.
    fn units(ulps: f64, largest: f64, output: &Host) -> Self {
        Self { ulps, absolute: ulps * largest * unit(output), relative: 0.0 }
    }
}

/// The distance from 1 to the next number of the output's type.
fn unit(output: &Host) -> f64 {
    match output.dtype() {
        Ok(DType::F16) => half::f16::EPSILON.to_f64(),
        Ok(DType::BF16) => half::bf16::EPSILON.to_f64(),
        _ => f64::from(f32::EPSILON),
    }
}

/// The bound for output `i`. An operator without a bound is an error: nothing passes unjudged.
pub fn bound(case: &Case, i: usize) -> Result<Bound, String> {
    if let Some(own) = case.tolerance {
        return Ok(own);
    }
    let output = case.outputs.get(i).and_then(Option::as_ref).ok_or_else(|| format!("output {i} is missing"))?;
    if output.dtype().is_ok_and(|dtype| !dtype.is_float()) {
        return Ok(Bound::EXACT);
    }
    by_kind(case, output).ok_or_else(|| format!("{} has no bound", case.op))
}

fn by_kind(case: &Case, output: &Host) -> Option<Bound> {
    let op = case.op.as_str();
    if moves(op) {
        return Some(Bound::EXACT);
    }
    elementwise(case, output).or_else(|| sums(case, output)).or_else(|| composed(case, output))
}

/// Operators that copy, choose or compare, and those whose result is a number of the type.
fn moves(op: &str) -> bool {
    matches!(
        op,
        "Abs" | "Neg" | "Floor" | "Ceil" | "Round" | "Sign" | "Relu" | "ThresholdedRelu" | "Clip" | "Identity" | "Dropout"
            | "Cast" | "CastLike" | "Where" | "Max" | "Min" | "ReduceMax" | "ReduceMin" | "TopK" | "Hardmax"
            | "Reshape" | "Flatten" | "Transpose" | "Squeeze" | "Unsqueeze" | "Expand" | "Slice" | "Split" | "Concat" | "Tile"
            | "DepthToSpace" | "SpaceToDepth" | "Pad" | "Gather" | "GatherElements" | "GatherND" | "OneHot"
            | "MaxPool" | "GlobalMaxPool" | "MaxUnpool" | "ConstantOfShape" | "EyeLike" | "Trilu"
            // The standard rounds these.
            | "Add" | "Sub" | "Mul"
            | "flip" | "stack" | "embedding"
    )
}

/// One rounding or one function per element.
fn elementwise(case: &Case, output: &Host) -> Option<Bound> {
    let op = case.op.as_str();
    Some(match op {
        "Div" | "Reciprocal" | "Sqrt" | "Mod" | "PRelu" | "LeakyRelu" | "HardSigmoid" | "HardSwish" | "Shrink"
        | "Softsign" | "DequantizeLinear" | "Range" => Bound::ulps(2.0),
        "Scatter" | "ScatterElements" | "ScatterND" => {
            Bound::ulps(if case.text("reduction", "none") == "none" { 0.0 } else { 2.0 })
        }
        // The error of `exp` grows with its argument; WGSL allows 3 + 2 · |x|.
        "Exp" | "Sigmoid" => Bound::ulps(4.0 + 0.5 * case.inputs[0].as_ref().map_or(0.0, Host::largest)),
        "Tanh" | "Softplus" | "Pow" | "Tan" => Bound::ulps(4.0),
        // Near their zeros these have the precision of numbers about 1.
        "Sin" | "Cos" | "Log" | "Erf" | "HannWindow" | "HammingWindow" | "BlackmanWindow" => {
            Bound::units(2.0, 1.0, output)
        }
        // A difference of numbers of this size.
        "Elu" | "Celu" => Bound::units(4.0, 0.5 * f64::from(case.float("alpha", 1.0)).max(1.0), output),
        "Selu" => Bound::units(4.0, 1.0, output),
        "Gelu" | "Mish" | "Swish" => Bound::units(4.0, 0.5, output),
        _ => return None,
    })
}

/// Reductions and products, by their length.
fn sums(case: &Case, output: &Host) -> Option<Bound> {
    let largest = |i: usize| case.inputs.get(i).and_then(Option::as_ref).map_or(0.0, Host::largest);
    let elements = |i: usize| case.inputs.get(i).and_then(Option::as_ref).map_or(0, Host::elements) as f64;
    let shape =
        |i: usize| case.inputs.get(i).and_then(Option::as_ref).map(|host| host.shape.clone()).unwrap_or_default();
    let reduced = (elements(0) / output.elements().max(1) as f64).max(1.0);
    let window: f64 = case.ints("kernel_shape").unwrap_or_default().iter().map(|&n| n as f64).product();
    Some(match case.op.as_str() {
        "ReduceSum" => Bound::sum(reduced, largest(0), output),
        "ReduceMean" | "GlobalAveragePool" => Bound::sum(reduced, largest(0) / reduced, output),
        // All terms have one sign: nothing cancels.
        "ReduceL1" | "ReduceL2" | "ReduceSumSquare" | "GlobalLpPool" | "ReduceProd" => {
            Bound::ulps(2.0 + reduced.sqrt())
        }
        "ReduceLogSum" | "ReduceLogSumExp" => Bound::units(2.0 + reduced.sqrt(), 1.0, output),
        "DFT" | "CumSum" => Bound::sum(shape(0).iter().copied().max().unwrap_or(1) as f64, largest(0), output),
        "Sum" | "Mean" => {
            let all = (0..case.inputs.len()).map(largest).fold(0.0, f64::max);
            Bound::sum(case.inputs.len() as f64, all, output)
        }
        "AveragePool" => Bound::sum(window, largest(0) / window, output),
        "LpPool" => Bound::ulps(4.0 + window.sqrt()),
        "MatMul" => Bound::sum(shape(0).last().copied().unwrap_or(1) as f64, largest(0) * largest(1), output),
        "Gemm" => {
            let inner = if case.flag("transA", false) { shape(0).first().copied() } else { shape(0).last().copied() };
            let product = largest(0) * largest(1) * f64::from(case.float("alpha", 1.0).abs());
            let bias = largest(2) * f64::from(case.float("beta", 1.0).abs());
            Bound::sum(inner.unwrap_or(1) as f64 + 1.0, product.max(bias), output)
        }
        "Conv" => {
            let terms: usize = shape(1).iter().skip(1).product();
            Bound::sum(terms as f64 + 1.0, (largest(0) * largest(1)).max(largest(2)), output)
        }
        "ConvTranspose" => {
            let weight = shape(1);
            let terms: usize = weight.first().copied().unwrap_or(1) * weight.iter().skip(2).product::<usize>();
            Bound::sum(terms as f64 + 1.0, (largest(0) * largest(1)).max(largest(2)), output)
        }
        "Einsum" => {
            let product: f64 = (0..case.inputs.len()).map(largest).product();
            let terms = (0..case.inputs.len()).map(elements).fold(0.0, f64::max);
            Bound::sum(terms, product, output)
        }
        _ => return None,
    })
}

/// Operators of several such steps.
fn composed(case: &Case, output: &Host) -> Option<Bound> {
    let input = |i: usize| case.inputs.get(i).and_then(Option::as_ref);
    let longest = input(0).map_or(1, |host| host.shape.iter().copied().max().unwrap_or(1)) as f64;
    let shape = |i: usize| input(i).map(|host| host.shape.clone()).unwrap_or_default();
    let largest = output.largest();
    Some(match case.op.as_str() {
        "Softmax" => Bound::ulps(4.0 + longest.sqrt()),
        "LogSoftmax" => Bound::units(2.0 + longest.sqrt(), largest.max(1.0), output),
        "LayerNormalization"
        | "RMSNormalization"
        | "BatchNormalization"
        | "InstanceNormalization"
        | "GroupNormalization"
        | "MeanVarianceNormalization" => Bound::units(4.0, largest, output),
        "LpNormalization" | "LRN" => Bound::ulps(4.0 + longest.sqrt()),
        // Weights of the neighbours are fractions of positions.
        "Resize" | "Upsample" => Bound::units(2.0 + longest.sqrt(), largest, output),
        "RotaryEmbedding" => Bound::units(2.0, input(0).map_or(0.0, Host::largest), output),
        "Attention" => {
            let keys = shape(1).iter().rev().nth(1).copied().unwrap_or(1) as f64;
            let width = shape(0).last().copied().unwrap_or(1) as f64;
            Bound::units(2.0 + (keys + width).sqrt(), largest, output)
        }
        "LSTM" => Bound::units(2.0 + shape(1).last().copied().unwrap_or(1) as f64, 1.0, output),
        "DynamicQuantizeLinear" => Bound::ulps(2.0),
        _ => return None,
    })
}
