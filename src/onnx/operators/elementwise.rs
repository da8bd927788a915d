//! Elementwise operators.

use super::super::call::{Call, Outputs, one};
use super::super::host_ops::arithmetic;
use super::Operator;
use crate::formats::onnx::ElementType;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("Relu").record(|call| call.like(0, call.ops.relu(call.x(0)?)?)),
    Operator::new("Add").host(arithmetic::add).record(|call| call.like(0, call.ops.add(call.x(0)?, call.x(1)?)?)),
    Operator::new("Less")
        .host(arithmetic::less)
        .record(|call| one(call.ops.less(call.x(0)?, call.x(1)?)?, ElementType::Bool)),
    Operator::new("LeakyRelu").record(leaky_relu),
];

fn leaky_relu<'a>(call: &Call<'a>) -> Outputs<'a> {
    call.like(0, call.ops.leaky_relu(call.x(0)?, call.float("alpha", 0.01))?)
}
