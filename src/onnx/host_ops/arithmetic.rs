//! Elementwise arithmetic and comparisons. Integers wrap as their type does. Floats are computed in 64 bits and rounded
//! to their type, which gives the correctly rounded result for `+ - · /` and the square root.

use super::{HostCall, HostOutputs, broadcast, broadcast_positions};
use crate::formats::onnx::ElementType;
use crate::onnx::call::{Stop, failed};
use crate::onnx::host::{HostTensor, Numbers};

/// A function of two numbers of one type.
pub(super) fn binary(
    call: &HostCall,
    int: impl Fn(i128, i128) -> Option<i128>,
    float: impl Fn(f64, f64) -> f64,
) -> HostOutputs {
    let (a, b) = (call.x(0)?, call.x(1)?);
    Ok(vec![combine(a, b, a.element(), int, |a, b| Numbers::Float(vec![float(a, b)]))?])
}

/// A test of two numbers of one type.
pub(super) fn compare(
    call: &HostCall,
    int: impl Fn(i128, i128) -> bool,
    float: impl Fn(f64, f64) -> bool,
) -> HostOutputs {
    let (a, b) = (call.x(0)?, call.x(1)?);
    let int = |a, b| Some(i128::from(int(a, b)));
    let float = |a, b| Numbers::Int(vec![float(a, b).into()]);
    Ok(vec![combine(a, b, ElementType::Bool, int, float)?])
}

fn combine(
    a: &HostTensor,
    b: &HostTensor,
    element: ElementType,
    int: impl Fn(i128, i128) -> Option<i128>,
    float: impl Fn(f64, f64) -> Numbers,
) -> Result<HostTensor, Stop> {
    let shape = broadcast(a.shape(), b.shape())?;
    let at = broadcast_positions(a.shape(), &shape).into_iter().zip(broadcast_positions(b.shape(), &shape));
    let numbers = match (a.numbers()?, b.numbers()?) {
        (Numbers::Int(x), Numbers::Int(y)) => {
            let values: Option<Vec<i128>> = at.map(|(i, j)| int(x[i], y[j])).collect();
            Numbers::Int(values.ok_or_else(|| Stop::Failed("an integer is divided by zero".to_owned()))?)
        }
        (Numbers::Float(x), Numbers::Float(y)) => {
            let (mut ints, mut floats) = (Vec::new(), Vec::new());
            for (i, j) in at {
                match float(x[i], y[j]) {
                    Numbers::Int(v) => ints.extend(v),
                    Numbers::Float(v) => floats.extend(v),
                }
            }
            if element == ElementType::Bool { Numbers::Int(ints) } else { Numbers::Float(floats) }
        }
        _ => return failed(format!("{} and {} are not of one type", a.element(), b.element())),
    };
    Ok(HostTensor::from_numbers(element, shape, &numbers)?)
}

pub(crate) fn add(call: &HostCall) -> HostOutputs {
    binary(call, |a, b| Some(a + b), |a, b| a + b)
}

pub(crate) fn less(call: &HostCall) -> HostOutputs {
    compare(call, |a, b| a < b, |a, b| a < b)
}
