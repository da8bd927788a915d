//! Random values. A node without a seed draws the same values in every run: its name is the seed.

use super::super::call::{Call, Outputs, Stop, device_type, failed, one};
use super::Operator;
use super::generate::{attribute_sizes, element_or_input};
use crate::formats::onnx::ElementType;
use crate::ir::{DType, Shape};
use crate::record::TensorValue;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("RandomNormal").record(|call| normal(call, attribute_sizes(call, "shape")?, made_type(call)?)),
    Operator::new("RandomNormalLike").record(|call| normal(call, call.shape_of(0)?, element_or_input(call)?)),
    Operator::new("RandomUniform").record(|call| uniform(call, attribute_sizes(call, "shape")?, made_type(call)?)),
    Operator::new("RandomUniformLike").record(|call| uniform(call, call.shape_of(0)?, element_or_input(call)?)),
    Operator::new("Bernoulli").record(bernoulli),
    Operator::new("Multinomial").record(multinomial),
];

/// The type of a value that has no input.
fn made_type(call: &Call) -> Result<ElementType, Stop> {
    match ElementType::from_code(call.int("dtype", 1)) {
        Some(element) => Ok(element),
        None => failed("dtype is not an element type"),
    }
}

/// The bits of the attribute, or a number made from the node's name.
fn seed(call: &Call) -> u32 {
    match call.maybe_float("seed") {
        Some(seed) => seed.to_bits(),
        // FNV-1a: the same in every build.
        None => call.name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)),
    }
}

fn normal<'a>(call: &Call<'a>, shape: Shape, element: ElementType) -> Outputs<'a> {
    let noise = call.ops.random_value(call.backend(), true, shape, seed(call))?;
    let value = call.ops.value(noise * call.float("scale", 1.0) + call.float("mean", 0.0))?;
    one(call.ops.cast(value, device_type(element)?)?, element)
}

fn uniform<'a>(call: &Call<'a>, shape: Shape, element: ElementType) -> Outputs<'a> {
    let (low, high) = (call.float("low", 0.0), call.float("high", 1.0));
    let noise = call.ops.random_value(call.backend(), false, shape, seed(call))?;
    let value = call.ops.value(noise * (high - low) + low)?;
    one(call.ops.cast(value, device_type(element)?)?, element)
}

/// True with the probability that each element names.
fn bernoulli<'a>(call: &Call<'a>) -> Outputs<'a> {
    let element = element_or_input(call)?;
    let noise = call.ops.random_value(call.backend(), false, call.shape_of(0)?, seed(call))?;
    let drawn = call.ops.less(noise, call.x_as(0, DType::F32)?)?;
    one(call.ops.cast(drawn, device_type(element)?)?, element)
}

/// Classes drawn from unnormalised log probabilities `[batch, classes]`: the largest after Gumbel noise.
fn multinomial<'a>(call: &Call<'a>) -> Outputs<'a> {
    let shape = call.shape_of(0)?;
    let &[batch, classes] = &shape[..] else { return failed(format!("{shape} is not [batch, classes]")) };
    let samples = usize::try_from(call.int("sample_size", 1)).unwrap_or(0);
    let element = match ElementType::from_code(call.int("dtype", 6)) {
        Some(element) => element,
        None => return failed("dtype is not an element type"),
    };
    let ops = call.ops;
    let noise: TensorValue =
        ops.random_value(call.backend(), false, Shape::from([batch, samples, classes]), seed(call))?;
    // Uniform noise can be exactly 0, whose logarithm is infinite.
    let noise = ops.neg(ops.log(ops.neg(ops.log(ops.max(noise, 1e-7)?)?)?)?)?;
    let scores = ops.add(noise, ops.unsqueeze(call.x_as(0, DType::F32)?, &[1])?)?;
    one(ops.cast(ops.argmax(scores, -1)?, device_type(element)?)?, element)
}
