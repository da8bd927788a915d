//! The same elements under other shapes, and shapes as values.

use super::super::call::{Call, Outputs, signed};
use super::super::host::HostTensor;
use super::super::host_ops::movement;
use super::super::value::Value;
use super::Operator;
use crate::ir::Shape;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("Shape").host(movement::shape).record(shape),
    Operator::new("Reshape").host(movement::reshape).record(reshape),
];

/// The shape of a value is known on the host, wherever the value is.
fn shape<'a>(call: &Call<'a>) -> Outputs<'a> {
    let shape = movement::shape_range(call, &call.shape_of(0)?);
    Ok(vec![Some(Value::constant(HostTensor::from_i64(&shape, [shape.len()])?))])
}

fn reshape<'a>(call: &Call<'a>) -> Outputs<'a> {
    let from: Shape = call.shape_of(0)?;
    let asked = call.ints_of("shape", 1)?.unwrap_or_default();
    let to = movement::resolve_shape(&from, &asked, call.flag("allowzero", false))?;
    call.like(0, call.ops.reshape(call.x(0)?, &signed(&to))?)
}
