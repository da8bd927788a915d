//! Made values, and values that depend on positions.

use super::super::call::{Call, Outputs, Stop, device_type, failed, one, sizes};
use super::super::host::{HostTensor, Numbers};
use super::super::value::Value;
use super::Operator;
use crate::formats::onnx::ElementType;
use crate::ir::Shape;
use crate::record::TensorValue;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("ConstantOfShape").record(constant_of_shape),
    Operator::new("Range").record(range),
    Operator::new("EyeLike").record(eye_like),
    Operator::new("Trilu").record(triangle),
];

impl<'a> Call<'a> {
    /// The numbers 0, 1, … as i32, on the model's backend.
    pub(super) fn steps(&self, count: usize) -> Result<TensorValue<'a>, Stop> {
        Ok(self.ops.steps_value(self.backend(), count)?)
    }
}

fn constant_of_shape<'a>(call: &Call<'a>) -> Outputs<'a> {
    let shape = Shape::from(sizes(&call.host_ints(0)?.unwrap_or_default())?);
    let (value, element) = match call.tensor("value") {
        Some(tensor) => (tensor.to_f64()?.first().copied().unwrap_or(0.0), tensor.element()),
        None => (0.0, ElementType::Float32),
    };
    one(call.full(shape, value, device_type(element)?)?, element)
}

/// The numbers decide the result's size, so the host must know them.
fn range<'a>(call: &Call<'a>) -> Outputs<'a> {
    call.need_host(&[0, 1, 2])?;
    let element = call.type_of(0)?;
    let parts = [0, 1, 2].map(|i| call.host(i));
    let [Some(start), Some(limit), Some(step)] = [parts[0].clone()?, parts[1].clone()?, parts[2].clone()?] else {
        return failed("a range needs a start, a limit and a step");
    };
    let first = |tensor: &HostTensor| -> Result<Numbers, Stop> { Ok(tensor.numbers()?) };
    const MOST: usize = super::super::host_ops::MAX_ELEMENTS;
    let numbers = match (first(start)?, first(limit)?, first(step)?) {
        (Numbers::Int(a), Numbers::Int(b), Numbers::Int(s)) => {
            let (Some(&a), Some(&b), Some(&s)) = (a.first(), b.first(), s.first()) else {
                return failed("a range of nothing");
            };
            if s == 0 {
                return failed("the step of a range is 0");
            }
            let count = ((b - a) + (s - s.signum())).div_euclid(s).max(0);
            if count > MOST as i128 {
                return failed(format!("a range of {count} numbers is too long"));
            }
            Numbers::Int((0..count).map(|i| a + i * s).collect())
        }
        (a, b, s) => {
            let (a, b, s) = (a.to_f64(), b.to_f64(), s.to_f64());
            let (Some(&a), Some(&b), Some(&s)) = (a.first(), b.first(), s.first()) else {
                return failed("a range of nothing");
            };
            let count = ((b - a) / s).ceil().max(0.0);
            if count.is_nan() || count > MOST as f64 {
                return failed(format!("a range of {count} numbers is too long"));
            }
            Numbers::Float((0..count as usize).map(|i| a + i as f64 * s).collect())
        }
    };
    let range = HostTensor::from_numbers(element, [numbers.len()], &numbers)?;
    Ok(vec![Some(Value::constant(range))])
}

/// The type of the attribute `dtype`, or that of the input.
pub(super) fn element_or_input(call: &Call) -> Result<ElementType, Stop> {
    match call.maybe_int("dtype") {
        Some(code) => match ElementType::from_code(code) {
            Some(element) => Ok(element),
            None => failed(format!("{code} is not an element type")),
        },
        None => call.type_of(0),
    }
}

fn eye_like<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (shape, element) = (call.shape_of(0)?, element_or_input(call)?);
    let &[rows, columns] = &shape[..] else { return failed(format!("{shape} is not a matrix")) };
    let (row, column) = (call.steps(rows)?, call.steps(columns)?);
    let diagonal = call.ops.add(call.ops.reshape(row, &[-1, 1])?, call.int("k", 0) as i32)?;
    one(call.ops.cast(call.ops.equal(column, diagonal)?, device_type(element)?)?, element)
}

pub(super) fn triangle<'a>(call: &Call<'a>) -> Outputs<'a> {
    let k = call.host_ints(1)?.and_then(|k| k.first().copied()).unwrap_or(0);
    let k = k.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    let x = call.x(0)?;
    call.like(0, if call.flag("upper", true) { call.ops.triu(x, k)? } else { call.ops.tril(x, k)? })
}

/// Sizes of an attribute.
pub(super) fn attribute_sizes(call: &Call, name: &str) -> Result<Shape, Stop> {
    Ok(Shape::from(sizes(call.ints(name).unwrap_or_default())?))
}
